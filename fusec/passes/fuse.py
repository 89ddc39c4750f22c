"""Graph to Plan: cut a program into Regions, each one kernel, each with its reason in words.

Before: a simplified Graph. After: a Plan whose Regions, run in order, produce every output. Only
results of reductions are ever stored between kernels; elementwise work is cheap and is done again
where it is needed.

A reduction belongs to a group: the space it runs over and the axes it removes. Reductions of the
same group share a kernel even when one feeds the other (softmax), because the kernel sweeps its row
again or holds it. Different groups are different kernels, ordered by level: a reduction that needs
the result of another group comes one level later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fusec.ir.graph import Graph, Output, rebuild
from fusec.ir.node import Node, Shape, TensorType, make
from fusec.ir.ops import Kind

Group = tuple[int, Shape, tuple[int, ...]]  # level, space, axes


@dataclass(frozen=True, slots=True)
class Root:
    """A value a Region stores:

    An output of the program, or a reduction that a later Region needs (``output`` None).
    """

    name: str
    node: Node
    output: Output | None = None


@dataclass(frozen=True, slots=True)
class Region:
    """One kernel. ``space`` is what it iterates over, ``axes`` the reduced ones among them
    (negative; empty if none).
    """

    name: str
    space: Shape
    axes: tuple[int, ...]
    roots: tuple[Root, ...]
    reads: tuple[tuple[str, Node], ...]  # results of earlier regions, by buffer name
    reason: str
    # What a kernel of rows also adds up over its rows, block by block of them, by buffer name.
    columns: tuple[tuple[str, Node], ...] = ()

    @property
    def kind(self) -> str:
        """``elementwise``, ``row reduction``, ``column reduction`` or ``full reduction``."""
        if not self.axes:
            return "elementwise"
        wide = [i - len(self.space) for i, extent in enumerate(self.space) if extent != 1]
        if set(wide) <= set(self.axes):
            return "full reduction"
        return "row reduction" if max(wide) in self.axes else "column reduction"


@dataclass(frozen=True, slots=True)
class Plan:
    """The Graph and its Regions in the order they run."""

    graph: Graph
    regions: tuple[Region, ...]


@dataclass(slots=True)
class _Draft:
    """A Region while it is being filled."""

    level: int
    space: Shape
    axes: tuple[int, ...]
    roots: dict[Node, Root] = field(default_factory=dict)
    outputs: list[Root] = field(default_factory=list)
    why: list[str] = field(default_factory=list)


def plan(graph: Graph, name: str = "kernel", fuse: bool = True) -> Plan:
    """Cut ``graph`` into Regions.

    ``fuse=False`` gives every reduction and every output its own (for tests).
    """
    graph = rebuild(graph, _drop_trivial_axes)
    groups = _group_reductions(graph, fuse)
    drafts: dict[Group, _Draft] = {}
    for reduction, group in groups.items():
        draft = drafts.setdefault(group, _Draft(*group))
        if not fuse:
            draft.roots[reduction] = Root("", reduction)
    frontiers = _frontiers(graph, groups)
    late: dict[tuple[object, ...], _Draft] = {}
    for position, output in enumerate(graph.outputs):
        draft = _host(output, frontiers[output.node], drafts, late, graph, fuse, position)
        draft.outputs.append(Root(output.name, output.node, output))
    ordered = sorted([*drafts.values(), *late.values()], key=lambda d: d.level)
    return _finish(graph, ordered, groups, name)


def _drop_trivial_axes(node: Node) -> Node:
    """Reducing an axis of length 1 changes nothing."""
    if node.op.kind is not Kind.REDUCTION:
        return node
    argument = node.args[0]
    rank = len(argument.shape)
    axes = tuple(a for a in node.axes if argument.shape[rank + a] != 1)
    if axes == node.axes:
        return node
    if axes:
        return make(node.op, node.args, node.type, axes=axes)
    if argument.dtype is node.dtype:
        return argument
    return make("cast", (argument,), TensorType(node.dtype, argument.shape))


def _group_reductions(graph: Graph, fuse: bool) -> dict[Node, Group]:
    """The group of each reduction, in program order."""
    groups: dict[Node, Group] = {}
    frontier: dict[Node, frozenset[Group]] = {}
    for serial, node in enumerate(graph.nodes()):
        below = frozenset[Group]().union(*(frontier[a] for a in node.args))
        if node.op.kind is not Kind.REDUCTION:
            frontier[node] = below
            continue
        space, axes = node.args[0].shape, node.axes
        level = max((g[0] + ((g[1], g[2]) != (space, axes)) for g in below), default=0)
        if not fuse:
            level = serial
        groups[node] = (level, space, axes)
        frontier[node] = frozenset({groups[node]})
    return groups


def _frontiers(graph: Graph, groups: dict[Node, Group]) -> dict[Node, frozenset[Group]]:
    """For each node the groups whose results it reads without another reduction between."""
    frontier: dict[Node, frozenset[Group]] = {}
    for node in graph.nodes():
        if node in groups:
            frontier[node] = frozenset({groups[node]})
        else:
            frontier[node] = frozenset[Group]().union(*(frontier[a] for a in node.args))
    return frontier


def _fits(shape: Shape, space: Shape) -> bool:
    """Whether a value of ``shape`` can be stored by a kernel that runs over ``space``."""
    if len(shape) > len(space):
        return False
    padded = (1,) * (len(space) - len(shape)) + shape
    return all(extent in (1, whole) for extent, whole in zip(padded, space, strict=True))


def _host(
    output: Output,
    frontier: frozenset[Group],
    drafts: dict[Group, _Draft],
    late: dict[tuple[object, ...], _Draft],
    graph: Graph,
    fuse: bool,
    position: int,
) -> _Draft:
    """The draft that stores ``output``:

    The last reduction it needs, a reduction over the same data, or its own.
    """
    node = output.node
    if fuse and frontier:
        top = max(g[0] for g in frontier)
        last = [g for g in frontier if g[0] == top]
        if len(last) == 1 and _fits(node.shape, last[0][1]):
            return drafts[last[0]]
    if fuse and not frontier:
        for group, draft in sorted(drafts.items(), key=lambda item: item[0][0]):
            if group[1] == node.shape and _share_input(node, draft, graph):
                return draft
    level = 1 + max((g[0] for g in frontier), default=-1)
    key: tuple[object, ...] = (level, node.shape) if fuse else (position,)
    if key not in late:
        draft = _Draft(level if fuse else 1 << 30, node.shape, ())
        draft.why.append(_why_apart(node, frontier))
        late[key] = draft
    return late[key]


def _share_input(node: Node, draft: _Draft, graph: Graph) -> bool:
    """Whether ``node`` reads a full-size input that the draft's reductions read as well."""
    mine = {n for n in _below([node]) if n.op.name == "input" and n.shape == node.shape}
    theirs = _below(
        n for n in graph.nodes() if n.op.kind is Kind.REDUCTION and n.args[0].shape == draft.space
    )
    return not mine.isdisjoint(theirs)


