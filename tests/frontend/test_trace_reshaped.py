"""Traced values that are computed with after a reshape: a group_norm, and what follows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.errors import UnsupportedError

Function = Callable[..., Any]


def normed(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x, 4, w, b)


FUNCTIONS: dict[str, Function] = {
    "alone": normed,
    "without a bias": lambda x, w, b: F.group_norm(x, 4, w),
    "without weights": lambda x, w, b: F.group_norm(x, 4),
    "one group": lambda x, w, b: F.group_norm(x, 1, w, b),
    "a group for each channel": lambda x, w, b: F.group_norm(x, 16, w, b),
    "an activation": lambda x, w, b: F.silu(normed(x, w, b)),
    "a residual": lambda x, w, b: F.gelu(normed(x, w, b)) + x * 2,
    "a scale and a shift": lambda x, w, b: (
        F.group_norm(x, 4) * (1 + w[:, None, None]) + b.view(1, 16, 1, 1)
    ),
    "reductions of others": lambda x, w, b: (
        normed(x, w, b) * x.softmax(-1) + x.mean((2, 3))[..., None, None]
    ),
    "of a computed value": lambda x, w, b: normed(F.silu(x + w[:, None, None]), w, b),
    "of a product over channels": lambda x, w, b: normed(x * x.sum(1, keepdim=True), w, b),
    "bounds": lambda x, w, b: normed(x, w, b).clamp(-1, 1) * 2,
    "of three axes": lambda x, w, b: F.silu(normed(x.flatten(2), w, b)),
    "of two axes": lambda x, w, b: normed(x[:, :, 0, 0], w, b) + b,
    "of a permuted argument": lambda x, w, b: F.silu(normed(x.permute(0, 1, 3, 2), w, b)),
    "reshaped once more": lambda x, w, b: F.silu(normed(x, w, b)).flatten(1),
    "summed over places": lambda x, w, b: F.silu(normed(x, w, b)).mean((2, 3)),
    "summed over places, kept": lambda x, w, b: (
        normed(x, w, b).mean((2, 3), keepdim=True) * w[:, None, None]
    ),
    "beside one of more lengths": lambda x, w, b: normed(x, w, b).mean((2, 3), keepdim=True) * x,
    "beside one of more axes": lambda x, w, b: normed(x, w, b) * x[:, None] + x[None],
    "beside the last axis": lambda x, w, b: normed(x[:, :, 0, 0], w, b) * x[:3, 0, 0, :1],
    "summed over channels": lambda x, w, b: normed(x, w, b).amax(1) - 1,
    "summed over channels, kept": lambda x, w, b: normed(x, w, b).sum(1, keepdim=True) + x,
    "summed over images": lambda x, w, b: normed(x, w, b).sum(0) * 2 + w[:, None, None],
    "spread": lambda x, w, b: normed(x, w, b).var((1, 3)),
    "summed up": lambda x, w, b: normed(x, w, b).pow(2).mean(),
    "repeated": lambda x, w, b: (x.repeat_interleave(2, -1) * 2).exp(),
    "flattened": lambda x, w, b: x.softmax(-1).flatten(2) * x.mean((2, 3))[..., None],
}


@pytest.mark.parametrize("backend", ["cpp", "triton"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name: str, backend: str) -> None:
    function = FUNCTIONS[name]
    generator = torch.Generator().manual_seed(1)
    shapes = ((2, 16, 5, 7), (16,), (16,))
    values = [torch.randn(*s, generator=generator, dtype=torch.float64) for s in shapes]
    own = [v.clone().requires_grad_() for v in values]
    theirs = [v.clone().requires_grad_() for v in values]
    found, expected = fusec.compile(function, backend=backend)(*own), function(*theirs)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected)
    grad = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    found.backward(grad)
    expected.backward(grad)
    for a, b in zip(own, theirs, strict=True):
        if b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad)


def test_lengths_change_and_build_little() -> None:
    function = fusec.compile(lambda x, w, b: F.silu(F.group_norm(x, 4, w, b)))
    for shape in ((2, 16, 5, 7), (3, 8, 2, 2), (1, 32, 9, 4), (2, 4, 3, 3), (2, 16, 1, 1)):
        x, w, b = torch.randn(*shape), torch.randn(shape[1]), torch.randn(shape[1])
        torch.testing.assert_close(function(x, w, b), F.silu(normed(x, w, b)))
    assert len(function.variants) <= 6


def test_of_no_elements() -> None:
    function = fusec.compile(lambda x, w: F.silu(F.group_norm(x, 2, w)) + 1)
    assert function(torch.randn(0, 4, 3), torch.ones(4)).shape == (0, 4, 3)
    function = fusec.compile(lambda x, w: x.softmax(-1).reshape(0, 7) * w)
    assert function(torch.randn(0, 2, 3), torch.ones(7)).shape == (0, 7)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: normed(x, x[0, :, 0, 0], x[1, :, 0, 0]).softmax(-1),
        lambda x: F.group_norm(x[:, :1].expand(2, 16, 5, 7), 4),
        lambda x: x.softmax(-1).reshape(7, -1) * x.reshape(7, -1),
        lambda x: x.softmax(-1).reshape(2, 16, 35).sum(1, keepdim=True).argmax(1),
    ],
)
def test_what_cannot_be_is_said(function: Function) -> None:
    with pytest.raises(UnsupportedError, match=r"reshaped and then computed|equal channels"):
        fusec.compile(function)(torch.randn(2, 16, 5, 7))


@pytest.mark.parametrize("backend", ["cpp", "torch"])
def test_of_a_repeated_argument(backend: str) -> None:
    """Of what has one element for all of an axis no view is one of the argument."""
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    for function in (
        lambda x: x[:1].expand(5, 3, 4).flatten(0, 1) * 2,
        lambda x: x[:, :1].expand(2, 3, 4).flatten(1),
        lambda x: (x[:1].expand(4, 3, 4) * 2).unflatten(0, (2, 2)),
    ):
        found = fusec.compile(function, backend=backend)(x)
        torch.testing.assert_close(found, function(x))
