"""Clocks: device time in turns, host time, kernels, first calls. May import every layer below.

How a comparison is put together from these is in ``runtime/bench.py``.
"""

from __future__ import annotations

import inspect
import json
import math
import random
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from fusec import settings

if TYPE_CHECKING:
    import torch

_WARM_UP = 0.05  # seconds of calls before the first that counts
_FEWEST_ROUNDS, _MOST_ROUNDS = 5, 2000
_HOST_CALLS, _HOST_ROUNDS = 20, 11  # few enough calls that the device's queue never fills
_MOST_FLUSHES = 40
# A thread that had to wait, autograd's above all, takes longer than one that is busy.
_HOST_MARGIN = 3.0
_LONG_CALL, _LONG_WAIT = 50.0, 0.4  # host microseconds of a call that may wait, milliseconds more
_CHILD_TIMEOUT = 600.0  # seconds
_LAUNCHES = ("kernel", "gpu_memcpy", "gpu_memset")
_CACHE_VARIABLES = (
    "FUSEC_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "CUDA_CACHE_PATH",
)


@dataclass(frozen=True)
class Timing:
    """Milliseconds: the median, and the first and ninth decile, of ``samples`` calls."""

    milliseconds: float
    low: float
    high: float
    samples: int


@dataclass(frozen=True)
class FirstCall:
    """Seconds of the first call with empty caches, and of that of a second process after it, or
    nan where there was none.
    """

    cold: float
    warm: float


def time_in_turns(
    calls: Mapping[str, Callable[[], object]],
    device: torch.device | str,
    seconds: float,
    progress: Callable[[float], None] = lambda fraction: None,
    *,
    fewest_rounds: int = _FEWEST_ROUNDS,
    warm_up: float = _WARM_UP,
) -> dict[str, Timing]:
    """Time each call once a round, for ``fewest_rounds`` and about ``seconds`` altogether.

    ``warm_up`` is the seconds of calls that do not count, for each contender.
    """
    import torch

    place = torch.device(device)
    once = _gpu_timer(calls, place) if place.type == "cuda" else _cpu_timer
    for call in calls.values():
        _warm_up(call, place, warm_up)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    start = time.perf_counter()
    for number in range(_MOST_ROUNDS):
        spent = time.perf_counter() - start
        if number >= fewest_rounds and spent > seconds:
            break
        progress(min(1.0, max(spent / max(seconds, 1e-9), number / _MOST_ROUNDS)))
        for name in _order(calls, number):
            samples[name].append(once(name, calls[name]))
    return {name: _timing(taken) for name, taken in samples.items()}


def steps_in_turns(
    steps: Mapping[str, Callable[[], object]],
    device: torch.device | str,
    seconds: float,
    *,
    in_a_row: int,
    fewest_rounds: int = _FEWEST_ROUNDS,
) -> dict[str, Timing]:
    """Wall-clock time of a step, from turns of ``in_a_row`` steps after which the device has
    finished: what a loop takes whose caller may run ahead of the device.
    """
    import torch

    place = torch.device(device)
    for step in steps.values():
        _warm_up(step, place, _WARM_UP)
    samples: dict[str, list[float]] = {name: [] for name in steps}
    start = time.perf_counter()
    for number in range(_MOST_ROUNDS):
        if number >= fewest_rounds and time.perf_counter() - start > seconds:
            break
        for name in _order(steps, number):
            _synchronize(place)
            begin = time.perf_counter()
            for _ in range(in_a_row):
                steps[name]()
            _synchronize(place)
            samples[name].append((time.perf_counter() - begin) * 1e3 / in_a_row)
    return {name: _timing(taken) for name, taken in samples.items()}


def host_microseconds(
    call: Callable[[], object], device: torch.device | str, rounds: int = _HOST_ROUNDS
) -> float:
    """Median time that the caller spends in ``call``, without waiting for a GPU to finish."""
    return host_in_turns({"": call}, device, rounds)[""]


def host_in_turns(
    calls: Mapping[str, Callable[[], object]],
    device: torch.device | str,
    rounds: int = _HOST_ROUNDS,
) -> dict[str, float]:
    """Median microseconds that the caller spends in each call; a turn is some calls in a row."""
    import torch

    place = torch.device(device)
    for call in calls.values():
        for _ in range(5):
            call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in _order(calls, number):
            call = calls[name]
            _synchronize(place)
            for _ in range(_HOST_CALLS):
                start = time.perf_counter()
                call()
                samples[name].append(time.perf_counter() - start)
    _synchronize(place)
    return {name: median(taken) * 1e6 for name, taken in samples.items() if taken}


