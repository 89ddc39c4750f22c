"""Runs random programs: through every backend, whole and cut, over inputs in every layout.

A program that fails is reported as text that can be pasted into a test.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch

import fusec
from fusec.api import CompiledFunction
from fusec.codegen import operand_facts, schedule, schedule_columns
from fusec.runtime.formula import Formula
from tests.formulas import run_all, same_bits
from tests.strategies import Program, make_inputs, tolerance

LAYOUTS = ("contiguous", "transposed", "spaced", "offset", "expanded")
# Arithmetic that IEEE defines to the last bit, so that every backend has to agree on it.
_INEXACT = re.compile(
    r"\b(exp|exp2|expm1|log|log2|log1p|sqrt|rsqrt|tanh|sigmoid|sin|cos|atan|erf|silu|softplus|gelu"
    r"|sum|mean|prod|logsumexp|softmax)\b"
)


def is_ieee(program: Program) -> bool:
    """Whether the formula is made of correctly rounded operations alone."""
    return _INEXACT.search(program.formula) is None


def takes_tensors(program: Program) -> bool:
    """Whether some input of the program is a tensor, which a call needs."""
    return any(shape is not None for _, shape in program.inputs.values())


def compile_program(program: Program, backend: str, *, fuse: bool = True) -> CompiledFunction:
    """The program for a backend; ``fuse=False``: a kernel for every reduction and output."""
    whole = fusec.compile(program.formula, backend=backend, inputs=list(program.inputs))
    if fuse:
        return whole
    of = whole._formula
    cut = Formula(of.text, of.inputs, of.numerics, of.keepdim, of.name, fuse=False)
    return CompiledFunction(cut, backend)


def outputs(result: Any) -> list[torch.Tensor]:
    """One tensor or a tuple of them as a list."""
    return list(result) if isinstance(result, tuple) else [result]


def run(
    program: Program, inputs: Mapping[str, Any], backend: str, *, fuse: bool = True
) -> list[torch.Tensor]:
    """Every result of the program, in memory that holds NaN where no kernel writes."""
    function = compile_program(program, backend, fuse=fuse)
    with unwritten_is_nan():
        return outputs(function(**inputs))


@contextmanager
def unwritten_is_nan() -> Iterator[None]:
    """New tensors begin as NaN, and as the largest integers."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def relaid(value: Any, layout: str) -> Any:
    """The same numbers elsewhere in memory; ``expanded`` repeats the first slice."""
    if not isinstance(value, torch.Tensor) or not value.dim() or layout == "contiguous":
        return value
    if layout == "transposed":
        order = list(reversed(range(value.dim())))
        return value.permute(order).contiguous().permute(order)
    if layout == "spaced":
        wide = value.new_zeros((*value.shape[:-1], 2 * value.shape[-1] + 1))
        wide[..., 1::2] = value
        return wide[..., 1::2]
    if layout == "offset":
        flat = value.new_zeros(value.numel() + 3)
        flat[3:] = value.reshape(-1)
        return flat[3:].view(value.shape)
    return value[:1].expand(value.shape)


def relaid_inputs(program: Program, layouts: Sequence[str]) -> dict[str, Any]:
    """The inputs of a program, each in its layout."""
    made = make_inputs(program)
    chosen = (layouts[k % len(layouts)] for k in range(len(made)))
    return {name: relaid(v, layout) for (name, v), layout in zip(made.items(), chosen, strict=True)}


def truth(program: Program, inputs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The results in float64."""
    return run_all(program.formula, precision="float64", **inputs)


def allowed(program: Program, number: int, result: torch.Tensor) -> float:
    """The error bound of output ``number``, for the type it came in."""
    names = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16"}
    return tolerance(program, number, names.get(result.dtype, "bf16"))


def check(
    program: Program,
    results: Sequence[torch.Tensor],
    wanted: Sequence[torch.Tensor],
    what: str,
    layouts: Sequence[str],
) -> None:
    """Fail where a result is further from float64 than rounding explains."""
    if len(results) != len(wanted):
        fail(program, f"{what}: {len(results)} results, not {len(wanted)}", layouts)
    for number, (result, exact) in enumerate(zip(results, wanted, strict=True)):
        if result.shape != exact.shape:
            fail(program, f"{what}: {list(result.shape)}, not {list(exact.shape)}", layouts)
        if not result.dtype.is_floating_point:
            if result.dtype != exact.dtype or not torch.equal(result, exact):
                fail(program, f"{what}: output {number} is {result}, not {exact}", layouts)
            continue
        error = (result.double() - exact.double()).abs().max().item()
        bound = allowed(program, number, result)
        if not error <= bound or math.isnan(error):
            fail(program, f"{what}: output {number} is off by {error:g}, beyond {bound:g}", layouts)


def agree(
    program: Program,
    first: Sequence[torch.Tensor],
    second: Sequence[torch.Tensor],
    what: str,
    layouts: Sequence[str],
    *,
    bitwise: bool,
) -> None:
    """Fail where two runs differ: at all if ``bitwise``, else by more than their errors allow."""
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape:
            fail(program, f"{what}: {a.dtype}{list(a.shape)}, {b.dtype}{list(b.shape)}", layouts)
        if same_bits(a, b):
            continue
        apart = (a.double() - b.double()).abs().max().item()
        bound = 0.0 if bitwise else 2 * allowed(program, number, a)
        if bitwise or not apart <= bound:
            fail(
                program, f"{what}: output {number} differs by {apart:g}, beyond {bound:g}", layouts
            )


def as_test(program: Program, layouts: Sequence[str]) -> str:
    """The program as Python text."""
    return (
        f"Program(\n    {program.formula!r},\n    {program.inputs!r},\n    {program.seed},\n"
        f"    error={program.error!r},\n    size={program.size!r},\n    exact={program.exact!r},\n"
        f")  # layouts {', '.join(layouts)}\n\n{program.formula}"
    )


def fail(program: Program, message: str, layouts: Sequence[str]) -> None:
    """Fail the test with the program as text."""
    pytest.fail(f"{message}\n\n{as_test(program, layouts)}", pytrace=False)


def rows_read_again() -> AbstractContextManager[None]:
    """Triton kernels that read short rows again, one to a program, however few there are."""
    return _scheduled(FULL_GRID=0, REREAD_ROW_BYTES=0, BYTES_PER_WARP=1, LONG_BYTES_PER_WARP=1)


def small_blocks() -> AbstractContextManager[None]:
    """Triton kernels that loop over short rows, and programs that hold few elements."""
    return _scheduled(RESIDENT_BYTES=64, LOOP_BLOCK=4, ELEMENTS_PER_PROGRAM=16)


@contextmanager
def _scheduled(**limits: int) -> Iterator[None]:
    """Triton's schedule with other limits, and blocks of as few as four columns."""
    with pytest.MonkeyPatch.context() as patch:
        for name, limit in limits.items():
            patch.setattr(schedule, name, limit)
        patch.setattr(operand_facts, "SMALLEST_BLOCK", 4)
        patch.setattr(schedule_columns, "SMALLEST_BLOCK", 4)
        yield
