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


@pytest.mark.parametrize("name", ["clamp", "clamp_min", "clamp_max"])
def test_gradients_of_bounds_that_are_tensors(name: str) -> None:
    bounds = [STEPS.roll(1).where(STEPS > 0.5, STEPS), STEPS.roll(-1) + 0.5]
    check(lambda x, *b: getattr(torch, name)(x, *b), STEPS, *bounds[: 2 if name == "clamp" else 1])
