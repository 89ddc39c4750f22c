"""Every error that fusec raises, and the one renderer that shows where.

    FusecError
      ParseError         the text is not a formula
      UnknownNameError   a function or name that does not exist
      ShapeError         shapes that do not fit together
      DTypeError         element types that do not fit
      UnsupportedError   right, but this backend cannot do it: ``op``, ``backend``, ``reason``
      BuildError         a compiler refused generated source: ``tool_output``, ``source_path``
      InternalError      a bug in fusec itself

``str(error)`` is the whole rendering. Messages are one sentence in lower case without a trailing
period. May import ``fusec.source`` only.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fusec.source import Source, Span

_WINDOW = 100  # columns of a source line that are shown
_LEAD = 40  # columns kept before the caret when a line is cut
_TAB = "    "
_LINES_SHOWN = 4  # lines of a multi-line span that are shown whole
_OUTPUT_LINES = 40  # lines of a compiler's output that an error shows
_LONGEST_NAME = 64  # difflib is quadratic, and no known name is longer


@dataclass(frozen=True, slots=True)
class Note:
    """A second place, or a remark without one, that explains an error."""

    message: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """What an error says, as data. Spans of notes are in the same source."""

    message: str
    source: Source | None = None
    span: Span | None = None
    notes: tuple[Note, ...] = ()
    hint: str | None = None

    def render(self) -> str:
        """``name:line:col: error: message``, the lines with carets, the notes, the hint."""
        lines = _located("error", self.message, self.source, self.span)
        for note in self.notes:
            lines += _located("note", note.message, self.source, note.span)
        if self.hint is not None:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


class FusecError(Exception):
    """Base of all errors of fusec; ``diagnostic`` holds what it says and ``str()`` renders it."""

    def __init__(
        self,
        message: str,
        *,
        source: Source | None = None,
        span: Span | None = None,
        notes: Iterable[Note] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.diagnostic = Diagnostic(message, source, span, tuple(notes), hint)

    @property
    def message(self) -> str:
        """The sentence alone, without place, notes and hint."""
        return self.diagnostic.message

    def __str__(self) -> str:
        return self.diagnostic.render()

    def __reduce__(self) -> tuple[object, ...]:
        # The default would call the class with the message alone and lose the keyword-only parts.
        return _restore, (type(self), self.args, dict(self.__dict__))


class ParseError(FusecError):
    """The text is not a formula of the language."""


class UnknownNameError(FusecError):
    """A function, keyword or name that does not exist."""


class ShapeError(FusecError):
    """Shapes or axes that do not fit together."""


class DTypeError(FusecError):
    """Element types that do not fit an operation or each other."""


class UnsupportedError(FusecError):
    """A meaningful formula that a backend cannot compile."""

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        backend: str | None = None,
        reason: str | None = None,
        source: Source | None = None,
        span: Span | None = None,
        notes: Iterable[Note] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, source=source, span=span, notes=notes, hint=hint)
        self.op, self.backend, self.reason = op, backend, reason


class BuildError(FusecError):
    """A compiler refused generated source."""

    def __init__(
        self,
        message: str,
        *,
        tool_output: str = "",
        source_path: str | None = None,
        source: Source | None = None,
        span: Span | None = None,
        notes: Iterable[Note] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, source=source, span=span, notes=notes, hint=hint)
        self.tool_output, self.source_path = tool_output, source_path

    def __str__(self) -> str:
        lines = [super().__str__()]
        if self.source_path is not None:
            lines.append(f"generated source: {self.source_path}")
        output = self.tool_output.rstrip().splitlines()
        lines += output[:_OUTPUT_LINES]
        if len(output) > _OUTPUT_LINES:
            lines.append(f"... {len(output) - _OUTPUT_LINES} more lines in tool_output")
        return "\n".join(lines)


class InternalError(FusecError):
    """A bug in fusec, never the user's fault."""

    def __init__(
        self,
        message: str,
        *,
        source: Source | None = None,
        span: Span | None = None,
        notes: Iterable[Note] = (),
        hint: str | None = None,
    ) -> None:
        if hint is None:
            hint = "this is a bug in fusec: report it with the output of a run under FUSEC_DEBUG=4"
        super().__init__(message, source=source, span=span, notes=notes, hint=hint)


