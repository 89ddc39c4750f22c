"""Graphs as sympy expressions, and sympy expressions as formulas of the language.

Everything is over the real numbers: rounding is not represented, a promotion is invisible, and a
reduction is an applied function (``sum(x, -1)``) that sympy knows nothing about. Sympy is imported
at the first use. May import ``fusec.errors``, ``fusec.ir`` and ``passes/latex.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, TypeAlias

from fusec.errors import UnsupportedError
from fusec.ir.derived import DERIVED
from fusec.ir.graph import Graph
from fusec.ir.node import Node
from fusec.ir.ops import OPS, Kind
from fusec.ir.text import number_text
from fusec.passes.latex import latex

__all__ = ["formula_from_sympy", "formula_of", "is_sympy", "latex", "to_sympy"]

Expression: TypeAlias = Any  # sympy has no types
_PLAIN_DENOMINATOR = 64  # dyadic fractions up to here are kept as fractions

# Ops that sympy has no function of the same meaning for, or has one under a name that needs an
# argument more.
_SPELLED: Mapping[str, Callable[..., Expression]] = MappingProxyType(
    {
        "sub": lambda s, a, b: a - b,
        "div": lambda s, a, b: a / b,
        "neg": lambda s, a: -a,
        "floor_divide": lambda s, a, b: s.floor(a / b),
        "lt": lambda s, a, b: s.Lt(a, b),
        "le": lambda s, a, b: s.Le(a, b),
        "gt": lambda s, a, b: s.Gt(a, b),
        "ge": lambda s, a, b: s.Ge(a, b),
        "eq": lambda s, a, b: s.Eq(a, b),
        "ne": lambda s, a, b: s.Ne(a, b),
        "gradient_as": lambda s, a, b: a,
        "where": lambda s, c, a, b: s.Piecewise((a, c), (b, True)),
        "exp2": lambda s, a: 2**a,
        "expm1": lambda s, a: s.exp(a) - 1,
        "log2": lambda s, a: s.log(a) / s.log(2),
        "log10": lambda s, a: s.log(a) / s.log(10),
        "log1p": lambda s, a: s.log(1 + a),
        "rsqrt": lambda s, a: 1 / s.sqrt(a),
        "lgamma": lambda s, a: s.loggamma(a),
    }
)
_LOGIC = MappingProxyType({"bit_and": "And", "bit_or": "Or", "bit_xor": "Xor", "bit_not": "Not"})


def to_sympy(graph: Graph, output: int = 0, **assumptions: bool) -> Expression:
    """The sympy expression of output number ``output``.

    Inputs are symbols of their names, real unless ``assumptions`` (``positive=True``) say
    otherwise.
    """
    import sympy

    assumptions = assumptions or {"real": True}
    done: dict[Node, Expression] = {}
    for node in graph.nodes():
        done[node] = _expression(sympy, node, [done[a] for a in node.args], assumptions)
    return done[graph.outputs[output].node]


def _expression(
    sympy: Any, node: Node, args: list[Expression], assumptions: Mapping[str, bool]
) -> Expression:
    name = node.op.name
    if node.op.kind is Kind.LEAF:
        return _leaf(sympy, node, args, assumptions)
    if node.op.kind is Kind.REDUCTION:
        return sympy.Function(name, real=True)(*args, *node.axes)
    if node.args[-1].dtype.is_bool:
        logic = _LOGIC.get(name) or {"mul": "And", "add": "Or"}.get(name)
        if logic is not None:
            return getattr(sympy, logic)(*args)
        if name in ("eq", "ne"):
            return sympy.Equivalent(*args) if name == "eq" else sympy.Xor(*args)
    if name in _SPELLED:
        return _SPELLED[name](sympy, *args)
    if node.op.sympy is not None:
        return getattr(sympy, node.op.sympy)(*args)
    return sympy.Function(name, real=True)(*args)


def _leaf(
    sympy: Any, node: Node, args: list[Expression], assumptions: Mapping[str, bool]
) -> Expression:
    name = node.op.name
    if name == "input":
        return (
            sympy.Symbol(node.name)
            if node.dtype.is_bool
            else sympy.Symbol(node.name, **assumptions)
        )
    if name == "constant":
        return _constant(sympy, node)
    if name in ("index", "size"):
        return sympy.Function(name, integer=True)(node.attribute("axis"))
    if name == "gather":
        return sympy.Function(name, real=True)(*args)
    source, target = node.args[0].dtype, node.dtype
    if source.is_bool and not target.is_bool:
        return sympy.Piecewise((1, args[0]), (0, True))
    if target.is_bool and not source.is_bool:
        return sympy.Ne(args[0], 0)
    if source.is_float and not target.is_float:
        return sympy.Function("trunc", real=True)(args[0])
    return args[0]


def _constant(sympy: Any, node: Node) -> Expression:
    """Whole numbers and simple fractions exactly, others as the decimal a person would write."""
    value = node.value
    if isinstance(value, (bool, int)):
        return (
            sympy.true if value is True else sympy.false if value is False else sympy.Integer(value)
        )
    if value != value:
        return sympy.nan
    if value in (float("inf"), float("-inf")):
        return sympy.oo if value > 0 else -sympy.oo
    numerator, denominator = value.as_integer_ratio()
    if denominator <= _PLAIN_DENOMINATOR:
        return sympy.Rational(numerator, denominator)
    return sympy.Float(number_text(value, node.dtype), 17)


def formula_from_sympy(expression: Expression) -> str:
    """A formula of the language for a sympy expression of one value.

    UnsupportedError where it holds something that the language has no word for (``I``, a
    derivative, a matrix).
    """
    import sympy

    return str(_printer().doprint(sympy.sympify(expression)))


def is_sympy(source: Any) -> bool:
    """Whether ``source`` is a sympy expression or a tuple or list of them; imports nothing."""
    parts = source if isinstance(source, tuple | list) and source else [source]
    sympy = sys.modules.get("sympy")
    return sympy is not None and all(isinstance(p, sympy.Basic | sympy.MatrixBase) for p in parts)


def formula_of(source: Any) -> str:
    """The formula of a sympy expression, or of several."""
    parts = source if isinstance(source, tuple | list) else [source]
    return ", ".join(formula_from_sympy(part) for part in parts)


@cache
def _printer() -> Any:
    """The printer; its class is made at the first use, when sympy is there to derive from."""
    from sympy.printing.str import StrPrinter

    methods = {f"_print_{kind}": method for kind, method in _WORDS.items()}
    return type("FormulaPrinter", (StrPrinter,), {**methods, "emptyPrinter": _no_word})()


def _no_word(printer: Any, expression: Expression) -> str:
    kind = type(expression).__name__
    raise _unsupported(f"the language has no word for sympy's {kind}", kind)


def _symbol(printer: Any, expression: Expression) -> str:
    if not expression.name.isidentifier():
        raise _unsupported(f"the symbol '{expression.name}' is no name in a formula", "Symbol")
    return str(expression.name)


def _piecewise(printer: Any, expression: Expression) -> str:
    text = "nan"  # where no condition holds
    for value, condition in reversed(expression.args):
        always = condition == True  # noqa: E712 (sympy's own true)
        shown = printer._print(value)
        text = shown if always else f"where({printer._print(condition)}, {shown}, {text})"
    return text


def _relation(printer: Any, expression: Expression) -> str:
    left, right = (printer._print(a) for a in (expression.lhs, expression.rhs))
    return f"({left} {expression.rel_op} {right})"


def _chain(sign: str) -> Callable[[Any, Expression], str]:
    """A printer of ``(a sign b sign c)``, each argument in parentheses of its own."""

    def show(printer: Any, expression: Expression) -> str:
        return f"({sign.join(f'({printer._print(a)})' for a in expression.args)})"

    return show


def _nested(name: str) -> Callable[[Any, Expression], str]:
    """A printer of ``name(a, name(b, c))``."""

    def show(printer: Any, expression: Expression) -> str:
        *others, text = sorted(map(printer._print, expression.args))
        for other in reversed(others):
            text = f"{name}({other}, {text})"
        return str(text)

    return show


def _function(printer: Any, expression: Expression) -> str:
    known = {"Abs": "abs", "ceiling": "ceil", "loggamma": "lgamma"}
    name = known.get(expression.func.__name__, expression.func.__name__)
    args = [printer._print(a) for a in expression.args]
    if name == "gather":
        return f"({args[0]})[{args[1]}]"
    if name not in OPS and name not in DERIVED:
        raise _unsupported(f"the language has no function '{name}'", name)
    if name in OPS and OPS[name].kind is Kind.REDUCTION:
        return _reduction(name, args)
    return f"{name}({', '.join(args)})"


def _reduction(name: str, args: list[str]) -> str:
    value, *axes = args
    if axes in ([], ["-1"]):
        return f"{name}({value})"
    return f"{name}({value}, axis={axes[0] if len(axes) == 1 else '(' + ', '.join(axes) + ')'})"


_WORDS: Mapping[str, Callable[[Any, Expression], str]] = MappingProxyType(
    {
        "Float": lambda printer, e: repr(float(e)),
        "Rational": lambda printer, e: repr(int(e.p) / int(e.q)),
        "Exp1": lambda printer, e: "exp(1)",
        "Infinity": lambda printer, e: "inf",
        "NegativeInfinity": lambda printer, e: "-inf",
        "BooleanTrue": lambda printer, e: "true",
        "BooleanFalse": lambda printer, e: "false",
        "Not": lambda printer, e: f"(not {printer._print(e.args[0])})",
        "Mod": lambda printer, e: "(({}) % ({}))".format(*map(printer._print, e.args)),
        "Symbol": _symbol,
        "Piecewise": _piecewise,
        "Relational": _relation,
        "And": _chain(" and "),
        "Or": _chain(" or "),
        "Xor": _chain(" != "),
        "Equivalent": _chain(" == "),
        "Max": _nested("maximum"),
        "Min": _nested("minimum"),
        "Function": _function,
        "Abs": _function,
        "ImaginaryUnit": _no_word,
        "Derivative": _no_word,
        "Integral": _no_word,
        "Sum": _no_word,
        "ComplexInfinity": _no_word,
        "MatrixBase": _no_word,
        "Tuple": _no_word,
    }
)


def _unsupported(message: str, op: str) -> UnsupportedError:
    return UnsupportedError(message, op=op, reason=message)
