"""Gradients of reductions over no elements: those of PyTorch, which adds up nothing to 0."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.passes.grad import gradient
from fusec.passes.pipeline import run as run_passes
from tests.formulas import graph_of
from tests.test_autograd import on_both

Tensor = torch.Tensor

REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "prod": torch.prod,
    "var": torch.var,
    "std": torch.std,
    "norm": torch.linalg.vector_norm,
    "rms": lambda x, **where: (x * x).mean(**where).sqrt(),
    "logsumexp": lambda x, dim=(0, 1): x.logsumexp(dim),
}
OPERANDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "x * w": lambda x, w: x * w,
    "x + w": lambda x, w: x + w,
    "x + exp(w)": lambda x, w: x + w.exp(),
}
PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean(x * w, axis=all)^2 * w": lambda x, w: (x * w).mean() ** 2 * w,
    "x * w - mean(x * w, axis=0)": lambda x, w: x * w - (x * w).mean(0),
    "x - (mean(x, axis=0) + w)": lambda x, w: x - (x.mean(0) + w),
    "layer_norm(x * w)": lambda x, w: F.layer_norm(x * w, (4,)),
    "softmax(x * w)": lambda x, w: torch.softmax(x * w, -1),
    "softmax(x * w, axis=0) * w": lambda x, w: torch.softmax(x * w, 0) * w,
    "log_softmax(x * w, axis=0)": lambda x, w: torch.log_softmax(x * w, 0),
    "log(sum(x * w, axis=all))": lambda x, w: torch.log((x * w).sum()),
    "log(sum(x * w, axis=0)) * w": lambda x, w: torch.log((x * w).sum(0)) * w,
}


def gradients(function: Callable[..., Any], *shapes: tuple[int, ...]) -> list[Tensor]:
    leaves = [torch.ones(shape).requires_grad_() for shape in shapes]
    return list(torch.autograd.grad(function(*leaves).sum(), leaves))


def check(text: str, eager: Callable[..., Any], backend: str, *shapes: tuple[int, ...]) -> None:
    got = gradients(fusec.compile(text, backend=backend), *shapes)
    for one, other in zip(got, gradients(eager, *shapes), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@on_both
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_broadcast_operand_gets_0(name: str, backend: str) -> None:
    shapes = [((0, 4), (4,)), ((0, 4), (1, 4)), ((4, 0), (4, 1))]
    axes: list[tuple[str, dict[str, int]]] = [("all", {}), ("0", {"dim": 0}), ("-1", {"dim": -1})]
    for (text, operand), (axis, where), shape in itertools.product(OPERANDS.items(), axes, shapes):
        call = f"{name}({text}, axis={axis})"

        def eager(x: Tensor, w: Tensor, of: Any = operand, where: Any = where) -> Tensor:
            return REDUCTIONS[name](of(x, w), **where)

        check(call, eager, backend, *shape)


@on_both
@pytest.mark.parametrize("text", PROGRAMS)
def test_programs(text: str, backend: str) -> None:
    check(text, PROGRAMS[text], backend, (0, 4), (4,))


def test_only_what_may_be_infinite_over_no_elements_asks_how_many_there_are() -> None:
    def asks(text: str) -> bool:
        values = {"x": torch.ones(8, 4), "w": torch.ones(4)}
        made = run_passes(gradient(graph_of(text, values).graph, ["x", "w"]).graph)
        return any(node.op.name == "eq" for node in made.nodes())

    assert asks("mean(x * w, axis=all)")
    assert asks("mean(x * exp(w), axis=0)")
    for text in ("rms_norm(x, w)", "layer_norm(x + w) * w", "mean(x * w)", "sum(x * w, axis=all)"):
        assert not asks(text)
