"""Numbers that are computed from lengths and from the floats of a call, as Python computes them.

A trace has them as sympy expressions. Sympy would give an integer for a float that is whole, has no
-0.0, and needs some hundred microseconds. May import the standard library, and sympy where it is
used.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from types import MappingProxyType
from typing import Any, TypeAlias

Function: TypeAlias = "Callable[..., Any]"
Line: TypeAlias = "tuple[Function | None, Any, tuple[int, ...]]"


def _over(operation: Function) -> Function:
    """An operation of two values over any number of them."""
    return lambda *values: reduce(operation, values)


def _of_float(function: Function) -> Function:
    return lambda value: float(function(value))


_OF_MATH = "acos asin asinh atan cos cosh exp log log2 sin sinh sqrt tan tanh"

# As PyTorch and sympy name what is done to numbers.
_FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "Add": _over(operator.add), "Mul": _over(operator.mul), "Mod": operator.mod,
        "PythonMod": operator.mod, "Pow": operator.pow, "PowByNatural": operator.pow,
        "FloatPow": operator.pow, "FloorDiv": operator.floordiv, "CleanDiv": operator.floordiv,
        "IntTrueDiv": operator.truediv, "FloatTrueDiv": operator.truediv, "Max": max, "Min": min,
        "Abs": abs, "ToFloat": float, "FloorToInt": math.floor, "CeilToInt": math.ceil,
        "TruncToInt": math.trunc, "TruncToFloat": _of_float(math.trunc), "RoundToInt": round,
        "RoundDecimal": round, "floor": math.floor, "ceiling": math.ceil,
        "Identity": lambda value: value, "Equality": operator.eq, "Unequality": operator.ne,
        "StrictGreaterThan": operator.gt, "StrictLessThan": operator.lt,
        "GreaterThan": operator.ge, "LessThan": operator.le, "Not": operator.not_,
        "And": lambda *values: all(values), "Or": lambda *values: any(values),
        **{f"OpaqueUnaryFn_{name}": getattr(math, name) for name in _OF_MATH.split()},
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Moving:
    """A number of a type ``kind`` that depends on floats of a call: ``floats`` says which of the
    values of a call its symbols are, and ``lengths`` has the values of the others.
    """

    kind: type
    expression: Any
    floats: Mapping[Any, int]
    lengths: Mapping[Any, Any]

    def of(self, values: Sequence[Any]) -> Any:
        """The number in a call with these values."""
        known = dict(self.lengths)
        for symbol, place in self.floats.items():
            known[symbol] = values[place]
        return self.kind(_value(_lines(self.expression), known))


def evaluated(expression: Any, values: Mapping[Any, Any]) -> Any:
    """The value of an expression of sympy's, whose symbols have these ``values``.

    In a model the lengths of an input can be expressions themselves.
    """
    inner = {own: value for own, value in values.items() if not own.is_Symbol}
    if inner and not expression.is_Symbol:
        expression = expression.xreplace(_of_sympy(inner))
    return _value(_lines(expression), values)


def _value(lines: Sequence[Line], values: Mapping[Any, Any]) -> Any:
    """What the last of these lines gives."""
    found: list[Any] = []
    for function, own, parts in lines:
        if function is not None:
            found.append(function(*[found[k] for k in parts]))
        elif isinstance(own, int | float):
            found.append(own)
        elif own in values:
            found.append(values[own])
        else:
            found.append(_constant(own, values))
    return found[-1]


def _constant(expression: Any, values: Mapping[Any, Any]) -> Any:
    """The number that an expression is without symbols, or whose parts Python has no name for."""
    if not (expression.is_Number or expression.is_Boolean):
        expression = expression.xreplace(_of_sympy(values))
    if expression.is_Boolean:
        return bool(expression)
    return int(expression) if expression.is_integer else float(expression)


def _of_sympy(values: Mapping[Any, Any]) -> dict[Any, Any]:
    import sympy

    return {own: sympy.sympify(value) for own, value in values.items()}


@lru_cache(maxsize=4096)
def _lines(expression: Any) -> Sequence[Line]:
    """What to compute, one line after another: a function of earlier lines, or a symbol, a number
    or an expression that no function stands for.
    """
    places: dict[Any, int] = {}
    lines: list[Line] = []
    stack = [expression]
    while stack:
        own = stack[-1]
        function = _FUNCTIONS.get(type(own).__name__) if own.args else None
        waiting = [a for a in own.args if a not in places] if function is not None else []
        if waiting:
            stack += waiting
            continue
        stack.pop()
        if own not in places:
            places[own] = len(lines)
            parts = tuple(places[a] for a in own.args) if function is not None else ()
            known = own.is_Number or (own.is_Boolean and not own.args)
            lines.append((function, _constant(own, {}) if known else own, parts))
    return tuple(lines)
