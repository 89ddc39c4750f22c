"""What stands around a call of a traced function, and can decide what it does: modes of torch, and
what torch takes where nothing is said.

May import torch, inside functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def reader() -> Callable[[], tuple[Any, ...]]:
    """A function that reads all of it, for each answer of which a program is; but for autocast,
    which a trace leaves out.
    """
    import torch

    grad, inference = torch.is_grad_enabled, torch.is_inference_mode_enabled
    dtype, device = torch.get_default_dtype, torch.get_default_device
    modes = torch._C._len_torch_function_stack

    def read() -> tuple[Any, ...]:
        # A default device is a mode.
        return grad(), inference(), dtype(), modes() and device()

    return read
