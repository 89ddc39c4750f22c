"""The passes between a resolved graph and the plan, in order, and what watches them.

``FUSEC_DEBUG`` of 3 and more prints the graph after each pass that changed it; ``FUSEC_DUMP`` names
a directory that receives a numbered file per pass. May import ``fusec.settings``, ``fusec.errors``,
``fusec.ir`` and the other passes.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fusec import settings
from fusec.ir.graph import Graph
from fusec.ir.verify import verify as verify_graph
from fusec.passes.idioms import idioms
from fusec.passes.simplify import Numerics, simplify

Observer: TypeAlias = Callable[[str, Graph, float], None]
_DEBUG_LEVEL = 3


@dataclass(frozen=True, slots=True)
class Pass:
    """One step: its name in dumps, what it does in a few words, and the function."""

    name: str
    summary: str
    function: Callable[[Graph, Numerics], Graph]


PASSES: tuple[Pass, ...] = (
    Pass("simplify", "fold constants and apply the rules the numerics mode allows", simplify),
    Pass("idioms", "recognise means", idioms),
)


def run(
    graph: Graph,
    numerics: Numerics = "torch",
    *,
    verify: bool = False,
    observe: Observer | None = None,
) -> Graph:
    """``graph`` after every pass.

    ``verify`` checks the graph before the first pass and after each one (InternalError names what
    is wrong). ``observe`` gets the name of each pass, the graph it made and the seconds it took.
    """
    current = settings.get()
    directory = dump_directory(graph)
    if verify:
        verify_graph(graph)
    if directory is not None:
        _dump(directory, "00-resolved.ir", graph)
    for number, step in enumerate(PASSES, 1):
        before, started = graph, time.perf_counter()
        graph = step.function(graph, numerics)
        seconds = time.perf_counter() - started
        if verify:
            verify_graph(graph)
        if observe is not None:
            observe(step.name, graph, seconds)
        if directory is not None:
            _dump(directory, f"{number:02}-{step.name}.ir", graph)
        if current.debug >= _DEBUG_LEVEL and before.outputs != graph.outputs:
            from fusec.ir.text import print_graph

            sys.stderr.write(f"after {step.name} ({seconds * 1e3:.1f} ms):\n{print_graph(graph)}\n")
    return graph


def dump_directory(graph: Graph) -> Path | None:
    """Where the stages of ``graph`` are written, one directory per program; None where nobody asked
    for them.
    """
    root = settings.get().dump
    if root is None:
        return None
    from fusec.ir.text import print_graph

    return root / hashlib.sha256(print_graph(graph).encode()).hexdigest()[:12]


def _dump(directory: Path, name: str, graph: Graph) -> None:
    from fusec.ir.text import print_graph

    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(print_graph(graph), encoding="utf-8")
