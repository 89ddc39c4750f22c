"""Recognise what backends do better otherwise: a mean, and the entropy of a softmax.

After this pass no ``div`` divides a float ``sum`` by the number of its elements. A backend can then
keep a mean finite where the plain sum overflows. An entropy loses the reduction that had to wait
for the sum of the exponentials. May import ``fusec.ir``.
"""

from __future__ import annotations

from fusec.ir.graph import Graph, rebuild
from fusec.ir.node import Dim, Node, TensorType, make


def idioms(graph: Graph, numerics: str = "torch") -> Graph:
    """``graph`` with each mean as a ``mean`` and each entropy of a softmax in two reductions.

    The mode does not matter, since the value is the same.
    """
    return rebuild(graph, lambda node: _as_entropy(_as_mean(node)))


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


def _as_entropy(node: Node) -> Node:
    """The sum of p log p for p = exp(d) / s and log p = d - log s, with s the sum of exp(d).

    The probabilities add up to 1, so that sum is the one of exp(d) d, divided by s, less log s.
    Only where no d is above 0: elsewhere exp(d) d overflows before exp(d), and takes digits away
    from log s.
    """
    if node.op.name != "sum" or node.args[0].op.name != "mul":
        return node
    first, second = node.args[0].args
    for share, logarithm in ((first, second), (second, first)):
        found = _softmax(share)
        if found is None or logarithm.op.name != "sub":
            continue
        power, total = found
        below, log_total = logarithm.args
        same = power.args[0] is below and log_total.op.name == "log" and log_total.args[0] is total
        same = same and _is_below_maximum(below, total.axes)
        if same and total.axes == node.axes and power.type == share.type == node.args[0].type:
            weighted = make(
                "sum", [make("mul", [power, below], power.type)], node.type, axes=node.axes
            )
            return make("sub", [make("div", [weighted, total], node.type), log_total], node.type)
    return node


def _softmax(node: Node) -> tuple[Node, Node] | None:
    """exp(d) and its sum, if ``node`` is their quotient or the product with 1 over the sum."""
    for power, rest in (node.args, node.args[::-1]) if node.op.name == "mul" else ():
        inverse = rest.op.name == "div" and rest.args[0].op.name == "constant"
        if inverse and rest.args[0].value == 1 and _is_sum_of(rest.args[1], power):
            return power, rest.args[1]
    if node.op.name == "div" and _is_sum_of(node.args[1], node.args[0]):
        return node.args[0], node.args[1]
    return None


def _is_sum_of(total: Node, power: Node) -> bool:
    return power.op.name == "exp" and total.op.name == "sum" and total.args[0] is power


def _is_below_maximum(node: Node, axes: tuple[int, ...]) -> bool:
    """Whether ``node`` is what its elements are less their maximum along ``axes``."""
    if node.op.name != "sub" or node.args[1].op.name != "max":
        return False
    largest = node.args[1]
    return largest.args[0] is node.args[0] and largest.axes == axes


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
