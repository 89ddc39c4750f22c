"""Memory for results. May import torch and settings.

A large CPU result costs more to touch for the first time than to compute: the system maps and
clears it page by page. So such results live in blocks of this module, in huge pages where the
system has them, and a block whose tensor (with every view of it) is gone serves the next result.
At most POOL_BYTES wait for that; FUSEC_NO_POOL turns it off.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from fusec import settings

if TYPE_CHECKING:
    import torch

POOL_BYTES = 512 << 20  # that may wait for their next use
_WORTH_POOLING = 4 << 20  # bytes; smaller results stay in memory that malloc has touched before
_HUGE_PAGE = 2 << 20  # bytes


def allocator(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Callable[[], torch.Tensor]:
    """A function that makes an uninitialised dense tensor of this kind (strides in elements)."""
    import torch

    size = torch.Size(shape).numel() * dtype.itemsize
    if device.type != "cpu" or size < _WORTH_POOLING or settings.get().no_pool:
        return functools.partial(torch.empty_strided, shape, strides, dtype=dtype, device=device)
    return functools.partial(_pooled, shape, strides, dtype, size)


def release() -> None:
    """Give the memory of results that are gone back to the system."""
    _pool.release()


def _pooled(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, size: int
) -> torch.Tensor:
    import torch

    block = _pool.take(size)
    # The tensor's storage holds this object until the last view of it is gone.
    lease = (ctypes.c_char * size).from_buffer(block, _aligned_offset(block))
    weakref.finalize(lease, _pool.give, block).atexit = False
    flat = torch.frombuffer(lease, dtype=dtype)
    return flat.as_strided(shape, strides)


class _Pool:
    """Blocks of anonymous memory, by size; those given back wait for a result of their size."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, list[mmap.mmap]] = {}
        self._bytes = 0

    def take(self, size: int) -> mmap.mmap:
        """A block with room for ``size`` bytes from its first huge page on."""
        length = -(-size // _HUGE_PAGE) * _HUGE_PAGE + _HUGE_PAGE
        with self._lock:
            waiting = self._waiting.get(length)
            if waiting:
                self._bytes -= length
                return waiting.pop()
        return _map(length)

    def give(self, block: mmap.mmap) -> None:
        """Keep a block for later, or return it to the system when enough of them wait."""
        length = len(block)
        with self._lock:
            if self._bytes + length <= POOL_BYTES:
                self._bytes += length
                self._waiting.setdefault(length, []).append(block)
                return
        with contextlib.suppress(BufferError):  # a view that ctypes still holds lets go of it later
            block.close()

    def release(self) -> None:
        """Return the blocks that wait to the system."""
        with self._lock:
            blocks = [block for waiting in self._waiting.values() for block in waiting]
            self._waiting.clear()
            self._bytes = 0
        for block in blocks:
            with contextlib.suppress(BufferError):
                block.close()

    def reset(self) -> None:
        """In a forked child: a lock that the parent held would never be released."""
        self._lock = threading.Lock()


def _map(length: int) -> mmap.mmap:
    block = mmap.mmap(-1, length)
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        with contextlib.suppress(OSError):  # a kernel without huge pages: small ones will do
            block.madvise(advice)
    return block


def _aligned_offset(block: mmap.mmap) -> int:
    """Where the first huge page of a block begins."""
    start = ctypes.addressof(ctypes.c_char.from_buffer(block))
    return -start % _HUGE_PAGE


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.reset)
