"""How a Region's operands lie in memory: axes merged where every operand allows it, strides put
into classes.

Concrete sizes and strides go in; out comes a :class:`Layout` (hashable, free of numbers, the key of
a variant) and the numbers that a launch of that variant needs. A stride class is 0 (the operand
does not span the axis), 1, ``cols`` or ``rows`` (equal to that size) or ``free`` (a parameter).
:func:`regroup` runs one index through several axes.

May import ``fusec.ir`` and ``fusec.passes.fuse``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from fusec.ir.node import Dim, Node, Shape, toposort
from fusec.passes.fuse import Region

WHOLE = "whole"  # the class, along the last of several axes, of what lies as their index runs


@dataclass(frozen=True, slots=True)
class Operand:
    """One way a Region touches a buffer:

    A load of an input or earlier result, a gather from an input, or a store.
    """

    kind: str  # "input", "gather", "read", "root"
    name: str
    node: Node
    # what it spans, right-aligned against the space; a gather does not span its last axis
    shape: Shape


@dataclass(frozen=True, slots=True)
class Layout:
    """The class of an arrangement.

    ``strides[operand][axis]``; row axes come first, then column axes.
    """

    rows: tuple[tuple[int, ...], ...]  # each merged axis as the space axes (positions) in it
    cols: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int | str, ...], ...]
    gather: tuple[int | str, ...]  # the class of each operand's gathered stride, 0 for the others

    @property
    def flattened(self) -> bool:
        """Whether one index runs through several axes."""
        return any(map(self.is_whole, range(len(self.strides))))

    def is_whole(self, operand: int) -> bool:
        """Whether an operand lies as that index runs."""
        return self.strides[operand][-1:] == (WHOLE,)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A Layout with its numbers:

    Sizes of the merged axes and each operand's strides, in elements.
    """

    layout: Layout
    row_sizes: tuple[int, ...]
    col_sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    gather_strides: tuple[int, ...]
    gather_lengths: tuple[int, ...]
    span: int  # one more than the largest offset any operand reaches

    @property
    def rows(self) -> int:
        return prod(self.row_sizes)

    @property
    def cols(self) -> int:
        return prod(self.col_sizes)


def operands(region: Region) -> tuple[Operand, ...]:
    """Every distinct access of ``region``, in program order, stores last."""
    reads = {node: name for name, node in region.reads}
    found: list[Operand] = []
    for node in region_nodes(region):
        if node in reads:
            found.append(Operand("read", reads[node], node, node.shape))
        elif node.op.name == "gather":
            base = node.args[0]
            found.append(Operand("gather", base.name, node, (*base.shape[:-1], 1)))
        elif node.op.name == "input" and not node.attribute("scalar"):
            found.append(Operand("input", node.name, node, node.shape))
    used_directly = _used_directly(region)
    found = [o for o in found if o.kind != "input" or o.node in used_directly]
    found.extend(Operand("root", root.name, root.node, root.node.shape) for root in region.roots)
    return tuple(found)


