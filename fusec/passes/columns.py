"""Sums over rows taken along by the kernel that works on the rows, as in the backward of a norm.

Before: a Plan in which a row reduction and column reductions read the same tensors, each by itself;
what the columns add up may be what the rows come to. After: the row kernel adds up its rows, block
by block, and the column reduction adds up the blocks, in their order; the tensors are read once.
What a column reduction computes for every row beside its sums, the row kernel computes.
How many blocks there are is for the schedule to say, at a call: it is the length of the axis
``CHUNKS``. May import ``fusec.ir`` and ``passes/fuse.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fusec.ir.node import Dim, Node, Shape, TensorType, make
from fusec.ir.ops import Kind
from fusec.passes.fuse import Plan, Region, Root, reduction_name

CHUNKS = Dim("row chunks")  # no input has an axis of this name
_ADDED = "; its rows are added up into "


def carry_columns(plan: Plan) -> tuple[Plan, ...]:
    """``plan`` with column reductions carried by a row reduction: as many as can be, then fewer, as
    registers may not do for all; none where none can be.
    """
    found: list[Plan] = []
    following = _carry_one(plan, None)
    while following is not None:
        found.append(following)
        carrier = next(r.name for r in following.regions if r.columns)
        following = _carry_one(following, carrier)
    return tuple(reversed(found))


def _carry_one(plan: Plan, carrier: str | None) -> Plan | None:
    """``plan`` with one more column reduction carried: by the region ``carrier``, if one does."""
    regions = plan.regions
    for row in regions:
        if row.kind != "row reduction" or carrier not in (None, row.name):
            continue
        for column in regions:
            if _fits(row, column):
                return _carried(plan, row, column)
    return None


def _fits(row: Region, column: Region) -> bool:
    """Whether ``row`` can take the sums of ``column`` along."""
    if column.kind != "column reduction" or column.space != row.space:
        return False
    wide = {i - len(row.space) for i, extent in enumerate(row.space) if extent != 1}
    if {*row.axes, *column.axes} != wide or {*row.axes} & {*column.axes}:
        return False
    at_hand = {*row.reads, *((root.name, root.node) for root in row.roots)}
    if any(root.output is None for root in column.roots) or not {*column.reads} <= at_hand:
        return False
    sums = _sums(column)
    if any(s in _below(r.node, column) for r in column.roots if _is_whole(r, column) for s in sums):
        return False  # what every row needs of the sums is known after all rows
    plain = all(s.op.name == "sum" and s.dtype.is_float for s in sums)
    nested = any(n in sums for s in sums for n in _below(s.args[0], column))
    # What is made of the sums is for another kernel, which reads nothing else.
    besides = {node for _, node in column.reads} & _besides(column, sums)
    return plain and not nested and not besides and _reads(column) <= _reads(row)


def _is_whole(root: Root, column: Region) -> bool:
    """Whether a result has an element for every row, or for some of the axes that are summed."""
    shape = root.node.shape
    return any(-axis <= len(shape) and shape[axis] != 1 for axis in column.axes)


def _stop(region: Region) -> set[Node]:
    return {node for _, node in region.reads}


def _below(root: Node, region: Region) -> dict[Node, None]:
    found: dict[Node, None] = {}
    stack, stop = [root], _stop(region)
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = None
            stack.extend(() if node in stop else node.args)
    return found


def _sums(column: Region) -> list[Node]:
    """The reductions of a region, in program order, each once."""
    stop = _stop(column)
    found: dict[Node, None] = {}
    for root in column.roots:
        for node in _below(root.node, column):
            if node.op.kind is Kind.REDUCTION and node not in stop:
                found[node] = None
    return list(found)


def _besides(column: Region, sums: list[Node]) -> set[Node]:
    """What the results are made of, besides what is summed up."""
    found: set[Node] = set()
    stack = [root.node for root in column.roots]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(() if node in sums else node.args)
    return found


def _reads(region: Region) -> set[Node]:
    """The tensors of the size of its space that a region reads."""
    nodes = {n for root in region.roots for n in _below(root.node, region)}
    return {n for n in nodes if n.op.name == "input" and n.shape == region.space}


def _carried(plan: Plan, row: Region, column: Region) -> Plan:
    taken = {s.name for s in plan.graph.inputs} | {o.name for o in plan.graph.outputs}
    taken |= {root.name for region in plan.regions for root in region.roots}
    taken |= {name for name, _ in row.columns}
    first, *others = column.axes
    rank = len(row.space)
    space: Shape = tuple(
        CHUNKS if k - rank == first else 1 if k - rank in others else e
        for k, e in enumerate(row.space)
    )
    stands: dict[Node, Node] = {}
    columns: list[tuple[str, Node]] = []
    reads: list[tuple[str, Node]] = []
    for node in _sums(column):
        stem = name = f"{reduction_name(node)}_parts"
        serial = 1
        while name in taken:
            name, serial = f"{stem}_{serial}", serial + 1
        taken.add(name)
        kind = node.dtype
        part = make("input", (), TensorType(kind, space), name=name, unsqueezed=0, scalar=False)
        whole = make("sum", (part,), TensorType(kind, node.shape), axes=(first,))
        plan.graph.side.carry(node, whole)
        stands[node] = whole
        columns.append((name, node.args[0]))
        reads.append((name, part))
    along = tuple(r for r in column.roots if _is_whole(r, column))
    joined = (r for r in column.roots if r not in along)
    roots = tuple(Root(r.name, _over(r.node, stands), r.output) for r in joined)
    rest = [r for r in plan.regions if r is not row and r is not column]
    wanted = {node for other in rest for _, node in other.reads}
    every = (*row.columns, *columns)
    blocks = ", ".join(name for name, _ in every)
    carrier = replace(
        row,
        roots=(*(r for r in row.roots if r.output is not None or r.node in wanted), *along),
        columns=every,
        reason=f"{row.reason.partition(_ADDED)[0]}{_ADDED}{blocks}",
    )
    former = next((r for r in rest if r.space == space and r.axes == (first,)), None)
    last = Region(
        former.name if former else column.name,
        space,
        (first,),
        (*(former.roots if former else ()), *roots),
        (*(former.reads if former else ()), *reads),
        f"adds up {blocks}, which {row.name} leaves for each block of rows",
    )
    gone = (column, former)
    kept = [carrier if r is row else r for r in plan.regions if not any(r is g for g in gone)]
    return Plan(plan.graph, (*kept, last))


def _over(root: Node, stands: Mapping[Node, Node]) -> Node:
    """``root`` with the sums replaced."""
    done = dict(stands)
    stack = [root]
    while stack:
        node = stack[-1]
        pending = [a for a in node.args if a not in done] if node not in done else []
        if pending:
            stack.extend(pending)
            continue
        stack.pop()
        if node not in done:
            args = tuple(done[a] for a in node.args)
            done[node] = node if args == node.args else make(
                node.op, args, TensorType(node.dtype, node.shape), **dict(node.attributes)
            )  # fmt: skip
    return done[root]
