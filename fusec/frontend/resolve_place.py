"""Where the resolver stands: frames of names, spans for nodes, shapes that must agree, and errors
with carets.

May import ``fusec.source``, ``fusec.errors``, ``fusec.ir`` and, of the frontend, ``syntax``,
``resolve_values`` and ``resolve_functions``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from fusec.errors import FusecError, Note, ShapeError
from fusec.frontend import syntax
from fusec.frontend.resolve_functions import UserFunction
from fusec.frontend.resolve_values import Value
from fusec.ir.graph import Nonempty, SideTable
from fusec.ir.node import Dim, Extent, Node, Shape
from fusec.source import Source, Span

_LONGEST_LABEL = 30
_COMMENT = re.compile(r"#[^\r\n]*")
_SPELLINGS = {"^": ("**", "^")}


@dataclass(slots=True)
class Frame:
    """The names one piece of text sees.

    ``site`` is the call that a built-in composite was expanded for: all its nodes stand there.
    ``caller`` is the call of a user's function, whose body has places of its own.
    """

    values: dict[str, Value]
    functions: dict[str, UserFunction] = field(default_factory=dict)
    outer: Mapping[str, Value] = field(default_factory=dict)
    site: Span | None = None
    internal: bool = False
    callers: tuple[Note, ...] = ()

    def lookup(self, name: str) -> Value | None:
        """The value of a name, or None."""
        found = self.values.get(name)
        return found if found is not None else self.outer.get(name)


class Place:
    """The piece of syntax at hand, and the lengths that turned out to be equal."""

    def __init__(self, source: Source, sizes: Mapping[Dim, int] | None) -> None:
        self.source = source
        self.side = SideTable()
        self.sizes = sizes
        self.equal: list[tuple[Dim, Dim]] = []
        self.nonempty: dict[tuple[str, Dim], Nonempty] = {}
        self.syntax: syntax.Node = syntax.Name("")
        self.frame = Frame({})
        self.offset = 0  # of the operands at hand among those of the syntax: comparisons chain
        self._first: dict[Dim, Dim] = {}

    @property
    def span(self) -> Span:
        """Where the operation at hand stands in the user's text."""
        return self.frame.site or self.syntax.span

    def note(self, node: Node) -> Node:
        """Record that ``node`` comes from here."""
        return self.side.note(node, self.span)

    def canonical(self, dim: Dim) -> Dim:
        """The first of the lengths that ``dim`` equals."""
        while (first := self._first.get(dim)) is not None:
            dim = first
        return dim

    def unify(self, a: Extent, b: Extent) -> Extent | None:
        """The common extent of two that broadcast, or None if they differ; records equalities."""
        if a == 1 or b == 1:
            return b if a == 1 else a
        assert isinstance(a, Dim)
        assert isinstance(b, Dim)
        a, b = self.canonical(a), self.canonical(b)
        if a == b:
            return a
        if self.sizes is not None and self.sizes[a] != self.sizes[b]:
            return None
        self._first[b] = a
        self.equal.append((a, b))
        return a

    def broadcast(self, nodes: list[Node], shapes: list[Shape] | None = None) -> Shape:
        """The common shape of nodes, or of given parts of their shapes; raises ShapeError."""
        parts = [n.shape for n in nodes] if shapes is None else shapes
        rank = max(map(len, parts))
        result: list[Extent] = [1] * rank
        givers = [0] * rank
        for position, shape in enumerate(parts):
            for axis, extent in enumerate(shape, rank - len(shape)):
                common = self.unify(result[axis], extent)
                if common is None:
                    raise self._mismatch(nodes, givers[axis], position, (result[axis], extent))
                if result[axis] == 1:
                    givers[axis] = position
                result[axis] = common
        return tuple(result)

    def error(
        self,
        kind: type[FusecError],
        message: str,
        *,
        hint: str | None = None,
        notes: tuple[Note, ...] = (),
        operand: int | None = None,
    ) -> FusecError:
        """An error at the operation at hand, or at one of its operands."""
        span = self.span
        parts = self._operands()
        if operand is not None and self.frame.site is None and operand < len(parts):
            span = parts[operand].span
        return kind(
            message, source=self.source, span=span, notes=(*notes, *self.frame.callers), hint=hint
        )

    def label(self, position: int, otherwise: str) -> str:
        """The text of an operand, if it is short and the user's."""
        parts = self._operands()
        if self.frame.site is not None or position >= len(parts):
            return otherwise
        text = self.source.excerpt(parts[position].span)
        return text if len(text) <= _LONGEST_LABEL and "\n" not in text else otherwise

    def numbers(self, shape: Shape) -> str:
        """A shape as ``[3, 4]``, with names where the lengths are not known."""
        return f"[{', '.join(str(self.length(extent)) for extent in shape)}]"

    def length(self, extent: Extent) -> int | str:
        """An extent as a number, or its name."""
        if isinstance(extent, int):
            return extent
        return self.sizes[extent] if self.sizes is not None else extent.name

    def describe(self, node: Node, position: int) -> str:
        """``x is [3, 4]``."""
        name = node.name if node.op.name == "input" else self.side.names.get(node)
        return f"{name or self.label(position, 'a value')} is {self.numbers(node.shape)}"

    def _operands(self) -> tuple[syntax.Node, ...]:
        node = self.syntax
        if isinstance(node, syntax.Conditional):
            return node.condition, node.then, node.otherwise
        return syntax.children(node)[self.offset :]

    def _mismatch(
        self, nodes: list[Node], first: int, second: int, extents: tuple[Extent, Extent]
    ) -> FusecError:
        a, b = nodes[first], nodes[second]
        described = [self.describe(a, first), self.describe(b, second)]
        notes: tuple[Note, ...] = ()
        span = self.span
        parts = self._operands()
        if self.frame.site is None and len(parts) >= len(nodes):
            notes = (
                Note(described[0], parts[first].span),
                Note(described[1], parts[second].span),
            )
            span = self._operator_span(parts, second)
        lengths = " against ".join(str(self.length(e)) for e in extents)
        return ShapeError(
            f"shapes do not fit, {lengths}: {', '.join(described)}",
            source=self.source,
            span=span,
            notes=(*notes, *self.frame.callers),
            hint="lengths must be equal, or 1",
        )

    def _operator_span(self, parts: tuple[syntax.Node, ...], second: int) -> Span:
        """Where the operator before an operand stands, or the whole operation."""
        node = self.syntax
        if isinstance(node, syntax.Compare):
            symbol = node.operators[self.offset]
        elif isinstance(node, syntax.Binary | syntax.Logical):
            symbol = node.operator
        else:
            return self.span
        start, end = parts[second - 1].span.end, parts[second].span.start
        between = _COMMENT.sub(lambda m: " " * len(m.group()), self.source.text[start:end])
        for spelling in _SPELLINGS.get(symbol, (symbol,)):
            offset = between.find(spelling)
            if offset >= 0:
                return Span(start + offset, start + offset + len(spelling))
        return self.span
