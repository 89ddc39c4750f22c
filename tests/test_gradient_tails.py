"""Derivatives where a formula for them could cancel, overflow or divide by 0, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from tests.test_autograd import on_both

Tensor = torch.Tensor
TYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])


def derivatives(function: Callable[[Tensor], Any], x: Tensor) -> list[Tensor]:
    """The first and the second derivative of a function of single elements."""
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return [first.detach(), second]


def check(got: Tensor, want: Tensor, steps: float = 64) -> None:
    """Relative errors of at most ``steps`` units in the last place."""
    bound = steps * torch.finfo(got.dtype).eps
    torch.testing.assert_close(got.double(), want.to(got.dtype).double(), rtol=bound, atol=0.0)


# Of e^x: a factor, a divisor of x, and PyTorch's function.
EXPONENTIALS: dict[str, tuple[float, float, Callable[[Tensor], Tensor]]] = {
    "elu(x)": (1.0, 1.0, lambda x: F.elu(x)),
    "elu(x, 0.5)": (0.5, 1.0, lambda x: F.elu(x, 0.5)),
    "selu(x)": (1.7580993408473766, 1.0, F.selu),
    "celu(x, 2)": (1.0, 2.0, lambda x: F.celu(x, 2.0)),
    "expm1(x)": (1.0, 1.0, lambda x: torch.expm1(x)),
}


@on_both
@TYPES
@pytest.mark.parametrize("text", EXPONENTIALS)
def test_exponentials_keep_their_digits_below_0(
    text: str, dtype: torch.dtype, backend: str
) -> None:
    factor, divisor, function = EXPONENTIALS[text]
    x = torch.tensor([-1.0, -16.0, -17.0, -40.0, -80.0, *([-700.0] * (dtype.itemsize == 8))])
    power = factor * torch.exp(x.double() / divisor)
    for fused in (fusec.compile(text, backend=backend), fusec.compile(function, backend=backend)):
        first, second = derivatives(fused, x.to(dtype))
        check(first, power)
        check(second, power / divisor)
