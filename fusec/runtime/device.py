"""Facts about the machine that numbers are measured on. May import every layer below the runtime.

torch is imported inside the functions that need it; the facts of the processor come from the
operating system.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_FALLBACK_L2 = 64 << 20  # bytes; no GPU that runs Triton had more when this was written


@dataclass(frozen=True)
class CpuFacts:
    """The processor, the cores that this process may use, the caches in bytes (None: unknown)."""

    name: str
    cores: int
    architecture: str
    l2_bytes: int | None
    l3_bytes: int | None


@dataclass(frozen=True)
class GpuFacts:
    """One CUDA device; ``capability`` is written as a target (``sm_90``)."""

    index: int
    name: str
    capability: str
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int


@dataclass(frozen=True)
class CopyBandwidth:
    """A copy of ``bytes_moved`` (read plus written) and the median of its times."""

    bytes_moved: int
    milliseconds: float

    @property
    def gigabytes_per_second(self) -> float:
        """10^9 bytes, read and written, in a second."""
        return self.bytes_moved / self.milliseconds / 1e6


@functools.cache
def cpu_facts() -> CpuFacts:
    """The processor of this machine."""
    return CpuFacts(
        name=_cpu_name(),
        cores=usable_cores(),
        architecture=platform.machine(),
        l2_bytes=_cache_bytes(2),
        l3_bytes=_cache_bytes(3),
    )


def usable_cores() -> int:
    """How many cores this process may run on, which in a container is fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpu_facts() -> tuple[GpuFacts, ...]:
    """Every CUDA device that torch can use; empty without one."""
    import torch

    if not torch.cuda.is_available():
        return ()
    return tuple(_gpu(index) for index in range(torch.cuda.device_count()))


def measure_copy(
    device: torch.device | str, bytes_moved: int = 1 << 30, seconds: float = 0.5
) -> CopyBandwidth:
    """Time ``b.copy_(a)`` on a device: half of ``bytes_moved`` is read and half is written."""
    import torch

    source = torch.ones(max(1, bytes_moved // 8), dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    on_gpu = source.is_cuda
    samples: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(samples) < 4 or time.perf_counter() < deadline:
        samples.append(_copy_once(source, target, on_gpu))
    return CopyBandwidth(2 * source.nbytes, median(samples[1:]))


def _copy_once(source: torch.Tensor, target: torch.Tensor, on_gpu: bool) -> float:
    """Milliseconds of one copy."""
    import torch

    if not on_gpu:
        start = time.perf_counter()
        target.copy_(source)
        return (time.perf_counter() - start) * 1e3
    with torch.cuda.device(source.device):
        before = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        after = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        before.record()
        target.copy_(source)
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after))


def _gpu(index: int) -> GpuFacts:
    import torch

    properties = torch.cuda.get_device_properties(index)
    return GpuFacts(
        index=index,
        name=properties.name,
        capability=f"sm_{properties.major}{properties.minor}",
        multiprocessors=properties.multi_processor_count,
        l2_bytes=int(getattr(properties, "L2_cache_size", 0)) or _FALLBACK_L2,
        memory_bytes=properties.total_memory,
    )


def _cpu_name() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as stream:
        for line in stream:
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cache_bytes(level: int) -> int | None:
    """Size of the data cache of a level, as Linux tells it."""
    with contextlib.suppress(OSError, ValueError):
        for folder in sorted(_CACHES.glob("index*")):
            kind = (folder / "type").read_text().strip()
            if kind != "Instruction" and int((folder / "level").read_text()) == level:
                return _size((folder / "size").read_text().strip())
    return None


def _size(text: str) -> int:
    """Bytes in ``2048K``."""
    unit = _UNITS.get(text[-1:], 1)
    return int(text.rstrip("".join(_UNITS))) * unit
