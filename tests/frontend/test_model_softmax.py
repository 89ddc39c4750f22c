"""Attention that PyTorch takes apart: what sees nothing is nothing, and so are its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F

import fusec
import fusec.torch_backend

Tensor = torch.Tensor
SEEN = torch.tensor([[True, True, False], [False, False, False], [True, False, True]])
MASKS = {
    "bool": SEEN,
    "float": torch.zeros(3, 3).masked_fill(~SEEN, -torch.inf),
    "all": torch.zeros(3, 3, dtype=torch.bool),
}
# Query, key and value: what PyTorch has no fused attention for.
SHAPES = {
    "plain": ((3, 4), (3, 4), (3, 4)),
    "batch": ((2, 3, 4), (2, 3, 4), (2, 3, 6)),
    "one key for all heads": ((2, 4, 3, 8), (2, 1, 3, 8), (2, 1, 3, 8)),
}


def both(function: Callable[..., Any], inputs: list[Tensor], own: Callable[..., Any]) -> list[Any]:
    """Results and gradients, of PyTorch and of ``own``."""
    found = []
    for call in (function, own):
        leaves = [t.clone().requires_grad_() for t in inputs]
        result = call(*leaves)
        weights = torch.linspace(-1, 2, result.numel()).view(result.shape)
        (result * weights.to(result.dtype)).sum().backward()
        found.append([result.detach(), *(leaf.grad for leaf in leaves)])
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_attends_to_nothing_is_nothing(shape: str, mask: str, dtype: torch.dtype) -> None:
    own = MASKS[mask]
    own = own.to(dtype) if own.is_floating_point() else own

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=own)

    torch._dynamo.reset()
    made = torch.Generator().manual_seed(0)
    inputs = [torch.randn(s, generator=made).to(dtype) for s in SHAPES[shape]]
    inputs = [t.expand(-1, 4, -1, -1) if t.dim() == 4 else t for t in inputs]
    expected, found = both(attend, inputs, torch.compile(attend, backend="fusec"))
    for left, right in zip(found, expected, strict=True):
        assert left.isfinite().all()
        torch.testing.assert_close(
            left, right, atol=2e-2 if dtype is torch.bfloat16 else 1e-6, rtol=0
        )


@pytest.mark.parametrize("shape", [(3, 5), (2, 1, 4), (5,)])
def test_a_safe_softmax_of_nothing(shape: tuple[int, ...]) -> None:
    """In a function, on every backend that a CPU has; a NaN stays one."""
    safe = torch.ops.aten._safe_softmax
    x = torch.randn(shape)
    x[..., 0] = -torch.inf
    x.view(-1, shape[-1])[0] = -torch.inf
    for backend in ("cpp", "torch", "triton"):
        own = fusec.compile(lambda x: safe(x, -1) * 2, backend=backend)
        expected, found = both(lambda x: safe(x, -1) * 2, [x], own)
        for left, right in zip(found, expected, strict=True):
            torch.testing.assert_close(left, right, atol=1e-6, rtol=0)
        if len(shape) > 1:
            assert own(x.index_fill(0, torch.tensor([1]), torch.nan))[1].isnan().all()


def test_a_safe_softmax_of_one_number() -> None:
    safe = torch.ops.aten._safe_softmax
    own = fusec.compile(lambda x: safe(x, -1) + 0)
    for value in (-torch.inf, 0.5):
        torch.testing.assert_close(own(torch.tensor(value)), safe(torch.tensor(value), -1))
