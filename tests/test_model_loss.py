"""A cross-entropy at the end of a model: fused forward and backward, and little kept in between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch.nn import functional as F

import fusec
import fusec.torch_backend
from fusec.ir.dtypes import by_name
from fusec.ir.node import Node
from fusec.ir.ops import Kind
from fusec.runtime import model_plan
from fusec.runtime.specialize import Argument
from tests.models import check_same, results

BACKEND = fusec.torch_backend.fusec
CLASSES = 40


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def gradients(function: Any, x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The loss, and the gradient of its weighted sum."""
    moving = x.detach().requires_grad_()
    loss = function(moving, t)
    (loss.float() * torch.linspace(0.5, 1.5, loss.numel()).view(loss.shape)).sum().backward()
    assert moving.grad is not None
    return loss.detach(), moving.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_cross_entropy_is_one_region_each_way(reduction: str, dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x * 2, t, reduction=reduction, ignore_index=3)

    x, t = torch.randn(24, CLASSES).to(dtype), torch.randint(CLASSES, (24,))
    t[5] = t[17] = 3
    found = gradients(torch.compile(f, backend=BACKEND, fullgraph=True), x, t)
    exact = gradients(f, x.double(), t)
    step = 4 * torch.finfo(dtype).eps
    for own, wanted in zip(found, exact, strict=True):
        assert own.dtype is dtype
        assert (own.double() - wanted).abs().max() <= step * wanted.abs().max()
    graphs = fusec.last_report().graphs
    assert [g.stage for g in graphs] == ["forward", "backward"]
    assert all(len(g.regions) == 1 and not g.left for g in graphs)
    assert graphs[1].kernels == 1


def test_what_is_kept_is_the_logits() -> None:
    """Not the logarithms of the probabilities, which are as many, and wider."""
    head = nn.Linear(16, CLASSES).bfloat16()

    def f(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(head(x).float(), t)

    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    x, t = torch.randn(24, 16).bfloat16(), torch.randint(CLASSES, (24,))
    compiled = torch.compile(f, backend=BACKEND, fullgraph=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        compiled(x, t).backward()
    wide = [k for k in kept if k.numel() >= 24 * CLASSES]
    assert [k.dtype for k in wide] == [torch.bfloat16]


def test_targets_of_a_language_model_are_shifted_in_front_of_it() -> None:
    """Labels are cut and laid out anew, logits reshaped: one region has it all."""

    def f(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        logits = (x * 1.5)[:, :-1].contiguous().view(-1, CLASSES)
        return F.cross_entropy(logits, ids[:, 1:].contiguous().view(-1))

    x, ids = torch.randn(2, 9, CLASSES), torch.randint(CLASSES, (2, 9))
    found = gradients(torch.compile(f, backend=BACKEND, fullgraph=True), x, ids)
    for own, wanted in zip(found, gradients(f, x.double(), ids), strict=True):
        assert torch.allclose(own.double(), wanted, rtol=1e-5, atol=1e-7)
    assert not any("nll" in name for g in fusec.last_report().graphs for name, _ in g.left)


def test_class_weights_stay_with_pytorch() -> None:
    weight = torch.rand(CLASSES)

    def f(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x * 2, t, weight=weight)

    x, t = torch.randn(24, CLASSES), torch.randint(CLASSES, (24,))
    found = gradients(torch.compile(f, backend=BACKEND, fullgraph=True), x, t)
    for own, wanted in zip(found, gradients(f, x, t), strict=True):
        assert torch.allclose(own, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("row", [[float("inf"), 0.0], [float("nan"), 1.0], [-float("inf")] * 2])
def test_special_values_are_those_of_eager(row: list[float]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.log_softmax(x * 1.0, -1)

    x = torch.tensor([row, [1.0, 2.0]])
    with torch.no_grad():
        own = torch.compile(f, backend=BACKEND, fullgraph=True)(x)
    assert torch.allclose(own, f(x), equal_nan=True)


def reductions(function: fusec.CompiledFunction, *values: torch.Tensor) -> list[str]:
    """The reductions that are left of a formula."""
    kinds = {torch.float32: "f32", torch.int64: "i64"}
    arguments = [Argument(by_name(kinds[v.dtype]), tuple(v.shape), v.stride()) for v in values]
    nodes: list[Node] = list(function.specialization(arguments).plan.graph.nodes())
    return [n.op.name for n in nodes if n.op.kind is Kind.REDUCTION]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("x - sum(where(index(-1) == t, v, 0))", []),
        ("x - sum(where((index(-1) == t) and (t != 2), -v, 0))", []),
        ("x - sum(where((t != 2) and (t == index(-1)), v, 0))", []),
        ("x - sum(where(index(-1) == t, x, 0))", ["sum"]),  # x varies along the row
        ("x - sum(where(index(-1) <= t, v, 0))", ["sum"]),
        ("x - sum(where(index(-1) == t, v, 1))", ["sum"]),
        ("x - sum(where((index(-1) == t) and (index(-1) != 2), v, 0))", ["sum"]),
    ],
)
def test_a_sum_of_one_element_is_that_element(text: str, left: list[str]) -> None:
    x, v = torch.randn(6, 5), torch.randn(6, 1)
    t = torch.tensor([[0], [4], [2], [-100], [5], [3]])  # two are no positions
    function = fusec.compile(text, inputs=["x", "t", "v"])
    assert reductions(function, x, t, v) == left
    wanted = fusec.compile(text, inputs=["x", "t", "v"], backend="torch")
    expression = text.partition("where(")[2].removesuffix("))")
    condition, value, other = expression.rsplit(", ", 2)
    condition = condition.replace("index(-1)", "p").replace(" and ", " & ")
    holds = eval(condition, {}, {"p": torch.arange(5), "t": t})
    values = {"v": v, "-v": -v, "x": x}[value]
    expected = x - torch.where(holds, values, float(other)).sum(-1, keepdim=True)
    assert torch.allclose(function(x, t, v), expected)
    assert torch.allclose(wanted(x, t, v), expected)


@pytest.mark.parametrize("behind", [
    lambda y: F.gelu(y), lambda y: y.softmax(-1), lambda y: F.layer_norm(y, (CLASSES,)),
    lambda y: F.cross_entropy(y, torch.arange(21) % CLASSES),
])  # fmt: skip
def test_a_head_with_a_bias_whose_result_is_reshaped(behind: Any) -> None:
    """The gradient of the bias adds up what the product reads under another view."""
    head, x = nn.Linear(9, CLASSES), torch.randn(7, 3, 9)

    def function(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = behind(head(x).view(-1, CLASSES)).sin().sum()
        return result

    found = []
    for run in (function, torch.compile(function, backend=BACKEND)):
        moving = x.clone().requires_grad_()
        loss = run(moving)
        found.append([loss, *torch.autograd.grad(loss, [moving, *head.parameters()])])
    for own, other in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize("width", [13, 16])
def test_sums_of_gradients_in_odd_rows_are_taken_of_what_is_written(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are large and kernels are Triton's; even rows are added up on the way."""
    monkeypatch.setattr(model_plan, "_LARGE", 0)
    model = nn.Linear(16, width)
    x, z = torch.randn(600, 16), torch.randn(600, width)

    def function(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return (model(x) * z).tanh() * z

    own = results(
        torch.compile(function, backend="fusec", options={"backend": "triton"}), model, x, z
    )
    check_same(own, results(function, model, x, z))
    left = {name for name, reason in fusec.last_report().graphs[1].left if "quicker" in reason}
    assert left == ({"sum"} if width % 4 else set())
