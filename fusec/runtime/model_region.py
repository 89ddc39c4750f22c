"""A region of a model as a function of tensors: kernels, and PyTorch's operators where those fail.

May import everything below the API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusec.errors import FusecError
from fusec.runtime.model_report import RegionReport, fail
from fusec.runtime.traced_bound import Bound, Known, bind, lengths_in, number

if TYPE_CHECKING:
    from fusec.frontend.model_trace import ModelRegion

_MANY = 1024  # exact shapes remembered by one region


@dataclass(slots=True)
class _Bound:
    """A region for exact shapes. ``wanted`` are shape, strides and type of each result."""

    bound: Bound
    wanted: list[tuple[tuple[int, ...], tuple[int, ...], Any]]
    plain: bool  # the inputs are the kernels' own, in order
    finished: bool  # so are the results


class RegionFunction:
    """Callable with the region's inputs and numbers; gives its results, a tensor or a tuple.

    ``eager`` is called with the same where the kernels cannot be built. ``given``: the results go
    to memory that is laid out beforehand, since kernels would lay it out in another way than
    PyTorch expects.
    """

    def __init__(
        self,
        region: ModelRegion,
        known: Known,
        eager: Callable[..., Any],
        report: RegionReport,
        given: bool,
    ) -> None:
        self.known = known
        self.eager = eager
        self.report = report
        self._given = given
        self._tensors = len(region.inputs)
        self._layouts = region.layouts
        fixed = all(isinstance(n, int) for own in region.program.symbols for n in own)
        self._shapes: Callable[[Any], Any] = _nothing if fixed else _shapes
        self._memo: dict[Any, _Bound] = {}

    def __call__(self, *values: Any) -> Any:
        if self.report.failure is not None:
            return self.eager(*values)
        tensors = values[: self._tensors]
        try:
            return self._run(self._bound(tensors), tensors)
        except FusecError as error:
            fail(self.report, error.message)
            return self.eager(*values)

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

        in_order = [n for n, _ in bound.views] == list(range(len(values)))
        made = self._memo[key] = _Bound(
            bound,
            [(numbers(own.shape), numbers(own.strides), own.dtype) for own in self._layouts],
            in_order and not any(steps for _, steps in bound.views),
            not any(steps for _, steps, _ in bound.results),
        )
        return made

    def _run(self, made: _Bound, values: Sequence[Any]) -> Any:
        if not made.plain:
            values = [_under(values[n], steps) for n, steps in made.bound.views]
        if self._given and made.finished:
            return self._run_into(made, values)
        computed = self.known.function(*values)
        results = computed if isinstance(computed, tuple) else (computed,)
        if not made.finished:
            results = tuple(
                _under(results[own.output or 0], steps) for own, steps, _ in made.bound.results
            )
        for result, (_, strides, _) in zip(results, made.wanted, strict=True):
            if result.stride() != strides and not agree(result, strides):
                return _single(tuple(map(_laid_out, results, made.wanted)))
        return _single(results)

    def _run_into(self, made: _Bound, values: Sequence[Any]) -> Any:
        import torch

        device = max((v.device for v in values), key=lambda d: d.type != "cpu")
        outs = tuple(
            torch.empty_strided(shape, strides, dtype=dtype, device=device)
            for shape, strides, dtype in made.wanted
        )
        self.known.function(*values, out=outs if len(outs) > 1 else outs[0])
        return _single(outs)


def _nothing(values: Any) -> None:
    """The key of a call whose shapes are always the same."""


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
