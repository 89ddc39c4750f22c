"""A step of a compiled model: what lies between PyTorch and the kernels, and that it is little."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.fx
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fusec
import fusec.torch_backend
from fusec.runtime import launcher, model_operators
from fusec.runtime.build_cpp import find_compiler
from fusec.runtime.model_region import RegionFunction
from tests.models import MLP, WIDTH, check_same, results

ATEN = torch.ops.aten


class Watch(TorchDispatchMode):
    """Notes which operators are called."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called.append(func)
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The regions whose calls went the long way, in order."""
    found: list[str] = []
    whole = RegionFunction.__call__

    def call(self: RegionFunction, *values: Any) -> Any:
        found.append(self.report.name)
        return whole(self, *values)

    monkeypatch.setattr(RegionFunction, "__call__", call)
    return found


def trained(model: torch.nn.Module, times: int = 6) -> Callable[..., Any]:
    compiled: Callable[..., Any]
    compiled = torch.compile(model, backend=fusec.torch_backend.fusec, fullgraph=True)
    x = torch.randn(24, WIDTH)
    for _ in range(times):
        check_same(results(compiled, model, x), results(model, model, x))
    return compiled


@pytest.fixture
def ready() -> None:
    """The compiled launcher, which there has to be wherever it can be built."""
    # Without these two every call goes through Python by design, and there is nothing to test.
    if find_compiler() is None or not Path(launcher._headers(), "Python.h").exists():
        pytest.skip("needs a C++ compiler and Python's headers")
    assert launcher.wait(120.0), launcher.reason()


needs_launcher = pytest.mark.usefixtures("ready")


@needs_launcher
def test_repeated_steps_go_straight_to_the_launcher(looked_at: list[str]) -> None:
    model = MLP(3)
    compiled = trained(model)
    looked_at.clear()
    x = torch.randn(24, WIDTH)
    check_same(results(compiled, model, x), results(model, model, x))
    assert looked_at == []


@needs_launcher
def test_what_differs_goes_the_long_way(looked_at: list[str]) -> None:
    """Addresses between vectors, a mode, other strides: the numbers stay those of eager."""
    compiled = torch.compile(
        lambda x: torch.tanh(x) * x, backend=fusec.torch_backend.fusec, dynamic=False
    )
    x = torch.randn(6, 8)
    for _ in range(6):
        compiled(x)
    shifted = torch.randn(6 * 8 + 1)[1:].view(6, 8)
    assert shifted.data_ptr() % 16
    for _ in range(2):
        looked_at.clear()
        assert torch.allclose(compiled(shifted), torch.tanh(shifted) * shifted)
        assert looked_at
    for watching in (Watch, BaseTorchFunctionMode):
        looked_at.clear()
        with watching():
            assert torch.allclose(compiled(x), torch.tanh(x) * x)


@needs_launcher
def test_results_under_views_and_several_at_once(looked_at: list[str]) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        moved = torch.tanh(x.view(4, 6)) + y.transpose(0, 1)
        return moved, moved.sum(0), (moved.exp() + 1).view(2, 2, 6) * 2

    compiled = torch.compile(f, backend=fusec.torch_backend.fusec, dynamic=False)
    x, y = torch.randn(24), torch.randn(6, 4)
    for _ in range(6):
        for own, expected in zip(compiled(x, y), f(x, y), strict=True):
            assert own.stride() == expected.stride()
            assert torch.allclose(own, expected)
    looked_at.clear()
    compiled(x, y)
    assert looked_at == []


def test_the_gradient_of_a_bias_comes_without_an_axis_of_length_1() -> None:
    """A kernel gives it as it is, and PyTorch takes no view of it."""
    targets: list[Any] = []
    plain = torch.fx.GraphModule.__init__

    def spy(self: Any, root: Any, graph: Any, *args: Any, **named: Any) -> None:
        targets.extend(n.target for n in graph.nodes)
        plain(self, root, graph, *args, **named)

    model = MLP(2)
    compiled = torch.compile(model, backend=fusec.torch_backend.fusec, fullgraph=True)
    x = torch.randn(24, WIDTH)
    expected = results(model, model, x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.fx.GraphModule, "__init__", spy)
        found = results(compiled, model, x)
    check_same(found, expected)
    own = [t for t in targets if getattr(t, "__name__", "").startswith("fused_")]
    assert len(own) == 4
    assert "view" not in targets


def test_a_reshape_of_what_is_repeated_stays_a_view() -> None:
    """One group of heads is read by several: the axis of length 1 goes, and nothing is copied."""

    def f(x: torch.Tensor) -> torch.Tensor:
        repeated = torch.sin(x * 2)[:, :, None].expand(2, 1, 3, 4, 8)
        return repeated.reshape(2, 3, 4, 8) * 1.0

    def g(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x * 2)[:, :, None].expand(2, 1, 3, 4, 8).reshape(2, 3, 4, 8)

    x = torch.randn(2, 1, 4, 8)
    for function in (f, g):
        own = torch.compile(function, backend=fusec.torch_backend.fusec, fullgraph=True)(x)
        assert torch.allclose(own, function(x))
        assert own.stride() == function(x).stride()


class Residual(torch.nn.Module):
    """Linear layers around a norm and a residual, over rows that have two axes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(24, 24), torch.nn.Linear(24, 24)
        self.norm = torch.nn.LayerNorm(24)  # longer rows than those that are lanes on a CPU

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.first(x)
        return y + torch.tanh(self.last(self.norm(y)))


