"""Views of traced tensors: what permutes, inserts or cuts axes is pushed down to the inputs.

A kernel reads its inputs over any strides, so a view of an input costs nothing, and a view of a
computed value is that value computed from views:

    permute(f(a, b)) = f(permute(a), permute(b))

A :class:`View` is one graph input: an argument and the steps that lead to it. Nothing here recurses
over nodes. May import ``fusec.errors``, ``fusec.ir`` and, of the frontend, ``trace_place``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fusec.errors import UnsupportedError
from fusec.frontend.trace_place import TracePlace
from fusec.ir.dtypes import I64
from fusec.ir.graph import InputSpec
from fusec.ir.node import Dim, Extent, Node, Shape, TensorType, broadcast, constant, make
from fusec.ir.ops import Kind

Length: TypeAlias = Any  # an integer, or a sympy expression over the lengths of the arguments
Axes: TypeAlias = "tuple[int | None, ...]"


@dataclass(frozen=True, slots=True)
class Step:
    """One view: ``arrange`` (old negative axes in their new order, None for a new axis of length
    1), ``slice`` (axis, start, end, step), ``reshape`` or ``expand`` (lengths), ``detach``,
    which is one of a result only, or ``count`` (a length): 0, 1, 2 ... in its place.
    """

    kind: str
    parts: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class View:
    """A graph input: which argument, and the steps from it."""

    name: str
    argument: int
    steps: tuple[Step, ...]
    lengths: tuple[Length, ...]


@dataclass(slots=True)
class Views:
    """The graph inputs of one trace, made when something first needs them."""

    place: TracePlace
    canonical: Callable[[Length], Length]
    views: dict[str, View] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    specs: dict[str, InputSpec] = field(default_factory=dict)
    dims: dict[Length, Dim] = field(default_factory=dict)
    _known: dict[tuple[int, tuple[Step, ...]], str] = field(default_factory=dict)
    _done: dict[tuple[object, ...], Node] = field(default_factory=dict)

    def add(self, view: View, dtype: Any, scalar: bool = False) -> Node:
        """The node of a graph input; the same node for the same view."""
        key = (view.argument, view.steps)
        if key in self._known:
            return self.nodes[self._known[key]]
        lengths = tuple(map(self.canonical, view.lengths))
        shape: list[Extent] = []
        for axis, length in enumerate(lengths):
            own = Dim(f"{view.name}.{axis}")
            shape.append(1 if length == 1 else self.dims.setdefault(length, own))
        spec = InputSpec(view.name, dtype, tuple(shape), scalar)
        node = make(
            "input", (), TensorType(dtype, spec.shape), name=view.name, scalar=scalar, unsqueezed=0
        )
        self.views[view.name] = view
        self.specs[view.name] = spec
        self.nodes[view.name] = node
        self._known[key] = view.name
        return node

    def further(self, node: Node, step: Step, lengths: tuple[Length, ...]) -> Node:
        """The graph input that ``step`` leads to from an input node."""
        view = self.views[node.name]
        taken = self._known.get((view.argument, (*view.steps, step)))
        if taken is not None:
            return self.nodes[taken]
        base = self.views[view.name].name if not view.steps else view.name.rsplit("_view", 1)[0]
        name, serial = f"{base}_view", 1
        while name in self.views:
            name, serial = f"{base}_view{serial}", serial + 1
        return self.add(View(name, view.argument, (*view.steps, step), lengths), node.dtype)

    def positions(self, length: Length) -> Node:
        """0, 1, 2 ... to ``length``: along an axis that is as long, or an input of its own."""
        dim = self.dims.get(length)
        if dim is None:
            return self._counted(length)
        return make("index", (), TensorType(I64, (dim,)), axis=-1, dim=dim.name)

    def _counted(self, length: Length) -> Node:
        """An input that is made for each call; ``argument`` only says on which device."""
        tensor = next(v for n, v in self.views.items() if not self.specs[n].scalar)
        steps = (Step("count", (length,)),)
        name, serial = "positions", 1
        while name in self.views and self.views[name].steps != steps:
            name, serial = f"positions{serial}", serial + 1
        return self.add(View(name, tensor.argument, steps, (length,)), I64)

    # -- pushing down -----------------------------------------------------------------------------

    def arrange(self, root: Node, axes: Axes) -> Node:
        """``root`` with its axes in another order and new axes of length 1.

        ``axes`` holds every negative axis of the node once, and None for each new one.
        """
        return self._push(root, "arrange", axes)

    def cut(
        self, root: Node, axis: int, start: Length, end: Length, step: int, length: Length
    ) -> Node:
        """``root`` cut along a negative axis that is not of length 1."""
        return self._push(root, "slice", (axis, start, end, step, length))

    def split(self, root: Node, axis: int, lengths: tuple[Length, Length]) -> Node:
        """``root`` with a negative axis as two. Of length 1, it becomes two of length 1."""
        return self._push(root, "split", (axis, lengths))

    def reshaped(
        self, root: Node, stay: int, front: int, lengths: tuple[Length, ...]
    ) -> Node | None:
        """``root`` with its first ``front`` axes reshaped to ``lengths`` and the other ``stay`` as
        they are; None where a value below has some of the first axes only.
        """
        pending, seen = [root], {root}
        while pending:
            node = pending.pop()
            first = node.shape[:-stay] if stay else node.shape
            if all(e == 1 for e in first):
                continue  # the same for all of the first axes
            removed = node.op.kind is Kind.REDUCTION and min(node.axes) < -stay
            if len(first) != front or 1 in first or removed or node.op.name == "index":
                return None
            pending += [a for a in node.args if a not in seen]
            seen.update(node.args)
        return self._push(root, "reshape", (stay, lengths))

    def _push(self, root: Node, kind: str, parts: tuple[Any, ...]) -> Node:
        done = self._done
        stack = [(root, parts)]
        while stack:
            node, own = stack[-1]
            if (node, kind, own) in done:
                stack.pop()
                continue
            inner = _restricted(node, kind, own)
            if inner is None:
                done[node, kind, own] = node
                continue
            wanted = [(a, inner) for a in node.args]
            pending = [w for w in wanted if (w[0], kind, w[1]) not in done]
            if pending:
                stack += pending
                continue
            args = [done[a, kind, i] for a, i in wanted]
            done[node, kind, own] = self.place.note(self._moved(node, kind, inner, args))
            stack.pop()
        return done[root, kind, parts]

    def _moved(self, node: Node, kind: str, parts: tuple[Any, ...], args: list[Node]) -> Node:
        """``node`` under a view, over arguments under that view."""
        if kind == "arrange":
            return self._arranged(node, parts, args)
        if kind == "split":
            return self._in_two(node, parts[0], parts[1], args)
        if node.op.name == "input":
            return self._input_under(node, kind, parts)
        if node.op.name == "index":
            return self._cut_index(node, *parts[1:])
        if node.op.name == "gather":
            shape: Shape = (*broadcast([a.shape[:-1] for a in args]), 1)
            return make(node.op, args, TensorType(node.dtype, shape))
        shape = broadcast(a.shape for a in args)
        if node.op.kind is Kind.REDUCTION:
            shape = tuple(1 if i - len(shape) in node.axes else e for i, e in enumerate(shape))
        return make(node.op, args, TensorType(node.dtype, shape), **dict(node.attributes))

    def _input_under(self, node: Node, kind: str, parts: tuple[Any, ...]) -> Node:
        """An input that is cut or reshaped; its ones at the end stay."""
        unsqueezed = node.integer("unsqueezed")
        own = self.views[node.name].lengths
        if kind == "slice":
            axis, start, end, step, length = parts
            axis += unsqueezed
            lengths = (*own[:axis], length, *own[len(own) + axis + 1 :])
            view = Step("slice", (axis, start, end, step))
        else:
            stay, front = parts
            kept = own[len(own) - (stay - unsqueezed) :]
            lengths = (*front, *kept)
            view = Step("reshape", lengths)
        source = self.further(self.nodes[node.name], view, lengths)
        type = TensorType(node.dtype, (*source.shape, *([1] * unsqueezed)))
        return make("input", (), type, name=source.name, scalar=False, unsqueezed=unsqueezed)

    def _in_two(
        self, node: Node, axis: int, lengths: tuple[Length, Length], args: list[Node]
    ) -> Node:
        """``node`` with one axis as two, over arguments that have it so."""
        attributes = dict(node.attributes)
        match node.op.name:
            case "input":
                return self._input_in_two(node, axis, lengths)
            case "index":
                own = node.integer("axis")
                if own == axis:
                    raise self._no_view("positions along an axis")
                attributes["axis"] = own - 1
                return make(node.op, (), TensorType(I64, (*node.shape, 1)), **attributes)
            case "gather":
                if axis == -1:
                    raise self._no_view("a gather")
                shape: Shape = (*broadcast([a.shape[:-1] for a in args]), 1)
                return make(node.op, args, TensorType(node.dtype, shape))
        shape = broadcast(a.shape for a in args)
        if node.op.kind is Kind.REDUCTION:
            moved = {a - 1 if a <= axis else a for a in node.axes}
            reduced = tuple(sorted(moved | ({axis} if axis in node.axes else set())))
            attributes["axes"] = reduced
            shape = tuple(1 if i - len(shape) in reduced else e for i, e in enumerate(shape))
        return make(node.op, args, TensorType(node.dtype, shape), **attributes)

    def _input_in_two(self, node: Node, axis: int, lengths: tuple[Length, Length]) -> Node:
        rank, unsqueezed = len(node.shape), node.integer("unsqueezed")
        if node.shape[axis] == 1:
            order = list(range(-rank, 0))
            return self._arranged_input(node, (*order[: rank + axis], None, *order[rank + axis :]))
        own, place = self.views[node.name].lengths, rank + axis
        made = (*own[:place], *lengths, *own[place + 1 :])
        source = self.further(self.nodes[node.name], Step("reshape", made), made)
        type = TensorType(node.dtype, (*source.shape, *([1] * unsqueezed)))
        return make("input", (), type, name=source.name, scalar=False, unsqueezed=unsqueezed)

    def _arranged(self, node: Node, axes: Axes, args: list[Node]) -> Node:
        attributes = dict(node.attributes)
        match node.op.name:
            case "input":
                return self._arranged_input(node, axes)
            case "index":
                old = node.integer("axis")
                attributes["axis"] = new = axes.index(old) - len(axes)
                shape: Shape = (node.shape[0], *([1] * (-new - 1)))
                return make(node.op, (), TensorType(I64, shape), **attributes)
            case "gather":
                if axes[-1] != -1:
                    raise self._no_view("a gather")
                shape = (*broadcast([a.shape[:-1] for a in args]), 1)
                return make(node.op, args, TensorType(node.dtype, shape))
        shape = broadcast(a.shape for a in args)
        if node.op.kind is Kind.REDUCTION:
            reduced = tuple(sorted(axes.index(a) - len(axes) for a in node.axes))
            attributes["axes"] = reduced
            shape = tuple(1 if i - len(shape) in reduced else e for i, e in enumerate(shape))
        return make(node.op, args, TensorType(node.dtype, shape), **attributes)

    def _arranged_input(self, node: Node, axes: Axes) -> Node:
        """Ones at the end are an attribute of the node; anything else is another view."""
        unsqueezed = node.integer("unsqueezed")
        base = [None if a is None or a >= -unsqueezed else a + unsqueezed for a in axes]
        trailing = 0
        while base and base[-1] is None:
            base.pop()
            trailing += 1
        source = self.nodes[node.name]
        while base and base[0] is None:
            base.pop(0)
        if base != list(range(-len(source.shape), 0)):
            lengths = self.views[node.name].lengths
            arranged = tuple(1 if a is None else lengths[a] for a in base)
            source = self.further(source, Step("arrange", tuple(base)), arranged)
        type = TensorType(node.dtype, (*source.shape, *([1] * trailing)))
        return make("input", (), type, name=source.name, scalar=False, unsqueezed=trailing)

    def _cut_index(self, node: Node, start: Length, end: Length, step: int, length: Length) -> Node:
        dim = self.dims.get(self.canonical(length))
        if dim is None or not isinstance(start, int):
            whole = next(n for n, d in self.dims.items() if d == node.shape[0])
            counted = self._counted(whole)
            ones = len(node.shape) - 1
            type = TensorType(I64, (*counted.shape, *([1] * ones)))
            counted = make("input", (), type, name=counted.name, scalar=False, unsqueezed=ones)
            return self._input_under(counted, "slice", (-1 - ones, start, end, step, length))
        shape: Shape = (dim, *node.shape[1:])
        type = TensorType(I64, shape)
        axis = node.integer("axis")
        index = make("index", (), type, axis=axis, dim=dim.name)
        scaled = make("mul", (index, constant(step, I64)), type) if step != 1 else index
        return make("add", (scaled, constant(start, I64)), type) if start else scaled

    def _no_view(self, what: str) -> Exception:
        return self.place.error(
            UnsupportedError,
            f"this view of {what} cannot be fused",
            hint="take the view of an argument, or after the call",
        )


def _restricted(node: Node, kind: str, parts: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What a view of a node means for it and its arguments; None where it changes nothing."""
    rank = len(node.shape)
    if kind == "slice":
        axis = parts[0]
        return parts if -axis <= rank and node.shape[axis] != 1 else None
    if kind == "split":
        return parts if -parts[0] <= rank else None
    if kind == "reshape":
        first = node.shape[: rank - parts[0]] if rank > parts[0] else ()
        return parts if any(e != 1 for e in first) else None
    axes = [a if a is not None and -a <= rank else None for a in parts]
    while axes and axes[0] is None:
        axes.pop(0)
    return tuple(axes) if axes != list(range(-rank, 0)) else None
