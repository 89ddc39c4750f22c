"""Gradients of random programs and of PyTorch's operator database, against autograd in float64."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fusec
from tests import test_op_db
from tests.formulas import graph_of
from tests.gradients import cotangents, float_inputs, torchs
from tests.op_db_rows import MAPPED, Inexpressible
from tests.programs_oracle import LAYOUTS, fail, relaid_inputs, takes_tensors
from tests.strategies import Program, programs

# A cast rounds the gradient too, in PyTorch; what remains is exact enough for one tolerance.
_ROUNDS = re.compile(r"\b(bf16|f16|f32)\(")
SMOOTH = programs().filter(takes_tensors).filter(lambda p: not _ROUNDS.search(p.formula))
LAID = st.lists(st.sampled_from(LAYOUTS), min_size=1, max_size=4)


def examples(count: int) -> settings:
    exploring = settings.get_current_profile_name() == "explore"
    return settings(max_examples=20 * count if exploring else count)


def widened(program: Program, layouts: list[str]) -> dict[str, Any]:
    """The inputs of a program, floats as float64."""
    made = relaid_inputs(program, layouts)
    return {
        n: v.double() if torch.is_tensor(v) and v.is_floating_point() else v
        for n, v in made.items()
    }


def compare(program: Program, layouts: list[str], backend: str) -> None:
    values = widened(program, layouts)
    names = float_inputs(values)
    if not names:
        return
    graph = graph_of(program.formula, values).graph
    given = cotangents(graph, values)
    wanted = torchs(graph, values, given, names)
    tracked = {n: v.detach().requires_grad_() if n in names else v for n, v in values.items()}
    function = fusec.compile(program.formula, backend=backend, inputs=list(values))
    results = function(**tracked)
    floats = [
        r for r in (results if isinstance(results, tuple) else (results,)) if r.is_floating_point()
    ]
    pairs = [(r, g.reshape(r.shape)) for r, g in zip(floats, given, strict=True) if r.requires_grad]
    if not pairs:
        assert not any(bool(w.any()) for w in wanted)
        return
    found = torch.autograd.grad(
        [r for r, _ in pairs], [tracked[n] for n in names], [g for _, g in pairs],
        allow_unused=True,
    )  # fmt: skip
    for name, got, want in zip(names, found, wanted, strict=True):
        got = torch.zeros_like(want) if got is None else got
        size = max(1.0, want.abs().max().item()) if want.numel() else 1.0
        if not bool(((got - want).abs() <= 1e-9 * size).all()):
            fail(program, f"{backend}: the gradient of {name} is {got}, not {want}", layouts)


@examples(150)
@given(SMOOTH, LAID)
def test_random_programs(program: Program, layouts: list[str]) -> None:
    compare(program, layouts, "torch")


@examples(8)
@given(SMOOTH, LAID)
def test_random_programs_in_cpp(program: Program, layouts: list[str]) -> None:
    compare(program, layouts, "cpp")


@examples(8)
@given(SMOOTH, LAID)
def test_random_programs_in_triton(program: Program, layouts: list[str]) -> None:
    compare(program, layouts, "triton")


def _leaves(values: list[Any]) -> list[torch.Tensor]:
    return [v for v in values if torch.is_tensor(v) and v.requires_grad and v.is_leaf]


def _compare_sample(name: str, sample: Any) -> int:
    """How many gradients were compared; raises Inexpressible where a formula cannot say it."""
    arguments = [sample.input, *sample.args]
    call = MAPPED[name].build(arguments, dict(sample.kwargs))
    if any(not isinstance(v, (torch.Tensor, bool, int, float)) for v in call.inputs.values()):
        raise Inexpressible("an argument that is neither a tensor nor a number")
    leaves = _leaves(arguments + list(sample.kwargs.values()))
    expected = test_op_db._eager(name, sample)
    if not leaves or not expected.requires_grad or expected.numel() > test_op_db.LARGEST:
        return 0
    result = test_op_db._run(call, "torch")
    generator = torch.Generator().manual_seed(0)
    given = torch.randn(expected.shape, generator=generator, dtype=expected.dtype)
    want = torch.autograd.grad(expected, leaves, given, allow_unused=True)
    got = torch.autograd.grad(result, leaves, given, allow_unused=True)
    for mine, theirs in zip(got, want, strict=True):
        mine, theirs = (torch.zeros(()) if g is None else g for g in (mine, theirs))
        mine, theirs = torch.broadcast_tensors(mine.double(), theirs.double())
        torch.testing.assert_close(
            mine, theirs, rtol=1e-7, atol=1e-7, equal_nan=True,
            msg=lambda m: f"{call.formula} for {test_op_db._describe(call)}: {m}",
        )  # fmt: skip
    return len(leaves)


@pytest.mark.parametrize(
    "name",
    [n for n in MAPPED if test_op_db._operator(n).supports_autograd],
)
def test_operator_database(name: str) -> None:
    every = test_op_db.every_sample(name, torch.float64, requires_grad=True)
    compared = 0
    for sample in every[:: max(1, len(every) // 8)]:
        try:
            compared += _compare_sample(name, sample)
        except Inexpressible:
            continue
    assert compared, f"no sample of {name} has a gradient to compare"