def test_gradients_of_biases_ride_along_with_those_of_norms() -> None:
    """A linear layer adds up over a reshaped gradient, in the kernel that makes the gradient."""
    model, x = Residual(), torch.randn(8, 64, 24)
    compiled = torch.compile(model, backend=fusec.torch_backend.fusec, fullgraph=True)
    check_same(results(compiled, model, x), results(model, model, x))
    backward = fusec.last_report().graphs[-1]
    assert "sum" not in {name for name, _ in backward.left}
    norm = next(r for r in backward.regions if "layer_norm" in r.name)
    assert (norm.operators, norm.kernels) == (3, 2)


@pytest.mark.parametrize("keepdim", [True, False])
def test_sums_of_reshaped_tensors(keepdim: bool) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.tanh(x) * 2
        return y, y.view(-1, 6).sum(0, keepdim) + 1

    x = torch.randn(3, 4, 6)
    for dynamic in (False, True):
        compiled = torch.compile(f, backend=fusec.torch_backend.fusec, dynamic=dynamic)
        for own, expected in zip(compiled(x), f(x), strict=True):
            assert own.shape == expected.shape
            assert torch.allclose(own, expected, atol=1e-6)
        torch._dynamo.reset()


SAMPLES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "mm.default": ((torch.randn(3, 4), torch.randn(4, 5)), {}),
    "bmm.default": ((torch.randn(2, 3, 4), torch.randn(2, 4, 5)), {}),
    "addmm.default": ((torch.randn(5), torch.randn(3, 4), torch.randn(4, 5)), {"beta": 2}),
    "baddbmm.default": (
        (torch.randn(2, 3, 5), torch.randn(2, 3, 4), torch.randn(2, 4, 5)),
        {"alpha": 3},
    ),
    "add.Tensor": ((torch.randn(3, 4), torch.randn(4)), {"alpha": 2}),
    "mul.Tensor": ((torch.randn(3, 4), torch.randint(5, (4,))), {}),
    "t.default": ((torch.randn(3, 4),), {}),
    "view.default": ((torch.randn(3, 4), [2, 6]), {}),
    "permute.default": ((torch.randn(3, 4, 5), [2, 0, 1]), {}),
    "transpose.int": ((torch.randn(3, 4, 5), 0, -1), {}),
    "unsqueeze.default": ((torch.randn(3, 4), 1), {}),
    "squeeze.dim": ((torch.randn(3, 1, 4), 1), {}),
    "expand.default": ((torch.randn(3, 1), [2, 3, 4]), {}),
    "select.int": ((torch.randn(3, 4), 1, 2), {}),
    "detach.default": ((torch.randn(3, 4),), {}),
    "clone.default": ((torch.randn(3, 4).t(),), {"memory_format": torch.contiguous_format}),
}


@pytest.mark.parametrize("name", sorted({**model_operators._FUNCTIONS, **model_operators._METHODS}))
def test_the_short_way_calls_the_same_operator(name: str) -> None:
    args, named = SAMPLES[name]
    operator, overload = name.split(".")
    target = getattr(getattr(ATEN, operator), overload)
    graph = torch.fx.Graph()
    places = [graph.placeholder(f"x{k}") for k, a in enumerate(args) if torch.is_tensor(a)]
    tensors = [a for a in args if torch.is_tensor(a)]
    rest = [a for a in args if not torch.is_tensor(a)]
    graph.output(graph.call_function(target, (*places, *rest), named))
    model_operators.shorten(graph)
    module = torch.fx.GraphModule({}, graph)
    assert target not in [n.target for n in graph.nodes]
    with Watch() as watch:
        found = module(*tensors)
    assert watch.called == [target]
    expected = target(*args, **named)
    assert torch.equal(found, expected)
    assert (found.stride(), found.dtype) == (expected.stride(), expected.dtype)


def test_what_has_another_meaning_keeps_its_name() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    implicit = graph.call_function(ATEN.expand.default, (x, [2, 3]), {"implicit": True})
    zeros = graph.call_function(ATEN.zeros_like.default, (x,))
    graph.output((implicit, zeros))
    model_operators.shorten(graph)
    targets = [n.target for n in graph.nodes]
    assert ATEN.expand.default in targets
    assert ATEN.zeros_like.default in targets
