"""``torch.compile(backend="fusec")``: whole models, against eager."""

from __future__ import annotations

import copy
import importlib.metadata
import logging
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fusec
import fusec.torch_backend
from fusec.api import CompiledFunction
from fusec.errors import BuildError, UnknownNameError
from tests.models import MLP, WIDTH, Attention, Block, Experts, SwiGLU, check_same, results

REFERENCE = {"backend": "torch"}  # the graphs that kernels are made of, without a compiler


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """The function or module, compiled without a graph break."""
    return torch.compile(function, backend="fusec", fullgraph=True, **options)


@pytest.mark.parametrize("depth", [1, 3, 8])
def test_mlp_trains_as_eager_does(depth: int) -> None:
    def losses(wrap: Callable[[Any], Any]) -> list[float]:
        torch.manual_seed(0)
        model = MLP(depth)
        x, y = torch.randn(2, 24, WIDTH)
        step = wrap(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        found = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = F.mse_loss(step(x), y)
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
        return found

    ours, eager = losses(compiled), losses(lambda model: model)
    assert ours == pytest.approx(eager, rel=2e-6)
    assert eager[0] > eager[-1]
    forward, backward = fusec.last_report().graphs
    assert (forward.kernels, forward.fused) == (depth, depth)
    assert (backward.kernels, backward.fused) == (depth, 2 * depth)
    # The gradient before a GELU is written, and read again where eager adds it up for the bias.
    assert backward.saved == depth * 24 * WIDTH * 4
    assert forward.left == {("addmm", "it multiplies matrices"): depth}


def test_attention_is_left_as_what_it_is() -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)

    torch.compile(attend, backend="fusec")(torch.randn(1, 2, 8, 16))
    (graph,) = fusec.last_report().graphs
    assert {why for name, why in graph.left if "attention" in name} == {"it is an attention"}


BLOCKS: dict[str, Callable[[], tuple[nn.Module, int]]] = {
    "pre-norm": lambda: (Block(Attention(False)), 1),
    "post-norm": lambda: (Block(Attention(False), before=False), 1),
    "attention by hand": lambda: (Block(Attention(True, by_hand=True)), 1),
    "RMSNorm and SwiGLU, grouped": lambda: (
        Block(Attention(True, groups=1), SwiGLU(), nn.RMSNorm),
        1,
    ),
    "experts": lambda: (Block(Attention(True), Experts()), 1),
    "TransformerEncoderLayer": lambda: (
        nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True),
        1,
    ),
    "TransformerDecoderLayer": lambda: (
        nn.TransformerDecoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True),
        2,
    ),
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_transformer_block(kind: str) -> None:
    model, count = BLOCKS[kind]()
    inputs = [torch.randn(2, 6, WIDTH) for _ in range(count)]
    eager = results(model, model, *inputs)
    check_same(results(compiled(model, options=REFERENCE), model, *inputs), eager)
    report = fusec.last_report()
    assert report.kernels >= 4
    assert report.saved > 0
    assert all(region.failure is None for g in report.graphs for region in g.regions)


def test_kernels_take_other_lengths_as_they_are() -> None:
    model = Attention(True, by_hand=True)
    function = compiled(model, dynamic=True)
    for count, shape in enumerate([(2, 8), (3, 5), (2, 7)]):
        x = torch.randn(*shape, WIDTH)
        check_same(results(function, model, x), results(model, model, x))
        if count == 1:
            report, built = fusec.last_report(), fusec.stats().compiles
    assert fusec.last_report() is report, "a shape was compiled anew"
    assert fusec.stats().compiles == built


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_on_a_gpu(dtype: torch.dtype) -> None:
    """As far from the exact numbers as eager is on the average of all results: roundings of 16 bits
    leave it to chance for one of a few elements, which is off by 4 times as much at most.
    """
    model = Block(Attention(True, by_hand=True), SwiGLU(), nn.RMSNorm).to("cuda", dtype)
    exact_model = copy.deepcopy(model).double()
    function = compiled(model, dynamic=True)
    ratios = []
    for shape in [(2, 8), (3, 5), (4, 40)]:
        x = torch.randn(*shape, WIDTH, device="cuda", dtype=dtype)
        exact = results(exact_model, exact_model, x.double())
        ours, eager = results(function, model, x), results(model, model, x)
        largest = max(float(expected.norm()) for expected in exact.values())
        for name, expected in exact.items():
            error, of_eager = (float((r[name] - expected).norm()) for r in (ours, eager))
            rounding = torch.finfo(dtype).eps * float(expected.norm())
            if float(expected.norm()) < 1e-9 * largest:  # 0 but for roundings, of either
                assert error <= torch.finfo(dtype).eps * largest, name
                continue
            ratios.append((error + rounding / 64) / (of_eager + rounding / 64))
            assert ratios[-1] <= 4, name
    assert statistics.geometric_mean(ratios) <= 1.1
    regions = [r for g in fusec.last_report().graphs for r in g.regions]
    assert regions
    assert [r.failure for r in regions if r.failure] == []


