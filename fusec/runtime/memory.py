"""Fresh memory for results. A large CPU result asks for huge pages: its first touch otherwise costs
more than computing it, one page fault for each 4 KiB. May import torch.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_HUGE_PAGE = 2 << 20  # bytes
_WORTH_ASKING = 4 << 20  # bytes; smaller results stay in memory that malloc has touched before
_MADV_HUGEPAGE = 14  # linux/mman.h


def allocator(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Callable[[], torch.Tensor]:
    """A function that makes an uninitialised tensor of this kind (strides in elements)."""
    import torch

    make = functools.partial(torch.empty_strided, shape, strides, dtype=dtype, device=device)
    size = torch.Size(shape).numel() * dtype.itemsize
    if device.type != "cpu" or size < _WORTH_ASKING:
        return make
    advise = _madvise()
    return make if advise is None else functools.partial(_with_huge_pages, make, advise, size)


def _with_huge_pages(make: Callable[[], torch.Tensor], advise: Any, size: int) -> torch.Tensor:
    tensor = make()
    start = -(-tensor.data_ptr() // _HUGE_PAGE) * _HUGE_PAGE
    length = (tensor.data_ptr() + size - start) // _HUGE_PAGE * _HUGE_PAGE
    # Advice: where the kernel does not take it, the memory is as good as before.
    advise(start, length, _MADV_HUGEPAGE)
    return tensor


@functools.cache
def _madvise() -> Any:
    """The C library's madvise, or None where there are no transparent huge pages."""
    if not sys.platform.startswith("linux"):
        return None
    function = getattr(ctypes.CDLL(None), "madvise", None)
    if function is not None:
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        function.restype = ctypes.c_int
    return function
