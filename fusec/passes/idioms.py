"""Recognise what backends do better as one step: a sum over the length of its axes is a mean.

After this pass no ``div`` divides a float ``sum`` by the number of its elements. A backend can then
keep a mean finite where the plain sum overflows. May import ``fusec.ir``.
"""

from __future__ import annotations

from fusec.ir.graph import Graph, rebuild
from fusec.ir.node import Dim, Node, TensorType, make


def idioms(graph: Graph, numerics: str = "torch") -> Graph:
    """``graph`` with each mean as a ``mean``;

    The mode does not matter, since the value is the same.
    """
    return rebuild(graph, _as_mean)


def _as_mean(node: Node) -> Node:
    total = summed(node)
    if total is None:
        return node
    return make("mean", total.args, TensorType(node.dtype, node.shape), axes=total.axes)


def summed(node: Node) -> Node | None:
    """The sum that ``node`` divides by the number of its elements, if that is what it does."""
    if node.op.name != "div" or node.args[0].op.name != "sum" or not node.dtype.is_float:
        return None
    total, count = node.args
    shape = total.args[0].shape
    reduced = [shape[axis] for axis in total.axes]
    if total.dtype is not node.dtype or any(not isinstance(extent, Dim) for extent in reduced):
        return None
    names = sorted(str(extent) for extent in reduced)
    return total if _factors(count) == names else None


def _factors(count: Node) -> list[str] | None:
    """The names of the lengths whose product ``count`` is, sorted; None if it is anything else."""
    found: list[str] = []
    pending = [count]
    while pending:
        node = pending.pop()
        if node.op.name in ("cast", "mul"):
            pending.extend(node.args)
        elif node.op.name == "size":
            found.append(str(node.attribute("dim")))
        else:
            return None
    return sorted(found)
