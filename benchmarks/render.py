"""Renders result files into the tables of the README and the docs, and into plots.

    python -m benchmarks.render [--check] [FILE ...]

What stands between marks is made anew from benchmarks/results:

- `<!-- table:NAME -->` ... `<!-- /table -->`: the table of NAME.json.
- `<!-- summary:MACHINE -->` ... `<!-- /summary -->`: means and worst cells of MACHINE's suites;
  `brief` in its place: against torch.compile and the best other only.
- `<!-- suites:MACHINE -->` ... `<!-- /suites -->`: the full tables of those suites, with plots.

Cells in which fusec is behind stay, and are marked. `--check` changes nothing and exits with 1 when
a table is not what its result file says; it does not look at plots, whose bytes depend on
matplotlib.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.plots import draw
from benchmarks.tables import summary, table
from fusec.cli.suites.declared import SUITES

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
PLOTS = ROOT / "docs" / "plots"
_MARKED = re.compile(
    r"(?P<open><!-- (?P<kind>table|summary|brief|suites):(?P<name>[\w.-]+) -->\n)"
    r"(?P<body>.*?)(?P<close><!-- /(?P=kind) -->)",
    re.DOTALL,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite (or check) the files and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.render", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing, exit 1 on a difference"
    )
    pages = [ROOT / "README.md", ROOT / "docs" / "benchmarks.md"]
    parser.add_argument("files", nargs="*", type=Path, default=pages)
    options = parser.parse_args(arguments)
    stale = 0
    if not options.check and any(path.resolve().is_relative_to(ROOT) for path in options.files):
        draw_all()
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
    """`text` with every marked part made anew; FileNotFoundError for a table without results."""

    def replace(match: re.Match[str]) -> str:
        kinds = {"table": _table, "summary": _summary, "brief": _brief, "suites": _suites}
        return f"{match['open']}{kinds[match['kind']](match['name'], results)}{match['close']}"

    return _MARKED.sub(replace, text)


def draw_all(results: Path = RESULTS, plots: Path = PLOTS) -> list[Path]:
    """The plots of every result file; their paths."""
    return [
        plot
        for path in sorted(results.glob("*.json"))
        for plot in draw(_read(path), plots, path.stem)
    ]


def suites_of(machine: str, results: Path) -> dict[str, Mapping[str, Any]]:
    """The result files of a machine by suite, in the order in which suites are declared."""
    paths = {suite: results / f"{machine}-{suite}.json" for suite in SUITES if suite != "pipeline"}
    return {suite: _read(path) for suite, path in paths.items() if path.exists()}


def _table(name: str, results: Path) -> str:
    return table(_read(results / f"{name}.json"))


def _brief(machine: str, results: Path) -> str:
    return _summary(machine, results, brief=True)


def _summary(machine: str, results: Path, brief: bool = False) -> str:
    found = suites_of(machine, results)
    found.pop("five-ways", None)  # compares ways to write a formula, not systems with fusec
    return summary(list(found.values()), brief) if found else ""


def _suites(machine: str, results: Path) -> str:
    """The full tables, folded: some have a thousand rows."""
    parts = []
    for suite, content in suites_of(machine, results).items():
        doc = f"{suite}: {SUITES[suite].doc}"
        dtypes = dict.fromkeys(case["dtype"] for case in content["cases"])
        plots = dtypes if suite in ("pointwise", "rows") else ()
        pictures = [f"![{doc}, {dtype}](plots/{machine}-{suite}-{dtype}.svg)" for dtype in plots]
        folded = f"<details><summary>{doc}, {len(content['cases'])} cases</summary>"
        parts.append("\n\n".join((*pictures, folded, f"{table(content)}\n</details>\n")))
    return "\n".join(parts)


def _read(path: Path) -> Mapping[str, Any]:
    content: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


if __name__ == "__main__":
    sys.exit(main())
