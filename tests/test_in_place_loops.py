"""Results of C++ kernels in the memory of their operands: the same bits as apart from them. Imports
pytest, torch, hypothesis and fusec.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fusec
from fusec import settings
from fusec.codegen import schedule_cpp
from fusec.codegen.in_place import may_overwrite
from fusec.codegen.lower import CPP
from fusec.ir.dtypes import BOOL, F64, I64, by_torch_name
from fusec.runtime import steps
from fusec.runtime.build_cpp import find_compiler
from fusec.runtime.launch import output_plan
from fusec.runtime.specialize import Argument, kernel_of, lay_out_all, parts_of
from tests.formulas import same_bits
from tests.programs_oracle import LAYOUTS, outputs, relaid_inputs, takes_tensors
from tests.strategies import Program, programs
from tests.test_programs import examples

# Without a compiler there is no C++ backend, and nothing of it to test; .ci/run installs one.
pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")

GELU = "y = g * (0.5 * (1 + erf(0.70710678 * x)) + 0.39894228 * x * exp(-0.5 * x * x))\n"
# Results by number, and the inputs that each may lie over. ``b`` is a row and ``c`` a column.
FORMULAS: dict[str, set[tuple[int, str]]] = {
    "gelu(x)": {(0, "x")},
    "x * exp(y), y - x": {(0, "x"), (0, "y"), (1, "x"), (1, "y")},
    "x * b + c": {(0, "x")},  # which are read for other elements as well
    GELU + "y": {(0, "g"), (0, "x")},
    GELU + "y, sum(y, axis=0)": {(0, "g"), (0, "x")},
    "softmax(x)": {(0, "x")},  # read again, but not after it is written
    "rms_norm(x) * b": {(0, "x")},
    "layer_norm(x) + y": {(0, "x"), (0, "y")},
    "x * mean(x + y)": {(0, "x"), (0, "y")},
    "x + y, softmax(x)": {(0, "y"), (1, "x"), (1, "y")},  # x is read again after the first
    "x - mean(x, axis=0)": {(0, "x")},
    "softmax(x + y), exp(y)": {(0, "x"), (0, "y")},
    "max(x) * c": {(0, "c")},
    "x - y, sum(exp(x - y))": {(0, "x"), (0, "y")},
    "x + softmax(x)": {(0, "x")},
    "x - x[i]": set(),  # every element needs one that may be written over
}
SHAPES = (
    (1, 1), (1, 3), (3, 5), (1, 127), (7, 129), (33, 130), (64, 64), (5, 1025), (1000, 3),
)  # fmt: skip
LONG = ((2, 70_001), (1, 33_000), (3, 32_769), (5003, 33), (1030, 2050))


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def operands(
    text: str, shape: tuple[int, int], dtype: torch.dtype = torch.float32
) -> tuple[Any, list[torch.Tensor]]:
    """A formula, and a tensor for each input: ``b`` is a row, ``c`` a column, ``i`` has a place in
    each row, and others are whole.
    """
    function = fusec.compile(text, backend="cpp")
    shapes = {"b": (shape[1],), "c": (shape[0], 1)}
    made = [
        torch.arange(shape[0]) % shape[1]
        if name == "i"
        else numbers(*shapes.get(name, shape), dtype=dtype, seed=k)
        for k, name in enumerate(function.inputs)
    ]
    return function, made


def pairs_of(function: Any, values: Sequence[Any]) -> list[tuple[int, int]]:
    """Results and inputs of one layout over which the kernels may write them."""
    arguments = [argument_of(value) for value in values]
    special = function.specialization(arguments)
    sizes = special.sizes(arguments)
    plans = [output_plan(special, k, arguments, sizes) for k in range(len(special.outputs))]
    chosen, laid, _ = lay_out_all(special, arguments, sizes, {}, "cpp")
    kernels = [kernel_of(chosen, one, part) for one in laid for part in parts_of(one)]
    return [
        (k, n)
        for k, (output, plan) in enumerate(zip(special.outputs, plans, strict=True))
        for n, own in enumerate(arguments)
        if (plan.shape, plan.strides, plan.dtype) == (own.shape, own.strides, own.dtype.torch)
        and not own.scalar
        and may_overwrite(kernels, output.name, function.inputs[n], CPP)
    ]


def argument_of(value: Any) -> Argument:
    if not isinstance(value, torch.Tensor):
        return Argument({bool: BOOL, int: I64, float: F64}[type(value)], scalar=True)
    dtype = by_torch_name(str(value.dtype).removeprefix("torch."))
    assert dtype is not None
    return Argument(dtype, tuple(value.shape), tuple(value.stride()))


def check(function: Any, values: Sequence[Any]) -> set[tuple[int, str]]:
    """Whatever may be written over an operand has the same bits there, and nothing else changes;
    each alone, and as many as can be together.
    """
    wanted, pairs = outputs(function(*values)), pairs_of(function, values)
    together: dict[int, int] = {}
    for result, place in pairs:
        if result not in together and place not in together.values():
            together[result] = place
    for over in (*({result: place} for result, place in pairs), together):
        given = [copy.deepcopy(v) for v in values]
        outs = [torch.full_like(w, 7) for w in wanted]
        for result, place in over.items():
            outs[result] = given[place]
        taken = tuple(over.values())
        function.overwrite(tuple(given), outs[0] if len(outs) == 1 else tuple(outs), taken)
        for mine, apart in zip(outs, wanted, strict=True):
            assert same_bits(mine, apart)
        for k, value in enumerate(values):
            kept = isinstance(value, torch.Tensor) and k not in taken
            assert not kept or same_bits(given[k], value)
    return {(result, function.inputs[place]) for result, place in pairs}


@pytest.fixture(params=["cached", "streaming"])
def large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads whatever the size; and results past the caches, or not."""
    monkeypatch.setattr(steps, "SERIAL_ELEMENTS", 0)
    if request.param == "streaming":
        monkeypatch.setattr(schedule_cpp, "STREAM_BYTES", 0)
        monkeypatch.setattr(schedule_cpp, "STREAM_STRETCH", 0)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("formula", FORMULAS)
