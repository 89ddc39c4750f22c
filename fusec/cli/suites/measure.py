"""Measures one case of a suite, and says it as a row of a result file.

May import everything below cli, and cli; torch inside functions.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fusec.cli.suites.case import SuiteCase
from fusec.cli.suites.systems import SYSTEMS, Setting
from fusec.errors import FusecError
from fusec.runtime.bench import SUITE, Contender, compare

_DIGITS = 5  # significant digits of a number in a result file


@dataclass(frozen=True)
class Plan:
    """How the cases of a run are measured."""

    device: str
    systems: tuple[str, ...]
    seconds: float
    error: bool = True


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
    try:
        return {**facts, **_measured(Setting(case, plan.device), plan)}
    except (FusecError, RuntimeError, MemoryError) as error:
        return {**facts, "problem": _first_line(error)}
    finally:
        _forget(plan.device)


def _measured(setting: Setting, plan: Plan) -> dict[str, Any]:
    systems, ready = [], []
    problems: list[dict[str, Any]] = []
    for system in plan.systems:
        try:
            contender = SYSTEMS[system](setting)
        except Exception as error:  # another package's failure of any kind is a result
            problems.append({"name": system, "system": system, "problem": _first_line(error)})
            continue
        if contender is not None:
            systems.append(system)
            ready.append(contender)
    return {**_timed(setting, plan, systems, ready, problems)}


def _timed(
    setting: Setting,
    plan: Plan,
    systems: Sequence[str],
    ready: Sequence[Contender],
    problems: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    report = compare(
        ready,
        setting.inputs,
        setting.reference if plan.error else None,
        device=plan.device,
        effort=replace(SUITE, seconds=plan.seconds),
        part=setting.part,
    )
    rows = [
        {"system": system, **_known(asdict(row))}
        for system, row in zip(systems, report.measurements, strict=True)
    ]
    native = setting.native if "torch" in plan.systems else None
    return {
        "bytes": report.bytes_moved,
        "copy": rounded(asdict(report.copy)),
        "copy_gigabytes_per_second": rounded(report.copy_gigabytes_per_second),
        "native": None if native is None else native[0],
        "checked": setting.said() if plan.error else None,
        "rows": [*rows, *problems],
    }


def line(result: dict[str, Any]) -> str:
    """The case on one line: the copy, and each system's share of it."""
    if "problem" in result:
        return f"{result['name']:<36} {result['problem']}"
    shown = [f"copy {result['copy_gigabytes_per_second']:.0f} GB/s"]
    for row in result["rows"]:
        if row.get("timing") is None:
            shown.append(f"{row['name']} fails")
            continue
        milliseconds, percent = row["timing"]["milliseconds"], row["percent_of_copy"]
        shown.append(f"{row['name']} {milliseconds:.4g} ms {percent:.0f} %")
    return f"{result['name']:<36} {'  '.join(shown)}"


def rounded(value: Any) -> Any:
    """Numbers to five significant digits, in whatever holds them."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _known(row: dict[str, Any]) -> dict[str, Any]:
    """The row without what was not measured; a row without ``timing`` has a ``problem``."""
    return {key: rounded(value) for key, value in row.items() if value is not None}


def _forget(device: str) -> None:
    """Give the memory of a case back before the next."""
    import torch

    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
