"""Random programs of arithmetic, reductions and views, traced and against PyTorch in float64."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

import fusec

SHAPES = ((4, 6), (4, 6), (6,), (4, 1))
Tensor = torch.Tensor
STEPS: tuple[Callable[[random.Random, Tensor, Tensor], Tensor], ...] = (
    lambda r, a, b: a + b,
    lambda r, a, b: a * b,
    lambda r, a, b: a.sum(r.randrange(-a.dim(), a.dim()), keepdim=r.random() < 0.5),
    lambda r, a, b: a.amax(r.randrange(a.dim()), keepdim=r.random() < 0.5),
    lambda r, a, b: a.unsqueeze(r.randrange(a.dim() + 1)),
    lambda r, a, b: a.transpose(r.randrange(a.dim()), r.randrange(a.dim())),
    lambda r, a, b: a.softmax(r.randrange(a.dim())),
    lambda r, a, b: a.squeeze(r.randrange(a.dim())),
    lambda r, a, b: a.narrow(r.randrange(a.dim()), 0, 2),
    lambda r, a, b: a.flatten(0, 1) if a.dim() > 1 else a.exp(),
    lambda r, a, b: torch.tanh(a) - b.mean(),
    lambda r, a, b: a.select(r.randrange(a.dim()), 0),
)


def program(seed: int) -> Callable[..., tuple[Tensor, ...]]:
    """A function of four tensors; a step that PyTorch refuses for its shapes is left out."""

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        choose = random.Random(seed)
        values = list(inputs)
        for _ in range(choose.randint(3, 6)):
            a, b, step = choose.choice(values), choose.choice(values), choose.choice(STEPS)
            try:
                made = step(choose, a, b)
            except (RuntimeError, IndexError, ValueError):
                continue
            if made.dim() <= 4:
                values.append(made)
        return (inputs[0] * 1, *values[len(inputs) :])

    return run


@pytest.mark.parametrize("seed", range(24))
def test_random_program(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES]
    function = program(seed)
    actual = fusec.compile(function, backend="torch")(*inputs)
    for got, want in zip(actual, function(*inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
