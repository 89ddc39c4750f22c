"""What the commands print with: plain bytes in a pipe, colours on a terminal that wants them.

May import rich, inside functions.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_LANGUAGES = {
    "formula": "python",
    "graph": "python",
    "plan": "python",
    "kernel": "python",
    "triton": "python",
    "cpp": "cpp",
    "cuda": "cuda",
    "ttir": "llvm",
    "ttgir": "llvm",
    "llir": "llvm",
    "ptx": "ptx",
    "sass": "gas",
    "amdgcn": "amdgpu",
}


def console(*, stderr: bool = False) -> Console:
    """A rich console on stdout or stderr; it knows terminals, pipes, NO_COLOR and FORCE_COLOR."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def write_code(text: str, stage: str) -> None:
    """Print a stage: in colours on a terminal that has them, else exactly ``text``."""
    ending = "" if text.endswith("\n") else "\n"
    if not _has_colours():
        sys.stdout.write(text + ending)
        return
    from rich.syntax import Syntax

    syntax = Syntax("", _LANGUAGES.get(stage, "text"), theme="ansi_dark")
    highlighted = syntax.highlight(text + ending)
    # soft_wrap: the terminal breaks long lines, so that copying gives them back whole.
    console().print(highlighted, end="", soft_wrap=True)


def _has_colours() -> bool:
    screen = console()
    return screen.is_terminal and screen.color_system is not None and not screen.no_color
