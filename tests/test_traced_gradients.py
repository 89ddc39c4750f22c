"""Gradients of traced functions as people write them, against PyTorch's own in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec

Tensor = torch.Tensor


def randn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def gradients(
    function: Callable[..., Any], inputs: Sequence[Tensor], order: int = 1
) -> list[Tensor | None]:
    """Gradients of a weighted sum of the result, or of such a sum of gradients."""
    leaves = [t.clone().requires_grad_(t.is_floating_point()) for t in inputs]
    moving = [t for t in leaves if t.requires_grad]
    found: Sequence[Tensor | None] = [function(*leaves)]
    for k in range(order):
        parts = [t for t in found if t is not None and t.requires_grad]
        total = torch.stack([(t * randn(*t.shape, seed=7 + k)).sum() for t in parts]).sum()
        found = torch.autograd.grad(total, moving, create_graph=k + 1 < order, allow_unused=True)
    return list(found)


def check(function: Callable[..., Any], *inputs: Tensor, order: int = 1) -> None:
    wanted = gradients(function, inputs, order)
    got = gradients(fusec.compile(function), inputs, order)
    assert [g is None for g in got] == [w is None for w in wanted]
    for one, other in zip(got, wanted, strict=True):
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


PAIRS: dict[str, Callable[[Tensor], Tensor]] = {
    "difference": lambda x: x[:, None] - x,
    "outer product": lambda x: x[:, None] * x[None, :],
    "kernel": lambda x: torch.exp(-((x[:, None] - x) ** 2)),
    "three": lambda x: x[:, None, None] * x[:, None] + x,
    "row of it": lambda x: (x[:, None] - x).abs().sum(-1) / x,
    "two ones at the end": lambda x: torch.sigmoid(x)[:, None, None] * x,
    "alone, at the end": lambda x: x[:, None] * torch.ones(5, 5).double(),
    "both in a sum": lambda x: (x[:, None] + x).sum(),
}
ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "column sums": lambda x: x.sum(0)[:, None] * x.sum(0),
    "row sums": lambda x: x.sum(1)[:, None] - x.sum(1),
    "sum and element": lambda x: x.mean(0).unsqueeze(1) * x.sum(-1) + x.sum(),
    "a row": lambda x: x[0][:, None] * x[0],
    "expanded": lambda x: x[:, :, None].expand(-1, -1, 3).sum(1) * x[:, :1],
}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", PAIRS)
def test_an_input_beside_itself_with_an_axis_more(name: str, order: int) -> None:
    function = PAIRS[name]
    check(lambda x: function(x) ** order, randn(5), order=order)


@pytest.mark.parametrize("shape", [(4, 4), (4, 6)])
@pytest.mark.parametrize("name", ROWS)
def test_rows_beside_themselves_with_an_axis_more(name: str, shape: tuple[int, int]) -> None:
    check(ROWS[name], randn(*shape))


def test_an_axis_at_the_end_of_one_input_of_two() -> None:
    check(lambda x, y: x[:, None] * y + x.sum(), randn(5), randn(3, seed=1))
    check(lambda x, y: (x[..., None] * y[:, None]).sum(-1), randn(4, 5), randn(4, 3, seed=1))


STEPS = torch.tensor([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 6.0, 7.0], dtype=torch.float64)
BOUNDS: dict[str, Callable[..., Tensor]] = {
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp from below": lambda x: x.clamp(min=0),
    "clamp from above": lambda x: torch.clamp(x, max=1.0),
    "clamp_min": lambda x: torch.clamp_min(x, -0.5),
    "clamp_max": lambda x: torch.clamp_max(x, 0.5),
    "clamp in place": lambda x: (x * 1).clamp_(0, 6),
    "clamp whose bounds cross": lambda x: x.clamp(3, 1),
    "hinge": lambda x: (1 - x).clamp(min=0).sum(),
    "clip": lambda x: x.clip(0, 1),
    "relu": lambda x: x.relu(),
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 3),
    "threshold": lambda x: F.threshold(x, 0.5, -1),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": F.elu,
    "softshrink": lambda x: F.softshrink(x),
    "hardshrink": lambda x: F.hardshrink(x),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_gradients_at_bounds_are_those_of_pytorch(name: str) -> None:
    check(BOUNDS[name], STEPS)


TIES = torch.tensor(
    [[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 1.0, 5.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64
)
EXTREMES: dict[str, Callable[..., Tensor]] = {
    "max of a row": lambda x: x.max(-1).values,
    "max of a column": lambda x: torch.max(x, 0)[0],
    "min of a row": lambda x: x.min(1, keepdim=True).values * x,
    "min of a column": lambda x: torch.min(x, dim=0).values,
    "max of a transposed one": lambda x: x.t().max(0).values,
    "max of an axis of length 1": lambda x: x[:, None].max(1).values,
    "max of a computed value": lambda x: (x * x - 1).max(-1).values ** 2,
    "less the max": lambda x: (x - x.max(-1, keepdim=True).values).exp().sum(-1),
    "with its place": lambda x: x.max(-1).values * x.max(-1).indices,
    "amax": lambda x: x.amax(-1) * 2,
    "amin of all": lambda x: x.amin((0, 1)) * 2,
    "max of all": lambda x: x.max() * 2,
    "min of all": lambda x: x.min() * 2,
    "maximum": lambda x: torch.max(x, x * 1),
}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", EXTREMES)
def test_equal_elements_share_a_gradient_where_they_do_in_pytorch(name: str, order: int) -> None:
    function = EXTREMES[name]
    check(lambda x: function(x * x), TIES, order=order)


@pytest.mark.parametrize("name", ["clamp", "clamp_min", "clamp_max"])
def test_gradients_of_bounds_that_are_tensors(name: str) -> None:
    bounds = [STEPS.roll(1).where(STEPS > 0.5, STEPS), STEPS.roll(-1) + 0.5]
    check(lambda x, *b: getattr(torch, name)(x, *b), STEPS, *bounds[: 2 if name == "clamp" else 1])


@pytest.mark.parametrize("order", [1, 2, 3, 1.5, 0.5, float("inf"), -float("inf")])
def test_norms_of_rows_that_have_zeros(order: float) -> None:
    x = TIES - 1
    check(lambda x: torch.linalg.vector_norm(x, order, -1), x.where(x != 4, 0.0))


def test_a_norm_that_counts_has_a_gradient_of_zeros() -> None:
    x = TIES.clone().requires_grad_()
    total = fusec.compile(lambda x: torch.linalg.vector_norm(x, 0, -1))(x)
    assert total.tolist() == [4, 4, 0]
    total.sum().backward()
    assert x.grad is not None
    assert not x.grad.any()


def classes(seed: int = 3) -> Tensor:
    return torch.randint(5, (7,), generator=torch.Generator().manual_seed(seed))


PICKED: dict[str, Callable[..., Tensor]] = {
    "one of each row": lambda x, t: (x * x).gather(1, t[:, None]),
    "many of each row": lambda x, t: (x * x).gather(1, t.expand(7, 7)),
    "many of each column": lambda x, t: torch.take_along_dim(x * x, t[:3, None], 0) * x[:3],
    "of a softmax down the columns": lambda x, t: x.softmax(0).gather(1, t[:, None]),
    "cross entropy with weights": lambda x, t: F.cross_entropy(x, t, x[0].detach().exp()),
    "cross entropy with ignored classes": lambda x, t: F.cross_entropy(
        x, t, x[0].detach().exp(), ignore_index=2, reduction="none"
    ),
    "cross entropy of a picture": lambda x, t: F.cross_entropy(
        x.view(1, 5, 7), t[None], ignore_index=1
    ),
    "cross entropy of one row": lambda x, t: F.cross_entropy(x[0], t[0]),
}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", PICKED)
def test_picked_elements(name: str, order: int) -> None:
    check(PICKED[name], randn(7, 5), classes(), order=order)


DIAGONALS: dict[str, Callable[[Tensor], Tensor]] = {
    "of a softmax": lambda x: x.log_softmax(-1).diagonal(),
    "above": lambda x: (x * x).diagonal(1),
    "below": lambda x: x.exp().diagonal(-2) * 2,
    "turned": lambda x: (x * x).diagonal(1, 1, 0),
    "of three axes": lambda x: x.view(5, 7, 1).exp().diagonal(0, 2, 0),
}


@pytest.mark.parametrize("name", DIAGONALS)
def test_diagonals(name: str) -> None:
    function = DIAGONALS[name]
    x = randn(5, 7)
    torch.testing.assert_close(fusec.compile(function)(x), function(x), rtol=1e-12, atol=1e-12)
    check(function, x, order=2 if name != "of three axes" else 1)


def in_place_without_grad(x: Tensor) -> Tensor:
    y = x * 2
    with torch.no_grad():
        y.mul_(3)
    return y * x


def under_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().amax(-1, keepdim=True)
    return x / scale


def in_inference_mode(x: Tensor) -> Tensor:
    with torch.inference_mode():
        scale = x.square().sum()
    return x * (scale + 1)


@torch.no_grad()
def without_grad(x: Tensor) -> Tensor:
    return x.exp()


def with_grad_again(x: Tensor) -> Tensor:
    with torch.no_grad():
        a = x.exp()
        with torch.enable_grad():
            b = x.sin()
    return a * b


DETACHED: dict[str, Callable[[Tensor], Any]] = {
    "straight through": lambda x: x + (x.round() - x).detach(),
    "one hot": lambda x: (x == x.amax(-1, keepdim=True)).double() - x.softmax(-1).detach() + x,
    "an argument": lambda x: x.detach() * x,
    "a view of an argument": lambda x: x.detach()[0] * x + x.detach().reshape(-1)[:6],
    "a view that is detached": lambda x: x[1:].detach() * x[:-1],
    "data": lambda x: x.data * x,
    "maximum": lambda x: (x - x.amax(-1, keepdim=True).detach()).exp(),
    "reduced behind": lambda x: x.exp().detach().mean(0) * x,
    "a softmax": lambda x: x.detach().softmax(-1) * x.softmax(-1),
    "cast behind": lambda x: x.detach().float().double() * x,
    "under no_grad": under_no_grad,
    "in inference mode": in_inference_mode,
    "in place under no_grad": in_place_without_grad,
    "grad mode again": with_grad_again,
}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", DETACHED)
def test_no_gradient_goes_through_what_is_detached(name: str, order: int) -> None:
    function = DETACHED[name]
    check(lambda x: function(x) ** order, randn(4, 6), order=order)
    torch.testing.assert_close(fusec.compile(function)(randn(4, 6)), function(randn(4, 6)))


@pytest.mark.parametrize("caller", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_the_grad_mode_of_the_first_caller_is_not_that_of_the_function(caller: Any) -> None:
    function = fusec.compile(under_no_grad)
    with caller():
        function(randn(4, 6))
    (got,), (wanted,) = (gradients(f, [randn(4, 6)]) for f in (function, under_no_grad))
    torch.testing.assert_close(got, wanted)


RESULTS: dict[str, Callable[[Tensor], Any]] = {
    "detached argument": lambda x: x.detach(),
    "detached view": lambda x: (x.detach().t(), x.t().detach(), x.t()),
    "detached": lambda x: (x * 2).detach(),
    "without grad": without_grad,
    "beside one that has": lambda x: (x.exp().detach(), x.exp(), (x.exp() * 2).detach().sum()),
    "behind a condition": lambda x: ((x > 0).double(), torch.where(x > 0, 1.0, 2.0)),
    "behind a step": lambda x: (x.floor(), x.sign()),
    "of the length alone": lambda x: torch.ones_like(x) * x.shape[0],
    "integers": lambda x: x.long() * 2,
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_require_grad_where_those_of_pytorch_do(name: str) -> None:
    x = randn(4, 6).requires_grad_()
    leaves = torch.utils._pytree.tree_leaves
    got, wanted = leaves(fusec.compile(RESULTS[name])(x)), leaves(RESULTS[name](x))
    assert [t.requires_grad for t in got] == [t.requires_grad for t in wanted]
    torch.testing.assert_close(got, wanted)


def test_an_input_behind_a_condition_alone_has_no_gradient() -> None:
    check(lambda x, y: x * (y > 0), randn(4, 6), randn(4, 6, seed=1))
    check(lambda x, y: x * y.floor(), randn(4, 6), randn(4, 6, seed=1))
    check(lambda x, y: x * y.detach(), randn(4, 6), randn(4, 6, seed=1))


def test_parameters_that_a_function_reads() -> None:
    weight = torch.nn.Parameter(randn(6))

    def function(x: Tensor) -> Tensor:
        y = x * weight.exp() + weight.detach() * weight[None].t().sum()
        return torch.sigmoid(y).mul_(2)

    def eager(x: Tensor) -> Tensor:
        return torch.sigmoid(x * weight.exp() + weight.detach() * weight.sum()) * 2

    x = randn(4, 6).requires_grad_()
    w = randn(4, 6, seed=1)
    wanted = torch.autograd.grad((eager(x) * w).sum(), [x, weight])
    got = torch.autograd.grad((fusec.compile(function)(x) * w).sum(), [x, weight])
    torch.testing.assert_close(got, wanted)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def test_a_gradient_by_hand_is_refused() -> None:
    rounded: Any = Rounded
    with pytest.raises(fusec.UnsupportedError, match="has a gradient of its own"):
        fusec.compile(lambda x: rounded.apply(x) * 2)(randn(4))


def test_a_formula_tells_an_input_from_itself_with_an_axis_more() -> None:
    x = randn(5)
    function = fusec.compile(lambda x: torch.exp(x[:, None] - x) * x[:, None])
    text = function.show("formula", x).split("\n\n")[1]
    assert "# x_1 is x with an axis of length 1 behind its own\n" in text
    again = fusec.compile(text, inputs=("x", "x_1"))
    torch.testing.assert_close(again(x, x[:, None]), function(x))
    gradient = function.show("grad", x)
    assert "x_1 - x)" in gradient
    assert "has a last axis of length 1 here" not in gradient
