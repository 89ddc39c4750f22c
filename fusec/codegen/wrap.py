"""Lays out long lines of generated Python as a formatter would, so that formatting changes nothing.

May import the standard library only.
"""

from __future__ import annotations

WIDTH = 100
_INDENT = 4
_OPEN, _CLOSE = "([{", ")]}"
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_LOOSE_FIRST = (_COMPARISONS, ("|",), ("^",), ("&",), ("+", "-"), ("*", "/", "//", "%"))


def wrap(statement: str, indent: int) -> list[str]:
    """``statement`` as lines of at most WIDTH columns if possible, without the indentation."""
    if indent + len(statement) <= WIDTH:
        return [statement]
    target, assign, value = _assignment(statement)
    return _layout(target + assign, value, "", indent)


def _assignment(statement: str) -> tuple[str, str, str]:
    for sign in (" = ", " += ", " *= ", " |= ", " &= "):
        head, found, tail = statement.partition(sign)
        if found and not any(c in head for c in _OPEN):
            return head, found, tail
    return "", "", statement


def _layout(prefix: str, text: str, suffix: str, indent: int) -> list[str]:
    """``prefix text suffix``, broken in the first bracket of a call or at the loosest operators."""
    if indent + len(prefix) + len(text) + len(suffix) <= WIDTH:
        return [prefix + text + suffix]
    pieces = _operands(text)
    start = next((k for k, c in enumerate(text) if c in _OPEN), None)
    if len(pieces) == 2 and text.endswith(")"):
        start = _opening(text)  # one operator, and a last bracket to break instead
        if indent + len(prefix) + start + 1 > WIDTH:
            return _broken_sum(prefix, text, pieces, suffix, indent)
    elif len(pieces) > 1:
        return _broken_sum(prefix, text, pieces, suffix, indent)
    if start is None:
        return [prefix + text + suffix]
    end = _matching(text, start)
    head, inner, tail = text[: start + 1], text[start + 1 : end], text[end:]
    if not inner:
        return [prefix + text + suffix]
    if start == 0 or not (text[start - 1].isalnum() or text[start - 1] in "_" + _CLOSE):
        return [prefix + head, *_grouped(inner, indent + _INDENT), tail + suffix]
    return [prefix + head, *_arguments(inner, indent + _INDENT), tail + suffix]


def _grouped(inner: str, indent: int) -> list[str]:
    """What stands in parentheses that are no call's: a comma there would make a tuple."""
    pieces = _operands(inner)
    if indent + len(inner) <= WIDTH:
        lines = [inner]
    elif len(pieces) > 1:
        lines = _narrowed(pieces, WIDTH - indent)
    else:
        lines = _layout("", inner, "", indent)
    return [" " * _INDENT + line for line in lines]


def _broken_sum(prefix: str, text: str, pieces: list[str], suffix: str, indent: int) -> list[str]:
    """An expression in parentheses of its own, one operand a line if it needs more than one."""
    room = WIDTH - indent - _INDENT
    inner = [text] if len(text) <= room else _narrowed(pieces, room)
    pad = " " * _INDENT
    return [f"{prefix}(", *(pad + piece for piece in inner), f"){suffix}"]


def _narrowed(pieces: list[str], room: int) -> list[str]:
    """Operands too long for a line are cut at their own operators, or in their brackets."""
    lines = []
    for piece in pieces:
        sign, space, rest = piece.partition(" ") if _leads(piece) else ("", "", piece)
        inner = _operands(rest)
        if len(piece) <= room:
            lines.append(piece)
        elif len(inner) == 1:
            lines += _layout(sign + space, rest, "", WIDTH - room)
        else:
            lines += _narrowed([sign + space + inner[0], *inner[1:]], room)
    return lines


def _leads(piece: str) -> bool:
    """Whether an operand brings the operator before it."""
    return any(piece.startswith(f"{sign} ") for group in _LOOSE_FIRST for sign in group)


def _arguments(inner: str, indent: int) -> list[str]:
    """What stands between the brackets of a call: on one line, else one argument a line."""
    pad = " " * _INDENT
    if indent + len(inner) <= WIDTH:
        return [pad + inner]
    lines = []
    for argument in _split(inner, (",",)):
        name, sign, value = argument.partition("=")
        keyword = bool(sign) and name.isidentifier() and not value.startswith("=")
        prefix, text = (name + sign, value) if keyword else ("", argument)
        lines += [pad + line for line in _argument(prefix, text, indent)]
    return lines


def _argument(prefix: str, text: str, indent: int) -> list[str]:
    """One argument and its comma; between brackets an operator may begin a line."""
    pieces = _operands(text)
    if len(pieces) == 1 or indent + len(prefix) + len(text) < WIDTH:
        return _layout(prefix, text, ",", indent)
    first, *rest = _narrowed(pieces, WIDTH - indent)
    return [prefix + first, *rest[:-1], rest[-1] + ","]


def _operands(text: str) -> list[str]:
    """``text`` cut before its loosest operators; one piece if it has none outside brackets."""
    for operators in _LOOSE_FIRST:
        pieces = _split(text, operators)
        if len(pieces) > 1:
            return pieces
    return [text]


def _split(text: str, separators: tuple[str, ...]) -> list[str]:
    """Cut at commas (which vanish) or before operators (which stay), outside brackets."""
    pieces = [""]
    depth = 0
    for word in text.split(" "):
        before = depth
        depth += sum(c in _OPEN for c in word) - sum(c in _CLOSE for c in word)
        if before == 0 and word in separators:
            pieces.append(word)
        else:
            pieces[-1] += f" {word}" if pieces[-1] else word
        if separators == (",",) and depth == 0 and word.endswith(","):
            pieces[-1] = pieces[-1][:-1]
            pieces.append("")
    return pieces


def _matching(text: str, start: int) -> int:
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] in _OPEN) - (text[position] in _CLOSE)
        if depth == 0:
            return position
    raise AssertionError(f"unbalanced brackets: {text}")


def _opening(text: str) -> int:
    """Where the bracket opens that the last character closes."""
    depth = 0
    for position in reversed(range(len(text))):
        depth += (text[position] in _CLOSE) - (text[position] in _OPEN)
        if depth == 0:
            return position
    raise AssertionError(f"unbalanced brackets: {text}")
