"""Gathering along the last axis: ``x[t]`` of an expression becomes an expression of gathers of
inputs.

    gather(f(a, b), t) = f(gather(a, t), gather(b, t))

Nothing here recurses over nodes. May import ``fusec.errors``, ``fusec.ir`` and, of the frontend,
``resolve_place`` and ``resolve_values``.
"""

from __future__ import annotations

from fusec.errors import DTypeError, ShapeError, UnsupportedError
from fusec.frontend.resolve_place import Place
from fusec.frontend.resolve_values import Literal, Tensor
from fusec.ir.dtypes import I64
from fusec.ir.node import Node, Shape, TensorType, make
from fusec.ir.ops import Kind


class Gatherer:
    """Makes ``x[t]``; remembers what was pushed down, so that shared parts stay shared."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._gathered: dict[tuple[Node, Node], Node] = {}
        self._unsqueezed: dict[Node, Node] = {}

    def gather(self, value: Literal | Tensor, index: Literal | Tensor) -> Tensor:
        """``value[index]``, its last axis reduced to 1; raises DTypeError or ShapeError."""
        if not isinstance(value, Tensor) or not value.node.shape:
            raise self.place.error(
                ShapeError, "a number has no axis to index", hint="x[t] needs a tensor x", operand=0
            )
        t, shift = self._index_node(value, index)
        result = self.place.note(self._push_down(value.node, t))
        kept = (value.kept | (index.kept << shift if isinstance(index, Tensor) else 0)) & ~1
        return Tensor(result, value.priority, kept, (value.reduced | 1) & ~kept)

    def at(self, node: Node, t: Node) -> Node:
        """The elements of the last axis of ``node`` at ``t``, whose last axis has length 1; the
        others broadcast. Raises UnsupportedError where it cannot be pushed down to inputs.
        """
        return self.place.note(self._push_down(node, t))

    def _index_node(self, value: Tensor, index: Literal | Tensor) -> tuple[Node, int]:
        """The positions with a last axis of length 1, and by how many axes that moved them."""
        if not isinstance(index, Tensor) or index.priority == 2:
            raise self.place.error(
                UnsupportedError,
                "x[t] needs a tensor t of positions, not a number",
                hint="'sum(where(index(-1) == 3, x, 0))' picks one column",
                operand=1,
            )
        node = index.node
        if not node.dtype.is_integer:
            raise self.place.error(
                DTypeError,
                f"positions must be integers, and {self.place.label(1, 'the index')} is"
                f" {node.dtype.name}",
                operand=1,
            )
        rank = len(value.node.shape)
        if len(node.shape) == rank - 1:
            return self._unsqueeze(node), 1
        if len(node.shape) == rank and node.shape[-1] == 1:
            return node, 0
        raise self._wrong_rank(value.node, node)

    def _wrong_rank(self, node: Node, t: Node) -> Exception:
        described = [self.place.describe(node, 0), self.place.describe(t, 1)]
        return self.place.error(
            ShapeError,
            f"positions do not fit: {', '.join(described)}",
            hint="t in x[t] has the shape of x without its last axis, or with 1 as its last length",
        )

    def _push_down(self, root: Node, t: Node) -> Node:
        done = self._gathered
        stack = [root]
        while stack:
            node = stack[-1]
            if (node, t) in done:
                stack.pop()
                continue
            result = self._leaf(node, t)
            if result is None:
                pending = [a for a in node.args if (a, t) not in done]
                if pending:
                    stack += pending
                    continue
                result = self._remake(node, [done[a, t] for a in node.args])
            done[node, t] = result
            stack.pop()
        return done[root, t]

    def _remake(self, node: Node, args: list[Node]) -> Node:
        shape = self.place.broadcast(args)
        if node.op.kind is Kind.REDUCTION:
            shape = tuple(1 if i - len(shape) in node.axes else e for i, e in enumerate(shape))
        new = make(node.op, args, TensorType(node.dtype, shape), **dict(node.attributes))
        return self.place.note(new)

    def _leaf(self, node: Node, t: Node) -> Node | None:
        """The gather of a node that is not pushed further, or None."""
        if not node.shape or node.shape[-1] == 1:
            return node
        if node.op.name == "index":
            return t if t.dtype is I64 else make("cast", (t,), TensorType(I64, t.shape))
        if node.op.kind is Kind.REDUCTION:
            self._check_other_axes(node, t)
        if node.op.name != "input":
            return None
        shape = self.place.broadcast([node, t], [node.shape[:-1], t.shape[:-1]])
        return self.place.note(make("gather", (node, t), TensorType(node.dtype, (*shape, 1))))

    def _check_other_axes(self, node: Node, t: Node) -> None:
        # The sum over axis -2 of gathers is the gather of the sum only where one position serves
        # the whole column.
        if any(len(t.shape) >= -axis and t.shape[axis] != 1 for axis in node.axes):
            raise self._no_push_down("a reduction over another axis")

    def _no_push_down(self, what: str) -> Exception:
        return self.place.error(
            UnsupportedError,
            f"x[t] of {what} is not supported",
            hint="return the reduction, and index it outside",
        )

    def _unsqueeze(self, node: Node) -> Node:
        """``node`` with one more axis, of length 1, at its end."""
        order = [node]
        done = self._unsqueezed
        while order:
            current = order[-1]
            pending = [a for a in current.args if a not in done]
            if current in done or not pending:
                order.pop()
                if current not in done:
                    done[current] = self._with_axis(current, [done[a] for a in current.args])
                continue
            order += pending
        return done[node]

    def _with_axis(self, node: Node, args: list[Node]) -> Node:
        attributes = dict(node.attributes)
        shape: Shape = (*node.shape, 1)
        if node.op.name == "input":
            if attributes["scalar"]:
                return node
            attributes["unsqueezed"] = _integer(node, "unsqueezed") + 1
        elif node.op.name in ("constant", "size"):
            return node
        elif node.op.name == "index":
            attributes["axis"] = _integer(node, "axis") - 1
        elif node.op.name == "gather":
            raise self._no_push_down("positions that are gathered themselves")
        elif node.op.kind is Kind.REDUCTION:
            attributes["axes"] = tuple(axis - 1 for axis in node.axes)
        else:
            shape = self.place.broadcast(args)
        return self.place.note(make(node.op, args, TensorType(node.dtype, shape), **attributes))


def _integer(node: Node, key: str) -> int:
    value = node.attribute(key)
    assert isinstance(value, int)
    return value
