"""How much memory a call takes at its height, beyond what was there. May import every layer below.

On a GPU PyTorch's allocator counts, through which all of fusec's memory goes as well. On a CPU it
is the system that counts the pages in use: PyTorch's own counters would not see the blocks of
``runtime/memory.py``, and no count of requests knows which pages are ever touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fusec.runtime import memory

if TYPE_CHECKING:
    import torch

_PROCESS = Path("/proc/self")
_TIMES = 3  # what else a process does only adds pages, so the smallest of several counts


def peak_bytes(call: Callable[[], object], device: torch.device | str) -> int | None:
    """Bytes in use at the height of ``call``, what it returns included, less those before it.

    ``call`` has to have run before. None on a CPU whose system does not tell.
    """
    import torch

    place = torch.device(device)
    gc.collect()
    if place.type == "cuda":
        return _allocated(call, place)
    found = [_resident(call) for _ in range(_TIMES)]
    return min((n for n in found if n is not None), default=None)


def _allocated(call: Callable[[], object], device: torch.device) -> int:
    import torch

    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = call()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    del result
    return peak - before


def _resident(call: Callable[[], object]) -> int | None:
    """Pages of this process, in bytes; those that allocators keep for later are given back first,
    or else a call would find there what it has to be charged for.
    """
    memory.release()
    with contextlib.suppress(OSError, AttributeError):  # a C library without it keeps little
        ctypes.CDLL(None).malloc_trim(0)
    try:
        (_PROCESS / "clear_refs").write_text("5", encoding="ascii")  # forget the peak so far
        before = _status("VmRSS")
        result = call()
        peak = _status("VmHWM")
    except OSError:
        return None
    del result
    return None if before is None or peak is None else max(0, peak - before)


def _status(name: str) -> int | None:
    text = (_PROCESS / "status").read_text(encoding="ascii", errors="replace")
    found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    return None if found is None else int(found[1]) << 10
