"""Where and in what state a parse failed: what the labels of mistakes.py look at.

May import ``fusec.source``, ``fusec.errors``, ``lark`` and, of the frontend, ``tokens``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from lark import Token

from fusec.errors import Note, ParseError
from fusec.frontend.tokens import END
from fusec.source import Source, Span

CLOSERS = {"(": ")", "[": "]"}
RESERVED = frozenset({"def", "and", "or", "not", "if", "else"})


def token_span(token: Token) -> Span:
    """Where a token stands."""
    assert token.start_pos is not None  # the scanner sets both
    assert token.end_pos is not None
    return Span(token.start_pos, token.end_pos)


def shorten(text: str) -> str:
    """The text, or its beginning where it is too long for a sentence."""
    return text if len(text) <= 40 else f"{text[:37]}..."


@dataclass(frozen=True)
class Failure:
    """``tokens[position]`` was refused.

    ``accepted`` holds what would fit (spelling or terminal).
    """

    source: Source
    tokens: Sequence[Token]
    position: int
    accepted: frozenset[str]

    @property
    def token(self) -> Token:
        """The refused token."""
        return self.tokens[self.position]

    @property
    def before(self) -> Token | None:
        """The token before the refused one."""
        return self.tokens[self.position - 1] if self.position else None

    @property
    def wants_operand(self) -> bool:
        """Whether an expression could begin here."""
        return "NUMBER" in self.accepted

    @property
    def wants_operator(self) -> bool:
        """Whether an expression could go on here."""
        return "PRODUCT" in self.accepted

    @property
    def at_end(self) -> bool:
        """Whether a line or the text ended too early."""
        return self.token.type in (END, "NEWLINE")

    @property
    def adjacent(self) -> bool:
        """Whether nothing stands between the refused token and the one before."""
        return self.before is not None and self.before.end_pos == self.token.start_pos

    @cached_property
    def opened(self) -> list[Token]:
        """Brackets open before the refused token, outermost first."""
        stack: list[Token] = []
        for token in self.tokens[: self.position]:
            if token in CLOSERS:
                stack.append(token)
            elif stack and token in CLOSERS.values():
                stack.pop()
        return stack

    @cached_property
    def statement(self) -> Sequence[Token]:
        """The tokens of this statement before the refused one."""
        first = self.position
        while first and self.tokens[first - 1].type not in ("NEWLINE", "SEMICOLON"):
            first -= 1
        return self.tokens[first : self.position]

    @cached_property
    def span(self) -> Span:
        """The refused token; where a line or the text ends, the place after the token before."""
        if self.at_end and self.before is not None:
            end = token_span(self.before).end
            return Span(end, end)
        return token_span(self.token)

    @property
    def found(self) -> str:
        """The refused token in words."""
        match self.token.type:
            case "NAME":
                return f"name '{shorten(self.token)}'"
            case "NUMBER":
                return f"number '{shorten(self.token)}'"
            case "NEWLINE":
                return "the end of the line"
            case "$END":
                return "the end of the formula"
        word = "reserved word " if self.token in RESERVED else ""
        return f"{word}'{self.token}'"

    @property
    def wanted(self) -> str:
        """``expected ...``: what would have fitted, in words."""
        if self.wants_operand:
            if self.before is None or self.before.type == "NEWLINE":
                return "expected an expression"
            return f"expected an expression after '{shorten(self.before)}'"
        options = ["an operator"] if self.wants_operator else []
        options += ["a name"] if "NAME" in self.accepted else []
        options += [f"'{text}'" for text in ("=", "(", "else", ",", ")", "]") if self._offers(text)]
        *others, last = options
        return f"expected {', '.join(others)} or {last}" if others else f"expected {last}"

    def _offers(self, text: str) -> bool:
        # Each name could become a keyword or a call, and each value be followed by more of them:
        # true, and no help.
        if text not in self.accepted or (text in ("=", "(") and self.wants_operator):
            return False
        return text != "," or bool(self.opened)

    def error(
        self,
        message: str,
        span: Span | None = None,
        hint: str | None = None,
        notes: Iterable[Note] = (),
    ) -> ParseError:
        """A ParseError at the refused token, or at ``span``."""
        place = span if span is not None else self.span
        return ParseError(message, source=self.source, span=place, hint=hint, notes=notes)
