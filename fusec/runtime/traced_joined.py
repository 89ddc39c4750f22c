"""Where parts lie in wholes: the results of kernels in concatenations that a function returns, and
pieces that it reads of one argument, whose gradients are parts of that argument's.

May import everything below the API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fusec.frontend.trace import TracedProgram
from fusec.frontend.trace_views import Step
from fusec.runtime.prepared import BufferPlan, allocators, made
from fusec.runtime.shapes import contiguous
from fusec.runtime.traced_steps import Way, along, number, way_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Place:
    """Where a result of a kernel, or what is read, lies: in tensor ``at`` of several, along
    ``way``.
    """

    at: int
    way: Way


@dataclass(frozen=True, slots=True)
class Pieces:
    """The inputs of a program that are pieces of one argument, of which no two meet: numbers of
    inputs, and their ways from it. ``all``: nothing else is there.
    """

    argument: int
    ways: Mapping[int, Way]
    all: bool


@dataclass(frozen=True, slots=True)
class Late:
    """A part that is no plain result of a kernel, as it repeats some: ``output`` under the views
    ``behind`` is copied to its place.
    """

    output: int
    behind: Way
    place: Place

    def pulled_back(self, grad: torch.Tensor, result: BufferPlan) -> torch.Tensor:
        """The gradient of the output, which is like ``result``, for one of the part."""
        import torch

        form = torch.empty(result.shape, dtype=grad.dtype, device=grad.device)
        with torch.enable_grad():
            part = along(self.behind, form.requires_grad_())
        further = torch.is_grad_enabled()
        (found,) = torch.autograd.grad(part, form, grad, create_graph=further)
        return found


@dataclass(slots=True)
class Layout:
    """For exact shapes: ``plans`` are the tensors to make, of which the first ``wholes`` are such,
    and ``places`` says where in them each output of the program lies. What is ``late`` is copied.
    """

    plans: tuple[BufferPlan, ...]
    places: tuple[Place, ...]
    late: tuple[Late, ...]
    pieces: tuple[Pieces, ...]
    wholes: int
    tapes: dict[Any, Any] = field(default_factory=dict)  # of runtime.autograd_joined
    _makers: dict[Any, Any] = field(default_factory=dict)

    def tensors(self, device: Any) -> list[torch.Tensor]:
        """New wholes, and behind them the other outputs."""
        makers = self._makers.get(device)
        if makers is None:
            makers = self._makers[device] = allocators(self.plans, device)
        return made(makers)

    def parts(self, tensors: Sequence[Any]) -> list[Any]:
        """Each output of the program in ``tensors``; None where that is None."""
        found = []
        for place in self.places:
            whole = tensors[place.at]
            found.append(None if whole is None else along(place.way, whole))
        return found

    def finish(self, tensors: Sequence[Any]) -> None:
        """Copy what is late to its place."""
        for late in self.late:
            value = along(late.behind, tensors[self.places[late.output].at])
            along(late.place.way, tensors[late.place.at]).copy_(value)


def layout_of(
    program: TracedProgram,
    views: Sequence[tuple[int, Way]],
    leaves: Sequence[Any],
    values: Mapping[Any, Any],
) -> Layout | None:
    """Where parts lie for lengths that have these ``values``; None where nothing is in parts."""
    if program.resolved is None or not program.shapes:  # a region of a model has no such places
        return None
    wholes = [r.whole for r in program.results if r.whole is not None]
    pieces = _pieces(program, views, leaves, values)
    if not wholes and not pieces:
        return None
    plans = [_plan(w.lengths, w.order, w.dtype, values) for w in wholes]
    late: list[Late] = []
    places: dict[int, Place] = {}
    for k, whole in enumerate(wholes):
        for slices, result in whole.parts:
            assert result.output is not None
            way = way_of(slices, values)
            if all(step.kind == "arrange" for step in result.steps):
                places[result.output] = Place(k, [*way, *_without_ones(result.steps)])
            else:
                late.append(Late(result.output, way_of(result.steps, values), Place(k, way)))
    outputs = program.resolved.graph.outputs
    for k, (output, lengths) in enumerate(zip(outputs, program.shapes, strict=True)):
        if k not in places:
            places[k] = Place(len(plans), [])
            plans.append(_plan(lengths, output.order, output.node.dtype.torch, values))
    in_order = tuple(places[k] for k in range(len(outputs)))
    return Layout(tuple(plans), in_order, tuple(late), pieces, len(wholes))


def _plan(
    lengths: Sequence[Any], order: Sequence[int] | None, dtype: str, values: Mapping[Any, Any]
) -> BufferPlan:
    shape = tuple(number(n, values) for n in lengths)
    if order is None:
        return BufferPlan(shape, contiguous(shape), dtype)
    strides = dict(zip(order, contiguous([shape[k] for k in order]), strict=True))
    return BufferPlan(shape, tuple(strides[k] for k in range(len(shape))), dtype)


def _without_ones(steps: Sequence[Step]) -> Way:
    """From a part to what a kernel writes, which lacks axes of length 1."""
    if not steps:
        return []
    (step,) = steps
    index = tuple(0 if axis is None else slice(None) for axis in step.parts)
    return [lambda tensor: tensor[index]]


# -- pieces of arguments --------------------------------------------------------------------------


def _pieces(
    program: TracedProgram,
    views: Sequence[tuple[int, Way]],
    leaves: Sequence[Any],
    values: Mapping[Any, Any],
) -> tuple[Pieces, ...]:
    """The arguments that are read in pieces which do not meet. Some inputs are no more than owners
    of lengths.
    """
    assert program.resolved is not None
    graph = program.resolved.graph
    read = {node.name for node in graph.nodes() if node.op.name == "input"}
    everything = [*leaves, *program.captured]
    numbers: dict[int, list[int]] = {}
    for k, (argument, _) in enumerate(views):
        if graph.inputs[k].name in read:
            numbers.setdefault(argument, []).append(k)
    found = []
    for argument, own in numbers.items():
        steps = [program.views[k].steps for k in own]
        if len(own) < 2 or any(s.kind not in ("slice", "arrange") for way in steps for s in way):
            continue
        shape = tuple(everything[argument].shape)
        boxes = [_box(way, shape, values) for way in steps]
        if any(_meet(a, b) for k, a in enumerate(boxes) for b in boxes[:k]):
            continue
        counted = sum(_count(box) for box in boxes)
        ways = {k: views[k][1] for k in own}
        found.append(Pieces(argument, ways, counted == _count([range(n) for n in shape])))
    return tuple(found)


def _box(steps: Sequence[Step], shape: Sequence[int], values: Mapping[Any, Any]) -> list[range]:
    """For each axis of an argument the places that a view reads."""
    box = [range(n) for n in shape]
    axes: list[int | None] = list(range(len(shape)))  # those of the argument, None for a new one
    for step in steps:
        if step.kind == "arrange":
            axes = [None if a is None else axes[a] for a in step.parts]
            continue
        axis, start, end, stride = step.parts
        own = axes[axis]
        if own is not None:
            box[own] = box[own][slice(number(start, values), number(end, values), stride)]
    return box


def _count(box: Sequence[range]) -> int:
    total = 1
    for places in box:
        total *= len(places)
    return total


def _meet(a: Sequence[range], b: Sequence[range]) -> bool:
    """Whether two boxes may have an element in common."""
    return not any(_apart(p, q) for p, q in zip(a, b, strict=True))


def _apart(a: range, b: range) -> bool:
    """Whether two slices of an axis have no place in common: one lies behind the other, or they
    alternate.
    """
    if not a or not b or a[-1] < b[0] or b[-1] < a[0]:
        return True
    return a.step == b.step and (a.start - b.start) % a.step != 0
