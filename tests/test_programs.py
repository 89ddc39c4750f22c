"""Random programs, in every backend that runs here, against float64.

``pytest --hypothesis-profile=explore tests/test_programs.py`` draws fresh and many more of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fusec
from fusec.ir.text import parse_graph, print_graph
from fusec.passes.pipeline import run as run_passes
from tests.formulas import graph_of, same_bits
from tests.programs_oracle import (
    LAYOUTS,
    agree,
    check,
    fail,
    is_ieee,
    outputs,
    relaid_inputs,
    rows_read_again,
    run,
    small_blocks,
    takes_tensors,
    truth,
)
from tests.strategies import Program, programs

RUNNABLE = programs().filter(takes_tensors)
LAID = st.lists(st.sampled_from(LAYOUTS), min_size=1, max_size=4)


def examples(count: int) -> settings:
    """``count`` examples, and twenty times as many for the profile ``explore``."""
    exploring = settings.get_current_profile_name() == "explore"
    return settings(max_examples=20 * count if exploring else count)


@examples(60)
@given(RUNNABLE, LAID)
def test_cpp_and_the_reference(program: Program, layouts: Sequence[str]) -> None:
    inputs = relaid_inputs(program, layouts)
    exact = truth(program, inputs)
    compiled, plain = run(program, inputs, "cpp"), run(program, inputs, "torch")
    check(program, compiled, exact, "cpp", layouts)
    check(program, plain, exact, "torch", layouts)
    agree(program, compiled, plain, "cpp and torch", layouts, bitwise=is_ieee(program))


@examples(60)
@given(RUNNABLE, LAID)
def test_triton_and_the_reference(program: Program, layouts: Sequence[str]) -> None:
    inputs = relaid_inputs(program, layouts)
    exact = truth(program, inputs)
    whole, plain = run(program, inputs, "triton"), run(program, inputs, "torch")
    check(program, whole, exact, "triton", layouts)
    agree(program, whole, plain, "triton and torch", layouts, bitwise=is_ieee(program))
    with small_blocks():
        looped = run(program, inputs, "triton")
    check(program, looped, exact, "triton in small blocks", layouts)
    agree(program, whole, looped, "block sizes", layouts, bitwise=is_ieee(program))
    with rows_read_again():
        again = run(program, inputs, "triton")
    check(program, again, exact, "triton where rows are read again", layouts)
    agree(program, whole, again, "rows read again", layouts, bitwise=is_ieee(program))


@examples(25)
@given(RUNNABLE, LAID)
def test_cpp_and_triton(program: Program, layouts: Sequence[str]) -> None:
    inputs = relaid_inputs(program, layouts)
    first, second = run(program, inputs, "cpp"), run(program, inputs, "triton")
    agree(program, first, second, "cpp and triton", layouts, bitwise=is_ieee(program))


@pytest.mark.parametrize("backend", ["cpp", "triton"])
@examples(30)
@given(RUNNABLE, LAID)
def test_fused_and_unfused(backend: str, program: Program, layouts: Sequence[str]) -> None:
    """Cutting keeps the order of the arithmetic, and what lies between kernels unrounded."""
    inputs = relaid_inputs(program, layouts)
    whole = run(program, inputs, backend)
    cut = run(program, inputs, backend, fuse=False)
    agree(program, whole, cut, f"fused and unfused {backend}", layouts, bitwise=True)


@examples(100)
@given(RUNNABLE)
def test_the_printed_graph_reads_back(program: Program) -> None:
    inputs = relaid_inputs(program, ("contiguous",))
    for mode in ("torch", "precise", "fast"):
        graph = run_passes(graph_of(program.formula, inputs).graph, mode)
        text = print_graph(graph)
        again = parse_graph(text)
        if again.outputs != graph.outputs or again.inputs != graph.inputs:
            fail(program, f"{text}\nbecame\n{print_graph(again)}", ("contiguous",))


@examples(40)
@given(RUNNABLE)
def test_a_row_does_not_depend_on_its_batch(program: Program) -> None:
    """The first slice alone gives what it gives among others, bit for bit."""
    inputs = relaid_inputs(program, ("contiguous",))
    rank = max((v.dim() for v in inputs.values() if isinstance(v, torch.Tensor)), default=0)
    if rank < 2 or f"axis=-{rank}" in program.formula:
        return
    rows = next(v.shape[0] for v in inputs.values() if torch.is_tensor(v) and v.dim() == rank)
    split = {
        n: v for n, v in inputs.items() if torch.is_tensor(v) and v.dim() == rank and len(v) > 1
    }
    if not split or rows < 3:
        return
    whole = run(program, inputs, "cpp")
    part = run(program, {**inputs, **{n: v[:2] for n, v in split.items()}}, "cpp")
    kept = [
        a[:2] if a.dim() == b.dim() and a.shape != b.shape else a
        for a, b in zip(whole, part, strict=True)
    ]
    agree(program, kept, part, "two rows and all of them", ("contiguous",), bitwise=True)


# What exploration found, with its neighbours: casts of tensors and of run-time numbers.
CASTS = (
    "f32(i32(x)), f32(i64(x)), f32(i8(x)), f64(i64(x)), f32(u8(x)), f32(bool(x))",
    "u8(x), i8(x), i16(x), bf16(x), f16(x), f32(f8e4m3(x))",
    "x + bf16(y), x * f16(y), f32(f8e5m2(y)) - x, 0*x + i8(y), 0*x + u8(y), 0*x + bool(y)",
)


@pytest.mark.parametrize("formula", CASTS)
@pytest.mark.parametrize("number", [1.0033033, -0.4, 300.7, -2.0])
def test_casts_agree_to_the_bit(formula: str, number: float) -> None:
    x = torch.tensor([-0.5, 0.5, -0.0, 0.0, -1.5, -300.0, 255.9, 1e5, -1e5, number])
    inputs = {"x": x, "y": number} if "y" in formula else {"x": x}
    results = {
        backend: outputs(fusec.compile(formula, backend=backend)(**inputs))
        for backend in ("torch", "cpp", "triton")
    }
    for backend in ("cpp", "triton"):
        for k, (got, wanted) in enumerate(zip(results[backend], results["torch"], strict=True)):
            assert same_bits(got, wanted), f"{backend}, output {k}: {got}, not {wanted}"
