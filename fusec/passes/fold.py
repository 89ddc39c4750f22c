"""Constant folding: arithmetic on literals in the compute type of a node, as the machine rounds.

Only operations whose result IEEE 754 or two's complement fixes: a float32 sum, product, quotient or
square root computed in double and rounded once more is the correctly rounded one, because double
has more than twice the digits. Exponentials and their kind are left to the machine that runs the
kernel. May import ``fusec.ir``.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType

from fusec.ir.dtypes import BF16, F16, DType
from fusec.ir.node import Node, constant, round_to_compute

Scalar = float  # int and bool are accepted where float is

_NAN = float("nan")


def fold(node: Node) -> Node | None:
    """The constant that ``node`` is, where its arguments are constants and the result is
    certain.
    """
    if not node.args or any(a.op.name != "constant" for a in node.args):
        return None
    if node.op.name == "cast":
        return _cast(node)
    values = [a.value for a in node.args]
    table = _FLOAT if node.args[-1].dtype.is_float else _INTEGER
    function = table.get(node.op.name) or _ANY.get(node.op.name)
    result = function(*values) if function is not None else None
    if result is None:
        return None
    return constant(_NAN if result != result else result, node.dtype)


def store_rounded(value: float, dtype: DType) -> float | None:
    """``value`` as storage of type ``dtype`` holds it, through float32 as PyTorch converts; None
    for 8-bit floats.
    """
    value = round_to_compute(value, dtype)
    if dtype.bits >= 32 or not math.isfinite(value):
        return value if dtype.bits >= 16 else None
    if dtype is F16:
        try:
            half: float = struct.unpack(">e", struct.pack(">e", value))[0]
        except OverflowError:
            return math.copysign(math.inf, value)
        return half
    return _round_bf16(value) if dtype is BF16 else None


def _round_bf16(value: float) -> float:
    (bits,) = struct.unpack(">I", struct.pack(">f", value))
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000  # to nearest, ties to even
    rounded: float = struct.unpack(">f", struct.pack(">I", bits))[0]
    return rounded


def _cast(node: Node) -> Node | None:
    value, target = node.args[0].value, node.dtype
    if target.is_float:
        rounded = store_rounded(float(value), target) if _as_float(value) else None
        return None if rounded is None else constant(rounded, target)
    if target.is_bool:
        return constant(value != 0, target)
    if isinstance(value, float):
        if not math.isfinite(value) or not target.minimum <= math.trunc(value) <= target.maximum:
            return None  # not defined alike everywhere
        value = math.trunc(value)
    return constant(value, target)


def _as_float(value: int | float) -> bool:
    """Whether going through double loses nothing, so that one rounding follows and not two."""
    return isinstance(value, float) or int(float(value)) == value


def _divide(a: float, b: float) -> float:
    if b != 0:
        return a / b
    if a == 0 or a != a:
        return _NAN
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _sqrt(a: float) -> float:
    return _NAN if a < 0 or a != a else math.sqrt(a)


def _larger(a: float, b: float) -> float | None:
    if a != a or b != b:
        return _NAN
    return None if a == b == 0 else max(a, b)  # which zero wins is the machine's affair


def _smaller(a: float, b: float) -> float | None:
    if a != a or b != b:
        return _NAN
    return None if a == b == 0 else min(a, b)


def _whole(function: Callable[[float], int]) -> Callable[[float], float]:
    """A rounding function for floats that keeps infinities, NaN and the sign of zero."""

    def rounding(a: float) -> float:
        return math.copysign(float(function(a)), a) if math.isfinite(a) else a

    return rounding


def _remainder(a: int, b: int) -> int | None:
    return a % b if b else None


def _floor_divide(a: int, b: int) -> int | None:
    return a // b if b else None


def _fmod(a: int, b: int) -> int | None:
    return (abs(a) % abs(b)) * (-1 if a < 0 else 1) if b else None


def _power(a: int, b: int) -> int | None:
    return pow(a, b, 1 << 64) if b >= 0 else None  # wraps to 64 bits here, to fewer in the constant


# Bools add and multiply as `or` and `and`: the constant is made of the truth of the number.
_ANY: Mapping[str, Callable[..., Scalar | None]] = MappingProxyType(
    {
        "add": operator.add, "sub": operator.sub, "mul": operator.mul,
        "neg": operator.neg, "abs": abs,
        "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
        "eq": operator.eq, "ne": operator.ne, "where": lambda c, a, b: a if c else b,
    }
)  # fmt: skip
_FLOAT: Mapping[str, Callable[..., Scalar | None]] = MappingProxyType(
    {
        "div": _divide, "sqrt": _sqrt, "maximum": _larger, "minimum": _smaller,
        "floor": _whole(math.floor), "ceil": _whole(math.ceil), "trunc": _whole(math.trunc),
        "round": _whole(round), "copysign": math.copysign,
    }
)  # fmt: skip
_INTEGER: Mapping[str, Callable[..., Scalar | None]] = MappingProxyType(
    {
        "maximum": max, "minimum": min, "remainder": _remainder, "floor_divide": _floor_divide,
        "fmod": _fmod, "pow": _power, "bit_and": operator.and_, "bit_or": operator.or_,
        "bit_xor": operator.xor, "bit_not": lambda a: not a if isinstance(a, bool) else ~a,
        "floor": lambda a: a, "ceil": lambda a: a, "trunc": lambda a: a, "round": lambda a: a,
    }
)  # fmt: skip
