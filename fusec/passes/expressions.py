"""Nodes with overloaded operators, in which derivatives are written.

An :class:`Expression` is a node; arithmetic between expressions and numbers makes nodes, with types
and shapes that follow from the operands. A 16-bit value beside float32 stays a 16-bit value that is
computed in float32, so nothing rounds between operations. May import ``fusec.ir``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from fusec.ir.dtypes import BOOL, F32, F64, I64, DType
from fusec.ir.node import Dim, Node, Shape, TensorType, broadcast, constant, make
from fusec.ir.ops import OPS, Rule

Operand: TypeAlias = "Expression | int | float"


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """A node. Comparing two gives an expression, not a truth value."""

    node: Node

    def __add__(self, other: Operand) -> Expression:
        return apply("add", self, other)

    def __radd__(self, other: Operand) -> Expression:
        return apply("add", other, self)

    def __sub__(self, other: Operand) -> Expression:
        return apply("sub", self, other)

    def __rsub__(self, other: Operand) -> Expression:
        return apply("sub", other, self)

    def __mul__(self, other: Operand) -> Expression:
        return apply("mul", self, other)

    def __rmul__(self, other: Operand) -> Expression:
        return apply("mul", other, self)

    def __truediv__(self, other: Operand) -> Expression:
        return apply("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expression:
        return apply("div", other, self)

    def __pow__(self, other: Operand) -> Expression:
        return apply("pow", self, other)

    def __neg__(self) -> Expression:
        return apply("neg", self)

    def __invert__(self) -> Expression:
        return apply("bit_not", self)

    def __and__(self, other: Operand) -> Expression:
        return apply("bit_and", self, other)

    def __lt__(self, other: Operand) -> Expression:
        return apply("lt", self, other)

    def __le__(self, other: Operand) -> Expression:
        return apply("le", self, other)

    def __gt__(self, other: Operand) -> Expression:
        return apply("gt", self, other)

    def __ge__(self, other: Operand) -> Expression:
        return apply("ge", self, other)

    # Comparing makes an expression, as an array's does, where Python promises a bool and a hash.
    def __eq__(self, other: Operand) -> Expression:  # type: ignore[override]
        return apply("eq", self, other)

    __hash__ = None  # type: ignore[assignment]  # as Python has it where == is no equality


@dataclass(frozen=True, slots=True, eq=False)
class Masked:
    """A gradient that is 0 where ``condition`` fails, whatever ``value`` is there.

    It is carried in two parts through elementwise operations, so that an infinite derivative of a
    branch that was not taken does not meet that 0 and become NaN.
    """

    value: Expression
    condition: Expression

    def whole(self) -> Expression:
        """The gradient as one value."""
        return apply("where", self.condition, self.value, 0)


def apply(name: str, *operands: Operand) -> Expression:
    """An elementwise op on expressions and numbers."""
    op = OPS[name]
    nodes = [o.node if isinstance(o, Expression) else None for o in operands]
    typed = [n for n in nodes[op.rule is Rule.SELECT :] if n is not None]
    common = common_type([n.dtype for n in typed])
    args = [
        constant(_number(o), common)
        if n is None
        else n if k == 0 and op.rule is Rule.SELECT
        else operand(n, common)
        for k, (n, o) in enumerate(zip(nodes, operands, strict=True))
    ]  # fmt: skip
    result = BOOL if op.rule is Rule.BOOL else common
    return Expression(make(op, args, TensorType(result, broadcast(a.shape for a in args))))


def _number(value: Operand) -> int | float:
    assert not isinstance(value, Expression)
    return value


def common_type(dtypes: list[DType]) -> DType:
    """The type of an operation: a 16-bit float stays one beside float32, its compute type."""
    found = dtypes[0]
    for dtype in dtypes[1:]:
        if dtype is found:
            continue
        if F64 in (dtype, found):
            found = F64
        elif F32 in (dtype, found):
            found = found if dtype is F32 else dtype
        else:
            found = F32
    return F32 if found.is_float and found.bits == 8 else found


def operand(node: Node, common: DType) -> Node:
    """``node`` as an operand of an operation in ``common``; never rounds."""
    if node.dtype is common or (node.dtype is F32 and common.compute is F32):
        return node
    return make("cast", (node,), TensorType(common.compute, node.shape))


class Words:
    """What a derivative calls ``o``: every op by its name, and a few words more.

    ``source`` and ``axes`` are the operand and the axes of the reduction whose derivative is asked
    for.
    """

    def __init__(self, source: Node | None = None, axes: tuple[int, ...] = ()) -> None:
        self.source = source
        self.axes = axes

    def __getattr__(self, name: str) -> Callable[..., Expression]:
        if name not in OPS:
            raise AttributeError(name)
        return lambda *operands: apply(name, *operands)

    def where(self, condition: Expression, a: Operand, b: Operand) -> Expression:
        """``where``; two numbers take the type of nothing, so one must be an expression."""
        return apply("where", condition, a, b)

    def masked(self, value: Expression, condition: Expression) -> Masked:
        """``value`` where ``condition`` holds, else exactly 0."""
        return Masked(value, condition)

    def sign(self, x: Expression) -> Expression:
        """-1, 0 or 1 in the type of ``x``; 0 for NaN."""
        one = Expression(constant(1, x.node.dtype))
        return apply("where", x > 0, one, apply("where", x < 0, -one, 0))

    def like(self, value: Expression, other: Expression) -> Expression:
        """``value`` in the type of ``other``; between float types of one compute type it is kept
        as it is, for a gradient rounds when it is stored.
        """
        dtype, wanted = value.node.dtype, other.node.dtype
        if dtype is wanted or (dtype.is_float and dtype.compute is wanted.compute):
            return value
        return Expression(make("cast", (value.node,), TensorType(wanted.compute, value.node.shape)))

    def sum(self, x: Expression) -> Expression:
        """The sum along the axes of the reduction."""
        return Expression(reduce("sum", x.node, self.axes))

    def prod(self, x: Expression) -> Expression:
        """The product along the axes of the reduction."""
        return Expression(reduce("prod", x.node, self.axes))

    def count(self) -> Expression:
        """How many elements the reduction takes together."""
        assert self.source is not None
        shape = self.source.shape
        return lengths([(a, shape[a]) for a in self.axes], self.source.dtype)

    def positions(self, x: Expression) -> Expression:
        """The position along the last axis of ``x``, int64."""
        extent = x.node.shape[-1]
        kind = TensorType(I64, (extent,))
        return Expression(make("index", (), kind, axis=-1, dim=str(extent)))


def reduce(name: str, node: Node, axes: Iterable[int]) -> Node:
    """``node`` reduced over those of ``axes`` that it spans; they stay, with length 1."""
    rank = len(node.shape)
    spanned = tuple(a for a in sorted(axes) if -a <= rank and node.shape[a] != 1)
    if not spanned:
        return node
    shape: Shape = tuple(1 if k - rank in spanned else e for k, e in enumerate(node.shape))
    return make(name, (node,), TensorType(node.dtype, shape), axes=spanned)


def lengths(extents: Iterable[tuple[int, object]], dtype: DType) -> Expression:
    """The product of the lengths of axes, given as axis and extent, as a float of compute type."""
    found: Expression | None = None
    for axis, extent in extents:
        if not isinstance(extent, Dim):
            continue
        size = make("size", (), TensorType(I64, ()), axis=axis, dim=extent.name)
        number = Expression(make("cast", (size,), TensorType(dtype.compute, ())))
        found = number if found is None else found * number
    return found if found is not None else Expression(constant(1, dtype.compute))
