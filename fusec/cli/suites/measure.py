"""Measures one case of a suite, and says it as a row of a result file.

May import everything below cli, and cli; torch inside functions.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from fusec.cli.contenders import make_case as make_bench_case
from fusec.cli.suites import ways
from fusec.cli.suites.case import Measure, Plan, SuiteCase, make_case
from fusec.cli.suites.facts import WRONG, first_line, known, rounded
from fusec.cli.suites.gradients import measure_gradients
from fusec.cli.suites.models import measure_model
from fusec.cli.suites.systems import (
    COMPILED,
    NAMES,
    OURS,
    SYSTEMS,
    Setting,
    forget_compiled,
)
from fusec.errors import FusecError
from fusec.runtime.bench import (
    SUITE,
    Contender,
    Effort,
    Measurement,
    Report,
    compare,
    largest_value,
)
from fusec.runtime.timing import first_call

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from fusec.cli.contenders import Case

_HOST_ROUNDS = 25
_FIRST_CALLS = 3
_LAST_WORDS = 10.0  # seconds that a process has to end in


def measure(case: SuiteCase, plan: Plan) -> dict[str, Any]:
    """One case as it stands in a result file; what goes wrong is a ``problem`` in it."""
    facts: dict[str, Any] = {
        "name": case.name,
        "suite": case.suite,
        "op": case.operation.name,
        "dtype": case.dtype,
        "shape": list(case.shape),
        "formula": case.operation.formula,
        "inputs": list(case.inputs),
        "device": plan.device,
        "rows": [],
    }
    how = {
        Measure.COLD: _cold,
        Measure.THOROUGH: _thorough,
        Measure.GRADIENTS: measure_gradients,
        Measure.WAYS: _ways,
        Measure.MODELS: measure_model,
    }
    try:
        return {**facts, **how.get(plan.measure, _timed)(case, plan)}
    except (FusecError, RuntimeError, MemoryError) as error:
        return {**facts, "problem": first_line(error)}
    finally:
        _forget(plan.device)


def measure_apart(case: SuiteCase, plan: Plan) -> dict[str, Any]:
    """The same in a process of its own, whose end ends nothing else."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(there, case, plan))
    process.start()
    there.close()
    try:
        result: dict[str, Any] = here.recv()
        process.join(_LAST_WORDS)  # it ends what it has started, a compiler's processes among them
    except EOFError:
        process.join()
        problem = f"the process ended with {process.exitcode}"
        return {"name": case.name, "suite": case.suite, "rows": [], "problem": problem}
    finally:
        process.terminate()
        process.join()
    return result


def lost_device(device: str) -> str | None:
    """What a GPU says that a failed kernel took from this process; None while it works."""
    import torch

    try:
        if device != "cpu":
            torch.cuda.synchronize()
    except RuntimeError as error:
        return first_line(error)
    return None


def _child(there: Connection, case: SuiteCase, plan: Plan) -> None:
    with contextlib.suppress(KeyboardInterrupt):  # the parent says so
        there.send(measure(case, plan))


def _timed(case: SuiteCase, plan: Plan, setting: Setting | None = None) -> dict[str, Any]:
    """Device time of all systems beside a copy, and the caller's time."""
    host = plan.measure is Measure.HOST
    setting = setting or Setting(case, plan.device, host)
    systems, ready, problems = _ready(setting, plan.systems)
    scale: list[float] = []

    def reference() -> object:
        expected = setting.reference()
        scale.append(largest_value(expected))
        return expected

    effort = replace(
        SUITE,
        seconds=plan.seconds,
        host_rounds=_HOST_ROUNDS if host else 3,
        kernels=plan.measure is Measure.WAYS,
    )
    report = compare(
        ready,
        setting.inputs,
        reference if plan.error else None,
        device=plan.device,
        effort=effort,
        part=setting.part,
    )
    rows = [
        {"system": system, **known(asdict(_judged(row, scale)))}
        for system, row in zip(systems, report.measurements, strict=True)
    ]
    native = setting.native if "torch" in plan.systems else None
    return {
        **_ceiling(report),
        "native": None if native is None else native[0],
        "checked": setting.said() if plan.error else None,
        "rows": [*rows, *problems],
    }


def _ready(
    setting: Setting, wanted: Sequence[str]
) -> tuple[list[str], list[Contender], list[dict[str, Any]]]:
    """The systems that take part, their contenders, and rows for those that fail to."""
    if any(system in COMPILED for system in wanted):
        forget_compiled()
    systems, ready, problems = [], [], []
    for system in wanted:
        try:
            contender = SYSTEMS[system](setting)
        except Exception as error:  # another package's failure of any kind is a result
            if system in OURS:  # and our own is a fault
                raise
            problems.append({"system": system, "name": system, "problem": first_line(error)})
            continue
        if contender is not None:
            systems.append(system)
            ready.append(contender)
    return systems, ready, problems


def _judged(row: Measurement, scale: Sequence[float]) -> Measurement:
    """The row, with a problem where the result is not what the formula says."""
    if row.largest_error is None or not scale or row.problem is not None:
        return row
    if row.largest_error <= WRONG * scale[0]:
        return row
    problem = f"off by {row.largest_error:.3g} where the largest value is {scale[0]:.3g}"
    return replace(row, problem=problem)


