"""Derivatives of traced functions and formulas where they bend, and of NaN: those of PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec
from tests.test_traced_gradients import gradients

Tensor = torch.Tensor

KINKS = torch.tensor([0.0, -0.0, 3.0, -3.0, 1.0, -1.0, 0.5, 50.0, -50.0, float("nan")]).double()
KINKED: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": lambda x: F.elu(x, 1.5),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 2.0),
    "logsigmoid": lambda x: F.logsigmoid(x),
    "hardswish": F.hardswish,
    "softplus": lambda x: F.softplus(x),
    "silu": F.silu,
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", KINKED)
def test_derivatives_at_kinks_and_of_nan_are_those_of_pytorch(name: str, order: int) -> None:
    function = KINKED[name]
    wanted = gradients(function, [KINKS], order)
    got = gradients(fusec.compile(function), [KINKS], order)
    torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-11, equal_nan=True)


@pytest.mark.parametrize("name", ["elu", "selu", "celu", "logsigmoid", "hardswish", "hardsigmoid"])
def test_derivatives_at_kinks_of_formulas(name: str) -> None:
    wanted = gradients(getattr(F, name), [KINKS])
    got = gradients(fusec.compile(f"{name}(x)"), [KINKS])
    close = 1e-7 if name == "hardsigmoid" else 1e-11  # PyTorch has its sixth in float32
    torch.testing.assert_close(got, wanted, rtol=close, atol=close, equal_nan=True)


def test_a_gradient_of_steps_has_a_gradient() -> None:
    x = KINKS[:-1].clone().requires_grad_()
    (slope,) = torch.autograd.grad(fusec.compile(F.relu)(x).sum(), x, create_graph=True)
    ((slope - 1) ** 2).sum().backward()
    assert x.grad is not None
    assert not x.grad.any()


EDGES = torch.tensor([0.0, 1.0, 0.3, 0.9, 0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
TARGETS = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.3, 0.3], dtype=torch.float64)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_binary_cross_entropy_of_certainties(reduction: str) -> None:
    def function(x: Tensor, t: Tensor, w: Tensor) -> Tensor:
        return F.binary_cross_entropy(x, t, w.detach(), reduction=reduction)

    weight = TARGETS + 1
    wanted = gradients(function, (EDGES, TARGETS, weight))
    got = gradients(fusec.compile(function), (EDGES, TARGETS, weight))
    torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-11, equal_nan=True)
    inside = EDGES * 0.5 + 0.2
    wanted, got = (
        gradients(f, (inside, TARGETS, weight), 2) for f in (function, fusec.compile(function))
    )
    # PyTorch adds 1e-12 to what it divides by in its second derivative.
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
    values = function(EDGES, TARGETS, weight)
    torch.testing.assert_close(fusec.compile(function)(EDGES, TARGETS, weight), values)
