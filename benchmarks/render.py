"""Renders result files into the tables of the README.

    python -m benchmarks.render [--check] [FILE ...]

Between `<!-- table:NAME -->` and `<!-- /table -->` stands the table of
benchmarks/results/NAME.json. Cells in which fusec is behind stay, and are marked. `--check` changes
nothing and exits with 1 when a table is not what its result file says.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusec.cli.bench import significant

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
BEHIND = "▽"
_MARKED = re.compile(
    r"(?P<open><!-- table:(?P<name>[\w.-]+) -->\n)(?P<body>.*?)(?P<close><!-- /table -->)",
    re.DOTALL,
)
_COLUMNS = ("eager", "PyTorch's own", "torch.compile", "fusec", "fusec out=")
_FUSEC = ("fusec", "fusec out=")

Row = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite (or check) the files and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.render", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing, exit 1 on a difference"
    )
    parser.add_argument("files", nargs="*", type=Path, default=[ROOT / "README.md"])
    options = parser.parse_args(arguments)
    stale = 0
    for path in options.files:
        text = path.read_text(encoding="utf-8")
        rendered = render(text)
        if rendered == text:
            continue
        stale += 1
        if options.check:
            print(f"{path}: tables differ from benchmarks/results; run python -m benchmarks.render")
        else:
            path.write_text(rendered, encoding="utf-8")
    return 1 if stale and options.check else 0


def render(text: str, results: Path = RESULTS) -> str:
    """`text` with every marked table made anew; FileNotFoundError for a table without results."""

    def replace(match: re.Match[str]) -> str:
        content = json.loads((results / f"{match['name']}.json").read_text(encoding="utf-8"))
        return f"{match['open']}{table(content)}{match['close']}"

    return _MARKED.sub(replace, text)


def table(content: Mapping[str, Any]) -> str:
    """The Markdown table of one result file, and under it how it was made."""
    cases = content["cases"]
    present = [c for c in _COLUMNS if any(_find(case, c) is not None for case in cases)]
    head = ["", *present, "fusec against the best other"]
    lines = [_line(head), _line(["---", *("---:" for _ in head[1:])])]
    lines += [_line(_cells(case, present)) for case in cases]
    return "\n".join((*lines, "", *_notes(content, present))) + "\n"


def _cells(case: Mapping[str, Any], present: Sequence[str]) -> list[str]:
    rows = {column: _find(case, column) for column in present}
    times = {c: _milliseconds(row) for c, row in rows.items() if row is not None}
    known = [time for c, time in times.items() if time is not None and c != "fusec out="]
    best = min(known, default=None)
    cells = [f"{case['name']}, {_shape(case)}"]
    for column in present:
        row, time = rows[column], times.get(column)
        if row is None or time is None:
            cells.append("-" if row is None else "fails")
            continue
        text = f"{significant(time)} ms ({row['percent_of_copy']:.0f} %)"
        cells.append(f"**{text}**" if time == best else text)
    return [*cells, _against(times)]


def _against(times: Mapping[str, float | None]) -> str:
    """How many times as fast as the best of the others, marked where that is less than one."""
    fusec = times.get("fusec")
    others = [t for column, t in times.items() if t is not None and column not in _FUSEC]
    if fusec is None or not others:
        return "-"
    ratio = min(others) / fusec
    shown = f"{ratio:.2f}x"
    return f"{shown} {BEHIND}" if float(f"{ratio:.2f}") < 1 else shown


def _notes(content: Mapping[str, Any], present: Sequence[str]) -> list[str]:
    """The paragraphs under a table: how to read it, first calls, where and how it was measured."""
    cases, versions = content["cases"], content["versions"]
    notes = [
        "Median of one run, in which all take turns; in brackets the share of what a copy of as"
        f" many bytes reaches there; {BEHIND} marks a row in which fusec is behind."
    ]
    if "fusec out=" in present:
        notes[0] += (
            " The copy and `fusec out=` write into memory that exists; all others return fresh"
            " memory, which a CPU has to map page by page."
        )
    starts = [start for case in cases if (start := _start(case, present))]
    if starts:
        notes.append(f"First call of {starts[0]}; `import fusec` {_import(content)}.")
    used = [f"{name} {versions[name]}" for name in ("fusec", "torch", "triton") if versions[name]]
    facts = [content["device_name"], ", ".join(used), content["date"][:10]]
    notes.append(f"{'; '.join(facts)}; `{content['command']}`.")
    return ["\n\n".join(notes)]


def _start(case: Mapping[str, Any], present: Sequence[str]) -> str:
    """First calls of the contenders that compile."""
    parts = []
    for column in ("fusec", "torch.compile"):
        row = _find(case, column) if column in present else None
        if row is not None and row["first_call_seconds"] is not None:
            cold, warm = row["first_call_seconds"], row["warm_call_seconds"]
            parts.append(f"{column} {cold:.2f} s ({warm:.3f} s with a warm cache)")
    return f"{case['name']}: {', '.join(parts)}" if parts else ""


def _import(content: Mapping[str, Any]) -> str:
    return f"{content['import_seconds'] * 1e3:.0f} ms"


def _find(case: Mapping[str, Any], column: str) -> Row | None:
    """The row of a column; PyTorch's own function is called `torch NAME` in results."""
    native = f"torch {case['native']}" if case.get("native") else None
    wanted = native if column == "PyTorch's own" else column
    return next((row for row in case["rows"] if row["name"] == wanted), None)


def _milliseconds(row: Row) -> float | None:
    return None if row["timing"] is None else float(row["timing"]["milliseconds"])


def _shape(case: Mapping[str, Any]) -> str:
    """The shape of the first input: `x=16384x16384:float32` is 16384 x 16384."""
    shape = case["inputs"][0].partition("=")[2].partition(":")[0]
    return str(shape).replace("x", " x ")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
