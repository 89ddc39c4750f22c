"""The timing protocol: how every number of fusec is measured. May import every layer below.

Contenders take turns, so that a drift of the machine hits all alike, and a copy of as many bytes
takes its turn among them as the ceiling. On a GPU, device time comes from events, the L2 cache is
overwritten before each call, and that overwriting keeps the device busy for longer than the host
needs to issue the call. On a CPU it is the wall clock; the turns of the others overwrite the cache.
Medians everywhere. Host time, kernels and first calls are measured apart from device time.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fusec.errors import FusecError
from fusec.runtime import launcher
from fusec.runtime.timing import Timing, count_kernels, first_call, host_in_turns, time_in_turns

if TYPE_CHECKING:
    import torch

    from fusec.runtime.prepared import CallPlan

COPY = "copy"
_LAUNCHER_TIMEOUT = 60.0  # seconds


@dataclass(frozen=True)
class Effort:
    """What is measured, and for how long.

    ``seconds`` bounds the timed calls of all contenders, which are at least ``rounds`` each, after
    ``warm_up`` seconds of calls each. ``kernels`` and ``first_calls`` say whether to count launches
    and to time fresh processes. With ``strict`` a FusecError ends the comparison.
    """

    seconds: float = 5.0
    rounds: int = 5
    warm_up: float = 0.05
    host_rounds: int = 11
    kernels: bool = True
    first_calls: bool = True
    strict: bool = True


# For hundreds of cases: no profiler (it slows the launches after it) and no fresh processes.
SUITE = Effort(
    0.2, rounds=15, warm_up=0.01, host_rounds=3, kernels=False, first_calls=False, strict=False
)


@dataclass(frozen=True)
class Contender:
    """One way to compute the formula.

    ``call`` computes it once on the measured inputs; ``host_call`` on inputs so small that a CPU
    spends its time on the way there; on a GPU ``call`` itself tells the host time. ``script`` is
    Python for a fresh process: what comes before the clock starts, and the first call.
    ``as_torch`` makes tensors of the results of another library, to compare them.
    """

    name: str
    call: Callable[[], object]
    host_call: Callable[[], object] | None = None
    script: tuple[str, str] | None = None
    as_torch: Callable[[object], object] | None = None


@dataclass(frozen=True)
class Measurement:
    """One row: None stands for what was not or cannot be measured, ``problem`` for why."""

    name: str
    timing: Timing | None = None
    gigabytes_per_second: float | None = None
    percent_of_copy: float | None = None
    host_microseconds: float | None = None
    kernels: int | None = None
    first_call_seconds: float | None = None
    warm_call_seconds: float | None = None
    largest_error: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Report:
    """Every contender of one case, measured in one run. ``bytes_moved`` is the fewest possible."""

    device: str
    bytes_moved: int
    copy: Timing
    measurements: tuple[Measurement, ...]

    @property
    def copy_gigabytes_per_second(self) -> float:
        """The ceiling: 10^9 bytes read and written in a second by a copy."""
        return self.bytes_moved / self.copy.milliseconds / 1e6


Progress = Callable[[str, float], None]  # what is being done, and the fraction that is done


def _silent(what: str, fraction: float) -> None:
    """Shows nothing."""


def compare(
    contenders: Sequence[Contender],
    inputs: Sequence[object],
    reference: Callable[[], object] | None = None,
    *,
    device: torch.device | str,
    effort: Effort | None = None,
    part: Callable[[object], object] | None = None,
    progress: Progress = _silent,
) -> Report:
    """Measure every contender; compilers take what they take.

    ``reference`` computes the formula in float64, or the ``part`` of it that is compared. A
    contender that fails keeps its row, with the problem in words, and the others go on; a
    FusecError is for the user and ends the comparison, unless the effort says otherwise.
    """

    effort = effort or Effort()
    check = _Check(_reference(reference), part or (lambda outputs: outputs))
    rows: dict[str, Measurement] = {}
    alive: list[Contender] = []
    read, written = fewest_bytes(inputs), []
    for number, contender in enumerate(contenders):
        progress(f"{contender.name}: first call", 0.3 * number / len(contenders))
        row, outputs = _first_look(contender, check, effort.strict)
        rows[contender.name] = row
        if row.problem is None:
            alive.append(contender)
            written.append(fewest_bytes(_tensors(outputs)))
        del outputs
    del check
    moved = read + min(written, default=0)
    calls = {COPY: copier(moved, device), **{c.name: c.call for c in alive}}
    launcher.wait(_LAUNCHER_TIMEOUT)  # else a compiler runs beside what is measured
    timings = time_in_turns(
        calls,
        device,
        effort.seconds,
        lambda f: progress("taking turns", 0.3 + 0.4 * f),
        fewest_rounds=effort.rounds,
        warm_up=effort.warm_up,
    )
    progress("host time", 0.7)
    hosts = _host_times(alive, device, effort.host_rounds)
    for contender in alive:
        row = _with_timing(rows[contender.name], timings, moved)
        rows[contender.name] = replace(row, host_microseconds=hosts.get(contender.name))
    # Last: a profiler that has run once slows the launches after it.
    for contender in alive if effort.kernels else ():
        row = rows[contender.name]
        rows[contender.name] = replace(row, kernels=count_kernels(contender.call, device))
    if effort.first_calls:
        for number, contender in enumerate(alive):
            progress(f"{contender.name}: fresh process", 0.8 + 0.2 * number / len(alive))
            rows[contender.name] = _with_first_call(contender, rows[contender.name])
    progress("done", 1.0)
    return Report(str(device), moved, timings[COPY], tuple(rows.values()))


def fewest_bytes(values: Sequence[object]) -> int:
    """Bytes of the distinct elements of the tensors among ``values``: each counted once."""
    import torch

    total = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            pairs = zip(value.shape, value.stride(), strict=True)
            total += value.element_size() * math.prod(n for n, step in pairs if step or not n)
    return total


def operand_bytes(plan: CallPlan, inputs: Sequence[object]) -> int:
    """Bytes of the operands of every launch of a call on ``inputs``, each once for a launch."""
    import torch

    sizes = [fewest_bytes([value]) for value in inputs]
    for buffer in (*plan.outputs, *plan.temporaries):
        sizes.append(math.prod(buffer.shape) * getattr(torch, buffer.dtype).itemsize)
    return sum(sizes[position] for step in plan.steps for _, position in step.pointers)


def largest_error(outputs: object, expected: object) -> float:
    """The largest absolute difference; infinite where one is NaN or infinite and the other not."""
    import torch

    worst = 0.0
    for output, reference in zip(_tensors(outputs), _tensors(expected), strict=True):
        if output.shape != reference.shape:
            return math.inf
        if not output.numel():
            continue
        actual, wanted = output.to(torch.float64), reference.to(torch.float64)
        same = (actual == wanted) | (actual.isnan() & wanted.isnan())
        difference = (actual - wanted).abs_().masked_fill_(same, 0.0)
        worst = max(
            worst, float(torch.nan_to_num_(difference, nan=math.inf, posinf=math.inf).max())
        )
    return worst


def copier(moved: int, device: torch.device | str) -> Callable[[], object]:
    """A copy that reads and writes ``moved`` bytes in all: the ceiling."""
    import torch

    source = torch.ones(max(1, moved // 2), dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return lambda: target.copy_(source)


@dataclass(frozen=True)
class _Check:
    """What the results are compared with: ``part`` takes the same of them."""

    expected: object
    part: Callable[[object], object]

    def error(self, outputs: object) -> float | None:
        """The largest error; None without anything to compare with."""
        return None if self.expected is None else largest_error(self.part(outputs), self.expected)


def largest_value(outputs: object) -> float:
    """The largest finite magnitude among the results."""
    import torch

    finite = [t.to(torch.float64).abs().nan_to_num(0.0, 0.0, 0.0) for t in _tensors(outputs)]
    return max((float(t.max()) for t in finite if t.numel()), default=0.0)


def _first_look(contender: Contender, check: _Check, strict: bool) -> tuple[Measurement, object]:
    """Call once, so that it is built, and compare the numbers."""
    import torch

    row = Measurement(contender.name)
    try:
        outputs = contender.call()
        if contender.as_torch is not None:
            outputs = contender.as_torch(outputs)
        row = replace(row, largest_error=check.error(outputs))
    except torch.OutOfMemoryError:
        return replace(row, problem="out of memory"), None
    except Exception as error:  # another compiler's failure of any kind is a result, not our end
        if strict and isinstance(error, FusecError):
            raise  # ours is a diagnostic for the user
        return replace(row, problem=_first_line(error)), None
    return row, outputs


def _with_timing(row: Measurement, timings: Mapping[str, Timing], moved: int) -> Measurement:
    timing = timings[row.name]
    return replace(
        row,
        timing=timing,
        gigabytes_per_second=moved / timing.milliseconds / 1e6,
        percent_of_copy=100 * timings[COPY].milliseconds / timing.milliseconds,
    )


def _host_times(
    contenders: Sequence[Contender], device: torch.device | str, rounds: int
) -> dict[str, float]:
    """Microseconds of the caller by name; a CPU's are told by inputs so small that they are all."""
    import torch

    on_gpu = torch.device(device).type == "cuda"
    calls = {c.name: c.call if on_gpu else c.host_call for c in contenders}
    return host_in_turns({n: c for n, c in calls.items() if c is not None}, device, rounds)


def _with_first_call(contender: Contender, row: Measurement) -> Measurement:
    if contender.script is None:
        return row
    try:
        seconds = first_call(*contender.script)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        return replace(row, problem=f"first call in a fresh process: {_first_line(error)}")
    return replace(row, first_call_seconds=seconds.cold, warm_call_seconds=seconds.warm)


def _reference(reference: Callable[[], object] | None) -> object:
    """The float64 results, or None where they do not fit into memory."""
    import torch

    if reference is None:
        return None
    try:
        return reference()
    except (torch.OutOfMemoryError, MemoryError):
        return None


def _tensors(outputs: object) -> list[torch.Tensor]:
    import torch

    items = outputs if isinstance(outputs, tuple | list) else (outputs,)
    return [item for item in items if isinstance(item, torch.Tensor)]


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
