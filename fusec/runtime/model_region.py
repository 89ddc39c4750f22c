"""A region of a model as a function of tensors: kernels, and PyTorch's operators where those fail.

May import everything below the API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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

    def outs(self, values: Sequence[Any], wholes: Sequence[Any]) -> list[Any]:
        """Memory for the results, laid out as PyTorch expects them; ``wholes``: that of several."""
        each = zip(self.over, self.strides, self.make, strict=True)
        found = [
            make() if place is None or values[place].stride() != strides else values[place]
            for place, strides, make in each
        ]
        for whole, (_, joint) in zip(wholes, self.wholes, strict=True):
            joint.share(whole, found)
        return found

    def make_wholes(self) -> list[Any]:
        """Memory for what is put together of results."""
        return [make() for make, _ in self.wholes]

    def joined(self, wholes: Sequence[Any], results: list[Any]) -> Any:
        """What the region gives: a whole in the place of the first of its parts, and no others."""
        for whole, (_, joint) in zip(wholes, self.wholes, strict=True):
            for place, _, _ in joint.parts:
                results[place] = None
            results[joint.first] = whole
        return _single(tuple(results))


@dataclass(frozen=True, slots=True)
class Course:
    """A call of a region's kernels, and all that it goes through, for the launcher to do alone.

    ``views``: the inputs of the kernels, as :class:`Bound` has them, which are ``given`` here;
    ``over``: the input over which each result of the kernels is written, if any; ``owners``: which
    result of the region each of them is or is a part of, and in which tensor, None where it is
    none by itself.
    """

    results: Any  # what the region gives
    plan: Any
    views: Sequence[tuple[int, Any]]
    given: tuple[Any, ...]
    computed: tuple[Any, ...]
    over: tuple[int | None, ...]
    owners: tuple[tuple[int, Any] | None, ...]
    lean: bool


@dataclass(frozen=True, slots=True)
class Joint:
    """Results of a region that are parts of one tensor: its layout, the ``axis`` along which they
    lie, and the number, begin and end of each.
    """

    layout: tuple[tuple[int, ...], tuple[int, ...], Any]
    axis: int
    parts: tuple[tuple[int, int, int], ...]

    @property
    def first(self) -> int:
        """The number of the result in whose place the whole is given."""
        return self.parts[0][0]

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
        self._targets = targets
        self._tensors = len(region.inputs)
        self._layouts = region.layouts
        fixed = all(isinstance(n, int) for own in region.program.symbols for n in own)
        self._shapes: Callable[[Any], Any] = _nothing if fixed else _shapes
        self.fixed = fixed and not region.numbers
        self.joined = bool(targets.joints)
        parts = {place for joint in targets.joints for place, _, _ in joint.parts}
        self.inside = parts - {joint.first for joint in targets.joints}  # given as None
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
        made = self._bound(values[: self._tensors])
        wholes, found = made.make_wholes(), list(results)
        for whole, (_, joint) in zip(wholes, made.wholes, strict=True):
            joint.share(whole, found)
        for own, result in zip(found, results, strict=True):
            if own is not result:
                own.copy_(result)
        return made.joined(wholes, found)

    def course(self, values: Sequence[Any]) -> Course | None:
        """A call, step by step; None where calls differ, or may, or the launcher does not know it,
        and then nothing has happened.
        """
        made = self._memo.get(None) if self.fixed else None
        table = self.known.function.table
        if made is None or table is None or self.report.failure is not None:
            return None
        given = tuple(values if made.plain else made.moved(values))
        views, lean = made.bound.views, self._targets.lean
        if made.into:
            wholes = made.make_wholes()
            outs = made.outs(given, wholes)
            plan, computed = _known(table, given, (_single(tuple(outs)),))
            if plan is None:
                return None
            owners, over = _laid_before(made, given, wholes, outs)
            return Course(
                made.joined(wholes, outs), plan, views, given, computed, over, owners, lean
            )
        plan, computed = _known(table, given, ())
        if plan is None:
            return None
        results = self.finish(made, _single(computed))
        owners, over = _owners(computed, _several(results)), (None,) * len(computed)
        return Course(results, plan, views, given, computed, over, owners, lean)

    def finish(self, made: _Bound, computed: Any) -> Any:
        """What the region gives, of what its kernels have computed."""
        results = _several(computed)
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
        joined = {*self.inside, *(joint.first for joint in targets.joints)}
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
        wholes = made.make_wholes()
        outs = made.outs(values, wholes)
        together = _single(tuple(outs))
        if wholes:
            self.known.function.fill(tuple(values), together)
        elif self.over:
            self.known.function.overwrite(tuple(values), together, self._targets.free)
        else:
            self.known.function(*values, out=together)
        return made.joined(wholes, outs)


def _known(table: Any, given: tuple[Any, ...], out: tuple[Any, ...]) -> tuple[Any, Any]:
    """The launcher's plan of a call, and the results after it was made; None twice if it was not,
    as under a mode that watches memory.
    """
    plan = table.plan(given, *out)
    try:
        computed = table(given, *out) if plan is not None else NotImplemented
    except FusecError:
        return None, None
    return (None, None) if computed is NotImplemented else (plan, _several(computed))


def _laid_before(
    made: _Bound, given: Sequence[Any], wholes: Sequence[Any], outs: Sequence[Any]
) -> tuple[Any, Any]:
    """Which result each of ``outs`` is or is a part of, and over which input it is written."""
    found = dict(enumerate(enumerate(outs)))
    for whole, (_, joint) in zip(wholes, made.wholes, strict=True):
        found |= {place: (joint.first, whole) for place, _, _ in joint.parts}
    pairs = zip(made.over, outs, strict=True)
    over = tuple(p if p is not None and given[p] is out else None for p, out in pairs)
    return tuple(found[k] for k in range(len(outs))), over


def _owners(computed: Sequence[Any], results: Sequence[Any]) -> tuple[Any, ...]:
    """Which result each computed tensor is, by itself and from its first element on."""

    def owner(tensor: Any) -> tuple[int, Any] | None:
        at, length = tensor.data_ptr(), tensor.numel()
        found = [(k, r) for k, r in enumerate(results) if r.data_ptr() == at]
        return found[0] if len(found) == 1 and found[0][1].numel() == length else None

    return tuple(map(owner, computed))


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


def _several(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


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
