"""Which values of 16 bits are seen at full precision, so that no function may take its fast form.

May import ``fusec.ir``.
"""

from __future__ import annotations

from fusec.ir.dtypes import DType
from fusec.ir.graph import Graph
from fusec.ir.node import Node


def widened(graph: Graph) -> frozenset[Node]:
    """The 16-bit values that a wider one is made of, as ``exp(x)`` in ``f32(exp(x))``: nothing
    rounds them in between.
    """
    found: set[Node] = set()
    for node in reversed(graph.nodes()):  # those that use a value come before it
        if node in found or (node.dtype.is_float and not _is_narrow(node.dtype)):
            found.update(a for a in node.args if _is_narrow(a.dtype))
    return frozenset(found)


def _is_narrow(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits <= 16
