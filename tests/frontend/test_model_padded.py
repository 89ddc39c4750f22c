"""Matrix products over even lengths in the place of odd ones: the same numbers, laid out alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.fx
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fusec.frontend import model_padded
from fusec.frontend.model_padded import pad_products
from fusec.runtime.model_copies import copy_by_torch, laid_out, with_margin

ATEN = torch.ops.aten
Graph = Any  # of torch.fx


def graph_of(
    function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16
) -> Any:
    """The graph of a function over aten."""
    with FakeTensorMode():
        inputs = [torch.empty(shape, dtype=dtype) for shape in shapes]
        return make_fx(function)(*inputs)


def padded(module: Any) -> Any:
    """The same with :func:`pad_products`, which leaves a sound graph behind."""
    made = torch.fx.GraphModule(module, module.graph)
    pad_products(made.graph)
    made.graph.lint()
    made.recompile()
    return made


def products(module: Any) -> list[Any]:
    return [n for n in module.graph.nodes if n.target in (ATEN.mm.default, ATEN.addmm.default)]


def lengths(node: Any) -> set[int]:
    left, right = (n.meta["val"].shape for n in node.args[-2:])
    return {*left, *right}


def calls(module: Any, target: Any) -> int:
    return sum(n.target is target for n in module.graph.nodes)


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Small products pay as large ones do, and on a CPU, of which a test may have memory."""
    if "cpu" not in request.node.name:
        monkeypatch.setattr(model_padded, "DEVICE", "cpu")
    if "pays" not in request.node.name:
        monkeypatch.setattr(model_padded._Product, "pays", property(lambda p: any(p.short)))


def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, w.t())


def check(function: Callable[..., Any], *shapes: tuple[int, ...]) -> tuple[Any, Any]:
    """Both graphs give the same, laid out alike; the values of nodes say what they give."""
    plain = graph_of(function, *shapes)
    before = torch.fx.GraphModule(plain, plain.graph)
    torch.manual_seed(0)
    inputs = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    expected = before(*inputs)
    after = padded(plain)
    actual = _Watched(after).run(*inputs)
    single = isinstance(expected, torch.Tensor)
    for own, other in zip(*(((r,) if single else r) for r in (actual, expected)), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-12)
        assert own.stride() == other.stride()
    for node in products(after):
        assert all(n % 8 == 0 for n in lengths(node)), node
    return before, after


class _Watched(torch.fx.Interpreter):
    def run_node(self, n: Any) -> Any:
        result, said = super().run_node(n), n.meta.get("val")
        if isinstance(said, torch.Tensor):
            assert (result.shape, result.stride()) == (said.shape, said.stride()), n
        return result


def test_a_linear_layer_over_an_odd_vocabulary() -> None:
    _, after = check(linear, (16, 8), (13, 8))
    assert calls(after, ATEN.clone.default) == 1  # it leaves the graph


def test_what_is_added_up_is_odd() -> None:
    check(lambda dy, w: torch.mm(dy, w), (16, 13), (13, 8))
    check(linear, (16, 7), (24, 7))


def test_a_gradient_of_weights_has_rows_cut_off() -> None:
    _, after = check(lambda dy, x: torch.mm(dy.t(), x), (16, 13), (16, 8))
    assert calls(after, ATEN.clone.default) == 0


def test_a_bias_comes_along() -> None:
    check(lambda b, x, w: torch.addmm(b, x, w.t()), (13,), (16, 8), (13, 8))
    check(lambda b, x, w: torch.addmm(b, x, w.t()), (16,), (16, 9), (16, 9))


def test_zeros_are_put_behind_a_matrix_once() -> None:
    def backward(dy: Any, w: Any, x: Any) -> Any:
        return torch.mm(dy, w), torch.mm(dy.t(), x)

    _, after = check(backward, (16, 13), (13, 8), (16, 8))
    assert calls(after, ATEN.constant_pad_nd.default) == 2  # of dy and w


def test_operators_read_what_is_not_copied() -> None:
    def loss(x: Any, w: Any) -> Any:
        logits = torch.mm(x, w.t()).view(2, 8, 13)
        return (logits * 2).sum(-1), logits.view(16, 13).exp()

    _, after = check(loss, (16, 8), (13, 8))
    assert calls(after, ATEN.clone.default) == 0


def test_what_leaves_the_graph_and_is_read_is_copied_for_the_outside() -> None:
    def model(x: Any, w: Any) -> Any:
        logits = torch.mm(x, w.t()).view(2, 8, 13)
        return logits, logits.exp(), logits.view(-1)

    _, after = check(model, (16, 8), (13, 8))
    assert calls(after, ATEN.clone.default) == 1


def test_views_of_several_and_of_merged_axes_read_the_copy() -> None:
    def model(x: Any, w: Any) -> Any:
        y = torch.mm(x, w.t())
        a, b = ATEN.split_with_sizes(y, [6, 7], 1)
        return a * b[:, :6], y.view(208).exp()

    check(model, (16, 8), (13, 8))


