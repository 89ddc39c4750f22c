"""The types that reductions run in, and what they begin with.

May import ``fusec.ir``, ``codegen.kernel`` and ``codegen.values``.
"""

from __future__ import annotations

from fusec.codegen.kernel import Apply, Expr, Literal, Ref
from fusec.codegen.values import Values
from fusec.ir.dtypes import BOOL, F32, F64, I32, DType
from fusec.ir.node import Node
from fusec.ir.ops import OPS

SUMS = ("sum", "mean", "prod")


def running_types(values: Values, node: Node, kind: DType) -> tuple[DType, DType]:
    """The type of a reduction's lanes, and the wider one they are carried into now and then."""
    if not values.job.target.wide_sums or kind is not F32 or node.op.name not in SUMS:
        return kind, kind
    # A mean has to stay finite where float32 lanes overflow, and a product cannot be carried.
    if values.job.config.lanes_along_rows or node.op.name != "sum":
        return F64, F64
    return F32, F64


def as_result(node: Node, value: Ref) -> Expr:
    """The value of a reduction from what it runs in."""
    if node.dtype is not BOOL:
        return value
    return Apply(OPS["ne"], (value, Literal(0, I32)), BOOL, I32, value.level)


def identity(node: Node, kind: DType) -> int | float:
    """What changes no result."""
    assert node.op.identity is not None, node.op.name
    return node.op.identity(BOOL if node.dtype is BOOL else kind)