def test_a_marked_axis_is_one_graph() -> None:
    function = compiled(lambda x: F.silu(x) * x.sum(-1, keepdim=True), options=REFERENCE)
    first = torch.randn(4, 8)
    torch._dynamo.mark_dynamic(first, 0)
    function(first)
    report = fusec.last_report()
    x = torch.randn(9, 8)
    assert torch.allclose(function(x), F.silu(x) * x.sum(-1, keepdim=True))
    assert fusec.last_report() is report


def test_lengths_are_numbers_of_the_graph() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * x.shape[0] + x.shape[1] ** 2).exp() / (x.shape[0] * x.shape[1])

    function = compiled(f, dynamic=True, options=REFERENCE)
    for shape in ((2, 3), (3, 4), (5, 2)):
        x = -torch.rand(shape) * 20
        assert torch.allclose(function(x), f(x), rtol=1e-5)
    assert fusec.last_report().kernels == 1


def test_a_length_is_divided_as_it_is() -> None:
    """The channels of a pixel shuffle, whose quotient may not be taken of a number at random."""
    shuffle = compiled(lambda x: F.silu(F.pixel_shuffle(x, 2)))
    for channels in (8, 12, 16):
        x = torch.randn(2, channels, 3, 3)
        torch.testing.assert_close(shuffle(x), F.silu(F.pixel_shuffle(x, 2)))


def test_dropout_draws_what_eager_draws() -> None:
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.3)
    )
    x = torch.randn(4, WIDTH)
    torch.manual_seed(1)
    eager = results(model, model, x)
    torch.manual_seed(1)
    check_same(results(compiled(model, options=REFERENCE), model, x), eager)


def test_dropout_that_is_computed_again_draws_the_same() -> None:
    part = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.SiLU(), nn.Dropout(0.3))

    def model(x: torch.Tensor) -> torch.Tensor:
        first = checkpoint(part, x, use_reentrant=False).exp()
        return checkpoint(part, first, use_reentrant=False) + F.dropout(first.tanh(), 0.5)

    x = torch.randn(4, WIDTH)
    torch.manual_seed(1)
    eager = results(model, part, x)
    torch.manual_seed(1)
    check_same(results(compiled(model, options=REFERENCE), part, x), eager)
    assert fusec.last_report().fused > 4


def test_what_writes_keeps_its_place() -> None:
    def f(x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        before = kept.exp() * 2
        kept.mul_(x.tanh() + 1)
        return before + kept.exp() * 3

    x, kept, other = torch.randn(5, 7), torch.ones(5, 7), torch.ones(5, 7)
    expected = f(x, kept)
    assert torch.allclose(compiled(f, options=REFERENCE)(x, other), expected)
    assert torch.allclose(other, kept)


def test_the_gradient_of_a_batch_norm_is_one_region() -> None:
    """Sums over images and places, and what each element gets of them, in one shape."""
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
    x = torch.randn(3, 4, 7, 5)
    own = copy.deepcopy(model)
    check_same(results(compiled(own), own, x), results(model, model, x))
    backward = fusec.last_report().graphs[1]
    assert [r.operators for r in backward.regions] == [2]
    assert not any("batch_norm" in name for name, _ in backward.left)


def test_batch_norm_in_training_keeps_its_statistics() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.SiLU())
    twin = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.SiLU())
    twin.load_state_dict(model.state_dict())
    x = torch.randn(3, 2, 8, 8)
    check_same(results(compiled(model, options=REFERENCE), model, x), results(twin, twin, x))
    assert torch.allclose(model[1].running_var, twin[1].running_var)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_group_norms_are_fused(affine: bool, layout: torch.memory_format) -> None:
    def network() -> nn.Module:
        norm = nn.GroupNorm(2, 8, affine=affine)
        return nn.Sequential(nn.Conv2d(2, 8, 3), norm, nn.SiLU()).to(memory_format=layout)

    model, twin = network(), network()
    twin.load_state_dict(model.state_dict())
    fast = compiled(model, options=REFERENCE)
    for images in (3, 5):
        x = torch.randn(images, 2, 8, 8).to(memory_format=layout)
        check_same(results(fast, model, x), results(twin, twin, x))
    left = {name for graph in fusec.last_report().graphs for name, _ in graph.left}
    assert left == {"convolution", "convolution_backward"}


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8), nn.SiLU()), (2, 5, 16)),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU()), (2, 3, 9, 9)),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU()), (2, 3, 9, 9)),
    ],
)
def test_norms_under_autocast(model: nn.Module, shape: tuple[int, ...]) -> None:
    """Of 16-bit values with float32 weights, what a norm keeps has another type than PyTorch says
    while it traces.
    """
    twin = copy.deepcopy(model)
    fast, x = compiled(model), torch.randn(shape)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            own, expected = fast(x), twin(x)
        assert own.dtype is expected.dtype
        torch.testing.assert_close(own, expected)
        own.float().pow(2).mean().backward()
        expected.float().pow(2).mean().backward()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-2, atol=1e-3)


