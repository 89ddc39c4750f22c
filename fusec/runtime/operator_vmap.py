"""Which formulas compute a batch of calls in one call.

``torch.vmap`` puts an axis before those that a formula was written for. A formula that names its
axes from the end, and does not reduce all of them, means the same with that axis as without; that
is not guessed but proven, by comparing the two graphs node by node. May import ``fusec.ir``,
``runtime.programs``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusec.errors import FusecError
from fusec.ir.graph import Graph
from fusec.ir.node import Attribute, Dim, Extent, Node, Shape
from fusec.runtime.programs import Name, root_of


def paddings(ranks: Sequence[int], batched: Sequence[bool]) -> tuple[tuple[int, ...], ...]:
    """The ways to line inputs up behind a new first axis, as how many axes of length 1 each gets
    between that one and its own: up to the highest rank, as broadcasting does, or none.

    ``ranks`` are those without the new axis, which inputs that are ``batched`` have.
    """
    highest = max(ranks, default=0)
    filled = tuple(
        highest - rank if moved else 0 for rank, moved in zip(ranks, batched, strict=True)
    )
    return (filled, (0,) * len(ranks)) if any(filled) else (filled,)


def same_for_each(alone: Name, together: Name) -> bool:
    """Whether the formula ``together`` is ``alone`` for each position of a first axis."""
    try:
        one, many = root_of(alone).code.graph, root_of(together).code.graph
    except FusecError:
        return False
    return _Comparison(one, many).holds()


class _Comparison:
    """Two graphs, and how the axes of the first are called in the second."""

    def __init__(self, one: Graph, many: Graph) -> None:
        self.one = one
        self.many = many
        self.axes: dict[Dim, Dim] = {}
        self.first: set[Dim] = set()  # what the added axis is called

    def holds(self) -> bool:
        ours, theirs = self.one.nodes(), self.many.nodes()
        if len(ours) != len(theirs):
            return False
        image = dict(zip(ours, theirs, strict=True))
        pairs = image.items()
        if not all(self._shapes(a.shape, b.shape) for a, b in pairs):
            return False
        if len(self.first) != 1 or self.first & set(self.axes.values()):
            return False
        if not all(self._nodes(a, b, image) for a, b in pairs):
            return False
        outputs = zip(self.one.outputs, self.many.outputs, strict=True)
        return all(
            image[a.node] is b.node
            and a.squeeze == b.squeeze
            and a.order is None
            and b.order is None
            and len(b.node.shape) == len(a.node.shape) + 1
            and b.node.shape[0] in self.first
            for a, b in outputs
        )

    def _shapes(self, one: Shape, many: Shape) -> bool:
        """Whether ``many`` is ``one``, maybe behind the added axis and axes of length 1."""
        added = len(many) - len(one)
        if added < 0 or any(extent != 1 for extent in many[1:added]):
            return False
        if added and isinstance(many[0], Dim):
            self.first.add(many[0])
        return all(self._extents(a, b) for a, b in zip(one, many[added:], strict=True))

    def _extents(self, one: Extent, many: Extent) -> bool:
        if isinstance(one, Dim) and isinstance(many, Dim):
            return self.axes.setdefault(one, many) == many
        return one == many

    def _nodes(self, one: Node, many: Node, image: dict[Node, Node]) -> bool:
        """Whether the same is computed, of what is the same."""
        if one.op is not many.op or one.dtype is not many.dtype:
            return False
        if [image[a] for a in one.args] != list(many.args):
            return False
        pairs = zip(one.attributes, many.attributes, strict=True)
        return all(a[0] == b[0] and self._attributes(a[1], b[1]) for a, b in pairs)

    def _attributes(self, one: Attribute, many: Attribute) -> bool:
        if isinstance(one, str) and Dim(one) in self.axes:
            return self.axes[Dim(one)].name == many
        return one == many


def batched_kind(kind: str, length: int, padding: int) -> str:
    """The kind of an input that got a first axis of ``length`` and ``padding`` axes behind it."""
    dtype, _, axes = kind.partition(":")
    return f"{dtype}:{'1' if length == 1 else 'n'}{'1' * padding}{axes}"


def fitting(alone: Name, batched: Sequence[bool], length: int) -> tuple[int, ...] | None:
    """How to line the inputs up so that one call computes all; None where no call does."""
    tensors = [":" in kind for kind in alone.kinds]
    ranks = [len(kind.partition(":")[2]) for kind in alone.kinds]
    for padding in paddings(ranks, batched):
        kinds = tuple(
            batched_kind(kind, length, pad) if moved and tensor else kind
            for kind, pad, moved, tensor in zip(alone.kinds, padding, batched, tensors, strict=True)
        )
        if same_for_each(alone, replace(alone, kinds=kinds)):
            return padding
    return None
