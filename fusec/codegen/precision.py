"""Which values of 16 bits are seen at full precision, so that no function may take its fast form.

May import ``fusec.ir`` and ``fusec.passes.fuse``.
"""

from __future__ import annotations

from fusec.ir.dtypes import DType
from fusec.ir.graph import Graph
from fusec.ir.node import Node, toposort
from fusec.passes.fuse import Region


def widened(graph: Graph, region: Region) -> frozenset[Node]:
    """The 16-bit values that a wider one is made of, as ``exp(x)`` in ``f32(exp(x))``, or an
    integer or a truth, or that are cut off, as in ``floor(x / y)``: nothing rounds them in between.
    A region that takes sums over its rows along has nodes of its own.
    """
    found: set[Node] = set()
    ends = [output.node for output in graph.outputs]
    ends += [root.node for root in region.roots] + [node for _, node in region.columns]
    for node in reversed(toposort(ends)):  # those that use a value come before it
        if node in found or node.op.jumps or not _is_narrow(node.dtype):
            found.update(a for a in node.args if _is_narrow(a.dtype))
    return frozenset(found)


def _is_narrow(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits <= 16
