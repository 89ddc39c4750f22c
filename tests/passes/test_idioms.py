"""Means are recognised, and nothing else is taken for one."""

from __future__ import annotations

import pytest
import torch

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
