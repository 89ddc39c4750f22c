"""Text to tokens, with the terminals of grammar.lark.

Lark's own lexers cannot drop a newline because of the token before it, normalise a name before
looking for reserved words, or go on after a stray character. This one does, and never raises: what
fits no terminal becomes an UNKNOWN token, at which the parser stops. May import ``lark`` and,
of the frontend, ``characters``.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable

from lark import Token
from lark.lexer import PatternStr, TerminalDef

from fusec.frontend.characters import INVISIBLE

END = "$END"  # Lark's name for the end of the text
UNKNOWN = "UNKNOWN"

LONGEST_NUMBER = 4000  # characters; int() itself refuses 4,300 digits

# What could make a comment look like code, or end it in a target language.
_UNSAFE_IN_COMMENT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_MAY_END_A_STATEMENT = {"NUMBER", "NAME", UNKNOWN}


class Scanner:
    """Splits texts by the given terminals of the grammar; holds no state between texts."""

    def __init__(self, terminals: Iterable[TerminalDef]) -> None:
        fixed, patterns = {}, []
        for terminal in terminals:
            if isinstance(terminal.pattern, PatternStr):
                fixed[terminal.pattern.value] = terminal.name
            else:
                patterns.append(f"(?P<{terminal.name}>{terminal.pattern.to_regexp()})")
        self.types = fixed  # operators and reserved words, with the terminal of each
        operators = sorted((text for text in fixed if not text.isalpha()), key=len, reverse=True)
        # Patterns first: '.5' is a number. No two of them begin with the same character.
        self._terminal = re.compile("|".join([*patterns, *map(re.escape, operators)]))
        self._enders = _MAY_END_A_STATEMENT | {fixed[")"], fixed["]"]}

    def scan(self, text: str) -> list[Token]:
        """All tokens but comments, blanks and newlines that end nothing; an END token is last."""
        tokens: list[Token] = []
        position = depth = 0
        while position < len(text):
            token = self._next(text, position)
            position = token.end_pos or len(text)
            if token.type in ("SPACE", "COMMENT"):
                continue
            if token.type == "NEWLINE" and (
                depth > 0 or not tokens or tokens[-1].type not in self._enders
            ):
                continue
            if token in ("(", "["):
                depth += 1
            elif token in (")", "]"):
                depth = max(0, depth - 1)
            tokens.append(token)
        tokens.append(_token(END, "", len(text), len(text)))
        return tokens

    def _next(self, text: str, start: int) -> Token:
        match = self._terminal.match(text, start)
        if match is None:
            return _token(UNKNOWN, text[start], start, start + 1)
        kind, value = match.lastgroup, match.group()
        if kind is None:
            return _token(self.types[value], value, start, match.end())
        if kind == "NAME":
            return self._name(text, start, match.end())
        if kind == "NUMBER" and (len(value) > LONGEST_NUMBER or math.isinf(float(value))):
            return _token(UNKNOWN, value, start, match.end())
        if kind == "COMMENT" and (unsafe := _UNSAFE_IN_COMMENT.search(value)):
            at = start + unsafe.start()
            return _token(UNKNOWN, text[at], at, at + 1)
        return _token(kind, value, start, match.end())

    def _name(self, text: str, start: int, end: int) -> Token:
        name = text[start:end]
        if not name.isascii() or not text[end : end + 1].isascii():
            end = _name_end(text, start)
            if end == start:
                return _token(UNKNOWN, text[start], start, start + 1)
            # As Python does for its own names, so that a keyword argument finds its input.
            name = unicodedata.normalize("NFKC", text[start:end])
        return _token(self.types.get(name, "NAME"), name, start, end)


def _token(kind: str, value: str, start: int, end: int) -> Token:
    return Token(kind, value, start_pos=start, end_pos=end)


def _name_end(text: str, start: int) -> int:
    """Where the identifier at start ends: letters, digits, ``_`` and visible combining marks."""
    end = start
    while end < len(text):
        character = text[end]
        # With a letter before it a character is judged as a continuation. The middle dot would
        # pass, as Catalan needs it in a word; here it is a slip for '*'.
        candidate = character if end == start else "a" + character
        if not candidate.isidentifier() or character in "\u00b7\u0387":
            break
        if INVISIBLE.match(character):
            break
        end += 1
    return end
