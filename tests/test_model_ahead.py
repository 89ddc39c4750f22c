"""Backward graphs that are planned before PyTorch asks for them: their kernels are built beside
those of the forward graph, and a plan serves the graph that it was made for and no other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import fusec.torch_backend
from fusec.runtime import model_ahead
from fusec.runtime.model_ahead import Ahead
from fusec.runtime.model_graph import GraphPlan
from fusec.runtime.model_plan import Choice
from tests.models import MLP, WIDTH, check_same, results


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is planned and compiled, in order."""
    found: list[str] = []
    plan, compile_graph = model_ahead.plan_graph, fusec.torch_backend.compile_graph

    def planning(graph: Any, choice: Choice) -> GraphPlan:
        known = {getattr(n.target, "_opname", "") for n in graph.nodes}
        found.append("plan backward" if "gelu_backward" in known else "plan forward")
        return plan(graph, choice)

    def compiling(module: Any, stage: str, *rest: Any) -> Any:
        found.append(f"compile {stage}")
        return compile_graph(module, stage, *rest)

    monkeypatch.setattr(model_ahead, "plan_graph", planning)
    monkeypatch.setattr(fusec.torch_backend, "compile_graph", compiling)
    return found


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_backward_graph_is_planned_once_and_first(events: list[str], dynamic: bool) -> None:
    model, x = MLP(3), torch.randn(24, WIDTH, requires_grad=True)
    compiled = torch.compile(model, backend="fusec", dynamic=dynamic)
    made = compiled(x)
    assert events[:3] == ["plan backward", "plan forward", "compile forward"]
    made.sum().backward()
    assert events[3:] == ["compile backward"]
    check_same(results(compiled, model, x), results(model, model, x))


def test_without_gradients_nothing_is_expected(events: list[str]) -> None:
    model, x = MLP(2), torch.randn(24, WIDTH)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="fusec")(x), model(x))
    assert events == ["plan forward", "compile inference"]


def test_going_backward_twice_is_as_ever(events: list[str]) -> None:
    """The plan does not say which of what is kept may be written over: who asks first does."""
    model, x = MLP(2), torch.randn(24, WIDTH, requires_grad=True)
    made = torch.compile(model, backend="fusec")(x).sum()
    first, second = (torch.autograd.grad(made, x, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, torch.autograd.grad(model(x).sum(), x)[0])
    assert torch.equal(first, second)
    assert events.count("plan backward") == 1


def test_other_lengths_have_plans_of_their_own(events: list[str]) -> None:
    model = MLP(2)
    compiled = torch.compile(model, backend="fusec", dynamic=False)
    for rows in (8, 12):
        x = torch.randn(rows, WIDTH, requires_grad=True)
        check_same(results(compiled, model, x), results(model, model, x))
    assert events.count("plan backward") == 2


class Broken(Exception):
    """Raised by a test."""


def test_a_plan_that_fails_ahead_is_no_trouble_of_the_forward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = model_ahead.plan_graph

    def fail(graph: Any, choice: Choice) -> GraphPlan:
        if any(getattr(n.target, "_opname", "") == "gelu_backward" for n in graph.nodes):
            raise Broken
        return plan(graph, choice)

    monkeypatch.setattr(model_ahead, "plan_graph", fail)
    model, x = MLP(2), torch.randn(24, WIDTH)
    made = torch.compile(model, backend="fusec")(x)
    torch.testing.assert_close(made, model(x))
    with pytest.raises(Broken):
        made.sum().backward()


def graph_of(function: Callable[..., Any], *shape: int, dtype: Any = torch.float32) -> Any:
    """A module with the graph of a function over aten."""
    x = torch.randn(shape).to(dtype)
    return make_fx(function, tracing_mode="fake")(x, x.clone())


def gated(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (F.gelu(x) * 0.0 + y).cos(), x.sum(-1)


def test_a_plan_is_for_copies_of_its_graph() -> None:
    ahead, module = new_ahead(), graph_of(gated, 4, 8)
    ahead.expect(module)
    ((_, made),) = ahead._made
    assert made.graph is not module.graph
    assert ahead.plan(copy.deepcopy(module)) is made
    assert ahead.plan(module) is not made  # it has been taken


@pytest.mark.parametrize(
    "other",
    [
        lambda x, y: ((F.gelu(x) * -0.0 + y).cos(), x.sum(-1)),
        lambda x, y: ((F.gelu(x) * 0.0 + y).sin(), x.sum(-1)),
        lambda x, y: ((F.gelu(y) * 0.0 + x).cos(), x.sum(-1)),
        lambda x, y: ((F.gelu(x) * 0.0 + y).cos(), x.sum(-1, keepdim=True)),
        lambda x, y: ((F.gelu(x) * 0.0 + y).cos(), x.sum(0)),
        lambda x, y: (x.sum(-1), (F.gelu(x) * 0.0 + y).cos()),
        gated,  # the same over other values
    ],
)
def test_a_plan_is_for_no_other_graph(other: Callable[..., Any]) -> None:
    ahead, module = new_ahead(), graph_of(other, 4, 8)
    ahead.expect(graph_of(gated, 4, 8))
    ((_, made),) = ahead._made
    planned = ahead.plan(module)
    assert planned is not made
    assert planned.graph is module.graph


def new_ahead() -> Ahead:
    kernels: dict[Any, Any] = {}
    compiled = fusec.torch_backend._shared
    choice = Choice(lambda f: kernels.setdefault(f, compiled(f, "torch")), "torch", "torch")
    return Ahead(choice)


def test_a_plan_keeps_what_the_operators_are_of() -> None:
    """A layer with a buffer that is no input: its graph reads an attribute of the module."""

    class Shifted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.gelu(x + torch.tensor([0.5, 1.5]))

    model, x = Shifted(), torch.randn(3, 2, requires_grad=True)
    compiled = torch.compile(model, backend="fusec")
    check_same(results(compiled, model, x), results(model, model, x))