def _below(roots: Iterable[Node], stop: frozenset[Node] = frozenset()) -> set[Node]:
    """The nodes that ``roots`` need, not going past ``stop``."""
    seen: set[Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node not in stop:
            stack.extend(node.args)
    return seen


def _why_apart(node: Node, frontier: frozenset[Group]) -> str:
    if not frontier:
        return "elementwise: one value out for each position"
    if len(frontier) > 1:
        return "kept apart: joins reductions over different axes"
    space = next(iter(frontier))[1]
    return f"kept apart: its shape {_show(node.shape)} is wider than the reduction's {_show(space)}"


def _show(shape: Shape) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _finish(graph: Graph, drafts: list[_Draft], groups: dict[Node, Group], name: str) -> Plan:
    """Name everything, and let each Region store the reductions that later ones read."""
    home: dict[Node, _Draft] = {}
    by_group = {(d.level, d.space, d.axes): d for d in drafts if d.axes}
    for reduction, group in groups.items():
        home[reduction] = by_group[group]
    boundaries: dict[int, list[Node]] = {}
    for draft in reversed(drafts):
        roots = [r.node for r in draft.outputs] + list(draft.roots)
        foreign = frozenset(n for n in groups if home[n] is not draft)
        crossing = [n for n in groups if n in foreign and n in _below(roots, foreign)]
        boundaries[id(draft)] = crossing
        for node in crossing:
            home[node].roots.setdefault(node, Root("", node))
    names = _buffer_names(graph, drafts)
    regions = []
    live = [d for d in drafts if d.outputs or d.roots]
    for index, draft in enumerate(live):
        stored = [replace(r, name=names[r.node]) for r in draft.roots.values()] + draft.outputs
        reads = tuple((names[n], n) for n in boundaries[id(draft)])
        region_name = name if len(live) == 1 else f"{name}_{index + 1}"
        regions.append(
            Region(
                region_name, draft.space, draft.axes, tuple(stored), reads, _reason(draft, reads)
            )
        )
    return Plan(graph, tuple(regions))


def _buffer_names(graph: Graph, drafts: list[_Draft]) -> dict[Node, str]:
    taken = {spec.name for spec in graph.inputs} | {output.name for output in graph.outputs}
    names: dict[Node, str] = {}
    for node in (n for draft in drafts for n in draft.roots):
        stem = graph.side.names.get(node) or reduction_name(node)
        candidate, serial = stem, 1
        while candidate in taken:
            candidate, serial = f"{stem}_{serial}", serial + 1
        taken.add(candidate)
        names[node] = candidate
    return names


def reduction_name(node: Node) -> str:
    """The name of a reduction that has none of its own: ``row_max``, ``col_sum``, ``full_mean``."""
    shape = node.args[0].shape
    wide = [i - len(shape) for i, extent in enumerate(shape) if extent != 1]
    if len(wide) > 1 and set(wide) <= set(node.axes):
        return f"full_{node.op.name}"
    return f"{'row' if not wide or max(wide) in node.axes else 'col'}_{node.op.name}"


def _reason(draft: _Draft, reads: tuple[tuple[str, Node], ...]) -> str:
    parts = list(draft.why)
    if draft.axes:
        axes = ", ".join(map(str, draft.axes))
        parts.append(
            f"reduces axis {axes} of {_show(draft.space)}; "
            "what feeds the reduction and what uses it ride along"
        )
    if reads:
        parts.append("needs the whole of " + ", ".join(name for name, _ in reads) + " first")
    return "; ".join(parts)
