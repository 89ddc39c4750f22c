"""The graph a frontend makes: inputs, outputs, and beside the nodes what a person called them and
where they stood.

May import ``fusec.source``, ``ir.dtypes`` and ``ir.node``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from fusec.ir.dtypes import DType
from fusec.ir.node import Dim, Node, Shape, TensorType, make, toposort
from fusec.source import Source, Span

# A node may come from thousands of places; a few say enough, and the search stays short.
_MOST_SPANS = 8


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input of a program:

    A tensor with ``shape``, or a run-time number (``scalar``; its shape is ``()``).
    """

    name: str
    dtype: DType
    shape: Shape
    scalar: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """One result: ``squeeze`` lists the negative axes (length 1, reduced away) that the caller does
    not see.

    ``order`` lists the axes that the caller sees as they are to lie in memory, outermost first;
    None leaves that to whoever launches.
    """

    name: str
    node: Node
    squeeze: tuple[int, ...] = ()
    order: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Nonempty:
    """``function`` (max, argmax ...) has no value over an axis of length 0, so ``dim`` must not be
    0.
    """

    function: str
    dim: Dim
    span: Span | None = None


@dataclass(slots=True)
class SideTable:
    """Facts about nodes that are no part of their identity. Merged nodes merge their spans."""

    spans: dict[Node, list[Span]] = field(default_factory=dict)
    names: dict[Node, str] = field(default_factory=dict)

    def note(self, node: Node, span: Span | None = None, name: str | None = None) -> Node:
        """Record where ``node`` stands and what the user calls it (the first name stays)."""
        if span is not None:
            spans = self.spans.setdefault(node, [])
            if len(spans) < _MOST_SPANS and span not in spans:
                spans.append(span)
        if name is not None:
            self.names.setdefault(node, name)
        return node

    def carry(self, old: Node, new: Node) -> None:
        """Give ``new`` what is known of ``old``, which it replaces."""
        if old is new:
            return
        for span in self.spans.get(old, []):
            self.note(new, span)
        if old in self.names:
            self.note(new, name=self.names[old])


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole program. What no output reaches does not exist, so dead code needs no pass."""

    inputs: tuple[InputSpec, ...]
    outputs: tuple[Output, ...]
    side: SideTable
    source: Source
    nonempty: tuple[Nonempty, ...] = ()

    def nodes(self) -> list[Node]:
        """All nodes, arguments first."""
        return toposort(o.node for o in self.outputs)

    def input_named(self, name: str) -> InputSpec:
        """The input called ``name``; KeyError if there is none."""
        for spec in self.inputs:
            if spec.name == name:
                return spec
        raise KeyError(name)


def rebuild(graph: Graph, transform: Callable[[Node], Node]) -> Graph:
    """The graph with ``transform`` applied bottom up:

    It gets each node with its arguments already replaced.
    """
    return substitute_outputs(graph, images(graph, transform))


def images(graph: Graph, transform: Callable[[Node], Node]) -> dict[Node, Node]:
    """What ``transform``, applied bottom up, makes of each node; names and spans go along."""
    done: dict[Node, Node] = {}
    for node in graph.nodes():
        args = tuple(done[a] for a in node.args)
        candidate = node if args == node.args else remake(node, args)
        result = transform(candidate)
        graph.side.carry(node, result)
        done[node] = result
    return done


def remake(node: Node, args: tuple[Node, ...]) -> Node:
    """``node`` over other arguments of the same types."""
    return make(node.op, args, TensorType(node.dtype, node.shape), **dict(node.attributes))


def substitute_outputs(graph: Graph, done: Mapping[Node, Node]) -> Graph:
    """The graph with each output node replaced by its image in ``done``."""
    outputs = tuple(replace(o, node=done[o.node]) for o in graph.outputs)
    return replace(graph, outputs=outputs)


def without_twins(graph: Graph) -> Graph:
    """``graph`` with each ``gradient_as`` replaced by its value: what is left when no gradient will
    be asked for.
    """
    return rebuild(graph, value_alone)


def value_alone(node: Node) -> Node:
    """The value of a ``gradient_as``, unless it has to be broadcast."""
    if node.op.name != "gradient_as" or node.args[0].type != node.type:
        return node
    return node.args[0]
