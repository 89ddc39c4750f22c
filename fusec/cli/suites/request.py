"""What was asked of ``fusec bench --suite``. May import ``selection.py`` of this package only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fusec.cli.suites.selection import Selection

SUITE_SECONDS = 0.2  # of timed calls of one case


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line. ``budget`` is in seconds; 0 is none."""

    suites: tuple[str, ...]
    selection: Selection
    systems: tuple[str, ...] = ()
    device: str = "cpu"
    seconds: float | None = None
    error: bool = True
    budget: float = 0.0
    output: Path | None = None
    resume: bool = False
    merge: bool = False
    overwrite: bool = False
    first_calls: bool = True
    gpus: int = 1
    precompile: int = 0  # processes; 0 is none
    commit: str | None = None
