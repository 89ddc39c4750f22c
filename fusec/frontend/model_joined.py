"""Elementwise operators over concatenations, as those over their parts: a kernel has one shape.

    f(cat(a, b), c) = cat(f(a, c[:n]), f(b, c[n:]))

So a rotary embedding, which turns the halves of rows into each other, is one region, and so is its
gradient, in which a slice's gradient is zeros with a tensor among them. The parts that a region
computes lie where the whole has them (``runtime.model_region``), and nothing puts them together.
May import ``model_alike``, ``model_calls`` and ``model_nodes`` of the frontend; torch inside
functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

from fusec.frontend.model_alike import is_tensor
from fusec.frontend.model_calls import JOIN
from fusec.frontend.model_nodes import is_pointwise, name_of, new_node, value_of

Slot: TypeAlias = "tuple[int, int]"  # where a part begins along the axis, and where it ends


@dataclass(frozen=True, slots=True)
class Parts:
    """What a tensor has along ``axis``, counted from the left: nodes by where they lie, in order;
    None for zeros.
    """

    axis: int
    pieces: dict[Slot, Any]


def split_joined(graph: Any) -> None:
    """Let the operators of a graph over aten, each node of which has a value, compute parts of
    concatenations where they are elementwise.
    """
    if any(name_of(n) in ("cat", "slice_backward") for n in graph.nodes):
        _Split(graph).run()


def join(pieces: Sequence[Any], axis: int, strides: Sequence[int]) -> Any:
    """The concatenation of tensors, with these strides in elements."""
    import torch

    joined = torch.cat(list(pieces), axis)
    if joined.stride() == tuple(strides):
        return joined
    like = torch.empty_strided(
        joined.shape, tuple(strides), dtype=joined.dtype, device=joined.device
    )
    return like.copy_(joined)


def _is_known(value: Any) -> bool:
    """Whether a value is a tensor of which all lengths are numbers."""
    return is_tensor(value) and all(isinstance(n, int) for n in (*value.shape, *value.stride()))


@dataclass(slots=True)
class _Split:
    """Rewrites one graph."""

    graph: Any
    parts: dict[Any, Parts] = field(default_factory=dict)
    starts: set[Any] = field(default_factory=set)  # whose parts are there from the beginning
    _slices: dict[tuple[Any, int, Slot], Any] = field(default_factory=dict)
    _pieces: dict[tuple[Any, tuple[Any, ...]], Any] = field(default_factory=dict)
    _made: set[Any] = field(default_factory=set)

    def run(self) -> None:
        for node in list(self.graph.nodes):
            if node.op != "call_function" or not _is_known(value_of(node)):
                continue
            found = self._start(node)
            if found is not None:
                longer = self._lengthened(node, found)
                found = longer or found
                if longer is None:
                    self.starts.add(node)
            elif any(n in self.parts for n in node.all_input_nodes):
                found = self._spread(node)
            if found is not None:
                self.parts[node] = found
        whole = [n for n in self.parts if self._is_whole(n)]
        for node in whole:
            self._join(node)
        for node in reversed(list(self.graph.nodes)):
            if not node.users and (node in self.parts or node in self._made):
                self.graph.erase_node(node)

    # -- parts ------------------------------------------------------------------------------------

    def _start(self, node: Any) -> Parts | None:
        name, value = name_of(node), value_of(node)
        if name == "cat":
            tensors, axis = node.args[0], (node.args[1] if len(node.args) > 1 else 0)
            values = [value_of(t) for t in tensors]
            if not all(_is_known(v) and v.dtype is value.dtype for v in values):
                return None
            axis %= value.dim()
            pieces, begin = {}, 0
            for tensor, own in zip(tensors, values, strict=True):
                if own.dim() != value.dim():  # an empty one of one axis, which PyTorch leaves out
                    continue
                if own.shape[axis]:
                    pieces[begin, begin + own.shape[axis]] = tensor
                begin += own.shape[axis]
            return Parts(axis, pieces) if pieces else None
        if name != "slice_backward" or node.args[5] != 1:
            return None
        grad, _, axis, begin = node.args[:4]
        axis %= value.dim()
        length, own = value.shape[axis], value_of(grad).shape[axis]
        begin = max(0, begin + length if begin < 0 else begin)
        end = begin + own
        found = {(0, begin): None, (begin, end): grad, (end, length): None}
        return Parts(axis, {slot: n for slot, n in found.items() if slot[0] < slot[1]})

    def _lengthened(self, node: Any, own: Parts) -> Parts | None:
        """The parts of a concatenation of what is computed in parts and of other tensors, which are
        copied beside them, as what a rotary embedding turns and what it leaves. None for others.
        """
        import torch

        if None in own.pieces.values():
            return None
        if not any(self._is_alone(n, own.axis) for n in own.pieces.values()):
            return None
        pieces: dict[Slot, Any] = {}
        with self.graph.inserting_before(node):
            for (begin, end), piece in own.pieces.items():
                if self._is_alone(piece, own.axis):
                    inner = self.parts[piece].pieces.items()
                    pieces |= {(begin + low, begin + high): p for (low, high), p in inner}
                else:
                    pieces[begin, end] = self._make(torch.ops.aten.clone.default, (piece,), {})
        return Parts(own.axis, pieces)

    def _is_alone(self, node: Any, axis: int) -> bool:
        """Whether a tensor is computed in parts along an axis, for one reader."""
        own = self.parts.get(node)
        if own is None or node in self.starts or own.axis != axis:
            return False
        return len(node.users) == 1 and None not in own.pieces.values()

    def _spread(self, node: Any) -> Parts | None:
        """The parts of what an operator makes of parts; None where it needs the whole."""
        name, value = name_of(node), value_of(node)
        if name in ("permute", "transpose"):
            return self._turned(node)
        if not is_pointwise(node.target) and name not in ("clone", "_to_copy"):
            return None
        given = [n for n in node.all_input_nodes if n in self.parts]
        ranks = {value.dim() - value_of(n).dim() + self.parts[n].axis for n in given}
        if len(ranks) != 1:
            return None
        (axis,) = ranks
        length = value.shape[axis]
        if any(value_of(n).shape[self.parts[n].axis] != length for n in given):
            return None
        cuts = sorted({c for n in given for slot in self.parts[n].pieces for c in slot})
        pieces: dict[Slot, Any] = {}
        for slot in pairwise(cuts):
            made = self._piece(node, axis, slot)
            if made is NotImplemented:
                return None
            pieces[slot] = made
        return Parts(axis, pieces)

    def _turned(self, node: Any) -> Parts | None:
        """A view whose axes have another order."""
        base = node.args[0]
        rank, own = value_of(base).dim(), self.parts[base]
        order = list(range(rank))
        if name_of(node) == "permute":
            order = [d % rank for d in node.args[1]]
        else:
            one, other = (d % rank for d in node.args[1:])
            order[one], order[other] = order[other], order[one]
        with self.graph.inserting_before(node):
            pieces = {
                slot: None if piece is None else self._call(node, (piece, *node.args[1:]))
                for slot, piece in own.pieces.items()
            }
        return Parts(order.index(own.axis), pieces)

    def _piece(self, node: Any, axis: int, slot: Slot) -> Any:
        """What an elementwise operator makes of what lies in ``slot``: a node, None for zeros;
        NotImplemented where zeros would have to be there.
        """
        from torch.fx.node import map_arg

        back = axis - value_of(node).dim()
        with self.graph.inserting_before(node):
            found = {n: self._part(n, back, slot) for n in node.all_input_nodes}
            key = node, tuple(found.values())
            if key in self._pieces:  # the same operands as elsewhere along the axis
                return self._pieces[key]
            if None in found.values():
                shape = list(value_of(node).shape)
                shape[axis] = slot[1] - slot[0]
                return self._of_zeros(node, [found.get(a, a) for a in node.args], shape)
            made = self._pieces[key] = self._call(node, map_arg(node.args, found.__getitem__))
            return made

    def _part(self, node: Any, back: int, slot: Slot) -> Any:
        """What of an operand lies in ``slot`` of the result, along an axis counted from the right:
        all of it, if it is the same everywhere.
        """
        value = value_of(node)
        if not is_tensor(value) or value.dim() < -back or value.shape[back] == 1:
            return node
        if node not in self.parts:
            return self._slice(node, value.dim() + back, slot)
        for (begin, end), piece in self.parts[node].pieces.items():
            if begin <= slot[0] and slot[1] <= end:
                inner = slot[0] - begin, slot[1] - begin
                if piece is None or (begin, end) == slot:
                    return piece
                return self._slice(piece, value.dim() + back, inner)
        return None

    def _of_zeros(self, node: Any, operands: Sequence[Any], shape: list[int]) -> Any:
        """Sums and differences of this shape with zeros, and what makes zeros of zeros."""
        name = name_of(node)
        if name in ("neg", "clone") and operands[0] is None:
            return None
        if name not in ("add", "sub") or len(operands) != 2 or node.kwargs:
            return NotImplemented
        one, other = operands
        if one is None and other is None:
            return None
        left = one if other is None else other
        if not is_tensor(getattr(left, "meta", {}).get("val")):
            return NotImplemented
        own = value_of(left)
        if list(own.shape) != shape or own.dtype is not value_of(node).dtype:
            return NotImplemented  # a sum would spread it out, or cast it
        if name == "sub" and one is None:
            import torch

            return self._make(torch.ops.aten.neg.default, (left,), {})
        return left

    # -- nodes ------------------------------------------------------------------------------------

    def _slice(self, node: Any, axis: int, slot: Slot) -> Any:
        import torch

        key = (node, axis, slot)
        if key not in self._slices:
            args = (node, axis, *slot)
            self._slices[key] = self._make(torch.ops.aten.slice.Tensor, args, {})
        return self._slices[key]

    def _call(self, node: Any, args: Any) -> Any:
        return self._make(node.target, args, dict(node.kwargs))

    def _make(self, target: Any, args: Any, kwargs: Any) -> Any:
        node = new_node(self.graph, target, args, kwargs)
        self._made.add(node)
        return node

    # -- wholes -----------------------------------------------------------------------------------

    def _is_whole(self, node: Any) -> bool:
        """Whether somebody reads a computed tensor as a whole."""
        if node in self.starts or name_of(node) in ("permute", "transpose"):
            return False
        if None in self.parts[node].pieces.values() or len(self.parts[node].pieces) < 2:
            return False
        return any(self._asks(user) for user in node.users)

    def _asks(self, user: Any) -> bool:
        if user not in self.parts:
            return True
        turns = name_of(user) in ("permute", "transpose")
        return turns and any(map(self._asks, user.users))

    def _is_own(self, piece: Any) -> bool:
        """Whether a part is computed for a whole alone: others say how they are laid out."""
        views = ("slice", "permute", "transpose")
        return piece in self._made and name_of(piece) not in views

    def _join(self, node: Any) -> None:
        """The parts of a tensor, each laid out as it lies in the whole."""
        import torch

        value, own = value_of(node), self.parts[node]
        with self.graph.inserting_before(node):
            pieces = tuple(own.pieces.values())
            whole = self.graph.call_function(join, (pieces, own.axis, tuple(value.stride())))
        whole.meta["val"] = value
        with value.fake_mode, torch.no_grad():
            for (begin, end), piece in own.pieces.items():
                if pieces.count(piece) == 1 and self._is_own(piece):
                    piece.meta["val"] = value.detach().narrow(own.axis, begin, end - begin)
        node.replace_all_uses_with(whole)
        whole.meta[JOIN] = tuple(begin for begin, _ in own.pieces)
