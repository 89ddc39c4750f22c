"""Lines with indentation: the one way source text is put together.

May import the standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

WIDTH = 100


class Writer:
    """Collects lines; ``block`` indents what is written inside it."""

    def __init__(self, indent: str = "    ") -> None:
        self._lines: list[str] = []
        self._unit = indent
        self._depth = 0

    def line(self, text: str = "") -> None:
        """Add one line at the present depth; an empty one carries no spaces."""
        self._lines.append(self._unit * self._depth + text if text else "")

    def assign(self, target: str, value: str) -> None:
        """``target = value``, with the value on a line of its own where one line is too short."""
        if self.width + len(target) + len(value) + 3 <= WIDTH:
            self.line(f"{target} = {value}")
            return
        self.line(f"{target} =")
        self.line(self._unit * 2 + value)

    def gap(self) -> None:
        """An empty line, but none where a block has just begun."""
        if not (self._lines and self._lines[-1].endswith("{")):
            self.line()

    @property
    def width(self) -> int:
        """Characters the present indentation takes."""
        return len(self._unit) * self._depth

    @contextmanager
    def block(self, opening: str, closing: str | None = None) -> Iterator[None]:
        """Write ``opening``, indent, and afterwards write ``closing`` if there is one."""
        if opening:
            self.line(opening)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        if closing is not None:
            self.line(closing)

    def text(self) -> str:
        """All lines, with a newline at the end."""
        return "\n".join(self._lines) + "\n"
