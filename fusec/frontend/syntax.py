"""The syntax tree of a formula: plain data with spans, and walking, comparing and printing it.

Nothing here recurses: a tree may be as deep as memory allows. Nodes compare by identity; ``same``
compares trees. May import ``fusec.source`` only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from fusec.source import Span

_NOWHERE = Span(0, 0)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Node:
    """A piece of a formula; ``span`` is where it stands, parentheses around it included."""

    span: Span = field(default=_NOWHERE, kw_only=True)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.span.start}:{self.span.end}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Number(Node):
    """A literal, never negative; ``1`` is an int and ``1.0`` a float. ``text`` is as written."""

    value: int | float
    text: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Name(Node):
    """An input, an assigned name or a constant such as ``pi``; in Python's NFKC form."""

    name: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Unary(Node):
    """``operator`` is one of ``- + ~ not``."""

    operator: str
    operand: Expression


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Binary(Node):
    """``operator`` is one of ``+ - * / // % ^ & |``; ``**`` is read as ``^``."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Compare(Node):
    """``a < b == c``: the mathematical and of ``a < b`` and ``b == c``, with ``b`` shared.

    ``operators`` (of ``< <= > >= == !=``) has one entry less than ``operands``, which has at least
    two.
    """

    operators: tuple[str, ...]
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Logical(Node):
    """``operator`` is ``and`` or ``or``."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Conditional(Node):
    """``then if condition else otherwise``."""

    then: Expression
    condition: Expression
    otherwise: Expression


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Keyword(Node):
    """``name=value`` in a call."""

    name: str
    value: Expression


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call(Node):
    """``function(arguments, keywords)``; ``function_span`` is the name alone."""

    function: str
    arguments: tuple[Expression, ...]
    keywords: tuple[Keyword, ...]
    function_span: Span = field(default=_NOWHERE, kw_only=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Index(Node):
    """``value[index]``."""

    value: Expression
    index: Expression


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TupleExpression(Node):
    """``(a, b)`` or ``[a, b]``, which mean the same; at least one item."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Assign(Node):
    """``name = value``; ``name_span`` is the name alone."""

    name: str
    value: Expression
    name_span: Span = field(default=_NOWHERE, kw_only=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FunctionDef(Node):
    """``def name(parameters) = body``."""

    name: str
    parameters: tuple[Name, ...]
    body: Expression
    name_span: Span = field(default=_NOWHERE, kw_only=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Program(Node):
    """A formula: statements, then one or more returned expressions.

    ``a, b`` and ``(a, b)`` return the same two.
    """

    statements: tuple[Statement, ...]
    result: tuple[Expression, ...]


Expression: TypeAlias = (
    Number
    | Name
    | Unary
    | Binary
    | Compare
    | Logical
    | Conditional
    | Call
    | Index
    | TupleExpression
)
Statement: TypeAlias = Assign | FunctionDef


def children(node: Node) -> tuple[Node, ...]:
    """The nodes right below, in the order of the text; without the parameters of a function."""
    match node:
        case Binary() | Logical():
            return node.left, node.right
        case Unary():
            return (node.operand,)
        case Compare():
            return node.operands
        case Conditional():
            return node.then, node.condition, node.otherwise
        case Call():
            return node.arguments + node.keywords
        case Index():
            return node.value, node.index
        case TupleExpression():
            return node.items
        case _:
            return _children_of_others(node)


def walk(node: Node) -> Iterator[Node]:
    """Every node of the tree, children before parents, in the order of the text."""
    stack: list[tuple[Node, bool]] = [(node, False)]
    while stack:
        current, expanded = stack.pop()
        below = () if expanded else children(current)
        if not below:
            yield current
            continue
        stack.append((current, True))
        stack.extend((child, False) for child in reversed(below))


def same(first: Node, second: Node) -> bool:
    """Whether two trees are equal but for spans and the spelling of numbers."""
    stack = [(first, second)]
    while stack:
        left, right = stack.pop()
        if type(left) is not type(right) or _label(left) != _label(right):
            return False
        below_left, below_right = children(left), children(right)
        if len(below_left) != len(below_right):
            return False
        stack.extend(zip(below_left, below_right, strict=True))
    return True


def unparse(node: Node) -> str:
    """Text of a tree with the fewest parentheses; parsing it gives the same tree.

    Every number's ``text`` is printed as it is. A Program ends without a newline.
    """
    output: list[str] = []
    stack: list[_Part] = [node]
    while stack:
        part = stack.pop()
        if isinstance(part, str):
            output.append(part)
            continue
        child, least = part if isinstance(part, tuple) else (part, _LOOSEST)
        parts = _parts(child)
        if _precedence(child) < least:
            parts = ["(", *parts, ")"]
        stack.extend(reversed(parts))
    return "".join(output)


# A piece of printed text: text, or a node, or a node and the precedence below which it needs
# parentheses.
_Part: TypeAlias = str | Node | tuple[Node, int]

_LOOSEST, _CONDITIONAL, _OR, _AND, _NOT, _COMPARE = range(6)
_SIGN, _POWER, _POSTFIX = 10, 11, 12
_BINARY = {"or": _OR, "and": _AND, "|": 6, "&": 7, "+": 8, "-": 8} | dict.fromkeys(
    ("*", "/", "//", "%"), 9
)


def _children_of_others(node: Node) -> tuple[Node, ...]:
    match node:
        case Keyword() | Assign():
            return (node.value,)
        case FunctionDef():
            return (node.body,)
        case Program():
            return node.statements + node.result
        case _:
            return ()


def _label(node: Node) -> tuple[object, ...]:
    """What a node says itself, apart from its children."""
    match node:
        case Number():
            return type(node.value), node.value
        case Name() | Keyword() | Assign():
            return (node.name,)
        case Unary() | Binary() | Logical():
            return (node.operator,)
        case Compare():
            return node.operators
        case Call():
            return node.function, len(node.arguments)
        case FunctionDef():
            return node.name, *(parameter.name for parameter in node.parameters)
        case Program():
            return (len(node.statements),)
        case _:
            return ()


def _precedence(node: Node) -> int:
    match node:
        case Binary(operator="^"):
            return _POWER
        case Binary() | Logical():
            return _BINARY[node.operator]
        case Unary():
            return _NOT if node.operator == "not" else _SIGN
        case Compare():
            return _COMPARE
        case Conditional():
            return _CONDITIONAL
        case _:
            return _POSTFIX


def _parts(node: Node) -> list[_Part]:
    match node:
        case Number():
            return [node.text]
        case Name():
            return [node.name]
        case Conditional():
            then, condition = (node.then, _OR), (node.condition, _OR)
            return [then, " if ", condition, " else ", (node.otherwise, _CONDITIONAL)]
        case Call():
            return [node.function, "(", *_separated(node.arguments + node.keywords), ")"]
        case Index():
            return [(node.value, _POSTFIX), "[", node.index, "]"]
        case TupleExpression():
            return ["(", *_separated(node.items), ",)" if len(node.items) == 1 else ")"]
        case Unary() | Binary() | Logical() | Compare():
            return _operation_parts(node)
        case _:
            return _statement_parts(node)


def _operation_parts(node: Unary | Binary | Logical | Compare) -> list[_Part]:
    match node:
        case Unary():
            space = " " if node.operator == "not" else ""
            return [node.operator, space, (node.operand, _precedence(node))]
        case Binary(operator="^"):
            return [(node.left, _POSTFIX), "^", (node.right, _SIGN)]
        case Binary() | Logical():
            least = _precedence(node)
            return [(node.left, least), f" {node.operator} ", (node.right, least + 1)]
        case Compare():
            parts: list[_Part] = [(node.operands[0], _COMPARE + 1)]
            for operator, operand in zip(node.operators, node.operands[1:], strict=True):
                parts += [f" {operator} ", (operand, _COMPARE + 1)]
            return parts


def _statement_parts(node: Node) -> list[_Part]:
    match node:
        case Keyword():
            return [node.name, "=", node.value]
        case Assign():
            return [node.name, " = ", node.value]
        case FunctionDef():
            return ["def ", node.name, "(", *_separated(node.parameters), ") = ", node.body]
        case Program():
            lines = [part for statement in node.statements for part in (statement, "\n")]
            return [*lines, *_separated(node.result)]
        case _:
            raise TypeError(f"not a syntax node: {node!r}")


def _separated(nodes: tuple[Node, ...]) -> list[_Part]:
    parts: list[_Part] = []
    for node in nodes:
        parts += [", ", node] if parts else [node]
    return parts
