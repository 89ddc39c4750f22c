"""A traced program for exact shapes: its views as functions of tensors, its lengths as numbers.

May import everything below the API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fusec.frontend.trace import TracedProgram
from fusec.frontend.trace_result import Result
from fusec.frontend.trace_views import Length, Step

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class Known:
    """A program and its kernels."""

    program: TracedProgram
    function: Any  # a CompiledFunction, or None where there is nothing to compute


@dataclass(slots=True)
class Bound:
    """A program for exact shapes: views as functions of tensors, lengths as numbers."""

    known: Known
    views: list[tuple[int, list[Callable[[Any], Any]]]]
    results: list[tuple[Result, list[Callable[[Any], Any]], Any]]
    plain: bool  # every view is an argument and the one result is the kernel's


def by_position(program: TracedProgram, moving: Sequence[int], count: int) -> TracedProgram:
    """The program with arguments numbered as in a call, where constants stand between."""
    numbers = {k: position for k, position in enumerate(moving)}
    for offset in range(len(program.captured)):
        numbers[len(moving) + offset] = count + offset
    views = tuple(replace(v, argument=numbers[v.argument]) for v in program.views)
    results = tuple(
        r if r.argument is None else replace(r, argument=numbers[r.argument])
        for r in program.results
    )
    symbols: list[tuple[Any, ...]] = [()] * count
    for own, position in zip(program.symbols, moving, strict=True):
        symbols[position] = own
    return replace(program, views=views, results=results, symbols=tuple(symbols))


def lengths_in(program: TracedProgram, leaves: Sequence[Any]) -> dict[Any, Any]:
    """The value of every symbol in this call."""
    import sympy

    found: dict[Any, Any] = {}
    for own, leaf in zip(program.symbols, leaves, strict=True):
        for symbol, value in zip(own, getattr(leaf, "shape", (leaf,)), strict=bool(own)):
            if not isinstance(symbol, int):
                found[symbol] = sympy.sympify(value)
    return found


def holds(program: TracedProgram, leaves: Sequence[Any]) -> bool:
    if not program.guards:
        return True
    values = lengths_in(program, leaves)
    import sympy

    # A relation that is still open counts as not holding, where its truth value would raise.
    return all(guard.xreplace(values) is sympy.true for guard in program.guards)


def looks_at_floats(program: TracedProgram) -> bool:
    """Whether a guard holds for some values of a float argument only."""
    names = (str(s) for guard in program.guards for s in getattr(guard, "free_symbols", ()))
    return any(name.startswith("zf") for name in names)


def bind(known: Known, leaves: Sequence[Any]) -> Bound:
    """``known`` for the exact shapes of ``leaves``."""
    values = lengths_in(known.program, leaves)
    views = [(v.argument, [_step(s, values) for s in v.steps]) for v in known.program.views]
    results = []
    for result in known.program.results:
        constant = result.constant if result.length is None else number(result.length, values)
        results.append((result, [_step(s, values) for s in result.steps], constant))
    one = len(results) == 1 and results[0][0].output == 0 and not results[0][1]
    structure = known.program.structure
    single = structure is not None and structure.is_leaf()
    plain = one and single and not any(steps for _, steps in views)
    return Bound(known, views, results, plain)


def number(length: Length, values: dict[Any, Any]) -> Any:
    """A length in numbers."""
    if isinstance(length, int | float):
        return length
    found = length.xreplace(values)
    if found.is_Boolean:
        return bool(found)
    return int(found) if found.is_integer else float(found)


def _step(step: Step, values: dict[Any, Any]) -> Callable[[Any], Any]:
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