def test_types_that_fusec_lacks_stay_with_pytorch() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x).abs().exp() * 2 + x

    x = torch.randn(4, 8)
    assert torch.allclose(compiled(f, options=REFERENCE)(x), f(x))
    assert ("abs", "fusec has no type torch.complex64") in fusec.last_report().graphs[0].left


def test_layouts_are_those_of_eager() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (x.exp() + 1).transpose(0, 1)
        return y.contiguous().view(-1) * 2, y.tanh() * 3, y.sum(0, keepdim=True).exp() + 1

    x = torch.randn(4, 6, 5)
    for own, expected in zip(compiled(f)(x), f(x), strict=True):
        assert torch.allclose(own, expected)
        assert own.stride() == expected.stride()


def test_inference_and_no_tensors_in_common() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.exp() + x, y.tanh() * y

    x, y = torch.randn(3, 4), torch.randn(5)
    with torch.no_grad():
        for own, expected in zip(compiled(f, options=REFERENCE)(x, y), f(x, y), strict=True):
            assert torch.allclose(own, expected)
    assert [g.stage for g in fusec.last_report().graphs] == ["inference"]


def test_empty_tensors_are_computed() -> None:
    function = compiled(lambda x: x.exp() + x.sum(0), dynamic=True, options=REFERENCE)
    assert function(torch.randn(0, 4)).shape == (0, 4)


def test_what_cannot_be_built_runs_in_pytorch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: CompiledFunction, *args: Any, **named: Any) -> Any:
        raise BuildError("the compiler is out of order")

    monkeypatch.setattr(CompiledFunction, "__call__", broken)
    x = torch.randn(3, 4)
    for dynamic in (False, True):
        function = compiled(lambda x: F.silu(x.view(-1)) * x.shape[0], dynamic=dynamic)
        with caplog.at_level(logging.WARNING, "fusec"):
            assert torch.allclose(function(x), F.silu(x.view(-1)) * 3)
        report = fusec.last_report()
        assert (report.kernels, report.saved) == (0, 0)
        assert "stays with PyTorch: the compiler is out of order" in str(report)
        assert "the compiler is out of order" in caplog.text


def test_a_report_says_what_became_of_a_model(caplog: pytest.LogCaptureFixture) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.silu(x @ w) * (x.cumsum(0) + 1)

    with caplog.at_level(logging.INFO, "fusec"):
        compiled(f, options=REFERENCE)(torch.randn(8, 8), torch.randn(8, 8))
    # Eager reads 1, 1 and 2 tensors of 256 bytes and writes one each; a kernel reads 2, writes 1.
    graph = (
        "inference: 1 kernels for 3 of 5 operators, 1 KiB saved\n"
        "  fused_silu_add_mul: 3 operators in 1 kernels, 1 KiB saved\n"
        "  left: 1 x mm: it multiplies matrices\n"
        "  left: 1 x cumsum: it scans or sorts"
    )
    assert str(fusec.last_report()) == (
        f"fusec: 1 kernels for 3 of 5 operators, 1 KiB saved\n{graph}"
    )
    assert caplog.messages == [graph]


def test_options_are_checked() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'numerics'"):
        fusec.torch_backend.fusec(None, [], options={"numeric": "fast"})


def test_the_entry_point_is_the_backend() -> None:
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'entry-points\.torch_dynamo_backends\]\n(\w+) = "(.+)"', text)
    assert found is not None
    entry = importlib.metadata.EntryPoint(*found.groups(), "torch_dynamo_backends")
    assert entry.name == "fusec"
    assert entry.load() is fusec.torch_backend.fusec
    assert "fusec" in torch._dynamo.list_backends()