def count_kernels(call: Callable[[], object], device: torch.device | str) -> int | None:
    """Kernels, copies and fills that one call starts on a GPU; None on a CPU."""
    import torch

    place = torch.device(device)
    if place.type != "cuda":
        return None
    call()
    _synchronize(place)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    options: dict[str, Any] = {"activities": activities}
    if "acc_events" in inspect.signature(torch.profiler.profile).parameters:
        options["acc_events"] = True  # without it newer versions warn that events get lost
    with torch.profiler.profile(**options) as profile:
        call()
        _synchronize(place)
    with tempfile.TemporaryDirectory(prefix="fusec-trace-") as folder:
        path = Path(folder) / "trace.json"
        # The trace tells kernels from ranges alike in every version of torch; its events do not.
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return sum(event.get("cat") in _LAUNCHES for event in events)


def first_call(prepare: str, body: str, again: bool = True) -> FirstCall:
    """Run ``body`` after ``prepare`` in fresh processes, with empty caches and then with those if
    ``again``.

    The clock starts after ``prepare`` and stops when the devices have finished. Raises RuntimeError
    with the child's last words when it fails.
    """
    with tempfile.TemporaryDirectory(prefix="fusec-first-") as folder:
        caches = {}
        for variable in _CACHE_VARIABLES:
            caches[variable] = str(Path(folder) / variable.lower())
            Path(caches[variable]).mkdir(mode=0o700)
        script = Path(folder) / "first_call.py"
        script.write_text(child_script(prepare, body), encoding="utf-8")
        cold = _run_child(script, caches)
        return FirstCall(cold, _run_child(script, caches) if again else math.nan)


def _order(names: Iterable[str], number: int) -> list[str]:
    """In which order a round goes, the same in every run: were it the same in every round, one
    would always follow the same other, whose threads may be awake for some milliseconds more.
    """
    found = list(names)
    random.Random(number).shuffle(found)
    return found


def _warm_up(call: Callable[[], object], device: torch.device, seconds: float) -> None:
    start = time.perf_counter()
    for number in range(100):
        if number >= 2 and time.perf_counter() - start > seconds:
            break
        call()
        _synchronize(device)


def _cpu_timer(name: str, call: Callable[[], object]) -> float:
    """Milliseconds of one call; what it returned is freed outside the measured time."""
    start = time.perf_counter()
    result = call()
    elapsed = time.perf_counter() - start
    del result
    return elapsed * 1e3


def _gpu_timer(
    calls: Mapping[str, Callable[[], object]], device: torch.device
) -> Callable[[str, Callable[[], object]], float]:
    """A timer of device milliseconds that overwrites the L2 cache before each call."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    size = 2 * (int(getattr(properties, "L2_cache_size", 0)) or 64 << 20)
    buffer = torch.empty(size, dtype=torch.uint8, device=device)
    before = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    after = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    stream = torch.cuda.current_stream(device)

    def elapsed(call: Callable[[], object], flushes: int) -> float:
        for _ in range(flushes):
            buffer.zero_()
        before.record(stream)
        result = call()
        after.record(stream)
        after.synchronize()
        del result
        return float(before.elapsed_time(after))

    # The device must still be busy when the last launch of a call is issued: otherwise the time
    # between the events is the host's.
    one_flush = median(elapsed(buffer.zero_, 2) for _ in range(10))  # milliseconds
    flushes = {}
    for name, call in calls.items():
        host = host_microseconds(call, device, rounds=1)
        ahead = _HOST_MARGIN * 1e-3 * host + (_LONG_WAIT if host > _LONG_CALL else 0.0)
        flushes[name] = min(_MOST_FLUSHES, 1 + math.ceil(ahead / one_flush))
    return lambda name, call: elapsed(call, flushes[name])


def _synchronize(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _timing(samples: Sequence[float]) -> Timing:
    deciles = quantiles(samples, n=10, method="inclusive")
    return Timing(median(samples), deciles[0], deciles[-1], len(samples))


def child_script(prepare: str, body: str) -> str:
    """The text of the process that measures a first call; it prints ``seconds`` and the number."""
    root = str(Path(__file__).resolve().parents[2])
    return "\n".join(
        (
            "import sys, time",
            f"sys.path.insert(0, {root!r})",
            "import torch",
            textwrap.dedent(prepare),
            "cuda = torch.cuda.is_available() and torch.cuda.is_initialized()",
            "synchronize = torch.cuda.synchronize if cuda else int",
            "synchronize()",
            "start = time.perf_counter()",
            textwrap.dedent(body),
            "synchronize()",
            "print('seconds', time.perf_counter() - start)",
        )
    )


def _run_child(script: Path, caches: Mapping[str, str]) -> float:
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=_CHILD_TIMEOUT,
        # Bytecode is kept, as it is for an installed package: else every process compiles fusec.
        env=settings.child_environment(**caches, PYTHONDONTWRITEBYTECODE=""),
        stdin=subprocess.DEVNULL,
    )
    if done.returncode == 0:
        for line in reversed(done.stdout.splitlines()):
            if line.startswith("seconds "):
                return float(line.split()[1])
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    raise RuntimeError(lines[-1])
