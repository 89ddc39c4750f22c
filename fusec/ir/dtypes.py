"""Element types: names in every language fusec prints, promotion, compute and accumulate types.

Promotion follows PyTorch (https://pytorch.org/docs/stable/tensor_attributes.html): operands fall
into three priorities (tensors with dimensions, 0-d tensors, Python numbers), a lower priority only
matters when its category (bool < integer < float) is higher than that of everything above it.

May import the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Category(IntEnum):
    """What promotion compares first."""

    BOOL = 0
    INTEGER = 1
    FLOAT = 2


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type; ``name`` is the short name used in formulas (``f32``).

    Each exists once: compare with ``is``.
    """

    name: str
    torch: str
    triton: str
    cpp: str
    cuda: str
    category: Category
    bits: int
    signed: bool = True

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str | tuple[object, ...]:
        return (by_name, (self.name,))

    @property
    def is_float(self) -> bool:
        return self.category is Category.FLOAT

    @property
    def is_integer(self) -> bool:
        return self.category is Category.INTEGER

    @property
    def is_bool(self) -> bool:
        return self.category is Category.BOOL

    @property
    def itemsize(self) -> int:
        """Bytes of one stored element."""
        return max(1, self.bits // 8)

    @property
    def compute(self) -> DType:
        """The type arithmetic runs in:

        Float32 for 16-bit and 8-bit floats, else the type itself.
        """
        return F32 if self.is_float and self.bits < 32 else self

    @property
    def minimum(self) -> int | float:
        """The smallest value (``-inf`` for floats)."""
        if self.is_float:
            return float("-inf")
        if self.is_bool:
            return 0
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def maximum(self) -> int | float:
        """The largest value (``inf`` for floats)."""
        if self.is_float:
            return float("inf")
        if self.is_bool:
            return 1
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1


_F, _I, _B = Category.FLOAT, Category.INTEGER, Category.BOOL

F64 = DType("f64", "float64", "float64", "double", "double", _F, 64)
F32 = DType("f32", "float32", "float32", "float", "float", _F, 32)
F16 = DType("f16", "float16", "float16", "fusec::f16", "float16", _F, 16)
BF16 = DType("bf16", "bfloat16", "bfloat16", "fusec::bf16", "bfloat16", _F, 16)
F8E4M3 = DType("f8e4m3", "float8_e4m3fn", "float8e4nv", "fusec::f8e4m3", "float8_e4m3", _F, 8)
F8E5M2 = DType("f8e5m2", "float8_e5m2", "float8e5", "fusec::f8e5m2", "float8_e5m2", _F, 8)
I64 = DType("i64", "int64", "int64", "int64_t", "long long", _I, 64)
I32 = DType("i32", "int32", "int32", "int32_t", "int", _I, 32)
I16 = DType("i16", "int16", "int16", "int16_t", "short", _I, 16)
I8 = DType("i8", "int8", "int8", "int8_t", "signed char", _I, 8)
U8 = DType("u8", "uint8", "uint8", "uint8_t", "unsigned char", _I, 8, signed=False)
BOOL = DType("bool", "bool", "int1", "bool", "bool", _B, 1)

ALL: tuple[DType, ...] = (F64, F32, F16, BF16, F8E4M3, F8E5M2, I64, I32, I16, I8, U8, BOOL)
_BY_NAME = {d.name: d for d in ALL}
_BY_TORCH = {d.torch: d for d in ALL}
ALIASES = {
    **_BY_NAME,
    **_BY_TORCH,
    "fp16": F16,
    "fp32": F32,
    "fp64": F64,
    "half": F16,
    "float": F32,
    "double": F64,
    "int": I32,
    "long": I64,
}


def by_name(name: str) -> DType:
    """The type with this short name; KeyError if there is none."""
    return _BY_NAME[name]


def by_torch_name(name: str) -> DType | None:
    """The type PyTorch calls ``name`` (``float32``), or None where fusec has none."""
    return _BY_TORCH.get(name)


def _promote_within(a: DType, b: DType) -> DType:
    """Promotion of two types of the same priority."""
    if a is b:
        return a
    if a.category is not b.category:
        return a if a.category > b.category else b
    if a.is_float:
        wider, other = (a, b) if a.bits >= b.bits else (b, a)
        return F32 if wider.bits == other.bits else wider
    if a.signed is b.signed:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.signed else (b, a)
    return signed if signed.bits > unsigned.bits else I16


@dataclass(frozen=True, slots=True)
class Operand:
    """What promotion sees of one operand:

    Its type and priority (0 tensor, 1 zero-dimensional tensor, 2 number).
    """

    dtype: DType
    priority: int = 0


def _arithmetic(dtype: DType) -> DType:
    """8-bit floats are storage only: arithmetic on them is float32 arithmetic."""
    return F32 if dtype.is_float and dtype.bits == 8 else dtype


def promote(operands: list[Operand]) -> DType:
    """The common type of ``operands`` under PyTorch's rules;

    Numbers (priority 2) bring only their category.
    """
    result: DType | None = None
    for priority in (0, 1, 2):
        level: DType | None = None
        for operand in operands:
            if operand.priority == priority:
                dtype = _arithmetic(operand.dtype)
                level = dtype if level is None else _promote_within(level, dtype)
        if level is None:
            continue
        if priority == 2:
            level = default_for_number(level.category)
        if result is None or level.category > result.category:
            result = level
    assert result is not None, "promote needs an operand"
    return result


def default_for_number(category: Category) -> DType:
    """The type of a Python number that meets no tensor of its category: PyTorch's defaults."""
    return {Category.BOOL: BOOL, Category.INTEGER: I64, Category.FLOAT: F32}[category]


def floating(dtype: DType) -> DType:
    """The type of a float-valued function of ``dtype``: float32 for integers and bools."""
    return dtype if dtype.is_float else F32
