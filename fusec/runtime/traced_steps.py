"""The views of a traced program for exact lengths: as functions of tensors.

May import everything below the API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from fusec.frontend.trace_views import Length, Step
from fusec.runtime.traced_numbers import evaluated

if TYPE_CHECKING:
    import torch

Way: TypeAlias = "list[Callable[[Any], Any]]"


def along(way: Way, tensor: Any) -> Any:
    """What a tensor is at the end of these views."""
    for step in way:
        tensor = step(tensor)
    return tensor


def way_of(steps: Sequence[Step], values: Mapping[Any, Any]) -> Way:
    """The views as functions of a tensor, where symbols have these values."""
    return [_step(step, values) for step in steps]


def number(length: Length, values: Mapping[Any, Any]) -> Any:
    """A length in numbers."""
    if isinstance(length, int | float):
        return length
    return evaluated(length, values)


def _step(step: Step, values: Mapping[Any, Any]) -> Callable[[Any], Any]:
    """One view as a function of a tensor."""
    match step.kind:
        case "arrange":
            axes = step.parts
            return lambda tensor: _arranged(tensor, axes)
        case "slice":
            axis, start, end, stride = step.parts
            piece = slice(number(start, values), number(end, values), stride)
            index = (..., piece, *([slice(None)] * (-axis - 1)))
            return lambda tensor: tensor[index]
        case "detach":
            return lambda tensor: tensor.detach()
        case "count":
            return _counted(number(step.parts[0], values))
    lengths = tuple(number(n, values) for n in step.parts)
    match step.kind:
        case "expand":
            return lambda tensor: tensor.expand(lengths)
        case "spread":
            return lambda tensor: tensor.expand(lengths).contiguous()
    return lambda tensor: tensor.reshape(lengths)


def _counted(length: int) -> Callable[[Any], Any]:
    """0, 1, 2 ... on the device of a tensor: made once, as nothing writes to it."""
    made: dict[Any, Any] = {}

    def counted(tensor: Any) -> Any:
        import torch

        known = made.get(tensor.device)
        if known is None:
            known = made[tensor.device] = torch.arange(length, device=tensor.device)
        return known

    return counted


def _arranged(tensor: torch.Tensor, axes: Sequence[int | None]) -> torch.Tensor:
    """Axes in another order: None makes one of length 1, one of length 1 may be left out."""
    rank = tensor.dim()
    kept = [a + rank for a in axes if a is not None]
    dropped = [a for a in range(rank) if a not in kept]
    moved = tensor.permute((*dropped, *kept))
    for _ in dropped:
        moved = moved.squeeze(0)
    for place, axis in enumerate(axes):
        if axis is None:
            moved = moved.unsqueeze(place)
    return moved
