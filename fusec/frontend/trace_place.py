"""Where a traced operation stands in the user's Python files.

May import ``fusec.source``, ``fusec.errors``, ``fusec.ir`` and, of the frontend,
``resolve_place``.
"""

from __future__ import annotations

import inspect
import linecache
import os
import sys
import textwrap
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from fusec.errors import FusecError, UnsupportedError
from fusec.frontend.resolve_place import Place
from fusec.ir.node import Extent, Node
from fusec.source import Source, Span


@dataclass(frozen=True)
class Where:
    """A piece of a Python file."""

    source: Source
    span: Span

    def error(
        self, kind: type[FusecError], message: str, hint: str | None = None, **details: Any
    ) -> FusecError:
        """An error that shows this place."""
        return kind(message, source=self.source, span=self.span, hint=hint, **details)


class TracePlace(Place):
    """The resolver's place, moved from one traced operation to the next.

    Nodes keep no spans: the operations of a function may stand in several files. Lengths are made
    equal before any node is, so two names that meet are a fault of ours.
    """

    def stand(self, where: Where) -> None:
        """Go to the next operation."""
        self.source = where.source

    def note(self, node: Node) -> Node:
        return node

    def unify(self, a: Extent, b: Extent) -> Extent | None:
        if a != 1 and b != 1 and a != b:
            raise UnsupportedError(
                f"the lengths {a} and {b} are equal in this call, and may be others in the next",
                hint="slice tensors before they are put together, or at the borders of parts",
            )
        return b if a == 1 else a


def text_of(function: Any) -> Source:
    """The text of a function as it stands in its file, or its name where there is none."""
    own = inspect.unwrap(function)
    name = getattr(getattr(own, "__code__", None), "co_filename", "<function>")
    try:
        return Source(textwrap.dedent(inspect.getsource(own)).strip(), name)
    except (OSError, TypeError):
        return Source(getattr(own, "__name__", "function"), name)


def where_of(frame: FrameType) -> Where:
    """The expression that ``frame`` is at, or its line where Python does not know columns."""
    source = source_of(frame.f_code.co_filename, frame.f_lineno)
    return Where(source, _span(frame, source))


def where_in(code: CodeType, line: int) -> Where:
    """A line of a function."""
    source = source_of(code.co_filename, line)
    return Where(source, _line(line, source))


def current() -> FrameType:
    """The innermost frame of the user's: neither PyTorch's nor fusec's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_back is not None and is_library(frame):
        frame = frame.f_back
    assert frame is not None
    return frame


def raised_at(error: BaseException) -> Where | None:
    """The user's line that an error came through last, or None if it came through none."""
    steps = []
    step = error.__traceback__
    while step is not None:
        steps.append((step.tb_frame, step.tb_lasti, step.tb_lineno))
        step = step.tb_next
    for frame, last, line in reversed(steps):
        if not is_library(frame):
            source = source_of(frame.f_code.co_filename, line)
            return Where(source, _span_at(frame, last, line, source))
    return None


@cache
def _roots() -> tuple[str, ...]:
    import torch

    folders = (Path(torch.__file__).parent, Path(__file__).parents[1])
    return tuple(f"{folder}{os.sep}" for folder in folders)


def is_library(frame: FrameType) -> bool:
    """Whether a frame is PyTorch's or fusec's."""
    return frame.f_code.co_filename.startswith(_roots())


_SOURCES: dict[str, Source] = {}


def source_of(filename: str, line: int = 1) -> Source:
    """The text of a file, as much as Python knows of it: at least the right number of lines."""
    found = _SOURCES.get(filename)
    text = "".join(linecache.getlines(filename)) or "\n" * (line - 1)
    if found is None or found.text != text:
        found = _SOURCES[filename] = Source(text, filename)
    return found


def _span(frame: FrameType, source: Source) -> Span:
    return _span_at(frame, frame.f_lasti, frame.f_lineno, source)


def _span_at(frame: FrameType, last: int, line: int, source: Source) -> Span:
    stripped = _line(line, source)
    if stripped == Span(0, 0):
        return stripped
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is None:  # Python 3.10
        return stripped
    first, end, start_byte, end_byte = next(islice(positions(), last // 2, None))
    if None in (first, end, start_byte, end_byte) or end > source.line_count:
        return stripped
    return Span(_offset(source, first, start_byte), _offset(source, end, end_byte))


def _line(line: int, source: Source) -> Span:
    """A line without what it is indented by; nothing where there is no such line."""
    if not 1 <= line <= source.line_count:
        return Span(0, 0)
    whole = source.line_span(line)
    text = source.excerpt(whole)
    return Span(whole.start + len(text) - len(text.lstrip()), whole.end)


def _offset(source: Source, line: int, byte: int) -> int:
    """The character that ``byte`` of a line is; Python counts columns in UTF-8."""
    span = source.line_span(line)
    return span.start + len(source.excerpt(span).encode()[:byte].decode(errors="ignore"))
