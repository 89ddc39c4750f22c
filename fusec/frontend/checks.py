"""What the grammar does not say: one result, at the end, and sane parameters and keywords.

May import ``fusec.source``, ``fusec.errors`` and, of the frontend, ``syntax``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from fusec.errors import Note, ParseError
from fusec.frontend import syntax
from fusec.frontend.syntax import Program, Statement
from fusec.source import Source, Span

# A parsed statement. A result is a TupleExpression, and a pair in parentheses is one inside
# another.
Line: TypeAlias = Statement | syntax.TupleExpression

_CONTINUES = re.compile(r"[\s;]*(?:[-+*/%^&|<>=]|(?:and|or|if|else)\b)")


def program(source: Source, lines: Sequence[Line]) -> Program:
    """The Program of these statements, or the ParseError of the first out of place."""
    if not lines:
        raise ParseError(
            "the formula is empty",
            source=source,
            span=Span(0, 0),
            hint="write an expression, such as 'x + 1'",
        )
    statements: list[Statement] = []
    for line in lines[:-1]:
        if isinstance(line, syntax.TupleExpression):
            raise _unused(source, line)
        statements.append(line)
    result = lines[-1]
    if not isinstance(result, syntax.TupleExpression):
        raise _missing_result(source, result)
    items = result.items
    if len(items) == 1 and isinstance(items[0], syntax.TupleExpression) and len(items[0].items) > 1:
        items = items[0].items
    whole = Program(tuple(statements), items, span=lines[0].span.join(result.span))
    for node in syntax.walk(whole):
        if isinstance(node, syntax.FunctionDef):
            _unique(source, "parameter", node.parameters)
        elif isinstance(node, syntax.Call) and node.keywords:
            _keywords(source, node)
    return whole


def _keywords(source: Source, call: syntax.Call) -> None:
    first = call.keywords[0]
    late = [item for item in call.arguments if item.span.start > first.span.start]
    if late:
        raise ParseError(
            f"an argument follows the keyword argument '{first.name}'",
            source=source,
            span=late[0].span,
            notes=(Note(f"'{first.name}' is given here", first.span),),
            hint=f"keyword arguments come last; write '{first.name} == ...' to compare",
        )
    _unique(source, "keyword argument", call.keywords)


def _unique(
    source: Source, kind: str, named: Iterable[syntax.Name] | Iterable[syntax.Keyword]
) -> None:
    seen: dict[str, syntax.Node] = {}
    for node in named:
        if earlier := seen.get(node.name):
            raise ParseError(
                f"{kind} '{node.name}' occurs twice",
                source=source,
                span=node.span,
                notes=(Note("it is here already", earlier.span),),
            )
        seen[node.name] = node


def _unused(source: Source, value: syntax.TupleExpression) -> ParseError:
    hint = "return several values as 'a, b' in the last statement"
    first = value.items[0]
    if _CONTINUES.match(source.text, value.span.end):
        hint = "a line goes on inside parentheses and after an operator, not before one"
    elif isinstance(first, syntax.Compare) and isinstance(first.operands[0], syntax.Name):
        hint = f"write '{first.operands[0].name} = ...' to assign"
    message = "this value is not used: only the last statement is returned"
    return ParseError(message, source=source, span=value.span, hint=hint)


def _missing_result(source: Source, last: Statement) -> ParseError:
    name = last.name
    if isinstance(last, syntax.FunctionDef):
        name += f"({', '.join(parameter.name for parameter in last.parameters)})"
    return ParseError(
        "an expression to return is missing",
        source=source,
        span=last.span,
        hint=f"add '{name}' as the last line",
    )
