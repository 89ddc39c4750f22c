"""The functions a formula may call, their parameters, and how a call binds to them.

May import ``fusec.errors``, ``fusec.ir`` and, of the frontend, ``syntax`` and ``resolve_values``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from fusec.errors import Note, UnknownNameError, did_you_mean
from fusec.frontend.resolve_values import Literal, Value
from fusec.frontend.syntax import Call, Expression, FunctionDef
from fusec.ir.derived import DERIVED, Derived, Parameter, parse_signature
from fusec.ir.dtypes import ALIASES, DType
from fusec.ir.ops import OPS, Kind, Op
from fusec.source import Source, Span


@dataclass(frozen=True, slots=True)
class Special:
    """A function the resolver itself understands."""

    name: str
    parameters: tuple[Parameter, ...]
    doc: str


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A call of an elementwise op."""

    op: Op
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class Reduction:
    """A call of a primitive reduction."""

    op: Op
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """A call of the name of an element type."""

    dtype: DType
    parameters: tuple[Parameter, ...] = (Parameter("x"),)


@dataclass(frozen=True, slots=True)
class Composite:
    """A call of a row of ``ir/derived``."""

    row: Derived
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class UserFunction:
    """A ``def`` and what was visible where it stands."""

    definition: FunctionDef
    values: dict[str, Value]
    functions: dict[str, UserFunction]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters, none of which has a default."""
        return tuple(Parameter(p.name) for p in self.definition.parameters)


Function: TypeAlias = "Special | Elementwise | Reduction | Cast | Composite | UserFunction"
Bound: TypeAlias = "list[tuple[str, Expression | Literal]]"

_SPECIAL_ROWS = (
    ("index", "axis=-1", "the position along an axis of all inputs together"),
    ("index", "x, axis", "the position along an axis of x"),
    ("size", "axis=-1", "the length of an axis of all inputs together"),
    ("size", "x, axis", "the length of an axis of x"),
    ("norm", "x, *, axis=-1, p=2, keepdim=false", "vector norm; p is 1, 2 or inf"),
    ("cast_like", "value, like", "value in the type of like"),
)
_OPERANDS = {1: "x", 2: "a, b"}
_KEEPDIM = Parameter("keepdim", False, keyword_only=True)


@cache
def builtins() -> dict[str, tuple[Function, ...]]:
    """Every built-in function by name; a name may have several forms."""
    table: dict[str, tuple[Function, ...]] = {}
    for op in OPS.values():
        if op.kind is Kind.ELEMENTWISE:
            signature = "condition, a, b" if op.name == "where" else _OPERANDS[op.arity]
            table[op.name] = (Elementwise(op, parse_signature(signature)),)
        elif op.kind is Kind.REDUCTION:
            parameters = (*parse_signature("x, *, axis=-1"), _KEEPDIM)
            table[op.name] = (Reduction(op, parameters),)
    for name, rows in DERIVED.items():
        table[name] = tuple(Composite(row, _derived_parameters(row)) for row in rows)
    for name, signature, doc in _SPECIAL_ROWS:
        special = Special(name, parse_signature(signature), doc)
        table[name] = (*table.get(name, ()), special)
    for name, dtype in ALIASES.items():
        table[name] = (Cast(dtype),)
    return table


def _derived_parameters(row: Derived) -> tuple[Parameter, ...]:
    parameters = row.parameters
    if row.name in ("var", "std"):
        parameters = (*parameters, Parameter("unbiased", True, keyword_only=True))
    return (*parameters, _KEEPDIM) if row.reduction else parameters


def describe(name: str, parameters: Iterable[Parameter]) -> str:
    """``softmax(x, *, axis=-1)``."""
    parts: list[str] = []
    for parameter in parameters:
        if parameter.keyword_only and "*" not in parts:
            parts.append("*")
        default = "" if parameter.default is None else f"={parameter.default}".lower()
        parts.append(parameter.name + default)
    return f"{name}({', '.join(parts)})"


def find(
    call: Call, functions: dict[str, UserFunction], source: Source, later: Span | None = None
) -> tuple[Function, Bound]:
    """The function a call means, with its arguments by parameter; raises UnknownNameError.

    ``later`` is where a function of that name is defined further on.
    """
    user = functions.get(call.function)
    candidates = (user,) if user is not None else builtins().get(call.function)
    if candidates is None:
        raise _unknown(call, functions, source, later)
    for function in candidates:
        bound = _bind(call, function.parameters)
        if bound is not None:
            return function, bound
    raise _does_not_fit(call, candidates, source)


def _bind(call: Call, parameters: tuple[Parameter, ...]) -> Bound | None:
    positional = [p for p in parameters if not p.keyword_only]
    if len(call.arguments) > len(positional):
        return None
    given: dict[str, Expression] = {
        p.name: a for p, a in zip(positional, call.arguments, strict=False)
    }
    known = {p.name for p in parameters}
    for keyword in call.keywords:
        if keyword.name not in known or keyword.name in given:
            return None
        given[keyword.name] = keyword.value
    bound: Bound = []
    for parameter in parameters:
        argument = given.get(parameter.name)
        if argument is not None:
            bound.append((parameter.name, argument))
        elif parameter.default is not None:
            bound.append((parameter.name, Literal(parameter.default)))
        else:
            return None
    return bound


# No slips of the pen, but functions that other languages have.
_SCANS = frozenset(("cumprod", "cumsum", "median", "mode", "quantile", "sort", "topk"))
_SCANS_HINT = "it scans or sorts, which no kernel of fusec does"


def _unknown(
    call: Call, functions: dict[str, UserFunction], source: Source, later: Span | None
) -> UnknownNameError:
    hint = None if later else did_you_mean(call.function, [*functions, *builtins()])
    hint = _SCANS_HINT if call.function in _SCANS and not later else hint
    notes = (Note("it is defined here, after its use", later),) if later else ()
    return UnknownNameError(
        f"unknown function '{call.function}'",
        source=source,
        span=call.function_span,
        notes=notes,
        hint=hint,
    )


def _does_not_fit(call: Call, candidates: tuple[Function, ...], source: Source) -> UnknownNameError:
    name = call.function
    forms = " or ".join(describe(name, f.parameters) for f in candidates)
    known = {p.name for f in candidates for p in f.parameters}
    for keyword in call.keywords:
        if keyword.name not in known:
            hint = _keyword_hint(keyword.name, known) or f"the form is {forms}"
            return UnknownNameError(
                f"'{name}' has no keyword '{keyword.name}'",
                source=source,
                span=keyword.span,
                hint=hint,
            )
    count = len(call.arguments)
    plural = "" if count == 1 else "s"
    hint = f"the form is {forms}"
    if isinstance(candidates[0], Reduction) and name in ("max", "min") and count == 2:
        hint = f"use {name}imum(a, b) for the {name} of two values, and axis= for an axis"
    return UnknownNameError(
        f"'{name}' does not take {count} argument{plural}"
        + (f" and {', '.join(k.name + '=' for k in call.keywords)}" if call.keywords else ""),
        source=source,
        span=call.span,
        hint=hint,
    )


def _keyword_hint(name: str, known: set[str]) -> str | None:
    if name in ("dim", "axes", "dims") and "axis" in known:
        return "did you mean 'axis'?"
    return did_you_mean(name, known)
