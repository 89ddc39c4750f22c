"""A graph as a formula of the language, which parses back to the same program.

A value gets a line of its own where it is used twice, has a name of the user's, is a reduction, or
would make a line too long. May import ``fusec.ir``, ``passes/fuse.py`` and
``passes/idioms.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from types import MappingProxyType

from fusec.ir.graph import Graph, InputSpec
from fusec.ir.node import Dim, Node
from fusec.ir.ops import Kind
from fusec.ir.text import number_text
from fusec.passes.fuse import reduction_name
from fusec.passes.idioms import summed

# How tightly the language binds, loosest first; comparisons never stand bare beside an operator.
_COMPARE, _OR, _AND, _SUM, _PRODUCT, _UNARY, _POWER, _ATOM = range(8)
_LEVELS: Mapping[str, int] = MappingProxyType(
    {
        "<": _COMPARE, "<=": _COMPARE, ">": _COMPARE, ">=": _COMPARE, "==": _COMPARE,
        "!=": _COMPARE, "|": _OR, "&": _AND, "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT,
        "//": _PRODUCT, "%": _PRODUCT, "^": _POWER,
    }
)  # fmt: skip
_LONG = 72  # characters of a line
_NAMELESS = ("input", "constant", "index", "size")


def formula_text(graph: Graph, shapes: Sequence[InputSpec] = ()) -> str:
    """The statements of ``graph``, the last of which lists the results by name.

    ``shapes`` are further inputs in which to find a length that no input of the graph has.
    """
    return _Writer(graph, (*graph.inputs, *shapes)).text()


class _Writer:
    """Goes over the nodes, arguments first, and gives each a text or a line."""

    def __init__(self, graph: Graph, specs: Sequence[InputSpec]) -> None:
        self.graph = graph
        self.specs = specs
        self.lines: list[str] = []
        self.texts: dict[Node, tuple[str, int]] = {}
        self.taken = {s.name for s in specs} | {o.name for o in graph.outputs}
        self.uses = Counter(a for node in graph.nodes() for a in node.args)
        self.inputs = self.input_names()

    def input_names(self) -> dict[Node, str]:
        """What inputs are called: one that is read in two shapes has two names."""
        found: dict[Node, str] = {}
        nodes = [n for n in self.graph.nodes() if n.op.name == "input"]
        fewest = {n.name: n.integer("unsqueezed") for n in nodes}
        for node in nodes:
            fewest[node.name] = min(fewest[node.name], node.integer("unsqueezed"))
        for node in nodes:
            further = node.integer("unsqueezed") - fewest[node.name]
            found[node] = node.name if not further else self.free(f"{node.name}_1")
            if further:
                axes = "an axis" if further == 1 else f"{further} axes"
                self.lines.append(
                    f"# {found[node]} is {node.name} with {axes} of length 1 behind its own"
                )
        return found

    def free(self, stem: str) -> str:
        """``stem``, or with a number behind it where that is taken."""
        name, serial = stem, 1
        while name in self.taken:
            name, serial = f"{stem}{serial}", serial + 1
        self.taken.add(name)
        return name

    def text(self) -> str:
        results = {o.node: o.name for o in self.graph.outputs if o.node.op.name not in _NAMELESS}
        for node in self.graph.nodes():
            text, level = self.value(node)
            name = results.get(node) or self.name(node, text)
            if name is not None:
                self.lines.append(f"{name} = {text}")
                text, level = name, _ATOM
            self.texts[node] = (text, level)
        for output in self.graph.outputs:
            if self.texts[output.node][0] != output.name:
                self.lines.append(f"{output.name} = {self.texts[output.node][0]}")
        return "\n".join([*self.lines, ", ".join(o.name for o in self.graph.outputs)]) + "\n"

    def name(self, node: Node, text: str) -> str | None:
        """The name of a value that gets a line of its own."""
        if node.op.name in _NAMELESS or self.transparent(node):
            return None
        wanted = self.graph.side.names.get(node)
        if wanted is None and node.op.kind is Kind.REDUCTION:
            wanted = reduction_name(node)
        total = summed(node)
        if wanted is None and total is not None:
            wanted = reduction_name(total).replace("sum", "mean")
        if wanted is None and self.uses[node] < 2 and len(text) <= _LONG:
            return None
        stem = wanted if wanted is not None and wanted.isidentifier() else "t"
        return self.free(stem) if wanted else self.free_number()

    def free_number(self) -> str:
        """``t1``, ``t2`` ... for a value without a name."""
        serial = next(k for k in count(1) if f"t{k}" not in self.taken)
        self.taken.add(f"t{serial}")
        return f"t{serial}"

    def transparent(self, node: Node) -> bool:
        """A cast that the language makes by itself: numbers take the type of what they meet."""
        return node.op.name == "cast" and node.args[0].op.name == "size"

    def value(self, node: Node) -> tuple[str, int]:
        """The text of a node over those of its arguments, and how tightly it binds."""
        match node.op.name:
            case "input":
                return self.inputs[node], _ATOM
            case "constant":
                return self.constant(node)
            case "index" | "size":
                return f"{node.op.name}({self.where(node)})", _ATOM
            case "gather":
                x, t = (self.texts[a][0] for a in node.args)
                return f"{x}[{t}]", _ATOM
            case "cast":
                text, level = self.texts[node.args[0]]
                return (text, level) if self.transparent(node) else (f"{node.dtype}({text})", _ATOM)
        if node.op.kind is Kind.REDUCTION:
            axes = "" if node.axes == (-1,) else f", axis={_axes(node.axes)}"
            return f"{node.op.name}({self.texts[node.args[0]][0]}{axes})", _ATOM
        return self.operation(node)

    def operation(self, node: Node) -> tuple[str, int]:
        symbol = node.op.symbol
        if symbol is None:
            return f"{node.op.name}({', '.join(self.texts[a][0] for a in node.args)})", _ATOM
        if len(node.args) == 1:
            return f"{symbol}{self.wrapped(node.args[0], _UNARY)}", _UNARY
        level = _LEVELS[symbol]
        left, right = (level, level + 1) if level not in (_COMPARE, _POWER) else (level + 1,) * 2
        a, b = node.args
        return f"{self.wrapped(a, left)} {symbol} {self.wrapped(b, right)}", level

    def wrapped(self, node: Node, least: int) -> str:
        text, level = self.texts[node]
        return text if level >= least else f"({text})"

    def constant(self, node: Node) -> tuple[str, int]:
        if node.dtype.is_bool:
            return str(node.value).lower(), _ATOM
        text = number_text(node.value, node.dtype)
        return text, _UNARY if text.startswith("-") else _ATOM

    def where(self, node: Node) -> str:
        """The tensor and the axis that a position or length is of."""
        for spec in self.specs:
            for axis, extent in enumerate(spec.shape):
                if isinstance(extent, Dim) and extent.name == node.attribute("dim"):
                    return f"{spec.name}, {axis - len(spec.shape)}"
        return str(node.attribute("axis"))


def _axes(axes: tuple[int, ...]) -> str:
    return str(axes[0]) if len(axes) == 1 else str(axes)
