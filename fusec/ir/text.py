"""The graph as text, one statement a line, and that text back as a graph of the same nodes.

    input x : f32[x.0, x.1]
    scalar eps : f64[]
    nonempty x.1 = max
    %0 = input name='x', scalar=False, unsqueezed=0 : f32[x.0, x.1]
    %1 = sum %0, axes=(-1,) : f32[x.0, 1]  # total
    %2 = constant 0.1 : f32[]
    %3 = mul %1, %2 : f32[x.0, 1]
    return y = %3, squeeze=(-1,)

``input`` and ``scalar`` lines declare what a caller passes, ``nonempty`` what has no
value on an empty axis; ``%0 = input`` is the node that reads an input. Comments are for people and
are not read. May import ``fusec.source``, ``fusec.errors`` and the modules of ``ir`` that define a
graph.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from fusec.errors import ParseError
from fusec.ir import dtypes
from fusec.ir.graph import Graph, InputSpec, Nonempty, Output, SideTable
from fusec.ir.node import Attribute, Dim, Extent, Node, TensorType, constant, make
from fusec.ir.ops import OPS
from fusec.source import Source, Span

_T = TypeVar("_T")
_NUMBER = r"-?(?:inf\b|nan\b|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"
_TOKEN = re.compile(
    r"(?P<string>'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\")"
    rf"|(?P<reference>%\d+)|(?P<number>{_NUMBER})|(?P<word>[^\W\d][\w.]*)"
    r"|(?P<comment>\#.*)|(?P<space>[ \t\r]+)|(?P<sign>[=,:()\[\]])|(?P<unknown>.)"
)
_BARE = re.compile(r"[^\W\d][\w.]*")
_WORDS: dict[str, Attribute] = {"True": True, "False": False, "None": None}


def print_graph(graph: Graph) -> str:
    """The text of ``graph``; nodes come in dependency order, numbered from 0."""
    lines = [_input_line(spec) for spec in graph.inputs]
    lines += [f"nonempty {_name(n.dim.name)} = {_name(n.function)}" for n in graph.nonempty]
    numbers: dict[Node, int] = {}
    for number, node in enumerate(graph.nodes()):
        operands = ", ".join([*(f"%{numbers[a]}" for a in node.args), *_attributes(node)])
        line = f"%{number} = {node.op.name} {operands}".rstrip()
        numbers[node] = number
        name = graph.side.names.get(node)
        comment = f"  # {name}" if name is not None and name.isprintable() else ""
        lines.append(f"{line} : {_type(node.type)}{comment}")
    for output in graph.outputs:
        squeeze = f", squeeze={output.squeeze!r}" if output.squeeze else ""
        order = f", order={output.order!r}" if output.order is not None else ""
        lines.append(f"return {_name(output.name)} = %{numbers[output.node]}{squeeze}{order}")
    return "\n".join(lines) + "\n"


def number_text(value: float | bool, dtype: dtypes.DType) -> str:
    """The shortest decimal text whose constant of type ``dtype`` is that of ``value``."""
    if not dtype.is_float:
        return repr(value)
    exact = constant(value, dtype)
    for digits in range(1, 17):
        text = repr(float(f"{value:.{digits}g}"))
        if constant(float(text), dtype) is exact:
            return text
    return repr(value)


def _input_line(spec: InputSpec) -> str:
    kind = "scalar" if spec.scalar else "input"
    return f"{kind} {_name(spec.name)} : {_type(TensorType(spec.dtype, spec.shape))}"


def _type(type: TensorType) -> str:
    extents = (_name(e.name) if isinstance(e, Dim) else str(e) for e in type.shape)
    return f"{type.dtype.name}[{', '.join(extents)}]"


def _name(name: str) -> str:
    """A name as it is where it reads as one word, else quoted."""
    plain = _BARE.fullmatch(name) and not re.match(_NUMBER, name)
    return name if plain else repr(name)


def _attributes(node: Node) -> list[str]:
    if node.op.name == "constant":
        text = number_text(node.value, node.dtype)
        value = _number(text) if node.dtype.is_float else node.value
        if constant(value, node.dtype) is node:
            return [text]  # else a NaN with a payload, which only its bits tell
    return [f"{key}={value!r}" for key, value in node.attributes]


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


@dataclass(slots=True)
class _Token:
    kind: str
    text: str
    span: Span


@dataclass(slots=True)
class _Reader:
    """The tokens of one line and what has been read so far."""

    source: Source
    tokens: list[_Token] = field(default_factory=list)
    position: int = 0
    nodes: dict[str, Node] = field(default_factory=dict)
    inputs: list[InputSpec] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    nonempty: list[Nonempty] = field(default_factory=list)
    side: SideTable = field(default_factory=SideTable)

    def fail(self, message: str, token: _Token | None = None) -> NoReturn:
        raise ParseError(message, source=self.source, span=(token or self.next).span)

    @property
    def next(self) -> _Token:
        return self.tokens[self.position]

    def take(self, *kinds: str) -> _Token:
        """The next token, which must be of one of ``kinds`` (or be that sign)."""
        token = self.next
        if token.kind not in kinds and (token.kind != "sign" or token.text not in kinds):
            self.fail(f"expected {' or '.join(kinds)}, found {token.text or 'the end of the line'}")
        self.position += 1
        return token

    def skip(self, sign: str) -> bool:
        """Whether the next token is ``sign``, which is then taken."""
        if self.next.kind != "sign" or self.next.text != sign:
            return False
        self.position += 1
        return True

    def items(self, read: Callable[[], _T], close: str) -> Iterator[_T]:
        """Items with commas between them (one after the last is fine) up to ``close``."""
        while not self.skip(close):
            yield read()
            if self.next.text != close:
                self.take(",")

    def name(self) -> str:
        token = self.take("word", "string")
        return str(ast.literal_eval(token.text)) if token.kind == "string" else token.text

    def extent(self) -> Extent:
        if self.next.kind != "number":
            return Dim(self.name())
        token = self.take("number")
        if token.text != "1":
            self.fail("the only literal length is 1", token)
        return 1

    def type(self) -> TensorType:
        token = self.take("word")
        try:
            dtype = dtypes.by_name(token.text)
        except KeyError:
            self.fail(f"no element type is called '{token.text}'", token)
        self.take("[")
        return TensorType(dtype, tuple(self.items(self.extent, "]")))

    def node(self) -> Node:
        token = self.take("reference")
        if token.text not in self.nodes:
            self.fail(f"{token.text} is not defined above", token)
        return self.nodes[token.text]

    def integer(self) -> int:
        token = self.take("number")
        number = _number(token.text)
        return number if isinstance(number, int) else self.fail("expected an integer", token)

    def attribute(self) -> Attribute:
        if self.skip("("):
            return tuple(self.items(self.integer, ")"))
        token = self.take("number", "string", "word")
        if token.kind == "number":
            return _number(token.text)
        if token.kind == "string":
            return str(ast.literal_eval(token.text))
        return _WORDS[token.text] if token.text in _WORDS else self.fail("expected a value", token)

    def attributes(self) -> dict[str, Attribute]:
        found: dict[str, Attribute] = {}
        while self.next.kind == "word":
            key = self.take("word").text
            self.take("=")
            found[key] = self.attribute()
            if not self.skip(","):
                break
        return found


def parse_graph(text: str, name: str = "<ir>") -> Graph:
    """The graph that :func:`print_graph` wrote as ``text``, with its nodes' places in the side
    table.

    Types are taken as they stand (``ir/verify.py`` checks them). ParseError says where the text is
    wrong.
    """
    source = Source(text, name)
    reader = _Reader(source)
    start = 0
    for line in text.split("\n"):
        reader.tokens, reader.position = _tokens(line, start), 0
        start += len(line) + 1
        if reader.next.kind != "end":
            _statement(reader)
            reader.take("end")
    inputs, outputs = tuple(reader.inputs), tuple(reader.outputs)
    return Graph(inputs, outputs, reader.side, source, tuple(reader.nonempty))


def _tokens(line: str, start: int) -> list[_Token]:
    tokens = [
        _Token(str(m.lastgroup), m.group(), Span(start + m.start(), start + m.end()))
        for m in _TOKEN.finditer(line)
        if m.lastgroup not in ("space", "comment")
    ]
    end = tokens[-1].span.end if tokens else start
    return [*tokens, _Token("end", "", Span(end, end))]


def _statement(reader: _Reader) -> None:
    token = reader.take("reference", "word")
    if token.kind == "reference":
        _definition(reader, token)
    elif token.text in ("input", "scalar"):
        name = reader.name()
        reader.take(":")
        type = reader.type()
        reader.inputs.append(InputSpec(name, type.dtype, type.shape, token.text == "scalar"))
    elif token.text == "nonempty":
        dim = Dim(reader.name())
        reader.take("=")
        reader.nonempty.append(Nonempty(reader.name(), dim))
    elif token.text == "return":
        _output(reader)
    else:
        reader.fail("a line begins with input, scalar, nonempty, return or %number", token)


def _output(reader: _Reader) -> None:
    name = reader.name()
    reader.take("=")
    node = reader.node()
    axes: dict[str, tuple[int, ...]] = {}
    while reader.skip(","):
        key = reader.take("word")
        if key.text not in ("squeeze", "order") or key.text in axes:
            reader.fail("expected squeeze=(...) or order=(...)", key)
        reader.take("=")
        reader.take("(")
        axes[key.text] = tuple(reader.items(reader.integer, ")"))
    reader.outputs.append(Output(name, node, axes.get("squeeze", ()), axes.get("order")))


def _definition(reader: _Reader, target: _Token) -> None:
    if target.text in reader.nodes:
        reader.fail(f"{target.text} is defined twice", target)
    reader.take("=")
    operator = reader.take("word")
    if operator.text not in OPS:
        reader.fail(f"no operator is called '{operator.text}'", operator)
    op = OPS[operator.text]
    value = reader.attribute() if op.name == "constant" and reader.next.text != "bits" else None
    args: list[Node] = []
    while reader.next.kind == "reference":
        args.append(reader.node())
        if not reader.skip(","):
            break
    if len(args) != op.arity:
        reader.fail(f"{op.name} takes {op.arity} arguments, not {len(args)}", operator)
    attributes = reader.attributes()
    reader.take(":")
    type = reader.type()
    if value is None:
        node = make(op, args, type, **attributes)
    elif isinstance(value, (int, float)):
        node = constant(value, type.dtype)
    else:
        reader.fail("a constant is a number", operator)
    reader.nodes[target.text] = node
    reader.side.note(node, Span(target.span.start, reader.tokens[-1].span.end))
