"""How tensors lie in memory, as far as PyTorch looks at it to lay out what it computes from them.

May import the standard library only; torch inside functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Order:
    """Axes as they lie in memory, outermost first; ``spread`` are those whose elements are one.

    ``gaps``: those along which neighbours do not follow each other at once. Where none is, two axes
    can be seen as one.
    """

    axes: tuple[int, ...]
    spread: tuple[int, ...] = ()
    gaps: tuple[int, ...] = ()

    def strides(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """Strides of a tensor of these lengths, which may be symbols, that lies like this."""
        strides: list[Any] = [0] * len(shape)
        step: Any = 1
        for axis in reversed(self.axes):
            if axis not in self.spread:
                step = step * 2 if axis in self.gaps else step
                strides[axis] = step
                step = step * shape[axis]
        return tuple(strides)


def order_of(value: Any) -> Order | None:
    """How a tensor or NumPy array lies; None if row by row without gaps, or in no way known."""
    strides = getattr(value, "strides", None)
    if strides is not None:  # NumPy's, in bytes
        if value.flags.c_contiguous or any(s % value.itemsize or s < 0 for s in strides):
            return None
        return _order(value.shape, [s // value.itemsize for s in strides])
    if not hasattr(value, "stride") or value.is_contiguous():
        return None
    return _order(value.shape, value.stride())


def axes_in_memory(tensor: Any, axes: Sequence[int]) -> tuple[int, ...] | None:
    """The positions in ``axes`` of a tensor's axes, outermost first; None if that is not known.

    Lengths may be symbols, whose value in the trace at hand is looked at.
    """
    strides = [_known(stride) for stride in tensor.stride()]
    if any(stride is None for stride in strides):
        return None
    return tuple(sorted(range(len(axes)), key=lambda k: -strides[axes[k]]))


def _order(shape: Sequence[int], strides: Sequence[int]) -> Order:
    rank = range(len(shape))
    axes = tuple(sorted(rank, key=lambda k: -strides[k]))
    spread = tuple(k for k in rank if shape[k] != 1 and not strides[k])
    step, gaps = 1, []
    for axis in reversed(axes):
        if shape[axis] != 1 and axis not in spread:
            if strides[axis] != step:
                gaps.append(axis)
            step = strides[axis] * shape[axis]
    return Order(axes, spread, tuple(gaps))


def _known(stride: Any) -> Any:
    """The value of a stride in this trace."""
    node = getattr(stride, "node", None)
    return stride if node is None else node.hint
