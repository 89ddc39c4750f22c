"""Memory for results. May import torch, forks and settings.

A large CPU result costs more to touch for the first time than to compute: the system maps and
clears it page by page. So such results live in blocks of this module, in huge pages where the
system has them, and a block whose tensor (with every view of it) is gone serves the next result.
At most POOL_BYTES wait for that, and where a result is to be ``lean`` no more than leaves all
blocks together below what was once in use; FUSEC_NO_POOL turns it off.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import weakref
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

from fusec import forks, settings

if TYPE_CHECKING:
    import torch

POOL_BYTES = 512 << 20  # that may wait for their next use
_WORTH_POOLING = 4 << 20  # bytes; smaller results stay in memory that malloc has touched before
_HUGE_PAGE = 2 << 20  # bytes


def allocator(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    lean: bool = False,
) -> Callable[[], torch.Tensor]:
    """A function that makes an uninitialised tensor of this kind (strides in elements).

    ``lean``: blocks of other lengths that wait go back to the system before it takes more from
    there than was ever in use at once.
    """
    import torch

    if not is_pooled(shape, strides, dtype, device):
        return functools.partial(torch.empty_strided, shape, strides, dtype=dtype, device=device)
    return functools.partial(_pooled, shape, strides, dtype, prod(shape) * dtype.itemsize, lean)


def is_pooled(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> bool:
    """Whether such a tensor lives in a block: it is large, and fills the memory that it reaches."""
    elements = prod(shape)
    dense = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) == elements
    return dense and is_large(elements * dtype.itemsize, device)


def is_large(size: int, device: torch.device) -> bool:
    """Whether so many bytes are worth a block."""
    return device.type == "cpu" and size >= _WORTH_POOLING and not settings.get().no_pool


def release() -> None:
    """Give the memory of results that are gone back to the system."""
    _pool.release()


def _pooled(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, size: int, lean: bool
) -> torch.Tensor:
    import torch

    block = _pool.take(size, lean)
    # The tensor's storage holds this object until the last view of it is gone.
    lease = (ctypes.c_char * size).from_buffer(block, _aligned_offset(block))
    weakref.finalize(lease, _pool.give, block).atexit = False
    flat = torch.frombuffer(lease, dtype=dtype)
    return flat.as_strided(shape, strides)


class _Pool:
    """Blocks of anonymous memory, by size; those given back wait for a result of their size."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._waiting: dict[int, list[mmap.mmap]] = {}
        self._bytes = 0  # that wait
        self._used = 0
        self._height = 0  # the most that were in use at once

    def take(self, size: int, lean: bool = False) -> mmap.mmap:
        """A block with room for ``size`` bytes from its first huge page on."""
        length = -(-size // _HUGE_PAGE) * _HUGE_PAGE + _HUGE_PAGE
        with self._lock:
            self._used += length
            self._height = max(self._height, self._used)
            waiting = self._waiting.get(length)
            if waiting:
                self._bytes -= length
                return waiting.pop()
            room = self._height - self._used if lean else self._bytes
            spare = self._beyond(room)
        _close(spare)
        return _map(length)

    def give(self, block: mmap.mmap) -> None:
        """Keep a block for later, or return it to the system when enough of them wait."""
        length = len(block)
        with self._lock:
            self._used -= length
            if self._bytes + length <= POOL_BYTES:
                self._bytes += length
                self._waiting.setdefault(length, []).append(block)
                return
        _close([block])

    def release(self) -> None:
        """Return the blocks that wait to the system, and forget how many were in use."""
        with self._lock:
            blocks = self._beyond(0)
            self._height = self._used
        _close(blocks)

    def _beyond(self, room: int) -> list[mmap.mmap]:
        """The blocks that have to go for those that wait to take no more bytes than that."""
        found: list[mmap.mmap] = []
        for length in sorted(self._waiting, reverse=True):
            waiting = self._waiting[length]
            while waiting and self._bytes > room:
                found.append(waiting.pop())
                self._bytes -= length
        return found


def _close(blocks: list[mmap.mmap]) -> None:
    for block in blocks:
        with contextlib.suppress(BufferError):  # a view that ctypes still holds lets go of it later
            block.close()


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
