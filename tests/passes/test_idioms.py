"""Means and entropies are recognised, and nothing else is taken for one."""

from __future__ import annotations

import pytest
import torch

import fusec
from fusec.ir.graph import Graph
from fusec.passes.pipeline import run
from tests.formulas import graph_of


def names(graph: Graph) -> set[str]:
    return {node.op.name for node in graph.nodes()}


@pytest.mark.parametrize(
    "formula",
    [
        "mean(x)",
        "sum(x) / size(x, -1)",
        "mean(x, axis=(0, 1))",
        "mean(x, axis=all)",
        "mean(x, axis=0)",
    ],
)
def test_a_sum_over_its_length_is_a_mean(formula: str) -> None:
    found = names(run(graph_of(formula, {"x": torch.zeros(4, 5)}).graph, verify=True))
    assert "mean" in found
    assert not found & {"sum", "div", "size"}


@pytest.mark.parametrize(
    "formula",
    [
        "sum(x) / size(x, 0)",  # the length of another axis
        "sum(x) / (size(x, -1) - 1)",
        "sum(x) / (size(x, -1) * size(x, -1))",
        "sum(x, axis=(0, 1)) / size(x, -1)",
        "sum(x) / 5",
        "size(x, -1) / sum(x)",
        "sum(i64(x)) / size(x, -1)",  # integers: the quotient is of another type than the sum
    ],
)
def test_other_quotients_stay(formula: str) -> None:
    assert "mean" not in names(run(graph_of(formula, {"x": torch.zeros(4, 5)}).graph, verify=True))


def entropies(formula: str) -> int:
    """How many reductions the passes leave of a formula."""
    graph = run(graph_of(formula, {"x": torch.zeros(4, 5)}).graph, verify=True)
    return sum(node.op.name in ("max", "sum") for node in graph.nodes())


@pytest.mark.parametrize(
    "formula",
    [
        "sum(softmax(x) * log_softmax(x))",
        "-sum(log_softmax(x) * softmax(x))",
        "sum(softmax(x, axis=0) * log_softmax(x, axis=0), axis=0)",
        "d = x - max(x)\ns = sum(exp(d))\nsum(exp(d) / s * (d - log(s)))",
    ],
)
def test_an_entropy_needs_no_third_reduction(formula: str) -> None:
    """The maximum, the sum of the exponentials and the sum of the weighted ones at once."""
    assert entropies(formula) == 3
    x = 5 * torch.randn(6, 9, dtype=torch.float64)
    axis = 0 if "axis=0" in formula else -1
    want = (torch.softmax(x, axis) * torch.log_softmax(x, axis)).sum(axis)
    got = fusec.compile(formula)(x)
    torch.testing.assert_close(-got if formula.startswith("-") else got, want)


@pytest.mark.parametrize(
    "formula",
    [
        "sum(softmax(x) * log_softmax(2 * x))",  # of another distribution
        "sum(softmax(x) * softmax(x))",
        "d = x - max(x)\ns = sum(exp(d))\nsum(exp(d) / s * (x - log(s)))",
        "d = x - max(x)\ns = sum(exp(d))\nsum(exp(d) * 2 / s * (d - log(s)))",
        "sum(softmax(x) * log_softmax(x), axis=0)",
    ],
)
def test_other_sums_of_products_stay(formula: str) -> None:
    x = torch.randn(6, 9, dtype=torch.float64)
    function = fusec.compile(formula)
    torch.testing.assert_close(function(x), fusec.compile(formula, backend="torch")(x))
    graph = run(graph_of(formula, {"x": torch.zeros(4, 5)}).graph)
    assert not any(
        node.op.name == "sub" and node.args[0].op.name == "div" for node in graph.nodes()
    )


@pytest.mark.parametrize("special", [float("inf"), float("-inf"), float("nan"), 1e30, -1e30])
def test_the_entropy_of_special_values_is_pytorchs(special: float) -> None:
    x = torch.randn(3, 8)
    x[0, 3] = special
    x[1] = special
    want = (torch.softmax(x, -1) * torch.log_softmax(x, -1)).sum(-1)
    got = fusec.compile("sum(softmax(x) * log_softmax(x))")(x)
    torch.testing.assert_close(got, want, equal_nan=True)
