"""What a failed parse means: from the refused token and its neighbours to one sentence.

The labels are tried in the order of ``_LABELS``; when none knows the mistake, the error says what
was expected and what was found. May import ``fusec.source``, ``fusec.errors``, ``lark`` and, of the
frontend, ``tokens``, ``failure`` and ``characters``.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from fusec.errors import Note, ParseError
from fusec.frontend import characters
from fusec.frontend.failure import CLOSERS, RESERVED, Failure, shorten, token_span
from fusec.frontend.tokens import LONGEST_NUMBER, UNKNOWN
from fusec.source import Span

# What other languages write, with the refused token as its end.
_OPERATORS = {
    "===": "write '==' for '==='",
    "!==": "write '!=' for '!=='",
    "&&": "write 'and' for '&&'",
    "||": "write 'or' for '||'",
    "<>": "write '!=' for '<>'",
    "=<": "write '<=' for '=<'",
    "=>": "write '>=' to compare, or 'def f(x) = ...' for a function",
    "->": "write 'def f(x) = ...' for a function",
    "<<": "shifts are not part of the language: write 'x * 2^n' for 'x << n'",
    ">>": "shifts are not part of the language: write 'x // 2^n' for 'x >> n'",
}
_FUNCTION = "write 'def f(x) = ...' for a function"
_IMPORT = "imports are not part of the language"
_TYPES = "types follow from the inputs: leave it out"
# Words of other languages: ordinary names here, so that the parser stops only at what comes after.
_WORDS = {
    "return": "the last statement is what the formula returns: leave it out",
    "import": _IMPORT,
    "from": _IMPORT,
    "lambda": _FUNCTION,
    "fn": _FUNCTION,
    "function": _FUNCTION,
    "let": "names need no declaration: leave it out",
    "var": "names need no declaration: leave it out",
    "const": "names need no declaration: leave it out",
    "auto": _TYPES,
    "float": _TYPES,
    "double": _TYPES,
    "int": _TYPES,
    "for": "loops are not part of the language",
    "while": "loops are not part of the language",
    "is": "write '==' for 'is'",
    "AND": "write 'and' for 'AND'",
    "OR": "write 'or' for 'OR'",
    "NOT": "write 'not' for 'NOT'",
    "xor": "write '!=' for the 'xor' of two truth values",
    "mod": "write '%' for 'mod'",
}

_SUFFIXES = frozenset("fFlLuUhH")


def explain(failure: Failure) -> ParseError:
    """The error that says what is wrong and, where that is clear, what would be right."""
    for label in _LABELS:
        error = label(failure)
        if error is not None:
            return error
    return _generic(failure)


def _unknown(failure: Failure) -> ParseError | None:
    """A character outside the language, or a number too large for it."""
    if failure.token.type != UNKNOWN:
        return None
    if len(failure.token) > 1:
        return _too_large(failure)
    special = {".": _dot, "'": _string, '"': _string, ":": _colon}.get(str(failure.token))
    if special is not None:
        return special(failure)
    found = characters.explain(failure.source.text, failure.span.start)
    return failure.error(found.message, found.span, found.hint)


def _too_large(failure: Failure) -> ParseError:
    number = str(failure.token)
    if len(number) > LONGEST_NUMBER:
        return failure.error(f"a number of {len(number)} characters is too long")
    hint = "write 'inf' for infinity"
    return failure.error(f"number '{shorten(number)}' is beyond the range of float64", hint=hint)


def _dot(failure: Failure) -> ParseError:
    name = re.compile(r"\.\s*[^\W0-9]\w*").match(failure.source.text, failure.span.start)
    if name is None or not failure.wants_operator:
        return failure.error(f"unexpected '.': {failure.wanted}")
    hint = "functions are called by their name alone, as in 'sum(x)'"
    span = Span(*name.span())
    return failure.error("attribute access is not part of the language", span, hint)


def _string(failure: Failure) -> ParseError:
    source, start = failure.source, failure.span.start
    closed = re.compile(r"(['\"]{3}|['\"])[^\r\n]*?\1").match(source.text, start)
    end = closed.end() if closed else source.line_span(source.location(start)[0]).end
    prefix = str(failure.before or "") if failure.adjacent else ""
    if not re.fullmatch(r"(?i)[rbuf]|fr|rf|br|rb", prefix):
        prefix = ""
    kind = "f-strings" if "f" in prefix.lower() else "strings"
    return failure.error(f"{kind} are not part of the language", Span(start - len(prefix), end))


def _colon(failure: Failure) -> ParseError:
    start = failure.span.start
    if failure.source.text[start + 1 : start + 2] == "=":
        hint = "write '=' to assign, in a statement of its own"
        return failure.error(
            "':=' is not an operator of the language", Span(start, start + 2), hint
        )
    for token in failure.statement:
        if token == "lambda":
            return _foreign_word(failure, str(token), token_span(token))
    if failure.opened and failure.opened[-1] == "[":
        return failure.error("slices are not part of the language")
    message = f"unexpected ':': {failure.wanted}"
    if failure.statement and failure.statement[0] == "def":
        return failure.error(message, hint="write 'def f(x) = ...' in one statement")
    return failure.error(message)


def _foreign_operator(failure: Failure) -> ParseError | None:
    end = failure.span.end
    for start in (end - 3, end - 2):
        written = failure.source.text[max(start, 0) : end]
        # It has to reach back into the token before: '<<' is refused at its second half.
        if written in _OPERATORS and start < failure.span.start:
            message = f"'{written}' is not an operator of the language"
            return failure.error(message, Span(start, end), _OPERATORS[written])
    return None


def _compound_assignment(failure: Failure) -> ParseError | None:
    before = failure.before
    if failure.token != "=" or before is None or not failure.adjacent:
        return None
    if before.type not in ("SIGN", "PRODUCT", "POWER", "VBAR", "AMPERSAND"):
        return None
    message = f"'{before}=' is not an operator of the language"
    name = shorten(failure.statement[0])
    hint = f"write '{name} = {name} {before} ...'" if len(failure.statement) == 2 else None
    return failure.error(message, token_span(before).join(failure.span), hint)


def _equals(failure: Failure) -> ParseError | None:
    """One '=' where two were meant, and the other way round."""
    if failure.token == "==" and "=" in failure.accepted:
        return failure.error("expected '=', found '=='", hint="write '=' to define")
    if failure.token != "=" or not failure.statement or not failure.accepted:
        return None
    if failure.before in RESERVED:
        return _reserved_name(failure, str(failure.before), token_span(failure.statement[-1]))
    is_target = not failure.opened and failure.wants_operator
    if not is_target or "=" in failure.statement or failure.statement[0] == "def":
        return failure.error(f"{failure.wanted}, found '='", hint="write '==' to compare")
    target = token_span(failure.statement[0]).join(token_span(failure.statement[-1]))
    hint = "write '==' to compare"
    if [token.type for token in failure.statement[:2]] == ["NAME", "LPAR"]:
        written = failure.source.excerpt(target)
        if re.fullmatch(r"\w+\s*\((\s*[^\W0-9]\w*\s*,?)+\)", written):
            hint = f"write 'def {written} = ...' to define a function"
    elif "," in failure.statement:
        hint = "assign one name in each statement"
    return failure.error("only a single name can be assigned to", target, hint)


def _number(failure: Failure) -> ParseError | None:
    """A number that runs into what follows: 1.2.3, 1_000, 0x1F, 1e."""
    before = failure.before
    if before is None or before.type != "NUMBER" or not failure.adjacent:
        return None
    start = token_span(before).start
    run = re.compile(r"[\w.]+").match(failure.source.text, start)
    written = run.group() if run else str(before)
    span = Span(start, start + len(written))
    if re.fullmatch(r"[0-9][0-9.]*(_[0-9.]+)+", written):
        return failure.error("numbers have no '_'", span, f"write {written.replace('_', '')}")
    if re.fullmatch(r"0([xX][0-9a-fA-F]{1,100}|[bB][01]{1,100}|[oO][0-7]{1,100})", written):
        return failure.error("numbers are decimal", span, f"write {int(written, 0)}")
    if re.fullmatch(r"[0-9.]+[eE]", written):
        return failure.error(f"bad number '{written}': its exponent has no digits", span)
    if failure.token.type == "NUMBER" or (
        failure.token == "." and re.fullmatch(r"[0-9.]+", written)
    ):
        return failure.error(f"bad number '{shorten(written)}'", span)
    return None


def _bracket(failure: Failure) -> ParseError | None:
    """A closing bracket that closes nothing, or the wrong one."""
    if failure.token not in CLOSERS.values() or failure.wants_operand:
        return None
    if not failure.opened:
        return failure.error(f"unmatched '{failure.token}'")
    opened = failure.opened[-1]
    if failure.token == CLOSERS[str(opened)]:
        return None
    message = f"'{failure.token}' does not close '{opened}'"
    return failure.error(message, notes=_opened_note(failure))


def _reserved(failure: Failure) -> ParseError | None:
    """A reserved word as a name, and the slips each of them invites."""
    word = str(failure.token)
    if word not in RESERVED:
        return None
    following = failure.tokens[failure.position + 1]
    names_it = following == "=" or not (failure.wants_operand or failure.wants_operator)
    if names_it and ("NAME" in failure.accepted):
        return _reserved_name(failure, word, failure.span)
    if word == "not" and failure.wants_operand:
        return failure.error(f"{failure.wanted}, found 'not'", hint="write '(not ...)' here")
    if word == "if" and failure.wants_operand:
        return failure.error(f"{failure.wanted}, found 'if'", hint="write 'a if c else b'")
    if word == "else" and failure.wants_operator:
        return failure.error("'else' without 'if'", hint="write 'a if c else b'")
    return None


def _reserved_name(failure: Failure, word: str, span: Span) -> ParseError:
    return failure.error(f"'{word}' is a reserved word and cannot be a name", span)


def _missing_else(failure: Failure) -> ParseError | None:
    closes = failure.at_end or failure.token in (")", "]", ",", ";")
    if "else" not in failure.accepted or not closes:
        return None
    depth = 0
    for token in reversed(failure.statement):
        depth += (token in CLOSERS.values()) - (token in CLOSERS)
        if token == "if" and depth == 0:  # any other is in brackets that are closed again
            hint = "write 'a if c else b'"
            return failure.error("'if' without 'else'", token_span(token), hint)
    return None


def _words(failure: Failure) -> ParseError | None:
    """Words of other languages next to an operand: return x, a is b."""
    if failure.token.type != "NAME" or not failure.wants_operator or failure.before is None:
        return None
    for token in (failure.before, failure.token):
        if token.type == "NAME" and token in _WORDS:
            return _foreign_word(failure, str(token), token_span(token))
    return None


def _foreign_word(failure: Failure, word: str, span: Span) -> ParseError:
    return failure.error(f"'{word}' is not a word of the language", span, _WORDS[word])


def _missing_operator(failure: Failure) -> ParseError | None:
    """Two operands side by side: 3x, x y, (a)(b)."""
    before = failure.before
    if before is None or not failure.wants_operator:
        return None
    if failure.token.type not in ("NAME", "NUMBER", "LPAR"):
        return None
    if failure.token == "(" and before in (")", "]"):
        hint = "write '*' to multiply: only a name can be called"
        return failure.error(f"missing operator between '{before}' and '('", hint=hint)
    between = failure.source.text[token_span(before).end : failure.span.start]
    if "\n" in between or "\r" in between:
        return None  # only inside brackets: more likely one of them is not closed
    span = token_span(before).join(failure.span)
    message = f"missing operator between '{shorten(before)}' and '{shorten(failure.token)}'"
    if before.type in ("NAME", "NUMBER"):
        product = f"{before}*{failure.token}{'...)' if failure.token == '(' else ''}"
        hint = f"write {product}" if len(product) <= 40 else "write '*' to multiply"
        if before.type == "NUMBER" and failure.adjacent and failure.token in _SUFFIXES:
            hint = f"write {shorten(before)}: numbers have no suffix"
    else:
        hint = "write '*' to multiply"
    return failure.error(message, span, hint)


def _definition(failure: Failure) -> ParseError | None:
    """The head of a function: its name, its parameters."""
    if not failure.statement or failure.statement[0] != "def" or "=" in failure.statement:
        return None
    if failure.token == "=" and failure.opened:
        return failure.error("parameters have no default values")
    if failure.token == "=" and len(failure.statement) == 2:
        name = failure.statement[1]
        return failure.error(
            "expected '(' after the function's name, found '='",
            hint=f"write '{name} = ...' to assign",
        )
    if "NAME" not in failure.accepted:
        return None
    role = "a function name" if failure.before == "def" else "a parameter name"
    return failure.error(f"expected {role} after '{failure.before}', found {failure.found}")


def _generic(failure: Failure) -> ParseError:
    notes = _opened_note(failure) if failure.at_end else ()
    if failure.at_end and failure.token.type != "NEWLINE":
        closer = failure.opened and failure.wants_operator
        wanted = f"expected '{CLOSERS[str(failure.opened[-1])]}'" if closer else failure.wanted
        return failure.error(f"unexpected end of the formula: {wanted}", notes=notes)
    hint = None
    if failure.token == "," and failure.wants_operator and "=" in failure.statement:
        hint = "an assignment takes one value; only the last statement may have several"
    if failure.opened and failure.wants_operator:
        notes = _opened_note(failure)
    return failure.error(f"{failure.wanted}, found {failure.found}", hint=hint, notes=notes)


def _opened_note(failure: Failure) -> tuple[Note, ...]:
    if not failure.opened:
        return ()
    opened = failure.opened[-1]
    return (Note(f"'{opened}' opened here", token_span(opened)),)


_LABELS: tuple[Callable[[Failure], ParseError | None], ...] = (
    _number,
    _unknown,
    _foreign_operator,
    _compound_assignment,
    _definition,
    _equals,
    _bracket,
    _reserved,
    _missing_else,
    _words,
    _missing_operator,
)
