"""Results of a model's regions in the memory of what nothing needs again."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fusec
from fusec.codegen.in_place import may_overwrite
from fusec.codegen.kernel import Kernel
from fusec.codegen.lower import TRITON
from fusec.ir.dtypes import BF16
from fusec.runtime import launcher, model_graph
from fusec.runtime.build_cpp import find_compiler
from fusec.runtime.model_region import RegionFunction
from fusec.runtime.peak import peak_bytes
from fusec.runtime.specialize import Argument, kernel_of, lay_out_all, parts_of

OPTIONS = {"backend": "triton"}  # interpreted, without a GPU
# Without a compiler there is no C++ backend, and Triton is interpreted; .ci/run installs one.
_COMPILES = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
BACKENDS = ["triton", pytest.param("cpp", marks=_COMPILES)]


def kernels(text: str, shape: tuple[int, int]) -> tuple[list[Kernel], tuple[str, ...]]:
    function = fusec.compile(text)
    arguments = [Argument(BF16, shape, (shape[1], 1)) for _ in function.inputs]
    special = function.specialization(arguments)
    chosen, laid, _ = lay_out_all(special, arguments, special.sizes(arguments), {}, "triton")
    found = [kernel_of(chosen, one, part) for one in laid for part in parts_of(one)]
    return found, tuple(output.name for output in special.outputs)


@pytest.mark.parametrize(
    ("text", "shape", "over"),
    [
        ("gelu(x)", (64, 1024), {("out", "x")}),
        ("softmax(x)", (64, 1024), {("out", "x")}),  # held: read before any of it is written
        ("softmax(x)", (4096, 1 << 20), set()),  # read again by a second sweep
        ("softmax(x)", (8, 1 << 20), set()),  # and by other programs
        ("y = g * (1 + x)\ny, sum(y, axis=0)", (4096, 1024), {("y", "g"), ("y", "x")}),
        ("x - mean(x, axis=0)", (4096, 1024), set()),  # two kernels read it
        ("f32(x)", (64, 1024), set()),  # of another type
        ("x * mean(y)", (64, 1024), {("out", "x")}),  # y is not read where it would be written
        # read again, but before any of it is written, since that waits for the reduction
        ("x - mean(x)", (4096, 4096), {("out", "x")}),
        ("h = x + r\nh * rsqrt(mean(h^2)), h", (4096, 4096), {("out", "x"), ("out", "r")}),
        # the first result may be stored before another lane has loaded y for the maximum
        ("y - mean(x), x * max(y) - y", (4096, 4096), set()),
    ],
)
def test_what_may_be_overwritten(
    text: str, shape: tuple[int, int], over: set[tuple[str, str]]
) -> None:
    found, outputs = kernels(text, shape)
    inputs = fusec.compile(text).inputs
    got = {(o, i) for o in outputs for i in inputs if may_overwrite(found, o, i, TRITON)}
    assert got == over


class Layers(torch.nn.Module):
    """Linear layers with a gelu, or with a residual that needs the product again."""

    def __init__(self, width: int, residual: bool = False, views: bool = False) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(3))
        self.residual, self.views = residual, views

    def forward(self, x: torch.Tensor) -> Any:
        seen = []
        for layer in self.layers:
            y = layer(x)
            x = torch.nn.functional.gelu(y)
            if self.residual:
                x = (x @ y.T @ y).tanh()
            if self.views:
                seen.append(y.view(-1)[:3])
        return (x, *seen)


@pytest.fixture
def regions(monkeypatch: pytest.MonkeyPatch) -> list[RegionFunction]:
    """The regions of models, as they are made."""
    torch._dynamo.reset()
    made: list[RegionFunction] = []
    make = model_graph._function

    def remember(*arguments: Any) -> RegionFunction:
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr(model_graph, "_function", remember)
    return made


def results_of(model: Any, x: torch.Tensor, given: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    results = model(x)
    results[0].backward(given)
    return [*(r.detach() for r in results), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("views", [False, True])
def test_training_is_the_same(
    residual: bool, views: bool, backend: str, regions: list[RegionFunction]
) -> None:
    torch.manual_seed(0)
    plain = Layers(32, residual, views).double()
    options = {"backend": backend}
    compiled = torch.compile(copy.deepcopy(plain), backend="fusec", options=options)
    for _ in range(3):
        x, given = (torch.randn(8, 32, dtype=torch.float64) for _ in range(2))
        kept = x.clone(), given.clone()
        wanted, got = (results_of(m, x, given) for m in (plain, compiled))
        for mine, theirs in zip(got, wanted, strict=True):
            torch.testing.assert_close(mine, theirs)
        assert torch.equal(x, kept[0])
        assert torch.equal(given, kept[1])
    forward = regions[: 3 * (1 + residual)]
    assert any(region.over for region in regions[len(forward) :])
    gelus = [region for region in forward if region.report.name == "fused_gelu"]
    assert not any(region.over for region in gelus)  # the backward needs what it was given


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("donated", [True, False])
def test_kept_products_are_written_over_where_nobody_goes_back_again(
    donated: bool, backend: str, regions: list[RegionFunction]
) -> None:
    """AOTAutograd refuses to go backward twice, or gives nothing away."""
    plain = Layers(32).double()
    x = torch.randn(8, 32, dtype=torch.float64)
    options = {"backend": backend}
    with torch._functorch.config.patch(donated_buffer=donated):
        compiled = torch.compile(copy.deepcopy(plain), backend="fusec", options=options)
        result = compiled(x)[0]
        result.backward(x, retain_graph=not donated)
        assert regions[3].over == ({0: 1} if donated else {})
        if not donated:
            result.backward(x)
    plain(x)[0].backward(x * (1 if donated else 2))
    for mine, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_what_is_kept_twice_is_not_given_away() -> None:
    graph = torch.fx.Graph()
    product, other = torch.randn(4, 4), torch.randn(4, 4)
    nodes = [graph.placeholder(name) for name in ("product", "view", "other", "number")]
    for node, value in zip(nodes, (product, product.view(16), other, 3), strict=True):
        node.meta["val"] = value
    graph.output(nodes[-1])
    context = torch._guards.TracingContext(None)
    context.fw_metadata = SimpleNamespace(bw_donated_idxs=[0, 1, 2])
    assert model_graph._donated(graph) == set()
    with torch._guards.tracing(context):
        assert [node.name for node in model_graph._donated(graph)] == ["other"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_inference_writes_over_products_alone(backend: str, regions: list[RegionFunction]) -> None:
    plain = Layers(32)
    options = {"backend": backend}
    compiled = torch.compile(copy.deepcopy(plain), backend="fusec", options=options)
    with torch.no_grad():
        x = torch.randn(8, 32)
        torch.testing.assert_close(compiled(x), plain(x))
        assert [region.over for region in regions] == [{0: 0}] * 3
        y = torch.randn(8, 32)
        wanted = torch.nn.functional.gelu(y)
        assert regions[0](y).data_ptr() == y.data_ptr()
        torch.testing.assert_close(y, wanted)
        other = torch.randn(32, 8).T  # of another layout: left alone
        before = other.clone()
        torch.testing.assert_close(regions[0](other), torch.nn.functional.gelu(before))
        assert torch.equal(other, before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_read_again_is_left_alone(backend: str, regions: list[RegionFunction]) -> None:
    def product(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        c = a @ b
        return torch.relu(c) * 2, c[0]

    compiled = torch.compile(product, backend="fusec", options={"backend": backend})
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    torch.testing.assert_close(compiled(a, b), product(a, b))
    assert [region.over for region in regions] == [{}]


@pytest.mark.parametrize("dynamic", [True, False])
def test_kernels_of_other_lengths_may_read_more(
    dynamic: bool, regions: list[RegionFunction]
) -> None:
    """Few rows do not take sums over them along: another kernel reads the product for those."""

    def norm(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        c = a @ b
        return c * torch.rsqrt((c * c).mean(-1, keepdim=True)), (c * c).sum(0)

    compiled = torch.compile(norm, backend="fusec", dynamic=dynamic, options=OPTIONS)
    for rows in (64, 8):
        a, b = torch.randn(rows, 8), torch.randn(8, 1024)
        torch.testing.assert_close(compiled(a, b), norm(a, b), rtol=1e-4, atol=1e-4)
    assert [region.over for region in regions] == ([{}] if dynamic else [{0: 0}, {}])


@pytest.mark.gpu
def test_steps_of_the_launcher_write_over_products() -> None:
    torch.manual_seed(0)
    plain = Layers(512).cuda().bfloat16()
    compiled = torch.compile(copy.deepcopy(plain), backend="fusec")
    steps = [torch.randn(4096, 512, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    wanted = results_of(plain, *steps)
    for _ in range(200):
        got = results_of(compiled, *steps)
        for mine, theirs in zip(got, wanted, strict=True):
            most = theirs.abs().max().item()
            assert (mine - theirs).abs().max().item() <= 0.02 * most
    inductor = torch.compile(copy.deepcopy(plain))
    ours, theirs = (
        peak_bytes(lambda m=m: results_of(m, *steps), "cuda") for m in (compiled, inductor)
    )
    assert ours is not None
    assert theirs is not None
    assert ours <= theirs + (1 << 16)


def test_equal_layers_go_to_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """One takes the memory of its first operand, the next that of its second: one function."""
    assert launcher.wait(120.0), launcher.reason()
    slow: list[int] = []
    overwrite = fusec.CompiledFunction.overwrite

    def counted(self: fusec.CompiledFunction, *given: Any) -> None:
        slow.append(len(given))
        overwrite(self, *given)

    monkeypatch.setattr(fusec.CompiledFunction, "overwrite", counted)
    model = Layers(16)
    compiled = torch.compile(model, backend="fusec")
    x, given = torch.randn(8, 16), torch.randn(8, 16)
    for _ in range(8):
        results_of(compiled, x, given)
    assert slow  # results take the memory of operands
    slow.clear()
    results_of(compiled, x, given)
    assert not slow  # without Python in between
