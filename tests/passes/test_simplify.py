"""Simplification as a whole: pairs of graphs from files, and random programs before and after."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from fusec.ir.evaluate import evaluate
from fusec.ir.graph import Graph
from fusec.ir.node import Dim
from fusec.ir.text import parse_graph, print_graph
from fusec.ir.verify import verify
from fusec.passes.simplify import Numerics, simplify
from tests.formulas import graph_of
from tests.passes.instances import torch_of_numbers
from tests.strategies import Program, make_inputs, programs, tolerance

FIXTURES = Path(__file__).parents[1] / "fixtures" / "passes"
MODES: tuple[Numerics, ...] = ("precise", "torch", "fast")
TORCH = torch_of_numbers()
_CASE = re.compile(
    r"^=== ([^\n]+) \((precise|torch|fast)\)\n(.*?)^---\n(.*?)(?=^=== |\Z)",
    re.MULTILINE | re.DOTALL,
)


def cases() -> Iterator[Any]:
    for path in sorted(FIXTURES.glob("*.ir")):
        for title, mode, before, after in _CASE.findall(path.read_text(encoding="utf-8")):
            yield pytest.param(mode, before, after.rstrip("\n") + "\n", id=f"{path.stem}: {title}")


def some_inputs(graph: Graph) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = {}
    for spec in graph.inputs:
        shape = [4 if isinstance(e, Dim) else 1 for e in spec.shape]
        values = torch.rand(shape, generator=generator) * 3 + 0.25
        made[spec.name] = (values * 10 if spec.dtype.is_integer else values).to(
            getattr(torch, spec.dtype.torch)
        )
    return made


@pytest.mark.parametrize(("mode", "before", "after"), list(cases()))
def test_pairs(mode: Numerics, before: str, after: str) -> None:
    graph = parse_graph(before)
    assert print_graph(graph) == before
    simplified = simplify(graph, mode)
    verify(simplified)
    assert print_graph(simplified) == after
    inputs = some_inputs(graph)
    for old, new in zip(
        evaluate(graph, inputs, TORCH), evaluate(simplified, inputs, TORCH), strict=True
    ):
        bound = (
            0.0
            if mode == "precise"
            else 4 * torch.finfo(old.dtype).eps
            if old.is_floating_point()
            else 0
        )
        torch.testing.assert_close(new, old, rtol=bound, atol=bound)


def test_there_are_pairs_for_every_mode() -> None:
    assert {case.values[0] for case in cases()} == set(MODES)


@given(programs())
@settings(max_examples=100)
def test_random_programs_keep_their_results(program: Program) -> None:
    inputs = make_inputs(program)
    graph = graph_of(program.formula, inputs).graph
    exact = evaluate(graph, inputs, TORCH, "float64")
    for mode in MODES:
        simplified = simplify(graph, mode)
        verify(simplified)
        assert simplify(simplified, mode).outputs == simplified.outputs
        assert [o.node.type for o in simplified.outputs] == [o.node.type for o in graph.outputs]
        results = evaluate(simplified, inputs, TORCH)
        for number, (result, truth) in enumerate(zip(results, exact, strict=True)):
            bound = tolerance(program, number, graph.outputs[number].node.dtype.name)
            off = (result.double() - truth.double()).abs().max().item() if result.numel() else 0.0
            assert off <= bound, print_graph(simplified)


@given(programs())
@settings(max_examples=50)
def test_precise_keeps_every_bit(program: Program) -> None:
    inputs = make_inputs(program)
    graph = graph_of(program.formula, inputs).graph
    before = evaluate(graph, inputs, TORCH)
    after = evaluate(simplify(graph, "precise"), inputs, TORCH)
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old, new)
        if old.is_floating_point():
            assert torch.equal(torch.signbit(old), torch.signbit(new))


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(KeyError):
        simplify(parse_graph("%0 = constant 1 : f32[]\nreturn y = %0\n"), "exactly")