def test_bits_are_the_same(formula: str, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        function, values = operands(formula, shape, dtype)
        for threads in (1, 3):
            with settings.override(num_threads=threads):
                pairs = check(function, values)
        assert min(shape) == 1 or pairs == FORMULAS[formula]


@pytest.mark.parametrize("formula", FORMULAS)
def test_long_rows_and_columns(formula: str) -> None:
    """Those that threads share, in parts and pieces."""
    for shape in LONG:
        function, values = operands(formula, shape)
        for threads in (1, 3):
            with settings.override(num_threads=threads):
                pairs = check(function, values)
        assert min(shape) == 1 or pairs == FORMULAS[formula]


@pytest.mark.parametrize("offset", [1, 7, 16])
def test_blocks_that_begin_anywhere(offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_cpp, "STREAM_BYTES", 0)
    monkeypatch.setattr(schedule_cpp, "STREAM_STRETCH", 0)
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int8):
        room = torch.arange(5 * 1023 + 64).remainder(100).to(dtype)
        x = room[offset : offset + 5 * 1023].view(5, 1023)
        before = room.clone()
        function = fusec.compile("x + x", backend="cpp")
        assert check(function, [x]) == {(0, "x")}
        function.overwrite((x,), x, (0,))
        assert same_bits(x, before[offset : offset + 5 * 1023].view(5, 1023) * 2)
        assert same_bits(room[:offset], before[:offset])
        assert same_bits(room[offset + 5 * 1023 :], before[offset + 5 * 1023 :])


@examples(40)
@given(programs().filter(takes_tensors), st.lists(st.sampled_from(LAYOUTS), min_size=1, max_size=4))
def test_random_programs(program: Program, layouts: Sequence[str]) -> None:
    inputs = relaid_inputs(program, layouts)
    function = fusec.compile(program.formula, backend="cpp", inputs=list(program.inputs))
    check(function, list(inputs.values()))