def did_you_mean(name: str, candidates: Iterable[str]) -> str | None:
    """``"did you mean 'tanh'?"`` for the closest candidate, ready to be a hint.

    None when none is close.
    """
    if len(name) > _LONGEST_NAME:
        return None
    by_folded = {candidate.casefold(): candidate for candidate in sorted(candidates)}
    close = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
    return f"did you mean '{by_folded[close[0]]}'?" if close else None


def _restore(
    cls: type[FusecError], args: tuple[object, ...], state: dict[str, object]
) -> FusecError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


def _located(kind: str, message: str, source: Source | None, span: Span | None) -> list[str]:
    if source is None:
        return [f"{kind}: {message}"]
    if span is None:
        return [f"{source.name}: {kind}: {message}"]
    line, column = source.location(span.start)
    return [f"{source.name}:{line}:{column}: {kind}: {message}", *_marked_lines(source, span)]


def _marked_lines(source: Source, span: Span) -> list[str]:
    """Each line under the span with its carets; the middle of a long span is left out."""
    first = source.location(span.start)[0]
    # The last character counts, not the end: a span that ends with its line must not reach the
    # next.
    last = source.location(max(span.start, span.end - 1))[0]
    numbers: Sequence[int | None] = range(first, last + 1)
    if len(numbers) > _LINES_SHOWN:
        numbers = [first, first + 1, None, last]
    gutter = len(str(last))
    shown: list[str] = []
    for number in numbers:
        if number is None:
            shown.append(f"{' ' * gutter} ...")
            continue
        text, carets = _marked_line(source, number, span)
        shown.append(f"{number:>{gutter}} | {text}".rstrip())
        shown.append(f"{' ' * gutter} | {carets}".rstrip())
    return shown


def _marked_line(source: Source, number: int, span: Span) -> tuple[str, str]:
    """One line, cut to the window around the marked part, and the carets under that part."""
    line = source.line_span(number)
    start = min(max(span.start, line.start), line.end)
    end = min(max(span.end, start), line.end)
    if start == line.start and span.start < line.start:  # continued from above: skip indentation
        text = source.excerpt(Span(start, end))
        start += len(text) - len(text.lstrip())
    # Nothing further off than the window can be shown, so a line of a megabyte costs no more than
    # this.
    near = Span(max(line.start, start - _WINDOW), min(line.end, start + _WINDOW))
    before = [_cell(character) for character in source.text[near.start : start]]
    marked = [_cell(character) for character in source.text[start : min(end, near.end)]]
    after = [_cell(character) for character in source.text[max(end, start) : near.end]]
    cut_left, cut_right = near.start > line.start, near.end < line.end
    if cut_left or cut_right or _width(before) + _width(marked) + _width(after) > _WINDOW:
        before, dropped = _keep_last(before, _LEAD if _width(before) > _LEAD else _WINDOW)
        cut_left = cut_left or dropped
        room = _WINDOW - _width(before) - (3 if cut_left else 0)
        marked, dropped_marked = _keep_first(marked, room - 3)
        after, dropped_after = _keep_first(after, room - 3 - _width(marked))
        cut_right = cut_right or dropped_marked or dropped_after
    prefix, suffix = "..." if cut_left else "", "..." if cut_right else ""
    text = prefix + "".join(shown for shown, _ in before + marked + after) + suffix
    return text, " " * (len(prefix) + _width(before)) + "^" * max(1, _width(marked))


def _width(cells: Sequence[tuple[str, int]]) -> int:
    return sum(width for _, width in cells)


def _keep_first(cells: list[tuple[str, int]], columns: int) -> tuple[list[tuple[str, int]], bool]:
    used = 0
    for position, (_, width) in enumerate(cells):
        used += width
        if used > columns:
            return cells[:position], True
    return cells, False


def _keep_last(cells: list[tuple[str, int]], columns: int) -> tuple[list[tuple[str, int]], bool]:
    kept, dropped = _keep_first(cells[::-1], columns)
    kept = kept[::-1]
    while dropped and kept and kept[0][1] == 0:  # a combining mark without its letter
        kept = kept[1:]
    return kept, dropped


def _cell(character: str) -> tuple[str, int]:
    """How a character is shown and how many columns of a terminal that takes."""
    if character == "\t":
        return _TAB, len(_TAB)
    category = unicodedata.category(character)
    if category in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        shown = f"<U+{ord(character):04X}>"  # invisible, or able to reorder or erase the line
        return shown, len(shown)
    if category in ("Mn", "Me"):
        return character, 0
    return character, 2 if unicodedata.east_asian_width(character) in "WF" else 1
