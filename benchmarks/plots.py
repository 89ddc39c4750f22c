"""Plots of result files: percent of the copy against length, a panel an operation, a line a system.

The same file gives the same bytes with the same version of matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tables import DEVICE, SYSTEMS, system_row, values
from fusec.cli.suites.declared import FEW_ROWS

_COLOURS = {
    "eager": "#9e9e9e",
    "torch": "#ee4c2c",
    "compile": "#7b1fa2",
    "max-autotune": "#c48ad6",
    "triton": "#2e7d32",
    "liger": "#f9a825",
    "quack": "#00897b",
    "numexpr": "#8d6e63",
    "jax": "#3949ab",
    "fusec": "#0d47a1",
}
_COLUMNS = 4  # panels beside each other
_SETTINGS = {"svg.hashsalt": "fusec", "svg.fonttype": "none", "font.size": 8}


def draw(content: Mapping[str, Any], folder: Path, name: str) -> list[Path]:
    """One SVG for each type in a file of the suites ``pointwise`` and ``rows``; their paths."""
    if content.get("suite") not in ("pointwise", "rows"):
        return []
    paths = []
    for dtype in dict.fromkeys(case["dtype"] for case in content["cases"]):
        cases = [case for case in content["cases"] if case["dtype"] == dtype and _is_shown(case)]
        if cases:
            paths.append(folder / f"{name}-{dtype}.svg")
            _figure(cases, f"{content['device_name']}, {dtype}", paths[-1])
    return paths


def _is_shown(case: Mapping[str, Any]) -> bool:
    """Rows in tensors that fill the machine; every size of an elementwise operation."""
    return case["suite"] == "pointwise" or math.prod(case["shape"][:-1]) not in FEW_ROWS


def _figure(cases: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    operations = list(dict.fromkeys(case["op"] for case in cases))
    lines = math.ceil(len(operations) / _COLUMNS)
    with mpl.rc_context(_SETTINGS):
        figure, axes = pyplot.subplots(
            lines, _COLUMNS, figsize=(3.2 * _COLUMNS, 2.2 * lines + 0.6), squeeze=False, sharey=True
        )
        for panel in axes.flat[len(operations) :]:
            panel.set_visible(False)
        for panel, operation in zip(axes.flat, operations, strict=False):
            _panel(panel, operation, [case for case in cases if case["op"] == operation])
        handles = {h.get_label(): h for a in axes.flat for h in a.get_legend_handles_labels()[0]}
        by_rank = [handles[label] for label in SYSTEMS.values() if label in handles]
        figure.legend(handles=by_rank, loc="lower center", ncols=len(by_rank), frameon=False)
        figure.suptitle(f"percent of a copy of the same bytes; {title}")
        figure.tight_layout(rect=(0, 0.05, 1, 1))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})
        pyplot.close(figure)


def _panel(panel: Any, operation: str, cases: Sequence[Mapping[str, Any]]) -> None:
    by_rows = cases[0]["suite"] == "rows"
    for system, colour in _COLOURS.items():
        points = sorted(
            (case["shape"][-1] if by_rows else math.prod(case["shape"]), row["percent_of_copy"])
            for case in cases
            if system in values(case, DEVICE) and (row := system_row(case, system)) is not None
        )
        if points:
            width = 2.0 if system == "fusec" else 1.0
            panel.plot(*zip(*points, strict=True), marker=".", color=colour, linewidth=width,
                       label=SYSTEMS[system])  # fmt: skip
    panel.set_title(operation.replace("_", " "))
    panel.set_xscale("log", base=2)
    panel.set_ylim(0, 110)
    panel.set_xlabel("columns" if by_rows else "elements")
    panel.grid(alpha=0.3)
