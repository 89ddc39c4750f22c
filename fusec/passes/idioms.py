"""Recognise what backends do better otherwise: a mean, the entropy of a softmax, a sum of which
one element at most is not 0.

After this pass no ``div`` divides a float ``sum`` by the number of its elements. A backend can then
keep a mean finite where the plain sum overflows. An entropy loses the reduction that had to wait
for the sum of the exponentials; the gradient of a cross-entropy the one of the gradient that it is
given. May import ``fusec.ir``.
"""

from __future__ import annotations

from fusec.ir.dtypes import BOOL, I64
from fusec.ir.graph import Graph, rebuild
from fusec.ir.node import Dim, Node, TensorType, broadcast, constant, make


def idioms(graph: Graph, numerics: str = "torch") -> Graph:
    """``graph`` with each mean as a ``mean``, each entropy of a softmax in two reductions, and each
    sum of one picked element as that element.

    The mode does not matter, since the value is the same.
    """
    return rebuild(graph, lambda node: _as_picked(_as_entropy(_as_mean(node))))


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


def _as_picked(node: Node) -> Node:
    """The sum of ``where(index == t and c, v, 0)``, where nothing but the index varies along the
    axis: ``v``, if ``t`` is a position along it and ``c`` holds, and 0 if not.
    """
    if node.op.name != "sum" or len(node.axes) != 1 or node.args[0].op.name != "where":
        return node
    condition, value, other = node.args[0].args
    axis = node.axes[0]
    zero = other.op.name == "constant" and other.value == 0
    if not zero or _varies(value, axis) or value.dtype is not node.dtype:
        return node
    terms = [condition]
    while any(t.op.name == "bit_and" for t in terms):
        terms = [a for t in terms for a in (t.args if t.op.name == "bit_and" else (t,))]
    moving = [t for t in terms if _varies(t, axis)]
    found = _position(moving[0], axis) if len(moving) == 1 else None
    if found is None:
        return node
    index, target = found
    length = make("size", (), TensorType(I64, ()), axis=axis, dim=str(index.attribute("dim")))
    place = make("cast", (target,), TensorType(I64, target.shape))
    place = target if target.dtype is I64 else place
    whole = _both(_compared("ge", place, constant(0, I64)), _compared("lt", place, length))
    for term in terms:
        whole = whole if term is moving[0] else _both(whole, term)
    fits = broadcast(n.shape for n in (whole, value, other)) == node.shape
    return make("where", (whole, value, other), node.type) if fits else node


def _compared(op: str, a: Node, b: Node) -> Node:
    return make(op, (a, b), TensorType(BOOL, broadcast((a.shape, b.shape))))


def _both(a: Node, b: Node) -> Node:
    return _compared("bit_and", a, b)


def _varies(node: Node, axis: int) -> bool:
    return len(node.shape) >= -axis and node.shape[axis] != 1


def _position(node: Node, axis: int) -> tuple[Node, Node] | None:
    """The index along ``axis`` and what ``node`` compares it with, if it does that alone."""
    for index, target in (node.args, node.args[::-1]) if node.op.name == "eq" else ():
        bare = index.args[0] if index.op.name == "cast" else index
        along = bare.op.name == "index" and len(bare.shape) >= -axis and bare.shape[axis] != 1
        if along and not _varies(target, axis) and target.dtype.is_integer:
            return bare, target
    return None


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
