"""A region of a model as a function of tensors: kernels, and PyTorch's operators where those fail.

May import everything below the API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from fusec.errors import FusecError
from fusec.runtime.memory import allocator, is_pooled
from fusec.runtime.model_report import RegionReport, fail
from fusec.runtime.traced_bound import Bound, Known, bind, lengths_in
from fusec.runtime.traced_steps import number

if TYPE_CHECKING:
    from fusec.frontend.model_trace import ModelRegion

_MANY = 1024  # exact shapes remembered by one region


@dataclass(frozen=True, slots=True)
class _Seen:
    """An operand of the kernels, a view of an input: its ``steps``, and where they led for an input
    with these ``strides``: shape, strides and the way to its first element, or None where they
    have to be gone again, as for a copy.
    """

    number: int
    steps: Sequence[Callable[[Any], Any]]
    strides: tuple[int, ...]
    place: tuple[tuple[int, ...], tuple[int, ...], int] | None

    @classmethod
    def of(cls, number: int, steps: Sequence[Callable[[Any], Any]], value: Any) -> _Seen:
        seen, place = _under(value, steps), None
        # The storage, not its address: tensors without memory have none.
        shares = seen.untyped_storage()._cdata == value.untyped_storage()._cdata
        if len(steps) > 1 and shares and not value.is_neg():
            begin = seen.storage_offset() - value.storage_offset()
            place = tuple(seen.shape), seen.stride(), begin
        return cls(number, steps, value.stride(), place)

    def read(self, value: Any) -> Any:
        """The view of an input of the same shape."""
        if self.place is None or value.stride() != self.strides or value.is_neg():
            return _under(value, self.steps)
        shape, strides, begin = self.place
        return value.as_strided(shape, strides, value.storage_offset() + begin)


@dataclass(slots=True)
class _Bound:
    """A region for exact shapes. ``wanted`` are shape, strides and type of each result."""

    bound: Bound
    strides: list[tuple[int, ...]]
    wanted: list[tuple[tuple[int, ...], tuple[int, ...], Any]]
    plain: bool  # the inputs are the kernels' own, in order
    finished: bool  # so are the results
    over: tuple[int | None, ...]  # the input whose memory each result takes, if any
    make: tuple[Callable[[], Any], ...]  # memory for each that takes none, as PyTorch lays it out
    into: bool  # the results go to that memory
    wholes: tuple[tuple[Callable[[], Any], Joint], ...] = ()  # memory of several results

    views: list[_Seen] = field(default_factory=list)  # once there was a call

    def moved(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """What the kernels read, of the region's inputs."""
        if not self.views:
            self.views = [_Seen.of(n, steps, values[n]) for n, steps in self.bound.views]
        return tuple([view.read(values[view.number]) for view in self.views])

    def outs(self, values: Sequence[Any]) -> Any:
        """Memory for the results, laid out as PyTorch expects them."""
        each = zip(self.over, self.strides, self.make, strict=True)
        found = [
            make() if place is None or values[place].stride() != strides else values[place]
            for place, strides, make in each
        ]
        for make, joint in self.wholes:
            joint.share(make(), found)
        return _single(tuple(found))


class _Direct(NamedTuple):
    """A way around Python: the launcher's table of calls, for a region that is called in one way.
    ``into``: the results are laid out beforehand; ``alone``: strides of the only one, if the kernel
    gives it as it is.
    """

    table: Any
    made: _Bound
    into: bool
    alone: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Joint:
    """Results of a region that are parts of one tensor: its layout, the ``axis`` along which they
    lie, and the number, begin and end of each.
    """

    layout: tuple[tuple[int, ...], tuple[int, ...], Any]
    axis: int
    parts: tuple[tuple[int, int, int], ...]

    def share(self, whole: Any, results: list[Any]) -> None:
        """Put the parts of ``whole`` in the places of the results that are to lie there."""
        for place, begin, end in self.parts:
            results[place] = whole.narrow(self.axis, begin, end - begin)


@dataclass(frozen=True, slots=True)
class Targets:
    """Where the results of a region go.

    ``given``: to memory that is laid out beforehand, since kernels would lay it out in another way
    than PyTorch expects. ``over``: results by the inputs whose memory they take, which nothing
    needs again, of all the ``free`` inputs that the kernels can write over: those are the same for
    all regions that share the kernels, so that a call is known whichever of them is taken.
    ``lean``: see ``runtime.memory``. ``joints``: results that lie in one tensor, and
    are ``given``.
    """

    given: bool = False
    over: Mapping[int, int] = field(default_factory=dict)
    free: tuple[int, ...] = ()
    lean: bool = False
    joints: tuple[Joint, ...] = ()


