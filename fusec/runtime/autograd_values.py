"""What programs with gradients see of tensors and numbers.

May import ``fusec.ir`` and, of the runtime, ``addresses``, ``launch`` and ``specialize``.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from fusec.ir.dtypes import BOOL, F64, I64, by_torch_name
from fusec.runtime.addresses import in_memory
from fusec.runtime.launch import Given
from fusec.runtime.specialize import Argument

if TYPE_CHECKING:
    import torch


def way_to(function: Any) -> Any:
    """How to call an autograd function.

    Outside of ``torch.func`` it is what lies beneath ``Function.apply``, which reads the signature
    of ``forward`` anew at each call: half of the host's time.
    """
    import torch

    transformed: bool = torch._C._are_functorch_transforms_active()
    return function.apply if transformed else direct_way_to(function)


@cache
def direct_way_to(function: Any) -> Any:
    """What ``Function.apply`` calls when no transform of ``torch.func`` is left to look for."""
    import torch

    return super(torch.autograd.Function, function).apply


def plain(grad: Any) -> Any:
    """A gradient as a tensor that kernels can read: dense, and in memory as it is."""
    if grad.is_sparse:
        grad = grad.to_dense()
    return in_memory(grad) if grad.is_neg() or grad._is_zerotensor() else grad


def unsqueezed(tensor: Any, axes: tuple[int, ...]) -> Any:
    """``tensor`` with the axes that a caller does not see, at these negative places."""
    if not axes:
        return tensor
    if len(axes) == 1:
        return tensor.unsqueeze(axes[0])
    rank = tensor.dim() + len(axes)
    visible = iter(tensor.shape)
    return tensor.reshape([1 if k - rank in axes else next(visible) for k in range(rank)])


def key_of(value: Any) -> object:
    """What of a value decides which kernels read it."""
    if isinstance(value, (bool, int, float)):
        return type(value)
    return value.dtype, value.shape, value.stride(), value.device, value.data_ptr() & 15


def argument_of(value: Any) -> Argument:
    """A value as specialising sees it."""
    if isinstance(value, (bool, int, float)):
        kind = BOOL if isinstance(value, bool) else I64 if isinstance(value, int) else F64
        return Argument(kind, scalar=True)
    dtype = by_torch_name(str(value.dtype).removeprefix("torch."))
    assert dtype is not None
    return Argument(dtype, tuple(value.shape), tuple(value.stride()))


def given_of(out: torch.Tensor) -> Given:
    """A new tensor that a kernel is to write to."""
    shape, strides = tuple(out.shape), tuple(out.stride())
    return Given("out", shape, strides, str(out.dtype), out.data_ptr() % 16 == 0, True)
