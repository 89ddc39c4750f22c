"""Tensors that a traced function makes of numbers: positions of any length, and what is filled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.errors import UnsupportedError

X = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0))
T = torch.tensor([2, 5, 1])


def rotary(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    length, width = x.shape[-2:]
    rates = 1.0 / (10000 ** (torch.arange(0, width - 1, 2) / width))
    angles = torch.arange(length)[:, None] * rates
    a, b = x[..., : width // 2], x[..., width // 2 : width - 1]
    return a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()


def in_blocks(x: torch.Tensor) -> torch.Tensor:
    row, column = torch.arange(5) // 2, torch.arange(7) // 2
    return torch.where(row[:, None] == column, x, -float("inf")).softmax(-1)


MADE: dict[str, Callable[..., Any]] = {
    "positions alone": lambda x, t: torch.arange(4),
    "positions beside it": lambda x, t: (torch.arange(11) * 2, x + 1),
    "a mask of its own length": lambda x, t: torch.arange(4)[:, None] >= torch.arange(4),
    "as long as an axis": lambda x, t: x * torch.arange(7),
    "as long as an axis, by its length": lambda x, t: x * torch.arange(x.shape[-1]),
    "a causal mask": lambda x, t: x.masked_fill(
        torch.arange(5)[:, None] < torch.arange(7), -float("inf")
    ).softmax(-1),
    "a window": lambda x, t: x * ((torch.arange(5)[:, None] - torch.arange(7)).abs() <= 2),
    "blocks": lambda x, t: in_blocks(x),
    "lengths of rows": lambda x, t: x[:, :, 0] * (torch.arange(x.shape[1]) < t[:, None]),
    "one hot by hand": lambda x, t: (t[:, None] == torch.arange(10)).float(),
    "one hot": lambda x, t: F.one_hot(t, 10),
    "smoothed labels": lambda x, t: torch.where(t[:, None] == torch.arange(9), 0.9, 0.1 / 8),
    "rotary": lambda x, t: rotary(x),
    "a slope": lambda x, t: x - 0.5 * (torch.arange(7) - torch.arange(5)[:, None]).abs(),
    "half the length": lambda x, t: torch.arange(x.shape[-1] // 2) * x.sum(),
    "twice the length": lambda x, t: torch.arange(2 * x.shape[-1], dtype=torch.float32) + x.mean(),
    "one position": lambda x, t: torch.arange(1) + x,
    "down": lambda x, t: x * torch.arange(7, 0, -1),
    "in steps": lambda x, t: x[:, 0, 0, None] * torch.arange(0.5, 3, 0.25),
    "cut": lambda x, t: x[..., 1:] * torch.arange(7)[1:],
    "cut by its length": lambda x, t: x[..., 1:] * torch.arange(x.shape[-1])[1:],
    "cut to a length of its own": lambda x, t: torch.arange(x.shape[-1])[2:][::2] * x.mean(),
    "cut from the end": lambda x, t: torch.arange(x.shape[-1])[x.shape[0] :] * x.mean(),
    "linspace": lambda x, t: (x * torch.linspace(0, 1, 7), x.sum() * torch.linspace(-1, 1, 4)),
    "eye": lambda x, t: (torch.eye(4) * x.mean(), x[..., :5] + torch.eye(5)),
    "tril": lambda x, t: (x.tril(), x.triu(1), torch.ones(5, 7).tril(-1) * x),
    "filled": lambda x, t: torch.empty_like(x).fill_(2.0) * x + torch.zeros(5, 7).copy_(x[0]),
}


@pytest.mark.parametrize("name", MADE)
def test_made_of_numbers(name: str) -> None:
    function = MADE[name]
    got, wanted = fusec.compile(function)(X, T), function(X, T)
    for one, other in zip(*map(torch.utils._pytree.tree_leaves, (got, wanted)), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-6)


def test_positions_follow_the_length() -> None:
    function = fusec.compile(lambda x: torch.arange(2 * x.shape[0]) * x.sum())
    for length in (3, 5, 2, 3):
        x = torch.ones(length)
        assert function(x).tolist() == [float(k * length) for k in range(2 * length)]
    assert len(function._all()) == 1


def test_positions_have_gradients_around_them() -> None:
    x = X.double().requires_grad_()

    def function(x: torch.Tensor) -> torch.Tensor:
        return (torch.arange(4) * x.sum(-1, keepdim=True)).sin()

    assert torch.autograd.gradcheck(fusec.compile(function), (x,))
    assert torch.autograd.gradgradcheck(fusec.compile(function), (x,))


def shared(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(5)
    z = y.detach()
    z.add_(1)
    return y + z + x.sum()


def part(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y[0].fill_(1)
    return y + x


@pytest.mark.parametrize("function", [shared, part])
def test_what_two_names_share_is_not_written_to(function: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedError, match="changes a tensor that has views"):
        fusec.compile(function)(X)