class RegionFunction:
    """Callable with the region's inputs and numbers; gives its results, a tensor or a tuple.

    ``eager`` is called with the same where the kernels cannot be built.
    """

    def __init__(
        self,
        region: ModelRegion,
        known: Known,
        eager: Callable[..., Any],
        report: RegionReport,
        targets: Targets,
    ) -> None:
        self.known = known
        self.eager = eager
        self.report = report
        self.over = targets.over
        self.joined = bool(targets.joints)
        self._targets = targets
        self._tensors = len(region.inputs)
        self._layouts = region.layouts
        fixed = all(isinstance(n, int) for own in region.program.symbols for n in own)
        self._shapes: Callable[[Any], Any] = _nothing if fixed else _shapes
        self._fixed = fixed and not region.numbers
        self._memo: dict[Any, _Bound] = {}

    def __call__(self, *values: Any) -> Any:
        if self.report.failure is not None:
            return self._eager(values)
        tensors = values[: self._tensors]
        try:
            return self._run(self._bound(tensors), tensors)
        except FusecError as error:
            fail(self.report, error.message)
            return self._eager(values)

    def _eager(self, values: Sequence[Any]) -> Any:
        """The results of PyTorch's operators, where those of kernels would be."""
        results = self.eager(*values)
        if not self._targets.joints:
            return results
        wholes = self._bound(values[: self._tensors]).wholes
        found = list(results)
        for make, joint in wholes:
            joint.share(make(), found)
        for own, result in zip(found, results, strict=True):
            if own is not result:
                own.copy_(result)
        return tuple(found)

    def direct(self) -> _Direct | None:
        """How every call goes, once there was one; None where calls differ, or may."""
        made = self._memo.get(None) if self._fixed else None
        table = self.known.function.table
        if made is None or table is None or self.report.failure is not None:
            return None
        alone = made.strides[0] if made.finished and len(made.strides) == 1 else None
        return _Direct(table, made, made.into, alone)

    def finish(self, made: _Bound, computed: Any) -> Any:
        """What the region gives, of what its kernels have computed."""
        results = computed if isinstance(computed, tuple) else (computed,)
        if not made.finished:
            results = tuple(
                _under(results[own.output or 0], steps) for own, steps, _ in made.bound.results
            )
        for result, strides in zip(results, made.strides, strict=True):
            if result.stride() != strides and not agree(result, strides):
                return _single(tuple(map(_laid_out, results, made.wanted)))
        return _single(results)

    def _bound(self, values: Sequence[Any]) -> _Bound:
        key = self._shapes(values)
        found = self._memo.get(key)
        if found is not None:
            return found
        if len(self._memo) >= _MANY:
            self._memo.clear()
        bound = bind(self.known, values)
        lengths = lengths_in(self.known.program, values)

        def numbers(of: Sequence[Any]) -> tuple[int, ...]:
            return tuple(int(number(n, lengths)) for n in of)

        wanted = [(numbers(own.shape), numbers(own.strides), own.dtype) for own in self._layouts]
        finished = not any(steps for _, steps, _ in bound.results)
        in_order = [n for n, _ in bound.views] == list(range(len(values)))
        device = max((v.device for v in values), key=lambda d: d.type != "cpu")
        targets = self._targets
        given = targets.given or bool(targets.over)
        pooled = targets.lean and any(is_pooled(*own, device) for own in wanted)
        joined = {place for j in targets.joints for place, _, _ in j.parts}
        made = self._memo[key] = _Bound(
            bound,
            [strides for _, strides, _ in wanted],
            wanted,
            in_order and not any(steps for _, steps in bound.views),
            finished,
            tuple(self.over.get(k) for k in range(len(wanted))),
            tuple(
                _nothing_yet if k in joined else allocator(*own, device, targets.lean)
                for k, own in enumerate(wanted)
            ),
            finished and (given or pooled),
            tuple((allocator(*j.layout, device, targets.lean), j) for j in targets.joints),
        )
        return made

    def _run(self, made: _Bound, values: Sequence[Any]) -> Any:
        if not made.plain:
            values = made.moved(values)
        if made.into:
            return self._run_into(made, values)
        return self.finish(made, self.known.function(*values))

    def _run_into(self, made: _Bound, values: Sequence[Any]) -> Any:
        outs = made.outs(values)
        if self.joined:
            self.known.function.fill(tuple(values), outs)
        elif self.over:
            self.known.function.overwrite(tuple(values), outs, self._targets.free)
        else:
            self.known.function(*values, out=outs)
        return outs


def straight(region: RegionFunction) -> Callable[..., Any]:
    """``region`` as a function that goes to the compiled launcher with as little as there can be in
    between, once calls like this one are in its table.
    """
    import torch

    levels: Any = torch.autograd.forward_ad  # the launcher does not see tangents
    direct: _Direct | None = None

    def run(*values: Any) -> Any:
        nonlocal direct
        if direct is None or levels._current_level >= 0:
            result = region(*values)
            direct = region.direct()
            return result
        table, made, into, alone = direct
        given = values if made.plain else made.moved(values)
        try:
            results = table(given, made.outs(given)) if into else table(given)
        except FusecError:
            return region(*values)
        if results is NotImplemented:
            return region(*values)
        if alone is not None and results.stride() == alone:
            return results
        return results if into else region.finish(made, results)

    return run


def _nothing(values: Any) -> None:
    """The key of a call whose shapes are always the same."""


def _nothing_yet() -> None:
    """The memory of a result that is a part of a tensor."""


def _shapes(values: Sequence[Any]) -> Any:
    return tuple(v.shape for v in values)


def _under(value: Any, steps: Sequence[Callable[[Any], Any]]) -> Any:
    for step in steps:
        value = step(value)
    return value


def _single(results: tuple[Any, ...]) -> Any:
    return results[0] if len(results) == 1 else results


def agree(result: Any, strides: Sequence[int]) -> bool:
    """Whether two layouts differ only along axes where it does not matter."""
    if not result.numel():
        return True
    triples = zip(result.shape, result.stride(), strides, strict=True)
    return all(length == 1 or own == wanted for length, own, wanted in triples)


def _laid_out(result: Any, wanted: tuple[tuple[int, ...], tuple[int, ...], Any]) -> Any:
    """A result in the layout that PyTorch expects."""
    import torch

    shape, strides, dtype = wanted
    if agree(result, strides):
        return result
    return torch.empty_strided(shape, strides, dtype=dtype, device=result.device).copy_(result)
