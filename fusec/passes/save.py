"""What a forward program keeps for its gradient, and what the gradient computes again.

Before: a graph and the graphs of its gradient, which compute everything from the inputs. After: the
graph with the values to keep as further outputs, and gradients that read those instead.

**The rule.** A value that the gradient uses is read from an input or a result of the program, kept,
or computed again, whichever moves the fewest bytes:

- an input or a result costs its bytes once, to be read; a result that is rounded when it is stored
  is read only where that does the gradient no harm (``passes/rounded.py``) and it is as large as
  anything: a smaller one is kept beside it, and of one that does some harm a read costs more;
- anything else that is kept costs its bytes twice, to be written and read, in its compute type;
- what is computed again costs nothing itself, but what it is computed from has to be there;
- a reduction that is computed again costs one more sweep over what it reduces; a maximum of what is
  computed is never read, since the gradient looks for it among values that are computed again.

The cheapest choice is a minimum cut between the inputs and what the gradient uses; of several
equally cheap ones the one nearest to the gradient is taken, which leaves the least to compute
again. Lengths are not known here and must not matter, so every named axis counts as ``NOMINAL``.

May import ``fusec.ir`` and, of the passes, ``cut``, ``fuse``, ``idioms`` and ``rounded``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fusec.ir.graph import Graph, InputSpec, Output, images, substitute_outputs, value_alone
from fusec.ir.node import Dim, Node, Shape, TensorType, make
from fusec.ir.ops import Kind
from fusec.passes.cut import Network
from fusec.passes.fuse import reduction_name
from fusec.passes.idioms import summed
from fusec.passes.rounded import Harm, Reading, is_exact

NOMINAL = 1024  # the length that a named axis is taken to have
_FREE = ("constant", "index", "size")
_STORED = ("input", "gather")  # of these a maximum is one, whoever finds it
_NEVER = 1 << 62  # more bytes than anything has


@dataclass(frozen=True, slots=True)
class Crossing:
    """A value that a gradient starts from: ``how`` is ``input``, ``result`` or ``kept``; ``name``
    is that of the input or the result, or the one that it is kept under.
    """

    node: Node
    how: str
    name: str


@dataclass(frozen=True, slots=True)
class Kept:
    """A program and what its gradients start from. ``forward`` has the kept values as further
    outputs and ``traced`` is the same with what only gradients ask for: the one to differentiate.
    ``origins`` are the crossing values as they are there.
    """

    forward: Graph
    traced: Graph
    crossing: tuple[Crossing, ...]
    origins: tuple[Crossing, ...]


def keep(graph: Graph, backward: Graph) -> Kept:
    """``graph``, a resolved one, for a gradient ``backward`` of it."""
    both = replace(graph, outputs=(*graph.outputs, *backward.outputs))
    image = images(both, value_alone)
    bare = substitute_outputs(graph, image)
    crossing = choose(bare, substitute_outputs(backward, image))
    origin = {there: here for here, there in image.items()}
    origins = tuple(replace(c, node=origin[c.node]) for c in crossing)
    return Kept(keeping(bare, crossing), keeping(graph, origins), crossing, origins)


def choose(graph: Graph, backward: Graph) -> tuple[Crossing, ...]:
    """What of ``graph`` its gradient ``backward`` should start from, in program order."""
    own = set(graph.nodes())
    used = _used(own, backward)
    results = _readable(graph, backward)
    compared = found_again(backward)
    network = Network()
    order = [n for n in graph.nodes() if not _is_free(n)]
    for node in order:
        _wire(network, node, results.get(node), node in compared)
    for node in used:
        network.connect((node, "out"), "gradient")
    near = network.near_side("program", "gradient")
    crossing = [n for n in order if (n, "in") not in near and (n, "out") in near]
    taken = {s.name for s in backward.inputs}
    taken |= {o.name for o in (*graph.outputs, *backward.outputs)}
    names = {o.node: o.name for o in graph.outputs if o.node in results}
    return tuple(_crossing(node, names, graph, taken) for node in crossing)


def _readable(graph: Graph, backward: Graph) -> dict[Node, int]:
    """The results that a gradient may read, with the bytes that this counts as."""
    largest = max((elements(n.shape) for n in graph.nodes()), default=0)
    reading = Reading(graph, backward)
    found: dict[Node, int] = {}
    for node in dict.fromkeys(o.node for o in graph.outputs):
        size = elements(node.shape)
        cost = size * node.dtype.itemsize
        if not is_exact(node):
            harm = reading.harm(node) if size == largest else Harm.ANY
            if harm is Harm.ANY:
                continue
            cost += cost // 4 if harm is Harm.SOME else 0  # below what another input costs
        found[node] = cost
    return found


def _is_free(node: Node) -> bool:
    """Whether a value costs nothing: literals, positions, lengths and run-time numbers."""
    return node.op.name in _FREE or (node.op.name == "input" and node.attribute("scalar") is True)


def _used(own: set[Node], backward: Graph) -> list[Node]:
    """The nodes of the program that nodes of the gradient alone, or its outputs, read."""
    found = {o.node: None for o in backward.outputs if o.node in own}
    for node in backward.nodes():
        if node not in own:
            # A gather reads its own elements, of an input that is not read as a whole.
            found.update((a, None) for a in node.args if a in own)
    return [n for n in found if not _is_free(n)]


def found_again(graph: Graph) -> set[Node]:
    """Reductions that are looked for among what they were chosen from, as the gradient of a maximum
    does. If that is computed, it is only the same digit for digit where one kernel has both: a
    result is rounded to its type, and another kernel may be in another language.
    """
    found: set[Node] = set()
    for node in graph.nodes():
        if node.op.name in ("eq", "ne"):
            found.update(a for a in node.args if a.op.kind is Kind.REDUCTION)
    return {n for n in found if n.args[0].op.name not in _STORED}


def _wire(network: Network, node: Node, result: int | None, again: bool) -> None:
    """What it costs to have ``node`` at hand, as capacities: ``result`` to read it as a result.
    ``again``: it has to be computed.
    """
    size = elements(node.shape)
    read = size * node.dtype.itemsize
    if node.op.name == "input":
        network.connect("program", (node, "in"))
        network.connect((node, "in"), (node, "out"), read)
        return
    kept = 2 * size * node.dtype.compute.itemsize + 1  # of equally cheap ones, nothing is kept
    least = kept if result is None else min(result, kept)
    network.connect((node, "in"), (node, "out"), _NEVER if again else least)
    gathers = node.op.name == "gather"
    if gathers:
        network.connect("program", (node, "in"), read)
    elif node.op.kind is Kind.REDUCTION:
        operand = node.args[0]
        network.connect("program", (node, "in"), elements(operand.shape) * operand.dtype.itemsize)
    for argument in node.args[1:] if gathers else node.args:
        if not _is_free(argument):
            network.connect((argument, "out"), (node, "in"))


def elements(shape: Shape, sizes: Mapping[Dim, int] | None = None) -> int:
    """How many elements a value of this shape has: for ``sizes``, or nominally."""
    count = 1
    for extent in shape:
        if isinstance(extent, Dim):
            count *= NOMINAL if sizes is None else sizes[extent]
    return count


def _crossing(node: Node, results: Mapping[Node, str], graph: Graph, taken: set[str]) -> Crossing:
    if node.op.name == "input":
        return Crossing(node, "input", node.name)
    if node in results:
        return Crossing(node, "result", results[node])
    stem = graph.side.names.get(node) or _described(node)
    name, serial = stem, 1
    while name in taken:
        name, serial = f"{stem}_{serial}", serial + 1
    taken.add(name)
    return Crossing(node, "kept", name)


def _described(node: Node) -> str:
    """A name for a value that has none: ``row_mean``, ``row_rsqrt``, ``add``."""
    if node.op.kind is Kind.REDUCTION:
        return reduction_name(node)
    total = summed(node)
    if total is not None:
        return reduction_name(total).replace("sum", "mean")
    return f"row_{node.op.name}" if node.shape[-1:] == (1,) else node.op.name


def keeping(graph: Graph, crossing: tuple[Crossing, ...]) -> Graph:
    """``graph`` with a further output for each value that is kept, in its compute type."""
    kept = tuple(Output(c.name, _computed(c.node)) for c in crossing if c.how == "kept")
    return replace(graph, outputs=(*graph.outputs, *kept))


def _computed(node: Node) -> Node:
    kind = node.dtype.compute
    if kind is node.dtype:
        return node
    return make("cast", (node,), TensorType(kind, node.shape))


def starting_from(backward: Graph, crossing: tuple[Crossing, ...]) -> Graph:
    """``backward`` with results and kept values of the program as inputs.

    Its inputs are then those that it reads and no others, in their order, with the results and the
    kept values behind those of the program.
    """
    specs = {s.name: s for s in backward.inputs}
    stands: dict[Node, Node] = {}
    for c in crossing:
        if c.how != "input":
            kind = TensorType(
                c.node.dtype if c.how == "result" else c.node.dtype.compute, c.node.shape
            )
            specs[c.name] = InputSpec(c.name, kind.dtype, kind.shape)
            stands[c.node] = make("input", (), kind, name=c.name, unsqueezed=0, scalar=False)
    made = _substituted(backward, stands)
    read = {n.name for n in made.nodes() if n.op.name == "input"}
    return replace(made, inputs=tuple(s for s in specs.values() if s.name in read))


def _substituted(graph: Graph, stands: Mapping[Node, Node]) -> Graph:
    """``graph`` with nodes replaced, from its outputs down: what lies below them is not visited."""
    done: dict[Node, Node] = {}
    stack = [o.node for o in reversed(graph.outputs)]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        if node in stands:
            done[node] = stands[node]
            continue
        pending = [a for a in node.args if a not in done]
        if pending:
            stack.extend(pending)
            continue
        done[node] = _over(node, tuple(done[a] for a in node.args))
        graph.side.carry(node, done[node])
        stack.pop()
    outputs = tuple(replace(o, node=_typed(done[o.node], o.node)) for o in graph.outputs)
    return replace(graph, outputs=outputs)


def _over(node: Node, args: tuple[Node, ...]) -> Node:
    """``node`` over other arguments; one in float32 makes a reduction one in float32."""
    if args == node.args:
        return node
    dtype = args[0].dtype if node.op.kind is Kind.REDUCTION else node.dtype
    return make(node.op, args, TensorType(dtype, node.shape), **dict(node.attributes))


def _typed(node: Node, like: Node) -> Node:
    if node.dtype is like.dtype:
        return node
    return make("cast", (node,), TensorType(like.dtype, node.shape))
