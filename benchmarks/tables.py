"""Result files as Markdown: a table per file, and the summary of a machine. Nothing is left out.

Cells in which fusec is behind stay, and are marked. The same file gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusec.cli.bench import significant
from fusec.cli.suites import ways
from fusec.cli.suites.declared import FEW_ROWS
from fusec.cli.suites.systems import COMPILED

BEHIND = "▽"
FUSEC = ("fusec", "fusec-out", "bind", "bind-out", "graph")  # what is not a competitor
# The systems in the order of the columns, and what stands above them.
SYSTEMS = {
    "eager": "eager",
    "torch": "PyTorch's own",
    "compile": "torch.compile",
    "max-autotune": "max-autotune",
    "triton": "Triton by hand",
    "liger": "Liger",
    "quack": "QuACK",
    "numexpr": "numexpr",
    "jax": "JAX",
    "graph": "CUDA graph",
    "fusec": "fusec",
    "fusec-out": "fusec out=",
    "bind": "fusec bind",
    "bind-out": "fusec bind out",
}
_BY_NAME = {
    "eager": "eager",
    "torch.compile": "compile",
    "fusec": "fusec",
    "fusec out=": "fusec-out",
}
_MOST_LOSING = 12  # cells that a summary names

Case = Mapping[str, Any]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Quantity:
    """What a table compares: smaller is better."""

    value: Callable[[Row], float | None]
    show: Callable[[float, Row], str]
    says: str
    title: str = ""  # beside the suite's name, where it has several


def _milliseconds(row: Row) -> float | None:
    return row["timing"]["milliseconds"] if row.get("timing") else None


def _first(row: Row) -> float | None:
    return row.get("first_call_seconds")


def _warm(row: Row) -> float | None:
    return row.get("warm_call_seconds")


DEVICE = Quantity(
    _milliseconds,
    lambda value, row: f"{significant(value)} ms ({row['percent_of_copy']:.0f} %)",
    "Median of one run, in which all take turns; in brackets the share of what a copy of as many"
    " bytes reaches there",
)
BACKWARD = Quantity(
    lambda row: row["backward"]["timing"]["milliseconds"] if row.get("backward") else None,
    lambda value, row: f"{significant(value)} ms ({row['backward']['percent_of_copy']:.0f} %)",
    "Backward alone, from what one forward call has kept; in brackets the share of what a copy of"
    " the bytes that backward has to move reaches there",
    title="backward",
)
BOTH = Quantity(
    _milliseconds,
    DEVICE.show,
    "Forward and backward together; in brackets the share of what a copy of the bytes that both"
    " have to move reaches there",
    title="forward and backward",
)
PEAK = Quantity(
    lambda row: row.get("peak_bytes"),
    lambda value, row: f"{value / 2**20:.0f} MiB",
    "Memory at the height of forward and backward beyond the inputs and the gradient of the result",
    title="peak memory",
)
HOST = Quantity(
    lambda row: row.get("host_microseconds"),
    lambda value, row: f"{value:.1f} µs",
    "Median time of the caller",
)
FIRST = Quantity(
    _first,
    lambda value, row: f"{value:.2f} s",
    "First call with empty caches, in a fresh process with torch imported",
)
WARM = Quantity(
    _warm,
    lambda value, row: f"{value:.3f} s",
    "First call of a new process with a warm cache, torch imported",
    title="warm cache",
)
STEP = Quantity(
    _milliseconds,
    lambda value, row: f"{significant(value)} ms",
    "Wall-clock time of a step, forward and backward, of ten in a row; median of turns",
    title="a step",
)
FIRST_STEP = Quantity(
    _first,
    lambda value, row: f"{value:.2f} s",
    "First step of a process with empty caches, torch imported",
    title="first step of a process",
)
NEXT_STEP = Quantity(
    lambda row: row.get("next_call_seconds"),
    lambda value, row: f"{value:.2f} s",
    "First step of a second model in a process; the first was deeper, and half as wide",
    title="first step of a second model",
)
STEP_PEAK = replace(PEAK, says="Memory at the height of a step beyond what the model takes")
_OF_SUITE = {
    "models": (STEP, FIRST_STEP, NEXT_STEP, STEP_PEAK),
    "host": (HOST,),
    "cold": (FIRST, WARM),
    "gradients": (BACKWARD, BOTH, PEAK),
}


def quantities(content: Mapping[str, Any]) -> tuple[Quantity, ...]:
    """What the cases of a file compare, a table each."""
    return _OF_SUITE.get(content.get("suite", ""), (DEVICE,))


def table(content: Mapping[str, Any]) -> str:
    """The tables of one result file, and under them how they were made."""
    if content.get("suite") == "five-ways":
        parts = [*(_ways_table(case) for case in content["cases"] if case["rows"]), ways.NOTE]
    else:
        parts = [_one_table(content, quantity) for quantity in quantities(content)]
    return "\n\n".join((*parts, *_made(content))) + "\n"


def _ways_table(case: Case) -> str:
    """The ways of one case; its name stands over the first column."""
    head = (label(case), *ways.HEAD[1:])
    lines = [_line(head), _line(["---", *("---:" for _ in head[1:])])]
    return "\n".join((*lines, *(_line(cells) for cells in ways.table_rows(case))))


def _one_table(content: Mapping[str, Any], quantity: Quantity) -> str:
    cases = ordered(content)
    present = [s for s in SYSTEMS if any(system_row(case, s) is not None for case in cases)]
    head = ["", *(SYSTEMS[system] for system in present), "fusec against the best other"]
    lines = [_line(head), _line(["---", *("---:" for _ in head[1:])])]
    lines += [_line(_cells(case, present, quantity)) for case in cases]
    note = f"{quantity.says}; {BEHIND} marks a row in which fusec is behind."
    if "fusec-out" in present:
        note += (
            " The copy and `fusec out=` write into memory that exists; all others return fresh"
            " memory, which a CPU has to map page by page."
        )
    return "\n".join((*lines, "", note))


def ordered(content: Mapping[str, Any]) -> list[Case]:
    """The cases as a reader looks for them: by operation, type and shape; others as measured."""
    cases = list(content["cases"])
    if content.get("suite", "pipeline") in ("pipeline", "gradients", "host", "cold", "models"):
        return cases
    operations = list(dict.fromkeys(case["op"] for case in cases))

    def place(case: Case) -> tuple[object, ...]:
        *rest, columns = case["shape"]
        rows = math.prod(rest)
        few = FEW_ROWS.index(rows) + 1 if rows in FEW_ROWS and len(rest) == 1 else 0
        return (operations.index(case["op"]), case["dtype"], few, math.prod(case["shape"]), columns)

    return sorted(cases, key=place)


def label(case: Case) -> str:
    """``softmax, bf16, 32768 x 4096``."""
    name = f"{case['op'].replace('_', ' ')}, {case['dtype']}" if "op" in case else case["name"]
    return f"{name}, {shape_text(case)}"


def shape_text(case: Case) -> str:
    """The shape of the first input: `x=16384x16384:float32` is 16384 x 16384."""
    shape = case["inputs"][0].partition("=")[2].partition(":")[0]
    return str(shape).replace("x", " x ")


def system_row(case: Case, system: str) -> Row | None:
    """The row of a system, also of a file whose rows have names only."""
    rows: Sequence[Row] = case["rows"]
    named = ((row.get("system") or _BY_NAME.get(row["name"], "torch"), row) for row in rows)
    return next((row for found, row in named if found == system), None)


def values(case: Case, quantity: Quantity) -> dict[str, float]:
    """What each system reached that gave the right result."""
    found = {}
    for system in SYSTEMS:
        row = system_row(case, system)
        value = None if row is None or row.get("problem") else quantity.value(row)
        if value is not None:
            found[system] = value
    return found


def ratio(reached: Mapping[str, float]) -> float | None:
    """How many times as fast fusec is as the best of the others; None without one of the two."""
    others = [value for system, value in reached.items() if system not in FUSEC]
    return min(others) / reached["fusec"] if others and "fusec" in reached else None


def is_behind(factor: float) -> bool:
    """Whether the factor, as it is printed, is below 1."""
    return float(f"{factor:.2f}") < 1


def _cells(case: Case, present: Sequence[str], quantity: Quantity) -> list[str]:
    reached = values(case, quantity)
    known = [value for system, value in reached.items() if system != "fusec-out"]
    best = min(known, default=None)
    cells = [label(case)]
    for system in present:
        row = system_row(case, system)
        if row is None or system not in reached:
            cells.append("-" if row is None else _failure(row, quantity))
            continue
        text = quantity.show(reached[system], row)
        cells.append(f"**{text}**" if reached[system] == best else text)
    factor = ratio(reached)
    if factor is None:
        return [*cells, "-"]
    return [*cells, f"{factor:.2f}x {BEHIND}" if is_behind(factor) else f"{factor:.2f}x"]


def _failure(row: Row, quantity: Quantity) -> str:
    if not row.get("problem"):
        return "-" if row.get("timing") else "fails"
    return "fails" if quantity.value(row) is None else "wrong"


def _made(content: Mapping[str, Any]) -> list[str]:
    """First calls, where and how a file was measured."""
    notes = [
        f"{case['name']}: {case['problem']}." for case in content["cases"] if "problem" in case
    ]
    starts = [start for case in content["cases"] if (start := _start(case))]
    if starts and "import_seconds" in content:
        imports = f"{content['import_seconds'] * 1e3:.0f} ms"
        notes.append(f"First call of {starts[0]}; `import fusec` {imports}.")
    return [*notes, f"{made_at(content)}; {_commands(content)}."]


def made_at(content: Mapping[str, Any]) -> str:
    """Machine, versions and day."""
    versions = content["versions"]
    used = [f"{name} {versions[name]}" for name in ("fusec", "torch", "triton") if versions[name]]
    return f"{content['device_name']}; {', '.join(used)}; {content['date'][:10]}"


def _commands(content: Mapping[str, Any]) -> str:
    commands = [content["command"], *content.get("more_commands", ())]
    return ", ".join(f"`{command}`" for command in commands)


def _start(case: Case) -> str:
    """First calls of the contenders that compile."""
    parts = []
    for system in ("fusec", "compile"):
        row = system_row(case, system)
        if row is not None and row.get("first_call_seconds") is not None:
            cold, warm = row["first_call_seconds"], row["warm_call_seconds"]
            parts.append(f"{SYSTEMS[system]} {cold:.2f} s ({warm:.3f} s with a warm cache)")
    name = label(case).rpartition(", ")[0]
    return f"{name}: {', '.join(parts)}" if parts else ""


# -- the summary of a machine ---------------------------------------------------------------------


def summary(contents: Sequence[Mapping[str, Any]], brief: bool = False) -> str:
    """Per suite and system the geometric mean of fusec's factors and the worst cell of them all;
    ``brief``: for torch.compile and the best other only.
    """
    lines = [
        _line(["suite", "against", "cells", "geometric mean", "worst cell", "behind in"]),
        _line(["---", "---", "---:", "---:", "---", "---:"]),
    ]
    losing: list[tuple[float, str]] = []
    compared = 0
    for content in contents:
        for quantity in quantities(content):
            title = ", ".join(filter(None, (content["suite"], quantity.title)))
            found = _summaries(content, quantity)
            shown = (
                [c for c in found if c[0].startswith(("torch.compile", "**"))] if brief else found
            )
            lines += [_line([title, *cells]) for cells in shown]
            factors = _factors(content, quantity, title)
            compared += len(factors)
            losing += [(factor, text) for factor, text in factors if is_behind(factor)]
    notes = ["Factors are the other's time over fusec's; below 1 fusec is behind."]
    notes += [_losing_text(losing, compared)]
    made = dict.fromkeys(made_at(content) for content in contents)
    return "\n".join((*lines, "", *notes, "", *(f"{text}." for text in made))) + "\n"


def _summaries(content: Mapping[str, Any], quantity: Quantity) -> list[list[str]]:
    """A line for each system, and one for the best other in each cell."""
    reached = [(case, values(case, quantity)) for case in content["cases"]]
    rivals = {name: (system,) for system, name in SYSTEMS.items() if system not in FUSEC}
    if any(all(mode in found for mode in COMPILED) for _, found in reached):
        for mode in COMPILED:  # in its own line each, both would only be longer
            rivals.pop(SYSTEMS[mode])
        rivals["torch.compile, its better mode"] = tuple(COMPILED)
    lines = []
    for name, systems in rivals.items():
        pairs = [
            (min(found[s] for s in systems if s in found) / found["fusec"], case)
            for case, found in reached
            if any(s in found for s in systems) and "fusec" in found
        ]
        if pairs:
            lines.append([name, *_described(pairs)])
    best = [(factor, case) for case, found in reached if (factor := ratio(found)) is not None]
    return [*lines, ["**the best other**", *_described(best)]] if best else lines


def _described(pairs: Sequence[tuple[float, Case]]) -> list[str]:
    mean = math.exp(sum(math.log(factor) for factor, _ in pairs) / len(pairs))
    worst, case = min(pairs, key=lambda pair: (pair[0], pair[1]["name"]))
    behind = sum(is_behind(factor) for factor, _ in pairs)
    mark = f" {BEHIND}" if is_behind(worst) else ""
    return [str(len(pairs)), f"{mean:.2f}x", f"{worst:.2f}x{mark} {label(case)}", str(behind)]


def _factors(content: Mapping[str, Any], quantity: Quantity, title: str) -> list[tuple[float, str]]:
    """Every cell in which fusec and another were measured, and its words."""
    found = []
    for case in content["cases"]:
        factor = ratio(values(case, quantity))
        if factor is not None:
            found.append((factor, f"{title}: {label(case)} {factor:.2f}x"))
    return found


def _losing_text(losing: Sequence[tuple[float, str]], compared: int) -> str:
    if not losing:
        return f"fusec is behind in none of {compared} cells."
    worst = [text for _, text in sorted(losing)[:_MOST_LOSING]]
    more = len(losing) - len(worst)
    rest = f"; and {more} more, marked in the full tables" if more else ""
    return f"Behind the best other in {len(losing)} of {compared} cells: {'; '.join(worst)}{rest}."


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
