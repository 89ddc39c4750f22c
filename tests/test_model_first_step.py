"""The first step of a compiled model: equal layers are worked out once, nothing needless is
imported, equal operators run once, and none of that changes a number.
"""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor
import torch.fx
from torch import nn
from torch._functorch.compile_utils import fx_graph_cse, rand_ops
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import fusec
import fusec.torch_backend
from fusec.frontend import model_parts, model_trace
from fusec.frontend.model_alike import form, has_hash
from fusec.frontend.model_calls import draws, writes
from fusec.runtime import model_graph, model_stages
from fusec.runtime.model_equal import merge_equal
from tests.models import MLP, WIDTH, check_same, results

REFERENCE = {"backend": "torch"}
ATEN = torch.ops.aten


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def count(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """The first arguments of calls of a function, from now on."""
    seen: list[Any] = []
    before = getattr(owner, name)

    def counted(*args: Any, **named: Any) -> Any:
        seen.append(args[0])
        return before(*args, **named)

    monkeypatch.setattr(owner, name, counted)
    return seen


# -- equal layers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
def test_equal_layers_are_worked_out_once(monkeypatch: pytest.MonkeyPatch, dynamic: bool) -> None:
    apart = count(monkeypatch, model_parts, "_taken_apart")
    converted = count(monkeypatch, model_trace, "_Conversion")
    planned = count(monkeypatch, model_graph, "plan_region")
    built = count(monkeypatch, model_graph, "build_soon")
    model, x = MLP(4), torch.randn(24, WIDTH, requires_grad=True)
    compiled = torch.compile(model, backend="fusec", dynamic=dynamic)
    check_same(results(compiled, model, x), results(model, model, x))
    assert apart == [ATEN.gelu_backward.default]
    assert [len(found) for found in (converted, planned, built)] == [2, 2, 2]
    assert fusec.last_report().kernels == 8


class Different(nn.Module):
    """Layers that differ in nothing but a number, a flag, or what they read twice."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        w = torch.full((WIDTH, WIDTH), 0.25)
        for slope in (0.0, -0.0, 0.25, 1.0, 1):
            x = F.leaky_relu(x @ w, slope) - F.elu(x, 0.5 + slope)
        for approximate in ("none", "tanh", "none"):
            x = F.gelu(x @ w, approximate=approximate)
        for low, high in ((0, 1), (0.0, 1.0), (-1, 1)):
            x = F.hardtanh(x @ w, low, high) + F.softplus(x, 1 + high)
        return F.smooth_l1_loss(x @ w, y, reduction="none") * F.smooth_l1_loss(y, y @ w)


@pytest.mark.parametrize("options", [{}, REFERENCE])
def test_layers_that_differ_in_little_are_told_apart(options: dict[str, str]) -> None:
    model = Different()
    x, y = torch.randn(2, 8, WIDTH, requires_grad=True).unbind()
    compiled = torch.compile(model, backend="fusec", options=options)
    check_same(results(compiled, model, x, y), results(model, model, x, y))


def test_layers_of_other_types_and_strides_are_told_apart() -> None:
    class Mixed(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            half = F.gelu(x.half() * 2)
            turned = F.gelu(x.t() * 2).t()
            long = F.gelu(torch.cat([x, x]) * 2)
            return F.gelu(x * 2), half, turned, long, F.gelu(x.double() * 2)

    model, x = Mixed(), torch.randn(WIDTH, WIDTH, requires_grad=True)
    compiled = torch.compile(model, backend="fusec", options=REFERENCE)
    for own, wanted in zip(compiled(x), model(x), strict=True):
        assert (own.dtype, own.shape, own.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
        torch.testing.assert_close(own, wanted)
        if own.dtype != torch.half:  # eager rounds it after every operator
            grads = [torch.autograd.grad(r.sum(), x, retain_graph=True)[0] for r in (own, wanted)]
            torch.testing.assert_close(*grads)


def test_a_kernel_that_fails_is_told_of_each_layer(caplog: pytest.LogCaptureFixture) -> None:
    model, x = MLP(3), torch.randn(24, WIDTH)
    compiled = torch.compile(model, backend="fusec", options={"backend": "cuda"})
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:

        def fail(*args: Any, **named: Any) -> Any:
            raise fusec.BuildError("no compiler today")

        patch.setattr(fusec.CompiledFunction, "__call__", fail)
        with caplog.at_level(logging.WARNING, "fusec"):
            torch.testing.assert_close(compiled(x), model(x))
    (graph,) = fusec.last_report().graphs
    assert [r.failure for r in graph.regions] == ["no compiler today"] * 3
    assert len(caplog.messages) == 3


def test_forms_tell_apart_what_python_takes_for_equal() -> None:
    values = [0.0, -0.0, 0, False, 1, 1.0, True, (1,), (1, None), [1.0], {"a": 1}, slice(1), "1"]
    forms = [form(value, lambda _: None) for value in values]
    assert len(set(forms)) == len(values)
    assert form(float("nan"), lambda _: None) == form(float("nan"), lambda _: None)
    assert form([1], lambda _: None) == form((1,), lambda _: None)
    assert not has_hash(form({"a": set()}, lambda _: None))


# -- equal operators ------------------------------------------------------------------------------


def graph_of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Any:
    """The graph of a function over aten, and its module."""
    module = make_fx(function, tracing_mode="fake")(*(torch.randn(s) for s in shapes))
    return module.graph, module


def called(graph: Any) -> Counter[str]:
    targets = [n.target for n in graph.nodes if n.op == "call_function"]
    return Counter(getattr(t, "_opname", t.__name__) for t in targets)


def test_equal_operators_run_once() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        a, b = x.exp().sum(-1, keepdim=True), x.exp().sum(-1, keepdim=True)
        return (x.exp() / a + x.exp() / b + x.sum(0, keepdim=True)).sin()

    graph, module = graph_of(function, (4, 5))
    x = torch.randn(4, 5)
    assert merge_equal(graph)
    module.recompile()
    assert called(graph) == {"exp": 1, "sum": 2, "div": 1, "add": 2, "sin": 1}
    assert torch.equal(module(x), function(x))


def test_operators_that_are_not_equal_both_run() -> None:
    graph, _ = graph_of(_unequal, (4, 4))
    before = called(graph)
    assert merge_equal(graph)
    assert called(graph) == before


def _unequal(x: torch.Tensor) -> torch.Tensor:
    parts = [x * 0.0, x * -0.0, x.sum(0) + x, x.sum(1) + x, x + 1, x - 1]
    return torch.cat([*parts, x[:3], x[1:]]).sin()


def test_random_numbers_are_drawn_each_time() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand_like(x) - torch.rand_like(x)
        for _ in range(2):
            noise = noise + torch.native_dropout(x, 0.5, True)[0] + torch.bernoulli(x)
        return noise.sin()

    graph, _ = graph_of(function, (4, 5))
    before = called(graph)
    assert merge_equal(graph)
    assert called(graph) == before


def test_what_pytorch_takes_for_random_is_taken_for_random() -> None:
    """By its tag, or because it writes; but for names that are taken apart beforehand."""
    overloads = [getattr(packet, name) for packet in rand_ops for name in packet.overloads()]
    nodes = [torch.fx.Graph().call_function(overload) for overload in overloads]
    missed = {n.target._opname for n in nodes if not (draws(n) or writes(n))}
    assert missed <= set(), missed


def test_results_that_are_two_tensors_stay_two() -> None:
    def function(x: torch.Tensor) -> Any:
        return x.exp(), x.exp(), x.sin() + 1, (x.sin() + 1).view(-1)

    graph, module = graph_of(function, (4, 5))
    assert merge_equal(graph)
    module.recompile()
    made = module(torch.randn(4, 5))
    assert called(graph)["exp"] == 2
    assert len({t.untyped_storage()._cdata for t in made}) == 4


def test_tensors_without_a_memory_of_their_own_are_no_trouble() -> None:
    def function(x: torch.Tensor) -> Any:
        return x.to_sparse(), torch.sparse.sum(x.to_sparse()) + x.exp() + x.exp()

    graph, _ = graph_of(function, (4, 5))
    assert merge_equal(graph)
    assert called(graph)["exp"] == 1


def test_a_graph_that_writes_is_left_as_it_is() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        a = x.exp()
        x.add_(1)
        return (a + x.exp()).sin()

    graph, _ = graph_of(function, (4, 5))
    before = called(graph)
    assert not merge_equal(graph)
    assert called(graph) == before


@pytest.mark.parametrize("name", ["block", "loss", "norm"])
def test_as_many_operators_are_left_as_pytorch_leaves(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, 0.0, batch_first=True)
    run: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "block": layer,
        "loss": lambda x: F.cross_entropy(x.flatten(0, 1), torch.arange(12) % WIDTH),
        "norm": lambda x: F.layer_norm(x, (WIDTH,)) * F.layer_norm(x, (WIDTH,)).sin(),
    }
    counts = []

    def watch(graph: Any) -> bool:
        wanted = called(fx_graph_cse(graph))
        done = merge_equal(graph)
        counts.append((done, wanted, called(graph)))
        return done

    monkeypatch.setattr(model_stages, "merge_equal", watch)
    x = torch.randn(2, 6, WIDTH, requires_grad=True)
    torch.compile(run[name], backend="fusec", options=REFERENCE)(x).sum().backward()
    ((done, wanted, own),) = counts
    assert done
    assert own == wanted


# -- what else a first step does ------------------------------------------------------------------

STEP = """
import sys, torch, fusec.torch_backend
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
torch.compile(model, backend={!r})(torch.randn(4, 8)).sum().backward()
print(*[m for m in ("ir", "lowering", "scheduler") if "torch._inductor." + m in sys.modules])
"""


def test_a_step_does_not_import_the_whole_of_inductor(tmp_path: Path) -> None:
    """No more of it than PyTorch itself does, which before 2.7 imports all for AOTAutograd."""
    loaded = []
    for backend in ("fusec", "aot_eager"):
        done = subprocess.run(
            [sys.executable, "-c", STEP.format(backend)],
            capture_output=True, text=True, cwd=tmp_path, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        loaded.append(set(done.stdout.split()))
    ours, theirs = loaded
    assert ours <= theirs
    assert not ours or torch.__version__ < "2.7"


@pytest.mark.parametrize("gpu", [True, False])
def test_triton_is_made_ready_when_tracing_begins(
    monkeypatch: pytest.MonkeyPatch, gpu: bool
) -> None:
    """Where there may be kernels for a GPU; again by the backend, since a reset forgets it."""
    events: list[str] = []
    begin = fusec.torch_backend.begin
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: gpu)
    monkeypatch.setattr(fusec.torch_backend, "capability_of", lambda device: 90)
    monkeypatch.setattr(fusec.torch_backend, "expect_kernels", lambda t: events.append(str(t)))
    monkeypatch.setattr(fusec.torch_backend, "begin", lambda: events.append("begin") or begin())
    with torch.no_grad():
        torch.compile(MLP(1), backend="fusec", options=REFERENCE)(torch.randn(4, WIDTH))
        torch._dynamo.reset()
        fusec.torch_backend._register()
        torch.compile(MLP(1), backend="fusec", options=REFERENCE)(torch.randn(4, WIDTH))
    ready = ["sm_90"] if gpu else []
    assert events[-1] == "begin"
    assert events[events.index("begin") + 1 :] == [*ready, *ready, "begin"]


def test_nothing_is_collected_while_a_model_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    collecting = []
    before = fusec.torch_backend.compile_graph

    def watch(*args: Any) -> Any:
        collecting.append(gc.isenabled())
        return before(*args)

    monkeypatch.setattr(fusec.torch_backend, "compile_graph", watch)
    for depth in range(1, 7):
        torch._dynamo.reset()
        torch.compile(MLP(depth), backend="fusec", options=REFERENCE)(
            torch.randn(4, WIDTH)
        ).sum().backward()
        assert gc.isenabled()
    assert collecting == [False] * 12


def test_pytorchs_own_way_is_taken_where_it_writes_its_graphs_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    direct = count(monkeypatch, model_stages, "_left_alone")
    model, x = MLP(2), torch.randn(24, WIDTH, requires_grad=True)
    compiled = torch.compile(model, backend="fusec", options=REFERENCE)
    with inductor.patch({"trace.enabled": True}):
        check_same(results(compiled, model, x), results(model, model, x))
    assert direct == []


def test_what_fails_in_a_graph_is_raised_and_collections_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(fusec.torch_backend, "compile_graph", fail)
    with pytest.raises(KeyboardInterrupt):
        torch.compile(MLP(1), backend="fusec")(torch.randn(4, WIDTH))
    assert gc.isenabled()
