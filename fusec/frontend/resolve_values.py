"""What an expression is worth while a formula is resolved, and arithmetic between literals.

Literals follow Python: integers are exact, ``1/2`` is 0.5. Where Python raises and IEEE has an
answer (``1/0``, ``10.0^400``, ``(-8)^0.5``), the answer is IEEE's.

May import ``fusec.ir``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from fusec.ir.node import Node

Number: TypeAlias = "int | float | bool"

LONGEST_INTEGER = 1023  # bits: any such integer is also a finite float64

CONSTANTS: dict[str, Number] = {
    "inf": math.inf,
    "nan": math.nan,
    "pi": math.pi,
    "true": True,
    "false": False,
    "True": True,
    "False": False,
}


class FoldError(Exception):
    """Arithmetic between literals that has no value; the message says why."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A number known now. It takes the type of the tensor it meets."""

    value: Number


@dataclass(frozen=True, slots=True)
class Axes:
    """What stands after ``axis=``: some axes as written, or all of them (None)."""

    axes: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A node and what promotion and the dropping of axes need to know of it.

    ``priority`` is 0 for tensors, 1 for zero-dimensional ones, 2 for run-time numbers. ``kept`` and
    ``reduced`` are bit sets of axes (bit 0 is axis -1): those the value really has, and those of
    length 1 that a reduction left.
    """

    node: Node
    priority: int = 0
    kept: int = 0
    reduced: int = 0


Value: TypeAlias = "Literal | Axes | Tensor"


def axis_bit(axis: int) -> int:
    """The bit of a negative axis."""
    return 1 << (-axis - 1)


def axes_of(bits: int) -> tuple[int, ...]:
    """The negative axes in a bit set, ascending."""
    return tuple(-i - 1 for i in range(bits.bit_length() - 1, -1, -1) if bits >> i & 1)


def all_axes(rank: int) -> int:
    """The bit set of every axis of a rank."""
    return (1 << rank) - 1


def checked(value: Number) -> Number:
    """``value``, unless it is an integer too long to handle; raises FoldError."""
    if isinstance(value, int) and value.bit_length() > LONGEST_INTEGER:
        raise FoldError(f"the number has more than {LONGEST_INTEGER} bits")
    return value


def _divide(a: Number, b: Number) -> Number:
    if b != 0:
        return a / b
    if a == 0 or a != a:
        return math.nan
    return math.copysign(math.inf, math.copysign(1, a) * math.copysign(1, b))


def _floor_divide(a: Number, b: Number) -> Number:
    if b != 0:
        return a // b
    if isinstance(a, int) and isinstance(b, int):
        raise FoldError("integer division by zero")
    return _divide(a, b)


def _remainder(a: Number, b: Number) -> Number:
    if b == 0:
        if isinstance(a, int) and isinstance(b, int):
            raise FoldError("integer division by zero")
        return math.nan
    return a % b


def _power(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int) and b >= 0:
        if abs(a) > 1 and a.bit_length() * b > 2 * LONGEST_INTEGER:
            raise FoldError(f"the number has more than {LONGEST_INTEGER} bits")
        return int(a**b)
    odd = float(b).is_integer() and float(b) % 2 == 1
    negative = odd and math.copysign(1, a) < 0
    try:
        return math.pow(a, b)
    except OverflowError:
        return -math.inf if negative else math.inf
    except ValueError:  # a zero to a negative power, or a root of a negative number
        return math.nan if a != 0 else -math.inf if negative else math.inf


def _bits(function: Callable[[int, int], int]) -> Callable[[Number, Number], Number]:
    def fold(a: Number, b: Number) -> Number:
        if isinstance(a, float) or isinstance(b, float):
            raise FoldError("bit operations need integers or bools")
        return function(a, b)

    return fold


BINARY: dict[str, Callable[[Number, Number], Number]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _divide,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "pow": _power,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "bit_and": _bits(operator.and_),
    "bit_or": _bits(operator.or_),
    "bit_xor": _bits(operator.xor),
}

_SAME_NAME_IN_MATH = (
    "exp expm1 log log2 log10 log1p sqrt sin cos tan asin acos atan sinh cosh tanh"
    " asinh acosh atanh erf erfc"
)
MATH: dict[str, Callable[[float], float]] = {
    name: getattr(math, name) for name in _SAME_NAME_IN_MATH.split()
}


def fold_binary(name: str, a: Number, b: Number) -> Number:
    """The value of a binary op between literals; raises FoldError."""
    return checked(BINARY[name](a, b))


def fold_unary(name: str, a: Number) -> Number | None:
    """The value of a unary op of a literal, or None: then the graph has it; raises FoldError."""
    if name == "neg":
        return -a
    if name == "abs":
        return abs(a)
    if name == "bit_not":
        if isinstance(a, float):
            raise FoldError("~ needs an integer or a bool")
        return not a if isinstance(a, bool) else ~a
    if name not in MATH:
        return None
    try:
        return MATH[name](a)
    except (ValueError, OverflowError):
        return None