def test_who_asks_where_elements_lie_reads_the_copy() -> None:
    def strided(x: Any, w: Any) -> Any:
        return torch.mm(x, w.t()).as_strided((4, 5), (5, 1)) * 2

    def diagonal(x: Any, w: Any) -> Any:
        y = torch.mm(x, w.t())
        return ATEN.fill(y.as_strided((9,), (14,)), 0.0), ATEN.diagonal_scatter(y, y[:13, 0])

    def written(x: Any, w: Any) -> Any:
        y = torch.mm(x, w.t())
        y = ATEN.select_scatter(y, y[:, 1] * 2, 1, 1)
        return y, y.view(-1) * 2

    for function in (strided, diagonal, written):
        check(function, (16, 8), (13, 8))


def test_a_bias_of_one_number_is_spread() -> None:
    check(lambda b, x, w: torch.addmm(b, x, w.t()), (1,), (16, 8), (13, 8))


def test_two_products_behind_each_other() -> None:
    check(lambda x, w, v: torch.mm(torch.mm(x, w.t()), v.t()), (16, 8), (13, 8), (11, 13))


@pytest.mark.parametrize(
    ("shapes", "dtype"),
    [
        pytest.param([(16, 8), (24, 8)], torch.bfloat16, id="even"),
        pytest.param([(16, 8), (13, 8)], torch.float32, id="float32"),
        pytest.param([(16, 8), (13, 8)], torch.bfloat16, id="cpu"),
    ],
)
def test_others_stay(shapes: Any, dtype: torch.dtype) -> None:
    plain = graph_of(linear, *shapes, dtype=dtype)
    before = [n.target for n in plain.graph.nodes]
    pad_products(plain.graph)
    assert [n.target for n in plain.graph.nodes] == before


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "pays"),
    [(4096, 1024, 50257, True), (512, 768, 50257, True), (4096, 1024, 30522, True),
     (4096, 1023, 4096, True), (256, 1024, 1001, False), (8, 1024, 50257, False)],
)  # fmt: skip
def test_it_pays_where_much_is_multiplied(rows: int, inner: int, columns: int, pays: bool) -> None:
    plain = graph_of(linear, (rows, inner), (columns, inner))
    pad_products(plain.graph)
    assert (calls(plain, ATEN.constant_pad_nd.default) > 0) == pays


@pytest.mark.parametrize("pads", [[0, 3, 0, 0], [0, 0, 0, 5], [0, 3, 0, 5], [0, 0, 0, 0]])
@pytest.mark.parametrize("transposed", [False, True])
def test_zeros_behind_a_matrix(pads: list[int], transposed: bool) -> None:
    matrix = torch.randn(5, 13)
    matrix = matrix.t() if transposed else matrix
    made = with_margin(copy_by_torch)(matrix, pads)
    assert torch.equal(made, ATEN.constant_pad_nd(matrix, pads))
    assert made.is_contiguous()


class _Words(torch.nn.Module):
    """A language model's last step, over an odd vocabulary."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.head = torch.nn.Linear(16, 13, bias=bias)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(F.silu(x))
        return F.cross_entropy(logits.view(-1, 13).float(), t.view(-1)), logits


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_model_trains_as_eager_does(
    bias: bool, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    seen: list[int] = []
    pad = model_padded._Pads.replace

    def replace(self: Any, node: Any, product: Any) -> None:
        seen.append(sum(product.short))
        pad(self, node, product)

    monkeypatch.setattr(model_padded._Pads, "replace", replace)
    torch.manual_seed(0)
    model = _Words(bias).to(torch.bfloat16)
    compiled = torch.compile(model, backend="fusec", dynamic=dynamic)
    for rows in (4, 6, 3):
        x = torch.randn(rows, 8, 16, dtype=torch.bfloat16, requires_grad=True)
        t = torch.randint(0, 13, (rows, 8))
        found = []
        for run in (model, compiled):
            loss, logits = run(x, t)
            wanted = [x, *model.parameters()]
            gradients = torch.autograd.grad(loss + logits.float().square().mean(), wanted)
            assert logits.is_contiguous()
            found.append([loss, logits, *gradients])
        for own, other in zip(found[1], found[0], strict=True):
            torch.testing.assert_close(own, other, rtol=2e-2, atol=2e-2)
            assert own.stride() == other.stride()
    assert len(seen) >= 3  # forward, and both of its gradients


def test_a_matrix_is_laid_out_anew() -> None:
    whole = torch.randn(6, 8)
    made = laid_out(copy_by_torch)(whole[:, :5])
    assert made.stride() == (5, 1)
    assert torch.equal(made, whole[:, :5])


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [5, 30522, 50257])
def test_copies_by_a_kernel_write_nothing_else(columns: int) -> None:
    """Into rows with room behind them, and out of such."""
    from fusec.torch_backend import _copy

    made = torch.Generator("cuda").manual_seed(0)
    source = torch.randn(33, columns, device="cuda", generator=made).bfloat16()
    padded = torch.full((33, columns + 7), torch.nan, device="cuda", dtype=torch.bfloat16)
    _copy(source, padded[:, :columns])
    assert torch.equal(padded[:, :columns], source)
    assert padded[:, columns:].isnan().all()
    back = torch.zeros_like(source)
    _copy(padded[:, :columns], back)
    assert torch.equal(back, source)
