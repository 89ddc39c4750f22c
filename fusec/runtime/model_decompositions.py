"""Operators of PyTorch that a model's graph has in parts, so that less is kept for the gradient.

Of a cross-entropy, PyTorch keeps the logarithms of all probabilities. In parts its gradient starts
from the logits, which are there anyway, and two numbers for each row: what a language model has
most of is never written. May import the standard library only; torch inside functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MEAN, _NONE = 1, 0  # PyTorch's numbers for ways to reduce a loss


def decompositions() -> dict[Any, Callable[..., Any]]:
    """What AOTAutograd takes apart while it traces, by operator."""
    import torch

    aten = torch.ops.aten
    return {
        aten._log_softmax.default: _log_softmax,
        aten._log_softmax_backward_data.default: _log_softmax_backward,
        aten.nll_loss_backward.default: _nll_loss_backward,
        # What is detached would be kept, as if something other than a kernel read it.
        aten.detach.default: aten.alias.default,
    }


def _log_softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    import torch

    if x.numel() == 0:
        return NotImplemented
    narrow = x.dtype in (torch.bfloat16, torch.float16)
    wide = x.float() if narrow else x
    below = wide - wide.amax(dim, keepdim=True)
    result = below - below.exp().sum(dim, keepdim=True).log()
    return result.to(x.dtype) if narrow and not half_to_float else result


def _log_softmax_backward(grad: Any, result: Any, dim: int, input_dtype: Any) -> Any:
    found = grad - result.exp() * grad.sum(dim, keepdim=True)
    return found.to(input_dtype)


def _nll_loss_backward(
    grad: Any,
    x: Any,
    target: Any,
    weight: Any,
    reduction: int,
    ignore_index: int,
    total_weight: Any,
) -> Any:
    import torch

    if weight is not None or x.dim() != 2:
        return NotImplemented
    target = target.unsqueeze(1)
    classes = torch.arange(x.shape[1], device=x.device)
    taken = (classes == target) & (target != ignore_index)
    given = grad.unsqueeze(1) if reduction == _NONE else grad
    given = given / total_weight if reduction == _MEAN else given
    return torch.where(taken, -given, 0.0)
