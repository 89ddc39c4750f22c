"""Derivatives where a formula for them could cancel, overflow or divide by 0, against float64."""

from __future__ import annotations

import math
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


def sinc_derivatives(x: Tensor) -> list[Tensor]:
    """Of sin(u) / u, times powers of pi, by the series where that is short and by sin and cos."""
    u = x.double() * math.pi
    series = [torch.zeros_like(u), torch.zeros_like(u)]
    for k in range(1, 12):
        term = (-1) ** k * 2 * k / math.factorial(2 * k + 1)
        series[0] += term * u ** (2 * k - 1)
        series[1] += term * (2 * k - 1) * u ** (2 * k - 2)
    first = (u.cos() - u.sin() / u) / u
    second = -u.sin() / u - 2 * first / u
    near = u.abs() < 1
    return [
        torch.where(near, s, f) * math.pi**k
        for k, (s, f) in enumerate(zip(series, (first, second), strict=True), 1)
    ]


@on_both
@TYPES
def test_sinc_near_0_and_far_from_it(dtype: torch.dtype, backend: str) -> None:
    points = [0.0, 1e-42, 1e-30, -1e-6, 1e-4, 1e-2, 0.125, 0.25, 0.3125, 0.34375, 0.5, 1.0, -2.0]
    x = torch.tensor(points).to(dtype)
    for function in ("sinc(x)", lambda x: torch.sinc(x)):
        fused = fusec.compile(function, backend=backend)
        for got, want in zip(derivatives(fused, x), sinc_derivatives(x), strict=True):
            least = torch.finfo(dtype).smallest_normal  # below it there are fewer digits
            torch.testing.assert_close(
                got.double(), want, rtol=16 * torch.finfo(dtype).eps, atol=least
            )
        far = derivatives(fused, torch.tensor([1e20, -1e20]).to(dtype))
        assert max(f.abs().max() for f in far) < 1e-18


@on_both
@TYPES
def test_logit_at_its_ends_and_outside(dtype: torch.dtype, backend: str) -> None:
    points = [0.0, -0.0, 1.0, -0.5, 1.5, 0.25, 0.75, 1e-30, math.nan]
    x = torch.tensor(points).to(dtype)
    for function in ("logit(x)", lambda x: torch.logit(x)):
        first, second = derivatives(fusec.compile(function, backend=backend), x)
        (want, _) = derivatives(torch.logit, x)
        torch.testing.assert_close(first, want, rtol=0, atol=2 * want[5].item()
                                   * torch.finfo(dtype).eps, equal_nan=True)  # fmt: skip
        inside = x[5:7].double()
        check(second[5:7], (2 * inside - 1) / (inside * (1 - inside)) ** 2)


# The second derivative is that of the sigmoid, times a sign; PyTorch stops `softplus` at 20.
LOGISTIC: dict[str, tuple[float, Callable[[Tensor], Tensor], list[float]]] = {
    "logsigmoid(x)": (-1.0, lambda x: F.logsigmoid(x), [-87.0, -30.0, 30.0, 87.0]),
    "softplus(x)": (1.0, lambda x: F.softplus(x), [-87.0, -30.0]),
    "log1p(exp(x))": (1.0, lambda x: torch.log1p(torch.exp(x)), [-87.0, -30.0, 30.0, 80.0]),
}


@on_both
@TYPES
@pytest.mark.parametrize("text", LOGISTIC)
def test_second_derivatives_of_logarithms_of_sigmoids(
    text: str, dtype: torch.dtype, backend: str
) -> None:
    sign, function, far = LOGISTIC[text]
    x = torch.tensor([*far, -17.0, -1.0, 0.0, 3.0, 17.0, 19.0]).to(dtype)
    for fused in (fusec.compile(text, backend=backend), fusec.compile(function, backend=backend)):
        first, second = derivatives(fused, x)
        check(first, torch.sigmoid(sign * x.double()))
        check(second, sign * torch.sigmoid(x.double()) * torch.sigmoid(-x.double()))