def region_nodes(region: Region) -> list[Node]:
    """The nodes a Region computes or loads, arguments first;

    Results of earlier regions are leaves.
    """
    stop = {node for _, node in region.reads}
    order: list[Node] = []
    seen: set[Node] = set()
    roots = [*(root.node for root in region.roots), *(node for _, node in region.columns)]
    stack: list[tuple[Node, bool]] = [(node, False) for node in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
            continue
        if node in seen:
            continue
        seen.add(node)
        stack.append((node, True))
        if node not in stop:
            stack.extend((a, False) for a in reversed(node.args))
    return order


def _used_directly(region: Region) -> set[Node]:
    """Nodes that are an argument of something other than a gather from them, or a root."""
    stop = {node for _, node in region.reads}
    used = {root.node for root in region.roots} | {node for _, node in region.columns}
    for node in region_nodes(region):
        if node in stop:
            continue
        used.update(node.args[1:] if node.op.name == "gather" else node.args)
    return used


def pinned_axes(region: Region) -> frozenset[int]:
    """Negative axes whose position the formula asks for: they are not merged with others."""
    nodes = toposort([*(r.node for r in region.roots), *(node for _, node in region.columns)])
    return frozenset(
        int(str(n.attribute("axis"))) for n in nodes if n.op.name == "index" and n.shape[0] != 1
    )


def arrange(
    region: Region,
    accesses: Sequence[Operand],
    sizes: Mapping[Dim, int],
    strides: Sequence[Sequence[int]],
    any_rows: bool = False,
) -> Arrangement:
    """Merge axes and classify strides. ``strides[k]`` are operand k's own, one for each axis of its
    buffer's shape.

    A gather's strides include the gathered axis as the last. ``any_rows``: a row alone is laid out
    as one of several, if some axis of length 1 can stand for them.
    """
    rank = len(region.space)
    extents = [sizes[e] if isinstance(e, Dim) else e for e in region.space]
    wide = [a for a in range(rank) if region.space[a] != 1]
    reduced = {a for a in wide if a - rank in region.axes}
    lone = _lone_axis(region, wide, reduced) if any_rows else None
    if lone is not None:
        wide = sorted((*wide, lone))
    full: list[list[int]] = []
    spans: list[list[bool]] = []
    for operand, own in zip(accesses, strides, strict=True):
        pad = rank - len(operand.shape)
        span = [e != 1 or pad + a == lone for a, e in enumerate(operand.shape)]
        spans.append([False] * pad + span)
        full.append([0] * pad + [s if wide else 0 for s, wide in zip(own, span, strict=True)])
    pinned = {rank + a for a in pinned_axes(region)}
    if region.axes:
        kept = [a for a in wide if a not in reduced]
        lead = next((k for k, s in enumerate(spans) if all(s[a] for a in reduced)), 0)
        inner = sorted(reduced, key=lambda a: -full[lead][a])
        row_groups = _merge(kept, full, spans, extents, pinned)
        col_groups = _merge(inner, full, spans, extents, pinned)
    else:
        lead = next((k for k, o in enumerate(accesses) if o.kind == "root"), 0)
        groups = _merge(sorted(wide, key=lambda a: -full[lead][a]), full, spans, extents, pinned)
        row_groups, col_groups = groups[:-1], groups[-1:]
    return _classify(accesses, strides, sizes, row_groups, col_groups, full, spans, extents)


def _lone_axis(region: Region, wide: Sequence[int], reduced: set[int]) -> int | None:
    """The axis of length 1 next to the reduced ones where all others are reduced."""
    if not reduced or len(reduced) < len(wide):
        return None
    free = [a for a in range(len(region.space)) if a not in reduced]
    return min(free, key=lambda a: min(abs(a - b) for b in reduced)) if free else None


def _merge(
    axes: Sequence[int],
    full: Sequence[Sequence[int]],
    spans: Sequence[Sequence[bool]],
    extents: Sequence[int],
    pinned: set[int],
) -> list[tuple[int, ...]]:
    """Join neighbours, outer to inner, that every operand steps through as if they were one."""
    groups: list[tuple[int, ...]] = []
    for axis in axes:
        if groups:
            outer = groups[-1][-1]
            joined = outer not in pinned and axis not in pinned
            joined = joined and all(
                span[outer] == span[axis] and stride[outer] == stride[axis] * extents[axis]
                for span, stride in zip(spans, full, strict=True)
            )
            if joined:
                groups[-1] = (*groups[-1], axis)
                continue
        groups.append((axis,))
    return groups


def _classify(
    accesses: Sequence[Operand],
    strides: Sequence[Sequence[int]],
    sizes: Mapping[Dim, int],
    row_groups: list[tuple[int, ...]],
    col_groups: list[tuple[int, ...]],
    full: Sequence[Sequence[int]],
    spans: Sequence[Sequence[bool]],
    extents: Sequence[int],
) -> Arrangement:
    row_sizes = tuple(prod([extents[a] for a in g]) for g in row_groups)
    col_sizes = tuple(prod([extents[a] for a in g]) for g in col_groups)
    along_rows = {col_sizes[0]: "cols"} if len(col_sizes) == 1 else {}
    along_cols = {row_sizes[0]: "rows"} if len(row_sizes) == 1 else {}
    named = [along_rows] * len(row_groups) + [along_cols] * len(col_groups)
    merged = list(zip([*row_groups, *col_groups], [*row_sizes, *col_sizes], named, strict=True))
    classes: list[tuple[int | str, ...]] = []
    numbers: list[tuple[int, ...]] = []
    span_end = 1
    for operand, span, stride in zip(accesses, spans, full, strict=True):
        row: list[int | str] = []
        values: list[int] = []
        reach = 1
        for group, size, names in merged:
            value = stride[group[-1]]
            values.append(value)
            reach += abs(value) * max(size - 1, 0)
            row.append(_stride_class(span[group[-1]], value, names))
        if operand.kind == "gather":
            reach += abs(strides[len(numbers)][-1]) * (_length(operand, sizes) - 1)
        classes.append(tuple(row))
        numbers.append(tuple(values))
        span_end = max(span_end, reach)
    gathered = [o.kind == "gather" for o in accesses]
    gather_strides = tuple(s[-1] if g else 0 for g, s in zip(gathered, strides, strict=True))
    lengths = tuple(_length(o, sizes) if g else 0 for g, o in zip(gathered, accesses, strict=True))
    gather = tuple(
        0 if not g else 1 if s == 1 else "free"
        for g, s in zip(gathered, gather_strides, strict=True)
    )
    layout = Layout(tuple(row_groups), tuple(col_groups), tuple(classes), gather)
    return Arrangement(
        layout, row_sizes, col_sizes, tuple(numbers), gather_strides, lengths, span_end
    )


def regroup(
    arrangement: Arrangement, accesses: Sequence[Operand], rows: int, factor: int = 1
) -> Arrangement | None:
    """Of an elementwise region the first ``rows`` axes as rows and all others as columns. With a
    ``factor`` the last of those rows are taken so many at a time, which are columns too.

    What varies along all axes lies as one index runs through the columns; of the rest positions are
    found by division. None where something that varies along all lies otherwise.
    """
    groups = [*arrangement.layout.rows, *arrangement.layout.cols]
    sizes = [*arrangement.row_sizes, *arrangement.col_sizes]
    strides = [list(numbers) for numbers in arrangement.strides]
    classes = [list(own) for own in arrangement.layout.strides]
    steps = [prod(sizes[k + 1 :]) for k in range(len(sizes))]
    whole = [all(own) and o.kind != "gather" for o, own in zip(accesses, classes, strict=True)]
    if any(w and numbers != steps for w, numbers in zip(whole, strides, strict=True)):
        return None
    if factor > 1:
        last = rows - 1
        groups.insert(last, groups[last])
        sizes[last : last + 1] = [sizes[last] // factor, factor]
        for numbers, own in zip(strides, classes, strict=True):
            numbers.insert(last, numbers[last] * factor)
            own.insert(last, own[last] and "free")
    columns = len(sizes) - rows
    for k, own in enumerate(classes):
        named: list[int | str] = ["free" if isinstance(c, str) else c for c in own]
        if whole[k]:
            named[rows:] = [*[0] * (columns - 1), WHOLE]
            named[:rows] = ["cols"] if rows == 1 else named[:rows]
        classes[k] = named
    layout = replace(
        arrangement.layout,
        rows=tuple(groups[:rows]),
        cols=tuple(groups[rows:]),
        strides=tuple(tuple(own) for own in classes),
    )
    return replace(
        arrangement,
        layout=layout,
        row_sizes=tuple(sizes[:rows]),
        col_sizes=tuple(sizes[rows:]),
        strides=tuple(tuple(numbers) for numbers in strides),
    )


def _stride_class(spanned: bool, value: int, named: Mapping[int, str]) -> int | str:
    if not spanned:
        return 0
    if value == 1:
        return 1
    return named.get(value, "free")


def _length(operand: Operand, sizes: Mapping[Dim, int]) -> int:
    extent = operand.node.args[0].shape[-1]
    return sizes[extent] if isinstance(extent, Dim) else int(extent)
