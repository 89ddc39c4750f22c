"""A traced program for exact shapes: its views as functions of tensors, its lengths as numbers.

May import everything below the API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusec.frontend.trace import TracedProgram
from fusec.frontend.trace_result import Result
from fusec.runtime.operator_steps import device_of
from fusec.runtime.traced_joined import Layout, layout_of
from fusec.runtime.traced_numbers import Moving, evaluated
from fusec.runtime.traced_steps import Way, along, number, way_of


@dataclass(slots=True)
class Known:
    """A program and its kernels."""

    program: TracedProgram
    function: Any  # a CompiledFunction, or None where there is nothing to compute


@dataclass(slots=True)
class Bound:
    """A program for exact shapes: views as functions of tensors, lengths as numbers."""

    known: Known
    views: list[tuple[int, Way]]
    results: list[tuple[Result, Way, Any]]
    plain: bool  # every view is an argument and the one result is the kernel's
    layout: Layout | None  # where concatenations are among the results or the arguments

    def views_of(self, values: Sequence[Any]) -> list[Any]:
        """The inputs of the kernels; ``values`` are the arguments and what was captured."""
        return [along(way, values[n]) for n, way in self.views]

    def run(self, values: Sequence[Any]) -> list[Any]:
        """What the function returns for these values, in order."""
        views = self.views_of(values)
        wholes, computed = self._computed(views, values)
        parts = iter(wholes)
        found = []
        for result, way, constant in self.results:
            value = constant
            if isinstance(constant, Moving):
                value = constant.of(values)
            elif result.output is not None:
                value = computed[result.output]
            elif result.argument is not None:
                value = values[result.argument]
            elif result.whole is not None:
                value = next(parts)
            found.append(along(way, value))
        return found

    def _computed(self, views: list[Any], values: Sequence[Any]) -> tuple[Sequence[Any], Any]:
        """The wholes, and the outputs of the kernels."""
        function, layout = self.known.function, self.layout
        if function is None:
            return (), ()
        tracked = layout is not None and _is_tracked(views)
        if layout is None or not (tracked or layout.wholes):
            computed = function(*views)
            return (), computed if isinstance(computed, tuple) else (computed,)
        if tracked:
            from fusec.runtime.autograd_joined import run_joined

            step = function.step(views)
            tensors = run_joined(step, layout, views, values)
        else:
            tensors = layout.tensors(device_of(views))
            function.fill(tuple(views), tuple(layout.parts(tensors)))
            layout.finish(tensors)
        wholes = tensors[: layout.wholes]
        return wholes, layout.parts(tensors)


def _returned_number(result: Result, values: Mapping[Any, Any], floats: Mapping[Any, int]) -> Any:
    """A number for exact lengths; one that depends on floats is computed in each call."""
    moving = {s: floats[s] for s in getattr(result.length, "free_symbols", ()) if s in floats}
    if moving:
        return Moving(result.kind, result.length, moving, values)
    return result.kind(number(result.length, values))


def _is_tracked(values: Sequence[Any]) -> bool:
    """Whether results have gradients."""
    import torch

    return torch.is_grad_enabled() and any(getattr(v, "requires_grad", False) for v in values)


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
    found: dict[Any, Any] = {}
    for own, leaf in zip(program.symbols, leaves, strict=True):
        for symbol, value in zip(own, getattr(leaf, "shape", (leaf,)), strict=bool(own)):
            if not isinstance(symbol, int):
                found[symbol] = value
    return found


def holds(program: TracedProgram, leaves: Sequence[Any]) -> bool:
    """Whether a program is for these arguments."""
    if not program.guards:
        return True
    values = lengths_in(program, leaves)
    try:
        return all(evaluated(guard, values) for guard in program.guards)
    except (ArithmeticError, TypeError, ValueError):  # as of 1 / s: the function raises it as well
        return False


def looks_at_floats(program: TracedProgram) -> bool:
    """Whether a guard holds for some values of a float argument only."""
    floats = _floats(program)
    return any(floats.keys() & getattr(guard, "free_symbols", set()) for guard in program.guards)


def _floats(program: TracedProgram) -> dict[Any, int]:
    """The symbols of float arguments, and which arguments they are."""
    found: dict[Any, int] = {}
    for position, own in enumerate(program.symbols):
        found |= {s: position for s in own if getattr(s, "is_integer", True) is not True}
    return found


def bind(known: Known, leaves: Sequence[Any]) -> Bound:
    """``known`` for the exact shapes of ``leaves``."""
    values = lengths_in(known.program, leaves)
    floats = _floats(known.program)
    views = [(v.argument, way_of(v.steps, values)) for v in known.program.views]
    results = []
    for result in known.program.results:
        constant = result.constant
        if result.length is not None:
            constant = _returned_number(result, values, floats)
        results.append((result, way_of(result.steps, values), constant))
    one = len(results) == 1 and results[0][0].output == 0 and not results[0][1]
    structure = known.program.structure  # a region of a model has none
    single = structure is not None and structure.is_leaf()
    plain = one and single and not any(steps for _, steps in views)
    layout = None if plain else layout_of(known.program, views, leaves, values)
    return Bound(known, views, results, plain, layout)
