"""What tensors have in memory: whether any, where, and how far it reaches.

May import ``fusec.errors``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fusec.errors import ShapeError

if TYPE_CHECKING:
    import torch

NUMBERS = (bool, int, float)


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose memory holds what PyTorch says that it holds, as kernels read it:

    PyTorch negates some views when it reads them, and some zeros have no memory.
    """
    import torch

    return torch.zeros_like(tensor) if tensor._is_zerotensor() else tensor.resolve_neg()


def lacks_memory(tensor: torch.Tensor) -> bool:
    """Whether elements of a tensor are nowhere, because its storage was given back."""
    return not tensor.data_ptr() and tensor.numel() > 0 and tensor.device.type != "meta"


def reaches(tensors: Sequence[Any]) -> tuple[int, ...]:
    """How many bytes from its address on each value occupies; 0 for a number."""
    extents = (_extent(t) if type(t) not in NUMBERS else (0, 0) for t in tensors)
    return tuple(end - start for start, end in extents)


def share_memory(values: Sequence[Any], outs: Sequence[torch.Tensor]) -> bool:
    """Whether an output may share memory with an input or another output, going by addresses."""
    read = [_extent(v) for v in values if type(v) not in NUMBERS]
    written = [_extent(o) for o in outs]
    return any(
        a_start < b_end and b_start < a_end
        for k, (a_start, a_end) in enumerate(written)
        for b_start, b_end in (*read, *written[:k])
    )


def refuse_overlaps(outs: Sequence[torch.Tensor], apart: bool) -> None:
    """ShapeError if several elements of the caller's outputs are in one place; those of two are not
    if they are known to be ``apart``.
    """
    for k, tensor in enumerate(outs):
        if overlaps_itself(tensor):
            which = "out" if len(outs) == 1 else f"out[{k}]"
            raise ShapeError(
                f"{which} overlaps itself: several of its elements share one place in memory",
                hint="pass out.contiguous(), not an expanded tensor",
            )
    if len(outs) > 1 and not apart and (found := overlapping(outs)) is not None:
        raise ShapeError(
            "out[{}] and out[{}] share memory".format(*found),
            hint="give each result a tensor of its own",
        )


def overlapping(outs: Sequence[torch.Tensor]) -> tuple[int, int] | None:
    """The positions of two outputs that have an element in one place; None if there are none.

    Where neither of two is all of its stretch of memory, every byte that both may reach is counted.
    """
    extents = [_extent(out) for out in outs]
    for k, (start, end) in enumerate(extents):
        for other, (other_start, other_end) in enumerate(extents[:k]):
            if start < other_end and other_start < end and _meet(outs[other], outs[k]):
                return other, k
    return None


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether several elements of a tensor are in one place."""
    import torch

    reach, apart = 0, True
    for step, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1:
            apart = apart and step > reach
            reach += (length - 1) * step
    if apart or not tensor.numel():
        return False
    places = torch.zeros(reach + 1, dtype=torch.bool)
    places.as_strided(tensor.shape, tensor.stride()).fill_(True)
    return int(places.sum()) < tensor.numel()


def _meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors whose stretches of memory overlap have an element in one place."""
    import torch

    if a.is_contiguous() and b.is_contiguous():
        return True
    extents = [_extent(a), _extent(b)]
    start = min(first for first, _ in extents)
    places = torch.zeros(max(end for _, end in extents) - start, dtype=torch.bool)
    for tensor, (first, _) in zip((a, b), extents, strict=True):
        size = tensor.element_size()
        steps = (*(step * size for step in tensor.stride()), 1)
        taken = places.as_strided((*tensor.shape, size), steps, first - start)
        if bool(taken.any()):
            return True
        taken.fill_(True)
    return False


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first address of a tensor's elements, and the one behind its last."""
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return start, start + (1 + sum((n - 1) * step for n, step in steps)) * tensor.element_size()
