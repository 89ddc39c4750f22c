"""What a traced tensor is: a node, and which of its axes the tensor has.

PyTorch drops an axis that was reduced, the graph keeps it with length 1. So a tensor lists, for
each of its axes, the axis of the node; the other axes of the node are *hidden* and of length 1.
Operands of one operation are brought to common axes by inserting some of length 1.

May import ``fusec.ir`` and, of the frontend, ``resolve_values`` and ``trace_views``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from fusec.frontend.resolve_values import Tensor
from fusec.frontend.trace_views import Length, Step, Views
from fusec.ir.node import Node, constant, make

_HIDDEN = 0  # in a list of axes from the right; the axes of a tensor count from 1
Slot: TypeAlias = "dict[int, int | None]"


@dataclass(frozen=True, slots=True)
class Traced:
    """A traced tensor.

    ``axes`` holds a negative axis of ``node`` for each axis of the tensor, ascending, or None for
    one of length 1 that the node has not. ``lengths`` are the tensor's own; where the node has 1
    and the tensor more, it is expanded. ``after`` are views of the result that only an output can
    have. ``stopped``: it is detached, so that no gradient goes through it.
    """

    node: Node
    axes: tuple[int | None, ...]
    lengths: tuple[Length, ...]
    after: tuple[Step, ...] = ()
    stopped: bool = False

    @property
    def hidden(self) -> tuple[int, ...]:
        """Axes of the node that the tensor does not have, ascending."""
        return tuple(a for a in range(-len(self.node.shape), 0) if a not in self.axes)

    def is_expanded(self, axis: int) -> bool:
        """Whether the node holds one element for all of an axis."""
        own = self.axes[axis]
        return self.lengths[axis] != 1 and (own is None or self.node.shape[own] == 1)

    @property
    def value(self) -> Node:
        """The node, without a gradient if the tensor is detached."""
        if not self.stopped or not self.node.dtype.is_float:
            return self.node
        return make("gradient_as", (self.node, constant(0, self.node.dtype)), self.node.type)

    @property
    def shape(self) -> tuple[Length, ...]:
        """The lengths that PyTorch gives the tensor."""
        last = next((s for s in reversed(self.after) if s.kind == "reshape"), None)
        return self.lengths if last is None else last.parts

    def operand(self) -> Tensor:
        """The value as promotion sees it."""
        return Tensor(self.value, 0 if self.axes else 1)


def aligned(
    views: Views, operands: Sequence[Traced]
) -> tuple[list[Traced], tuple[int | None, ...]]:
    """The operands over nodes whose axes agree, and the axes of a result that has them all."""
    if len({(o.axes, len(o.node.shape)) for o in operands}) == 1:
        return list(operands), operands[0].axes
    labels = [_labels(o) for o in operands]
    slots = _merge(labels)
    rank = max(len(o.axes) for o in operands)
    result: list[int | None] = [None] * rank
    for position, (label, _) in enumerate(slots):
        if label != _HIDDEN:
            result[rank - label] = -position - 1
    moved = []
    for k, operand in enumerate(operands):
        taken = [slot.get(k) for _, slot in slots]
        order = tuple(None if t is None else -t - 1 for t in reversed(taken))
        places = {-t - 1: -p - 1 for p, t in enumerate(taken) if t is not None}
        node = operand.node if not operand.node.shape else views.arrange(operand.node, order)
        axes = tuple(None if a is None else places[a] for a in operand.axes)
        moved.append(replace(operand, node=node, axes=axes))
    return moved, tuple(result)


def common_lengths(operands: Iterable[Traced]) -> tuple[Length, ...]:
    """The lengths that operands broadcast to, which PyTorch has checked."""
    rows = [o.lengths for o in operands]
    rank = max(map(len, rows), default=0)
    columns = zip(*((1,) * (rank - len(row)) + row for row in rows), strict=True)
    return tuple(next((n for n in column if n != 1), 1) for column in columns)


def _labels(operand: Traced) -> list[int]:
    """For each axis of the node from the right: which axis of the tensor, from the right, it is."""
    rank = len(operand.axes)
    where = {a: rank - i for i, a in enumerate(operand.axes) if a is not None}
    return [where.get(-p - 1, _HIDDEN) for p in range(len(operand.node.shape))]


def _merge(labels: list[list[int]]) -> list[tuple[int, Slot]]:
    """Common axes from the right: the label of each, and which axis of each operand it is.

    Labels ascend. A hidden axis may stand where other operands have one that its own tensor lacks;
    where it keeps the next label back, it gets a place of its own, with the other hidden ones.
    """
    heads = [0] * len(labels)
    slots: list[tuple[int, Slot]] = []
    while any(h < len(own) for h, own in zip(heads, labels, strict=True)):
        rest = [own[h:] for h, own in zip(heads, labels, strict=True)]
        hidden = [k for k, own in enumerate(rest) if own and own[0] == _HIDDEN]
        label = min((label for own in rest for label in own if label != _HIDDEN), default=_HIDDEN)
        if label == _HIDDEN or any(label in rest[k] for k in hidden):
            label, advance = _HIDDEN, hidden
        else:
            advance = hidden + [k for k, own in enumerate(rest) if own and own[0] == label]
        slots.append((label, {k: heads[k] for k in advance}))
        for k in advance:
            heads[k] += 1
    return slots


def split(views: Views, value: Traced, axis: int, lengths: tuple[Length, Length]) -> Traced:
    """``value`` with an axis, which the node has, as two."""
    own = value.axes[axis]
    assert own is not None
    node = views.split(value.node, own, lengths)
    before = tuple(None if a is None else a - 1 for a in value.axes[:axis])
    axes = (*before, own - 1, *value.axes[axis:])
    made = (*value.lengths[:axis], *lengths, *value.lengths[axis + 1 :])
    return replace(value, node=node, axes=axes, lengths=made)


def unsqueezed(value: Traced, axis: int) -> Traced:
    """``value`` with a new axis of length 1 before ``axis``: a hidden one that stands there, the
    nearest to the axis behind it or, at the end, to that before it, as they are put back in turns.
    """
    before = [a for a in value.axes[:axis] if a is not None]
    behind = [a for a in value.axes[axis:] if a is not None]
    low = before[-1] if before else -len(value.node.shape) - 1
    high = behind[0] if behind else 0
    free = [a for a in value.hidden if low < a < high]
    new = (free[-1] if behind else free[0]) if free else None
    axes = (*value.axes[:axis], new, *value.axes[axis:])
    lengths = (*value.lengths[:axis], 1, *value.lengths[axis:])
    return replace(value, axes=axes, lengths=lengths)


def squeezed(value: Traced, axes: Sequence[int]) -> Traced:
    """``value`` without some of its axes, which have length 1."""
    kept = [i for i in range(len(value.axes)) if i not in axes]
    return replace(
        value,
        axes=tuple(value.axes[i] for i in kept),
        lengths=tuple(value.lengths[i] for i in kept),
    )


def permuted(views: Views, value: Traced, order: Sequence[int]) -> Traced:
    """``value`` with its axes in another order; the node's move with them."""
    axes = tuple(value.axes[i] for i in order)
    lengths = tuple(value.lengths[i] for i in order)
    present = [a for a in axes if a is not None]
    if present == sorted(present):
        return replace(value, axes=axes, lengths=lengths)
    places = sorted(present)
    new_order = list(range(-len(value.node.shape), 0))
    for place, old in zip(places, present, strict=True):
        new_order[place] = old
    node = views.arrange(value.node, tuple(new_order))
    moved = iter(places)
    axes = tuple(None if a is None else next(moved) for a in axes)
    return replace(value, node=node, axes=axes, lengths=lengths)
