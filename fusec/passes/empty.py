"""Sums over axes that may have no elements.

What multiplies every term of a sum is multiplied once, by the sum. Over no elements that is 0 times
something that may be infinite or NaN there, as one over the number of elements is, where the sum of
no products is 0. May import ``fusec.ir`` and ``passes/expressions.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusec.ir.node import Dim, Node, Shape
from fusec.ir.ops import Kind
from fusec.passes.expressions import Expression, Words, lengths


class Emptiness:
    """What is known of which values change where an axis has no elements."""

    def __init__(self) -> None:
        self._counted: dict[Node, frozenset[object]] = {}

    def or_nothing(
        self, total: Expression, terms: Node, argument: Node, space: Shape, axes: Sequence[int]
    ) -> Expression:
        """``total``, the sum of ``terms`` along ``axes`` of ``space`` and part of the gradient of
        ``argument``; 0 over no elements, where anything reads it that has some.
        """
        dims = {space[a] for a in axes}
        exact = total.node.op.name == "sum" or not dims & self._counts(terms)
        if exact or not _is_read_without(argument, dims):
            return total
        extents = [(a, space[a]) for a in axes]
        return Words().where(lengths(extents, total.node.dtype) == 0, 0, total)

    def _counts(self, node: Node) -> frozenset[object]:
        """The axes whose length ``node`` depends on, or whose elements it takes together."""
        stack = [node]
        while stack:
            current = stack[-1]
            pending = [a for a in current.args if a not in self._counted]
            if pending and current not in self._counted:
                stack.extend(pending)
                continue
            self._counted[current] = _own(current).union(*(self._counted[a] for a in current.args))
            stack.pop()
        return self._counted[node]


def _own(node: Node) -> frozenset[object]:
    if node.op.name == "size":
        return frozenset([Dim(str(node.attribute("dim")))])
    if node.op.kind is Kind.REDUCTION:
        return frozenset(node.args[0].shape[axis] for axis in node.axes)
    return frozenset()


def _is_read_without(node: Node, dims: set[Dim | int]) -> bool:
    """Whether ``node`` is made of an input by values without any of ``dims``: a gradient that has
    them on its way is a sum over them once more.
    """
    seen: set[Node] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if current in seen or dims & set(current.shape):
            continue
        seen.add(current)
        if current.op.name == "input":
            return True
        stack.extend(current.args)
    return False
