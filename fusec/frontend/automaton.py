"""The automaton behind the parser, and what it builds. Every error is a ParseError.

Lark's LALR automaton calls the Builder while it parses, so that no tree is walked and no depth
recursed; the Builder only makes nodes and never raises. What the grammar does not say is checked
afterwards, by checks.py; what a failed parse means is told by mistakes.py. May import
``fusec.source``, ``fusec.errors``, ``lark`` and, of the frontend, ``syntax``, ``tokens``,
``failure``, ``mistakes`` and ``checks``.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias

from lark import Lark, Token, UnexpectedToken
from lark import __version__ as lark_version
from lark.lexer import Lexer
from lark.parsers.lalr_analysis import Shift

from fusec.errors import ParseError
from fusec.frontend import checks, syntax
from fusec.frontend.checks import Line
from fusec.frontend.syntax import Expression, Program
from fusec.frontend.tokens import Scanner
from fusec.source import Source, Span

if TYPE_CHECKING:
    from fusec.frontend.parser import TableStore

# What the automaton hands to the Builder.
_Child: TypeAlias = Token | Expression | syntax.Keyword


def parse(source: Source, tables: TableStore | None) -> Program:
    """The syntax tree of a formula, in time linear in its length; raises ParseError."""
    lark, scanner = _machinery(tables)
    tokens = scanner.scan(source.text)
    automaton = lark.parse_interactive()
    lines: list[Line] = []
    for position, token in enumerate(tokens):
        try:
            lines = automaton.feed_token(token)
        except UnexpectedToken:
            raise _mistake(lark, scanner, source, tokens, position) from None
    return checks.program(source, lines)


@cache
def _machinery(tables: TableStore | None) -> tuple[Lark, Scanner]:
    grammar = files("fusec.frontend").joinpath("grammar.lark").read_text(encoding="utf-8")
    parts = {"what": "grammar tables", "grammar": grammar, "lark": lark_version}
    lark = _loaded(_shipped(grammar)) or _loaded(None if tables is None else tables.load(parts))
    if lark is None:
        lark = _made(grammar)
        if tables is not None:
            tables.save(parts, _tables(lark))
    return lark, Scanner(lark.terminals)


def shipped_tables(grammar: str) -> bytes:
    """What ``grammar.tables`` has to hold for this Lark: whose tables they are, and the tables."""
    return _header(grammar) + _tables(_made(grammar))


def _header(grammar: str) -> bytes:
    return f"{hashlib.sha256(grammar.encode()).hexdigest()} lark {lark_version}\n".encode()


def _shipped(grammar: str) -> bytes | None:
    """The tables in the package, a tenth of a second's work; None if they are another Lark's."""
    header = _header(grammar)
    try:
        content = files("fusec.frontend").joinpath("grammar.tables").read_bytes()
    except OSError:
        return None
    return content[len(header) :] if content.startswith(header) else None


def _made(grammar: str) -> Lark:
    return Lark(
        grammar,
        parser="lalr",
        lexer=_NoLexer,
        transformer=_Builder(),
        keep_all_tokens=True,
        maybe_placeholders=False,
    )


def _tables(lark: Lark) -> bytes:
    made = io.BytesIO()
    lark.save(made, exclude_options=("transformer",))
    return made.getvalue()


def _loaded(tables: bytes | None) -> Lark | None:
    """The automaton from its tables; None without any, or if another Lark wrote them."""
    if tables is None:
        return None
    lark = Lark.__new__(Lark)
    try:
        lark._load(io.BytesIO(tables), transformer=_Builder())
    except (pickle.UnpicklingError, EOFError, AttributeError, KeyError, TypeError, ImportError):
        return None
    return lark


class _NoLexer(Lexer):
    """Tokens are fed by hand: the failing one and those before it are at hand for the message."""

    def __init__(self, _configuration: object) -> None:
        pass

    def lex(self, *_: object) -> Iterator[Token]:
        raise NotImplementedError("tokens come from Scanner")


class _Builder:
    """One method per rule or alias of the grammar, called with its children, tokens included."""

    def number(self, children: Sequence[Token]) -> syntax.Number:
        text = str(children[0])
        value = int(text) if text.isdigit() else float(text)
        return syntax.Number(value, text, span=_span(children))

    def name(self, children: Sequence[Token]) -> syntax.Name:
        return syntax.Name(str(children[0]), span=_span(children))

    def group(self, children: Sequence[_Child]) -> Expression:
        # A wider span on the inner node, so that carets under (a + b) * c cover the parenthesis.
        return replace(_expression(children[1]), span=_span(children))

    def tuple(self, children: Sequence[_Child]) -> syntax.TupleExpression:
        return syntax.TupleExpression(_expressions(children), span=_span(children))

    def result(self, children: Sequence[_Child]) -> syntax.TupleExpression:
        return self.tuple(children)

    def keyword(self, children: Sequence[_Child]) -> syntax.Keyword:
        name, _, value = children
        return syntax.Keyword(str(name), _expression(value), span=_span(children))

    def call(self, children: Sequence[_Child]) -> syntax.Call:
        return syntax.Call(
            str(children[0]),
            _expressions(children),
            tuple(child for child in children if isinstance(child, syntax.Keyword)),
            function_span=_span(children[:1]),
            span=_span(children),
        )

    def index(self, children: Sequence[_Child]) -> syntax.Index:
        value, _, index, _ = children
        return syntax.Index(_expression(value), _expression(index), span=_span(children))

    def unary(self, children: Sequence[_Child]) -> syntax.Unary:
        operator, operand = children
        return syntax.Unary(str(operator), _expression(operand), span=_span(children))

    def binary(self, children: Sequence[_Child]) -> syntax.Binary:
        left, operator, right = children
        spelling = "^" if operator == "**" else str(operator)
        return syntax.Binary(spelling, _expression(left), _expression(right), span=_span(children))

    def comparison(self, children: Sequence[_Child]) -> syntax.Compare:
        operators = tuple(str(operator) for operator in children[1::2])
        return syntax.Compare(operators, _expressions(children), span=_span(children))

    def logical(self, children: Sequence[_Child]) -> syntax.Logical:
        left, operator, right = children
        return syntax.Logical(
            str(operator), _expression(left), _expression(right), span=_span(children)
        )

    def conditional(self, children: Sequence[_Child]) -> syntax.Conditional:
        return syntax.Conditional(*_expressions(children), span=_span(children))

    def assignment(self, children: Sequence[_Child]) -> syntax.Assign:
        name, _, value = children
        return syntax.Assign(
            str(name), _expression(value), name_span=_span(children[:1]), span=_span(children)
        )

    def definition(self, children: Sequence[_Child]) -> syntax.FunctionDef:
        names = [child for child in children if isinstance(child, Token) and child.type == "NAME"]
        parameters = tuple(self.name([name]) for name in names[1:])
        return syntax.FunctionDef(
            str(names[0]),
            parameters,
            _expression(children[-1]),
            name_span=_span(names[:1]),
            span=_span(children),
        )

    def start(self, children: Sequence[Token | Line]) -> list[Line]:
        return [child for child in children if not isinstance(child, Token)]


def _span(children: Sequence[_Child]) -> Span:
    first, last = children[0], children[-1]
    start = first.start_pos if isinstance(first, Token) else first.span.start
    end = last.end_pos if isinstance(last, Token) else last.span.end
    assert start is not None  # the scanner sets both
    assert end is not None
    return Span(start, end)


def _expression(child: _Child) -> Expression:
    assert not isinstance(child, (Token, syntax.Keyword))  # by the grammar
    return child


def _expressions(children: Sequence[_Child]) -> tuple[Expression, ...]:
    return tuple(child for child in children if not isinstance(child, (Token, syntax.Keyword)))


def _mistake(
    lark: Lark, scanner: Scanner, source: Source, tokens: Sequence[Token], position: int
) -> ParseError:
    """The error for tokens[position], which the automaton refused."""
    # Once more up to the token before: the refused one has already caused reductions that hide what
    # else would fit.
    automaton = lark.parse_interactive()
    for token in tokens[:position]:
        automaton.feed_token(token)
    state = automaton.parser_state
    tables = state.parse_conf.states
    spellings = {kind: text for text, kind in scanner.types.items()}
    accepted = frozenset(
        spellings.get(kind, kind)
        for kind in tables[state.position]
        if kind.isupper() and _accepts(tables, state.state_stack, kind)
    )
    # Only a formula that is wrong needs the tables of mistakes.
    from fusec.frontend import mistakes
    from fusec.frontend.failure import Failure

    return mistakes.explain(Failure(source, tokens, position, accepted))


def _accepts(tables: dict[int, dict[str, tuple[Any, Any]]], stack: list[int], kind: str) -> bool:
    """Whether the automaton would shift a token of this kind, after any reductions."""
    stack = list(stack)
    while (entry := tables[stack[-1]].get(kind)) is not None:
        action, rule = entry
        if action is Shift:
            return True
        size = len(rule.expansion)
        del stack[len(stack) - size :]
        stack.append(tables[stack[-1]][rule.origin.name][1])
    return False
