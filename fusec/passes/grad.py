"""Reverse mode: the gradient of a Graph, as a Graph.

Before: a resolved graph, not yet simplified (rules may bring forms whose derivative loses digits or
overflows). After: a graph whose inputs are those of the first and, for each result, ``grad_NAME``
(with reduced axes kept as length 1), and whose outputs are the gradients of the wanted inputs. It
is a Graph like any other: the same passes and printers take it, and it has a gradient again.

The derivative of an op stands in the op table. Here is what joins them: gradients of a value with
several users are added, an operand that was broadcast gets the sum over the axes it was broadcast
along. A gradient may be narrower than its value: it broadcasts, as that of a sum does.

>>> from fusec.ir.text import parse_graph, print_graph
>>> text = "input x : f32[n]\\n%0 = input name='x', scalar=False, unsqueezed=0 : f32[n]\\n"
>>> text += "%1 = exp %0 : f32[n]\\nreturn y = %1\\n"
>>> print(print_graph(gradient(parse_graph(text), ["x"]).graph), end="")
input x : f32[n]
input grad_y : f32[n]
%0 = input name='grad_y', scalar=False, unsqueezed=0 : f32[n]
%1 = input name='x', scalar=False, unsqueezed=0 : f32[n]
%2 = exp %1 : f32[n]
%3 = mul %0, %2 : f32[n]
return grad_x = %3

May import ``fusec.ir`` and, of the passes, ``composites``, ``empty`` and ``expressions``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fusec.ir.dtypes import F32
from fusec.ir.graph import Graph, InputSpec, Output, SideTable
from fusec.ir.node import Node, Shape, TensorType, make, toposort
from fusec.ir.ops import Kind
from fusec.passes.composites import gate, of_rows, sum_over
from fusec.passes.empty import Emptiness
from fusec.passes.expressions import Expression, Masked, Words

Gradient: TypeAlias = "Expression | Masked"


@dataclass(frozen=True, slots=True)
class Backward:
    """The gradient of a graph. ``given`` names the inputs that hold the gradients of the results,
    with the position of each result; ``of`` the inputs whose gradients are the outputs. An input
    that the graph reads in two shapes, with a further axis and without, has an output for each:
    its gradient is their sum.
    """

    graph: Graph
    given: tuple[tuple[str, int], ...]
    of: tuple[str, ...]


def gradient(graph: Graph, wrt: Sequence[str], results: Sequence[int] | None = None) -> Backward:
    """The gradients of the inputs named ``wrt``, float tensors, in their order.

    ``results``: the positions of the outputs that have a gradient (default: all floats). An input
    that no such result depends on smoothly has no output. The graph may have no outputs at all.
    """
    chosen = range(len(graph.outputs)) if results is None else results
    tape = _Tape(graph, frozenset(wrt))
    floats = [k for k in chosen if graph.outputs[k].node.dtype.is_float]
    seeds = [tape.seed(graph.outputs[k]) for k in floats]
    for node in reversed(tape.order):
        tape.pass_on(node)
    specs = {spec.name: spec for spec in graph.inputs}
    found = [(name, *part) for name in wrt for part in tape.found.get(name, ())]
    of = tuple(name for name, *_ in found)
    outputs = tuple(tape.output(specs[name], part, added) for name, part, added in found)
    side = SideTable(dict(graph.side.spans), dict(graph.side.names))
    made = Graph((*graph.inputs, *seeds), outputs, side, graph.source, graph.nonempty)
    given = tuple((spec.name, k) for spec, k in zip(seeds, floats, strict=True))
    return Backward(made, given, of)


def differentiable(graph: Graph, wrt: Iterable[str]) -> set[Node]:
    """The nodes that depend smoothly on one of the inputs ``wrt``."""
    return _behind(graph, wrt, lambda node: node.op.derivative is not None)


def requiring_grad(graph: Graph, wrt: Iterable[str], steps: bool = False) -> set[Node]:
    """The nodes that require grad in PyTorch if the inputs ``wrt`` do: steps are among them, whose
    gradient is 0, but not what is detached or computed from conditions and integers.

    ``steps``: what is computed from conditions is among them too.
    """
    if not steps:
        return _behind(graph, wrt, lambda node: True)
    names = frozenset(wrt)
    found: set[Node] = set()
    for node in graph.nodes():
        own = node.op.name == "input" and node.name in names
        if own or any(a in found for a in _moved_by(node)):
            found.add(node)
    return {node for node in found if node.dtype.is_float}


def own_uses(node: Node) -> set[Node]:
    """What the derivative of ``node`` by itself is made of."""
    if node.op.derivative is None:
        return set()
    given = Expression(make("input", (), node.type, name="", unsqueezed=0, scalar=False))
    parts: list[Gradient | None] = [part for _, part in _composite(node, given) or ()]
    values = [_value(part).node for part in parts or _derivative(node, given) if part is not None]
    return set(toposort(values))


def _behind(graph: Graph, wrt: Iterable[str], passes: Callable[[Node], bool]) -> set[Node]:
    """The floats that depend on one of the inputs ``wrt`` through floats that ``passes`` takes."""
    names = frozenset(wrt)
    active: set[Node] = set()
    for node in graph.nodes():
        if not node.dtype.is_float:
            continue
        if node.op.name == "input":
            moves = node.name in names
        else:
            moves = passes(node) and any(a in active for a in _moved_by(node))
        if moves:
            active.add(node)
    return active


def _moved_by(node: Node) -> tuple[Node, ...]:
    return node.args[1:] if node.op.name == "gradient_as" else node.args


@dataclass(slots=True)
class _Tape:
    """What is known of gradients while they are passed from the results to the inputs."""

    graph: Graph
    wrt: frozenset[str]
    order: list[Node] = field(default_factory=list)
    active: set[Node] = field(default_factory=set)
    parts: dict[Node, list[Gradient]] = field(default_factory=dict)
    # One for each shape that an input is read in, and how many axes that has at its end.
    found: dict[str, list[tuple[Expression, int]]] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    empty: Emptiness = field(default_factory=Emptiness)

    def __post_init__(self) -> None:
        self.order = toposort(o.node for o in self.graph.outputs)
        self.active = differentiable(self.graph, self.wrt)
        self.taken = {s.name for s in self.graph.inputs} | {o.name for o in self.graph.outputs}

    def name(self, wanted: str) -> str:
        """``wanted``, or with a number behind it where that is taken."""
        name, serial = wanted, 1
        while name in self.taken:
            name, serial = f"{wanted}_{serial}", serial + 1
        self.taken.add(name)
        return name

    def seed(self, output: Output) -> InputSpec:
        """The input that holds the gradient of a result."""
        node = output.node
        spec = InputSpec(self.name(f"grad_{output.name}"), node.dtype, node.shape)
        given = make("input", (), node.type, name=spec.name, unsqueezed=0, scalar=False)
        if node.dtype.bits == 8:
            given = make("cast", (given,), TensorType(F32, node.shape))
        self.add(node, Expression(given))
        return spec

    def add(self, node: Node, part: Gradient) -> None:
        """One more part of the gradient of ``node``."""
        if node in self.active:
            self.parts.setdefault(node, []).append(part)

    def pass_on(self, node: Node) -> None:
        """Give the gradient of ``node`` to what it was computed from."""
        parts = self.parts.pop(node, None)
        if parts is None:
            return
        whole = _together(parts)
        if node.op.name == "input":
            found = (_value(whole), node.integer("unsqueezed"))
            self.found.setdefault(node.name, []).append(found)
            return
        shortcut = _composite(node, whole)
        if shortcut is not None:
            for target, joint in shortcut:
                self.add(target, _fit(joint, target, node.shape, self.empty))
            return
        for argument, part in zip(node.args, _derivative(node, whole), strict=True):
            if part is not None and argument in self.active:
                space = argument.shape if node.op.kind is Kind.REDUCTION else _space(node)
                self.add(argument, _fit(part, argument, space, self.empty))

    def output(self, spec: InputSpec, part: Expression, added: int) -> Output:
        """The gradient of an input, in its type; axes that it does not have are dropped: ``added``
        ones at the end, and those in front of its own.
        """
        node = part.node
        if node.dtype is not spec.dtype:
            node = make("cast", (node,), TensorType(spec.dtype, node.shape))
        rank = len(node.shape)
        extra = (a for a in range(-rank, 0) if a >= -added or a < -added - len(spec.shape))
        return Output(self.name(f"grad_{spec.name}"), node, tuple(extra))


def _value(gradient: Gradient) -> Expression:
    return gradient.whole() if isinstance(gradient, Masked) else gradient


def _together(parts: list[Gradient]) -> Gradient:
    """The sum of the parts; two that exclude each other become one selection."""
    if len(parts) == 1:
        return parts[0]
    plain = [p for p in parts if isinstance(p, Expression)]
    masked = [p for p in parts if isinstance(p, Masked)]
    while masked:
        first = masked.pop(0)
        other = next((m for m in masked if _opposite(first, m)), None)
        if other is None:
            plain.append(first.whole())
            continue
        masked.remove(other)
        plain.append(Words().where(first.condition, first.value, other.value))
    total = plain[0]
    for part in plain[1:]:
        total = total + part
    return total


def _opposite(a: Masked, b: Masked) -> bool:
    """Whether the condition of ``b`` is the negation of that of ``a``."""
    return b.condition.node is (~a.condition).node


def _composite(node: Node, whole: Gradient) -> Sequence[tuple[Node, Gradient]] | None:
    """The parts of what lies below a composite, if ``node`` is one."""
    if isinstance(whole, Expression):
        return gate(node, whole) or of_rows(node, whole)
    parts = gate(node, whole.value)
    if parts is not None:
        return [(target, Masked(part, whole.condition)) for target, part in parts]
    return of_rows(node, whole.whole())


def _derivative(node: Node, whole: Gradient) -> list[Gradient | None]:
    """The part of each argument, over all that ``node`` runs over."""
    assert node.op.derivative is not None
    value = whole.value if isinstance(whole, Masked) else whole
    words = Words(node.args[0], node.axes) if node.op.kind is Kind.REDUCTION else Words()
    parts = node.op.derivative(words, value, Expression(node), *map(Expression, node.args))
    if isinstance(whole, Expression):
        return list(parts)
    return [None if part is None else _and(part, whole.condition) for part in parts]


def _space(node: Node) -> Shape:
    """What an op that is no reduction runs over."""
    if node.op.name != "gather":
        return node.shape
    return (*node.shape[:-1], node.args[0].shape[-1])


def _and(part: Gradient, condition: Expression) -> Masked:
    if isinstance(part, Masked):
        return Masked(part.value, part.condition & condition)
    return Masked(part, condition)


def _fit(part: Gradient, argument: Node, space: Shape, empty: Emptiness) -> Gradient:
    """``part``, a gradient over ``space``, summed along the axes that ``argument`` has not."""
    rank = len(space)
    own = (1,) * (rank - len(argument.shape)) + argument.shape
    along = [k - rank for k in range(rank) if own[k] == 1 and space[k] != 1]
    if not along:
        return part
    value = _value(part)
    total = sum_over(value, space, along)
    return empty.or_nothing(total, value.node, argument, space, along)
