"""Characters that no formula contains, named so that the eye can find them.

May import ``fusec.source`` only.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from fusec.source import Span

# Letters and marks that show as nothing or as a blank, which would make two names look alike.
INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)

_ASCII = {
    "!": "write 'not' for '!'",
    "?": "write 'a if c else b' for 'c ? a : b'",
    "@": "matrix products are not part of the language",
    "{": "write '(' to group",
    "}": "write ')' to group",
    "\\": "a line goes on inside parentheses and after an operator, without a backslash",
    "$": "write names without '$'",
}
_LOOKALIKES = {
    "*": "\u00b7\u00d7\u22c5\u2219\u2022\u2217\u2a2f\u0387",
    "/": "\u00f7\u2215\u2044",
    "-": "\u2212\u2010\u2011\u2012\u2013\u2014",
    "<=": "\u2264\u2a7d",
    ">=": "\u2265\u2a7e",
    "!=": "\u2260",
    "==": "\u2261",
    "and": "\u2227\u22c0",
    "or": "\u2228\u22c1",
    "not ": "\u00ac",
    "inf": "\u221e",
    "sqrt(...)": "\u221a",
    "sum(...)": "\u2211",
    "prod(...)": "\u220f",
    "abs(...)": "\u2016",
    "=": "\u2190\u2254",
}
_MEANT = {character: text for text, all_of in _LOOKALIKES.items() for character in all_of}
_QUOTES = "\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u00ab\u00bb\u2032\u2033"
_SUPERSCRIPTS = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"
_SUBSCRIPTS = "\u2080\u2081\u2082\u2083\u2084\u2085\u2086\u2087\u2088\u2089"


@dataclass(frozen=True, slots=True)
class Found:
    """What to say about a character, and where."""

    message: str
    span: Span
    hint: str | None


def explain(text: str, position: int) -> Found:
    """What ``text[position]`` is, by name and code point, and what was most likely meant."""
    character = text[position]
    span = Span(position, position + 1)
    if "!" <= character <= "~":
        return Found(f"unexpected character '{character}'", span, _ASCII.get(character))
    return Found(f"unexpected {_named(character)}", span, _hint(character))


def _named(character: str) -> str:
    # Control characters have no name.
    name = unicodedata.name(character, "").lower()
    code = f"U+{ord(character):04X}"
    about = f"{name}, {code}" if name else code
    category = unicodedata.category(character)
    if category == "Cc":
        return f"control character ({about})"
    alone = category in ("Mn", "Me") or INVISIBLE.match(character) or not character.isprintable()
    return f"character ({about})" if alone else f"character '{character}' ({about})"


def _hint(character: str) -> str | None:
    if character in _QUOTES:
        return "strings are not part of the language"
    if character in _SUPERSCRIPTS:
        return f"write '^{unicodedata.digit(character)}' for a power"
    if character in _MEANT:
        return f"write '{_MEANT[character].strip()}'"
    category = unicodedata.category(character)
    if category in ("Zs", "Zl", "Zp") or character in "\v\f\x85":
        return "write a plain space or newline"
    if category in ("Cf", "Cc") or INVISIBLE.match(character):
        return "delete it"
    if character in _SUBSCRIPTS:
        return f"write '{unicodedata.digit(character)}' in a name"
    plain = unicodedata.normalize("NFKC", character)
    return f"write '{plain}'" if plain != character and plain.isascii() and plain.strip() else None
