"""Source texts and spans: where a piece of a formula stands.

Positions are character offsets (code points) from the start of the text; a line ends at ``\\n``,
``\\r\\n`` or a lone ``\\r``. Imports the standard library only.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

_LINE_BREAK = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """The half-open range of character offsets ``[start, end)``; empty when both are equal."""

    start: int
    end: int

    def join(self, other: Span) -> Span:
        """The smallest span that covers both."""
        return Span(min(self.start, other.start), max(self.end, other.end))

    def __len__(self) -> int:
        return self.end - self.start

    def __bool__(self) -> bool:
        return True  # an empty span is still a place


@dataclass(frozen=True)
class Source:
    """A text and the name errors show for it (a file name, or ``<formula>``)."""

    text: str
    name: str = "<formula>"

    @cached_property
    def _line_starts(self) -> tuple[int, ...]:
        return (0, *(match.end() for match in _LINE_BREAK.finditer(self.text)))

    @property
    def line_count(self) -> int:
        """How many lines the text has; an empty text has one."""
        return len(self._line_starts)

    def location(self, offset: int) -> tuple[int, int]:
        """Line and column of a character offset, both counted from 1.

        Offsets outside are clamped.
        """
        offset = max(0, min(offset, len(self.text)))
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def line_span(self, line: int) -> Span:
        """Span of a line (counted from 1) without its line break.

        IndexError when there is no such line.
        """
        if not 1 <= line <= self.line_count:
            raise IndexError(f"line {line} of {self.line_count}")
        start = self._line_starts[line - 1]
        end = self._line_starts[line] if line < self.line_count else len(self.text)
        return Span(start, start + len(self.text[start:end].rstrip("\r\n")))

    def line(self, line: int) -> str:
        """Text of a line (counted from 1) without its line break."""
        return self.excerpt(self.line_span(line))

    def excerpt(self, span: Span) -> str:
        """The text under a span."""
        return self.text[span.start : span.end]
