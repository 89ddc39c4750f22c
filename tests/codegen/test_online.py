"""Two reductions in one sweep: the running maximum and sum, the running mean and variance."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import fusec
from fusec.codegen.pairs import pairs
from fusec.ir.dtypes import F32
from fusec.ir.node import toposort
from fusec.runtime.specialize import Argument, specialize

INF = math.inf
LONG = 40_000  # columns: too many for registers
Reference = Callable[[torch.Tensor], torch.Tensor]
FORMULAS: dict[str, Reference] = {
    "softmax(x)": lambda x: torch.softmax(x, -1),
    "logsumexp(x)": lambda x: torch.logsumexp(x, -1),
    "sum(exp(x - max(x)))": lambda x: torch.exp(x - x.amax(-1, keepdim=True)).sum(-1),
    "var(x)": lambda x: x.var(-1),
    "mean((x - mean(x))^2)": lambda x: x.var(-1, correction=0),
    "mean(x)": lambda x: x.mean(-1),
}


def special_rows(columns: int) -> torch.Tensor:
    """Rows with what breaks running values: infinities, NaN, huge and constant ones."""
    x = torch.randn(9, columns, generator=torch.Generator().manual_seed(0)) * 3 + 5
    x[1] = -INF
    x[2, : columns // 2] = -INF
    x[3, 7] = INF
    x[4, -1] = math.nan
    x[5, -1], x[5, 0] = INF, -INF
    x[6] = 1e20
    x[7, 0] = INF
    x[8] = torch.linspace(-1e4, 3e4, columns)
    return x


def assert_near(actual: torch.Tensor, expected: torch.Tensor, bound: float) -> None:
    """Equal where special, else within ``bound`` of the value."""
    actual = actual.double()
    near = (actual - expected).abs() <= bound * expected.abs() + 1e-37
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    assert bool((near | same).all()), (actual[~(near | same)], expected[~(near | same)])


def compare(formula: str, reference: Reference, x: torch.Tensor) -> None:
    expected = reference(x.double()).float().double().cpu()
    actual = fusec.compile(formula, backend="triton")(x).cpu()
    if formula in ("var(x)", "mean((x - mean(x))^2)"):  # of a constant: how its mean is rounded
        assert 0 <= float(actual[6]) <= (1e20 * 2**-22) ** 2
        actual[6] = expected[6]
    assert_near(actual, expected, 3e-5)


@pytest.mark.parametrize("formula", FORMULAS)
def test_long_rows_keep_what_two_sweeps_would_give(formula: str) -> None:
    compare(formula, FORMULAS[formula], special_rows(LONG))


@pytest.mark.parametrize("formula", ["logsumexp(x, axis=0)", "var(x, axis=0)"])
def test_long_columns_keep_what_two_sweeps_would_give(formula: str) -> None:
    x = torch.randn(700, 9, generator=torch.Generator().manual_seed(1))
    x[300, 2], x[:, 3], x[5, 4] = INF, -INF, math.nan
    expected = x.double().logsumexp(0) if "log" in formula else x.double().var(0)
    assert_near(fusec.compile(formula, backend="triton")(x), expected, 3e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [LONG, 300_000, 2_000_003])
@pytest.mark.parametrize("formula", FORMULAS)
def test_long_rows_on_a_gpu(formula: str, columns: int) -> None:
    compare(formula, FORMULAS[formula], special_rows(columns).cuda())


def pairs_of(formula: str) -> list[tuple[str, str]]:
    function = fusec.compile(formula)
    arguments = [Argument(F32, (64, 64), (64, 1)) for _ in function.inputs]
    special = specialize(function._formula, arguments)
    nodes = list(toposort(output.node for output in special.outputs))
    return [(p.first.op.name, p.second.op.name) for p in pairs(nodes).values()]


ENTROPY = "p = softmax(x)\n-sum(p * log_softmax(x))"


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (ENTROPY, "entropy"),
        ("sum(exp(x - max(x))), sum((x - max(x)) * exp(x - max(x)))", "entropy"),
        ("softmax(x)", None),
        ("sum(exp(x - max(x))), sum(exp(x - max(x)) * x)", None),  # not the exponent
        ("sum(exp(x - max(x))), sum(exp(x - max(x)) * (x - max(x)), axis=0)", None),
    ],
)
def test_what_runs_with_a_pair(formula: str, expected: str | None) -> None:
    """Only where the backend says it can: with ``"entropy"`` among the firsts."""
    function = fusec.compile(formula)
    special = specialize(function._formula, [Argument(F32, (64, 64), (64, 1))])
    nodes = list(toposort(output.node for output in special.outputs))
    for firsts in (("max",), ("max", "entropy")):
        (pair,) = pairs(nodes, (), firsts).values()
        assert (pair.weighted is not None) == (expected in firsts)
        assert set(pair.members) == {pair.first, pair.second, pair.weighted} - {None}


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("softmax(x)", [("max", "sum")]),
        ("logsumexp(x)", [("max", "sum")]),
        ("var(x)", [("mean", "mean")]),
        ("sum((x - mean(x))^2)", [("mean", "sum")]),
        ("layer_norm(x)", [("mean", "mean")]),
        ("sum(exp(x - y - max(x)))", []),  # not the value that the maximum is of
        ("sum(exp(x - max(x, axis=0)))", []),  # not the same axis
        ("sum(exp(x - min(x)))", []),
        ("sum(exp(max(x) - x))", []),
        ("sum(exp(x - where(max(x) > 9, 0, max(x))))", []),  # no guard of infinities
        ("sum((x - max(x))^2)", []),
        ("rms_norm(x)", []),
    ],
)
def test_what_is_a_pair(formula: str, expected: list[tuple[str, str]]) -> None:
    assert pairs_of(formula) == expected