def _ways(case: SuiteCase, plan: Plan) -> dict[str, Any]:
    """The same with kernels, bytes and source of each way."""
    setting = Setting(case, plan.device)
    result = _timed(case, plan, setting)
    rows = [
        {**row, **({} if "problem" in row else ways.look(setting, row["system"]).facts())}
        for row in result["rows"]
    ]
    return {**result, "rows": rows}


def _thorough(case: SuiteCase, plan: Plan) -> dict[str, Any]:
    """What `fusec bench` measures of one formula, as a user calls each."""
    made = _bench_case(case, plan)
    chosen = [c for c in made.contenders if NAMES.get(c.name, "torch") in plan.systems]
    report = compare(
        chosen,
        made.inputs,
        made.reference if plan.error else None,
        device=plan.device,
        effort=Effort(plan.seconds, first_calls=plan.first_calls),
    )
    rows = [
        {"system": NAMES.get(row.name, "torch"), **known(asdict(row))}
        for row in report.measurements
    ]
    return {**_ceiling(report), "native": made.native, "checked": "all", "rows": rows}


def _cold(case: SuiteCase, plan: Plan) -> dict[str, Any]:
    """First calls, each several times where that takes no minutes."""
    made = _bench_case(case, plan)
    before: dict[str, tuple[str, str]] = {}
    if case.operation.after:
        # The first formula of the process, on inputs that its own text makes.
        earlier = replace(case.operation, formula=case.operation.after, inputs="x=1024x1024")
        first = make_case(case.suite, earlier, case.dtype, {})
        made_before = _bench_case(first, plan)
        before = {c.name: c.script for c in made_before.contenders if c.script is not None}
    rows = []
    for contender in made.contenders:
        system = NAMES.get(contender.name, "torch")
        if contender.script is None or system not in plan.systems:
            continue
        prepare, body = contender.script
        prepare = "\n".join((*before.get(contender.name, ()), prepare))
        rows.append(
            {"system": system, "name": contender.name, **_first_calls(system, prepare, body)}
        )
    return {"after": case.operation.after or None, "rows": rows}


def _first_calls(system: str, prepare: str, body: str) -> dict[str, Any]:
    """The medians of some first calls; of one where a compiler takes seconds."""
    times = 1 if system in COMPILED else _FIRST_CALLS
    try:
        taken = [first_call(prepare, body) for _ in range(times)]
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        return {"problem": first_line(error)}
    return {
        "first_call_seconds": rounded(median(call.cold for call in taken)),
        "warm_call_seconds": rounded(median(call.warm for call in taken)),
        "samples": times,
    }


def _bench_case(case: SuiteCase, plan: Plan) -> Case:
    setting = Setting(case, plan.device)
    return make_bench_case(
        setting.compiled,
        setting.source,
        setting.options,
        device=plan.device,
        with_compile="compile" in plan.systems,
    )


def _ceiling(report: Report) -> dict[str, Any]:
    return {
        "bytes": report.bytes_moved,
        "copy": rounded(asdict(report.copy)),
        "copy_gigabytes_per_second": rounded(report.copy_gigabytes_per_second),
    }


def line(result: Mapping[str, Any], measure: Measure) -> str:
    """The case on one line: the copy, and each system's share of it."""
    if "problem" in result:
        return f"{result['name']:<36} {result['problem']}"
    if measure is Measure.WAYS:
        return ways.table_text(result)
    shown = []
    if "copy" in result:
        shown.append(f"copy {result['copy_gigabytes_per_second']:.0f} GB/s")
    shown += [f"{row['name']} {_cell(row, measure)}" for row in result["rows"]]
    return f"{result['name']:<36} {'  '.join(shown)}"


def _cell(row: Mapping[str, Any], measure: Measure) -> str:
    """What of a system a suite is about."""
    if "timing" not in row and "first_call_seconds" not in row:
        return "fails"
    wrong = " wrong" if "problem" in row else ""
    if measure is Measure.COLD:
        return f"{row['first_call_seconds']:.3g} s, {row['warm_call_seconds']:.3g} s warm{wrong}"
    if measure is Measure.HOST:
        return f"{row.get('host_microseconds', 0):.1f} µs{wrong}"
    if measure is Measure.MODELS:
        return f"{_step_cell(row)}{wrong}"
    return f"{_time_cell(row)}{_backward_cell(row)}{wrong}"


def _time_cell(row: Mapping[str, Any]) -> str:
    return f"{row['timing']['milliseconds']:.4g} ms {row['percent_of_copy']:.0f} %"


def _step_cell(row: Mapping[str, Any]) -> str:
    """A step, and what comes before the second one."""
    step = f"{row['timing']['milliseconds']:.3g} ms"
    if "first_call_seconds" not in row:
        return step
    first, following = row["first_call_seconds"], row["next_call_seconds"]
    return f"{step} (first {first:.3g} s, next model {following:.3g} s)"


def _backward_cell(row: Mapping[str, Any]) -> str:
    """What of that is backward, and how much memory it takes; empty for what has no gradient."""
    if "backward" not in row:
        return ""
    peak = f", {row['peak_bytes'] / 2**20:.0f} MiB" if "peak_bytes" in row else ""
    return f" (backward {_time_cell(row['backward'])}{peak})"


def _forget(device: str) -> None:
    """Give the memory of a case back before the next."""
    import torch

    gc.collect()
    if device != "cpu":
        with contextlib.suppress(RuntimeError):  # of a lost device, which is reported apart
            torch.cuda.empty_cache()
