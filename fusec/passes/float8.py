"""Casts to float8_e4m3fn as older versions of PyTorch make them.

The type has no infinity. What is beyond its largest number, 448, becomes that from PyTorch 2.13 on,
as the instruction of the GPU has it; before, it became NaN. May import ``fusec.ir``.
"""

from __future__ import annotations

from fusec.ir.dtypes import BOOL, F8E4M3, F32
from fusec.ir.graph import Graph, rebuild
from fusec.ir.node import Node, TensorType, constant, make

_LARGEST_ROUNDED = 464.0  # halfway between 448 and what would be 480, and ties to 448


def overflow_to_nan(graph: Graph) -> Graph:
    """``graph`` with NaN for every number that a cast would have to bring back to 448."""
    return rebuild(graph, _guarded)


def _guarded(node: Node) -> Node:
    if node.op.name != "cast" or node.dtype is not F8E4M3 or node.args[0].dtype is F8E4M3:
        return node
    (value,) = node.args
    if not value.dtype.is_float or value.dtype.bits > F32.bits:  # every cast goes by float32
        value = make("cast", [value], TensorType(F32, value.shape))
    kind = value.dtype
    size = make("abs", [value], value.type)
    beyond = make("gt", [size, constant(_LARGEST_ROUNDED, kind)], TensorType(BOOL, value.shape))
    kept = make("where", [beyond, constant(float("nan"), kind), value], value.type)
    return make("cast", [kept], node.type)
