"""How the graph of a model calls a region: with which tensors, and what it gets.

Once the compiled launcher knows a region's kernels, it takes the whole call: it reads views where
their tensors lie, makes no tensor but those that the graph gets, and nothing in between is Python.
May import ``runtime.launcher``, ``runtime.memory`` and ``runtime.model_region``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fusec.errors import FusecError
from fusec.runtime import launcher
from fusec.runtime.memory import allocator
from fusec.runtime.model_region import Course, RegionFunction

_MADE, _GIVEN, _NOTHING = 0, 1, -1  # as in launcher_sources/region.h


@dataclass(slots=True)
class Wire:
    """An input of a region: the tensor it is a view of, by its place in the call, and the views."""

    place: int
    steps: tuple[Callable[[Any], Any], ...] = ()

    def read(self, tensors: Sequence[Any]) -> Any:
        """The input, of the tensors of a call."""
        value = tensors[self.place]
        for step in self.steps:
            value = step(value)
        return value


@dataclass(slots=True)
class Calling:
    """How a region is called. ``shapes``: those in which its results are read, where it is in
    another than they have.
    """

    region: RegionFunction
    wires: list[Wire]
    shapes: list[tuple[int, ...] | None]

    def turn(self, place: int, step: Callable[[Any], Any]) -> None:
        """Let the tensor at a place come in another shape, from which ``step`` leads back."""
        for wire in self.wires:
            if wire.place == place:
                wire.steps = (step, *wire.steps)

    def read(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The region's inputs, of the tensors of a call."""
        return tuple([wire.read(tensors) for wire in self.wires])

    def shaped(self, results: Any) -> Any:
        """Results as the graph reads them."""
        if not any(self.shapes):
            return results
        several = results if isinstance(results, tuple) else (results,)
        pairs = zip(several, self.shapes, strict=True)
        found = tuple(r if shape is None else r.view(shape) for r, shape in pairs)
        return found if isinstance(results, tuple) else found[0]


def called(calling: Calling) -> Callable[..., Any]:
    """A region as a plain function of the tensors of a graph, which goes to the compiled launcher
    once that knows calls like this one.
    """
    import torch

    levels: Any = torch.autograd.forward_ad  # the launcher does not see tangents
    region, alone, settled = calling.region, None, False

    def run(*tensors: Any) -> Any:
        nonlocal alone, settled
        seen = levels._current_level >= 0
        if alone is not None and not seen:
            try:
                found = alone(*tensors)
            except FusecError:
                found = NotImplemented
            if found is not NotImplemented:
                return found
        values = calling.read(tensors)
        course = None if settled or seen else region.course(values)
        if course is None:
            return calling.shaped(region(*values))
        settled, alone = True, _taken_over(calling, tensors, course)
        return calling.shaped(course.results)

    run.__name__ = run.__qualname__ = region.report.name
    return run


class _Maker(NamedTuple):
    """A tensor to make: as :func:`allocator` takes it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    device: Any
    lean: bool


def _taken_over(calling: Calling, tensors: Sequence[Any], course: Course) -> Any:
    """A call like this one as the launcher makes it; None where it has to stay in Python."""
    inputs = []
    for (number, _), given in zip(course.views, course.given, strict=True):
        place = calling.wires[number].place
        base = tensors[place]
        if not _share(given, base) or given.is_neg():
            return None
        inputs.append((place, given.data_ptr() - base.data_ptr(), given.data_ptr() & 15))
    ends = _Ends([(_NOTHING, 0)] * len(calling.shapes))
    for k, computed in enumerate(course.computed):
        if not ends.add(calling, course, k, computed, inputs, tensors):
            return None
    if {k for k, (kind, _) in enumerate(ends.results) if kind == _NOTHING} != calling.region.inside:
        return None
    makes = [allocator(*maker) for maker in ends.makers]
    outputs, results = tuple(ends.outputs), tuple(ends.results)
    made = launcher.region(course.plan, tuple(tensors), tuple(inputs), makes, outputs, results)
    return made if made is None or not ends.views else _with_views(made, ends.views)


@dataclass(slots=True)
class _Ends:
    """Where the results of kernels go: the tensors to make; for each result of the kernels which of
    those, or of those given, it is written to and how far in; and what the region's ``results`` are
    of them. ``views``: shapes of results that are tensors given in another shape.
    """

    results: list[tuple[int, int]]
    makers: list[_Maker] = field(default_factory=list)
    outputs: list[tuple[int, int, int]] = field(default_factory=list)
    views: dict[int, tuple[int, ...]] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)  # makers by what they stand for

    def add(
        self, calling: Calling, course: Course, k: int, computed: Any, inputs: Any, tensors: Any
    ) -> bool:
        """Whether it is known where a result of the kernels goes."""
        found, over = course.owners[k], course.over[k]
        if found is None:
            return False
        number, owner = found
        read = owner if calling.shapes[number] is None else owner.view(calling.shapes[number])
        if over is not None:
            place, inside, _ = inputs[over]
            self.outputs.append((_GIVEN, place, inside))
            self.results[number] = (_GIVEN, place)
            if read.shape != tensors[place].shape:
                self.views[number] = tuple(read.shape)
            return inside == 0 and (read.is_contiguous() or number not in self.views)
        if id(owner) not in self.owners:
            self.owners[id(owner)] = len(self.makers)
            layout = tuple(read.shape), read.stride(), read.dtype, read.device
            self.makers.append(_Maker(*layout, course.lean))
            self.results[number] = (_MADE, self.owners[id(owner)])
        inside = computed.data_ptr() - owner.data_ptr()
        self.outputs.append((_MADE, self.owners[id(owner)], inside))
        return True


def _with_views(made: Any, views: Mapping[int, tuple[int, ...]]) -> Callable[..., Any]:
    """The launcher's call, some of whose results are in other shapes."""

    def run(*tensors: Any) -> Any:
        found = made(*tensors)
        if found is NotImplemented:
            return found
        several = list(found) if isinstance(found, tuple) else [found]
        for number, shape in views.items():
            several[number] = several[number].view(shape)
        return tuple(several) if isinstance(found, tuple) else several[0]

    return run


def _share(one: Any, other: Any) -> bool:
    """Whether two tensors lie in one storage."""
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)
