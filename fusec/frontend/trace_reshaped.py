"""Computing with values that are reshaped afterwards: as long as a view only makes one axis of two,
as that behind a group_norm does, others can have that axis as two.

May import, of the frontend, ``trace_values`` and ``trace_views``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusec.frontend.trace_values import Traced, common_lengths, split, squeezed, unsqueezed
from fusec.frontend.trace_views import Length, Step, Views


def under_one_reshape(
    views: Views, operands: Sequence[Traced]
) -> tuple[list[Traced], tuple[Step, ...]] | None:
    """Operands of which some are reshaped afterwards as if all were, so that a result can be; None
    where they cannot. Beside one that makes one axis of two, others have that axis as two.
    """
    first = next((o for o in operands if o.after), None)
    if first is None:
        return list(operands), ()
    if any((o.after, o.lengths) != (first.after, first.lengths) for o in operands if o.after):
        return None
    if all(o.after or not o.axes for o in operands):
        return list(operands), first.after
    place = merged_axis(first)
    if place is None or first.shape[place] == 1:
        return None
    behind = len(first.lengths) - place  # axes from the merged ones on
    both = first.lengths[place : place + 2]
    moved = [o if o.after or not o.axes else _in_two(views, o, 1 - behind, both) for o in operands]
    lengths = common_lengths(moved)  # more than those of the first, where that has one of many
    place = len(lengths) - behind
    made = (*lengths[:place], first.shape[-behind + 1], *lengths[place + 2 :])
    return moved, (Step("reshape", made),)


def merged_axis(value: Traced) -> int | None:
    """Which axis a tensor's only view makes one with the next, if it does nothing else."""
    (kind, made), more = (value.after[0].kind, value.after[0].parts), len(value.after) > 1
    own = value.lengths
    if kind != "reshape" or more or len(own) != len(made) + 1:
        return None
    place = next((i for i, n in enumerate(made) if own[i] != n), len(made) - 1)
    whole = (own[place], own[place + 1], made[place])
    if all(isinstance(n, int) for n in whole) and whole[0] * whole[1] != whole[2]:
        return None  # of no elements
    return place if own[place + 2 :] == made[place + 1 :] else None


def _in_two(views: Views, value: Traced, axis: int, lengths: Sequence[Length]) -> Traced:
    """``value`` with a negative axis as two, if it has one there."""
    place = len(value.axes) + axis
    if place < 0:
        return value
    if value.axes[place] is None or value.lengths[place] == 1:
        return unsqueezed(value, place)
    return split(views, value, place, (lengths[0], lengths[1]))


def in_two(axes: Sequence[int], merged: int) -> list[int]:
    """The axes below such a view that are those of ``axes`` above it, in the same order."""
    return [b for a in axes for b in ((a, a + 1) if a == merged else (a + (a > merged),))]


def reduced_under(
    value: Traced, above: Sequence[Length], merged: int, axes: Sequence[int], keepdim: bool
) -> Traced:
    """What is left of a tensor whose view makes its lengths ``above`` after a reduction along
    ``axes`` above it, which have length 1 in ``value``.
    """
    if merged in axes:
        value = squeezed(value, [merged + 1])
        return value if keepdim else squeezed(value, axes)
    made = tuple(1 if i in axes else n for i, n in enumerate(above))
    if not keepdim:
        made = tuple(n for i, n in enumerate(made) if i not in axes)
        value = squeezed(value, in_two(axes, merged))
    return replace(value, after=(Step("reshape", made),))
