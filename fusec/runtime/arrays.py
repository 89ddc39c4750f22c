"""NumPy arrays as tensors: in any byte order, with any strides, read-only or not.

May import ``fusec.errors`` and ``fusec.ir``. NumPy and torch are imported where they are used.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def is_array(value: Any) -> bool:
    """Whether a value is a NumPy array or scalar, and no tensor."""
    return hasattr(value, "__array_interface__") and not hasattr(value, "untyped_storage")


def number_of(value: Any) -> Any:
    """A scalar of NumPy's as the number of Python's that PyTorch takes it for; else the value."""
    numpy = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def why_refused(array: Any) -> tuple[str, str] | None:
    """What is wrong with an array, as a predicate, and a hint; None for one that fusec takes."""
    import numpy

    from fusec.ir.dtypes import by_torch_name  # a warm call of tensors needs nothing of ir

    if by_torch_name(array.dtype.name) is None:
        return (
            f"has the NumPy type {array.dtype}",
            "fusec takes float16 to float64, int8 to int64, uint8 and bool",
        )
    if isinstance(array, numpy.ma.MaskedArray):
        return "is a masked array, and kernels see no mask", "pass array.filled(...)"
    return None


def tensor_of(value: Any) -> torch.Tensor:
    """The elements of an array that is not refused; in its own memory, where a tensor can be."""
    import numpy
    import torch

    array = numpy.asarray(value)
    if not array.dtype.isnative or any(s < 0 or s % array.itemsize for s in array.strides):
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    with warnings.catch_warnings():
        # Inputs are only read, so an array that must not be written is as good as any.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
