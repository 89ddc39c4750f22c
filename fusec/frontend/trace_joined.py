"""Concatenations stay in parts: what is computed of one is computed of each part, while the
function is recorded, so that nothing after that sees more than tensors.

    f(cat(a, b), c) = cat(f(a, c[:n]), f(b, c[n:]))

So no kernel copies parts together: each writes where its part lies in the result. The stand-in for
the whole is there as well, since PyTorch says by it which lengths fit and what shares memory. Torch
is imported where it is used. May import ``fusec.errors`` and, of the frontend, ``trace_place``,
``trace_record`` and ``trace_rows``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from fusec.errors import UnsupportedError
from fusec.frontend import trace_rows as rows
from fusec.frontend.trace_place import Where
from fusec.frontend.trace_record import Recorder, label, named

_MOST_PARTS = 32


@dataclass(frozen=True, slots=True)
class Piece:
    """A part, and where it lies along the axis: every ``step``-th place from ``start`` on."""

    tensor: Any
    start: Any
    step: int = 1


@dataclass(frozen=True, slots=True)
class Joined:
    """A tensor in parts along ``axis``, counted from the left; they lie side by side in their
    order, or alternate: then each ``step`` is the number of parts. Parts may be in parts.

    ``before`` is the tensor in parts that this one is a reshape of, where that tears parts up: then
    it has none of its own.
    """

    whole: Any
    axis: int
    pieces: tuple[Piece, ...]
    before: Joined | None = None

    @property
    def alternates(self) -> bool:
        return self.before is None and self.pieces[0].step != 1


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator called with a tensor in parts: ``result`` is what PyTorch says of the whole."""

    joins: Joins
    recorder: Recorder
    mode: Any
    func: Any
    name: str
    where: Where
    arguments: dict[str, Any]
    result: Any
    first: Joined  # of the arguments

    def again(self, /, **changed: Any) -> Any:
        """The operator with some arguments replaced, recorded."""
        return self.call(self.func, {**self.arguments, **changed})

    def call(self, func: Any, arguments: Mapping[str, Any]) -> Any:
        """Another operator, recorded at the same place."""
        schema = func._schema.arguments
        args = [arguments[a.name] for a in schema if not a.kwarg_only and a.name in arguments]
        kwargs = {a.name: arguments[a.name] for a in schema if a.kwarg_only and a.name in arguments}
        return self.recorder.dispatch(self.mode, func, self.where, args, kwargs)

    def piece(self, tensor: Any, axis: int, piece: Piece) -> Any:
        """What of a tensor lies where ``piece`` does; ``axis`` is counted from the left."""
        import torch

        end = sys.maxsize if piece.step != 1 else piece.start + piece.tensor.shape[self.first.axis]
        bounds = {"dim": axis, "start": piece.start, "end": end, "step": piece.step}
        found = self.call(torch.ops.aten.slice.Tensor, {"self": tensor, **bounds})
        bool(found.shape[axis] == piece.tensor.shape[self.first.axis])  # one name for both lengths
        return found

    def keep(self, axis: int, tensors: Sequence[Any], result: Any = None) -> Any:
        """The result, which has these tensors in the places of the first argument's parts."""
        pairs = zip(self.first.pieces, tensors, strict=True)
        pieces = [replace(piece, tensor=tensor) for piece, tensor in pairs]
        return self.put(self.result if result is None else result, axis, pieces)

    def put(self, result: Any, axis: int, pieces: Sequence[Piece]) -> Any:
        """The result, in these parts."""
        inner = (self.joins.known.get(id(piece.tensor)) for piece in pieces)
        if not pieces or any(j is not None and j.before is not None for j in inner):
            raise self.refused("and a view has torn up its parts")
        self.joins.known[id(result)] = Joined(result, axis, tuple(pieces))
        self.recorder.owner.add(result)
        return result

    def torn(self, before: Joined) -> Any:
        """The result, as a reshape of a tensor in parts."""
        self.joins.known[id(self.result)] = Joined(self.result, 0, (), before)
        self.recorder.owner.add(self.result)
        return self.result

    def refused(self, why: str = "and its parts stay apart") -> Exception:
        return self.where.error(
            UnsupportedError,
            f"{label(self.func)} takes a concatenation as a whole, {why}",
            "call it before the concatenation, or outside, between fused functions",
            op=label(self.func),
        )


Rule: TypeAlias = "Callable[[Operation], Any]"


@dataclass(slots=True)
class Joins:
    """The concatenations of one run. ``knows`` tells whether an operator has a row; ``views`` are
    the rules for operators that only rearrange.
    """

    knows: Callable[[str, str], bool]
    views: Mapping[str, Rule]
    known: dict[int, Joined] = field(default_factory=dict)

    def call(
        self, recorder: Recorder, mode: Any, func: Any, where: Where, args: Any, kwargs: Any
    ) -> Any:
        """The result of an operator that makes or takes a concatenation; NotImplemented for any
        other, and for one that PyTorch takes apart.
        """
        from torch.utils._pytree import tree_leaves

        name = func._opname.removesuffix("_")
        if name in ("cat", "stack") and not func._schema.is_mutable:
            return self._made(recorder, mode, func, where, args, kwargs)
        if not self.known or not self.knows(name, f"{name}.{func._overloadname}"):
            return NotImplemented
        found = [self.known[id(v)] for v in tree_leaves((args, kwargs)) if id(v) in self.known]
        # What alternates may be cut where others have borders, not the other way round.
        first = next((j for j in found if not j.alternates), found[0] if found else None)
        if first is None or name in _OF_SHAPES:
            return NotImplemented
        arguments = named(func, args, kwargs)
        result = func(*args, **kwargs)
        operation = Operation(self, recorder, mode, func, name, where, arguments, result, first)
        rule = self.views.get(name) or _RULES.get(name)
        if rule is None and name in rows.REDUCTIONS:
            rule = _reduction
        if rule is None and _is_elementwise(func):
            rule = _pointwise
        if rule is None or (func._schema.is_mutable and rule is not _pointwise):
            raise operation.refused()
        if any(joined.before is not None for joined in found):
            rule = _of_torn
        return rule(operation)

    def _made(
        self, recorder: Recorder, mode: Any, func: Any, where: Where, args: Any, kwargs: Any
    ) -> Any:
        """``cat`` or ``stack``: parts of their own, of the common type."""
        arguments = named(func, args, kwargs)
        result = func(*args, **kwargs)
        axis = arguments["dim"] % result.dim()
        given = [result, Joined(result, axis, ())]
        at = Operation(self, recorder, mode, func, func._opname, where, arguments, *given)
        own = [_part(at, t) for t in arguments["tensors"] if not _is_nothing(at, t)]
        if not own:
            return NotImplemented
        if len(own) > _MOST_PARTS:
            raise where.error(
                UnsupportedError,
                f"{label(func)} puts {len(own)} tensors together, and fusec at most {_MOST_PARTS}",
                "call it outside, between fused functions",
                op=label(func),
            )
        pieces: list[Piece] = []
        start: Any = 0
        for tensor in own:
            bool(tensor.shape[axis] == own[0].shape[axis])  # if so, one kernel writes both
            pieces.append(Piece(tensor, start))
            start = start + tensor.shape[axis]
        return at.put(result, axis, pieces) if len(own) > 1 else own[0]


def _is_nothing(at: Operation, tensor: Any) -> bool:
    """Whether ``cat`` has nothing of a tensor: one of shape [0] it passes over."""
    if at.name == "stack":
        return False
    return bool(tensor.shape[at.first.axis if tensor.dim() == at.result.dim() else 0] == 0)


def _part(at: Operation, tensor: Any) -> Any:
    """A tensor as a part of the result: a copy, as the function may write to either."""
    import torch

    aten = torch.ops.aten
    if tensor.dtype != at.result.dtype:
        tensor = at.call(aten._to_copy.default, {"self": tensor, "dtype": at.result.dtype})
    order = torch.contiguous_format
    tensor = at.call(aten.clone.default, {"self": tensor, "memory_format": order})
    if at.name == "stack":
        tensor = at.call(aten.unsqueeze.default, {"self": tensor, "dim": at.first.axis})
    return tensor


def _of_torn(at: Operation) -> Any:
    """Of a tensor whose parts are torn up: another reshape, and what is elementwise and takes no
    other tensor.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    before = at.first.before
    if before is not None and at.name in _RESHAPES:
        return at.torn(before)
    others = [v for v in tree_leaves(at.arguments) if isinstance(v, torch.Tensor)]
    simple = _is_elementwise(at.func) or at.name in _ALONE
    if before is None or len(others) > 1 or at.func._schema.is_mutable or not simple:
        raise at.refused("and a view has torn up its parts")
    name = next(k for k, v in at.arguments.items() if v is at.first.whole)
    found = at.joins.known[id(at.again(**{name: before.whole}))]
    return at.torn(found)


# -- computing ------------------------------------------------------------------------------------


def _is_elementwise(func: Any) -> bool:
    """Whether an operator computes each element of others in the same place."""
    import torch

    name = func._opname.removesuffix("_")
    return torch.Tag.pointwise in func.tags or name in rows.EXPRESSIONS or name in rows.SAME_NAMES


def _pointwise(at: Operation) -> Any:
    """Part by part, with what of the other operands lies there."""
    import torch
    from torch.utils._pytree import tree_map_only

    several = isinstance(at.result, tuple | list)
    shown = at.result[0] if several else at.result
    right = at.first.axis - at.first.whole.dim()
    if at.first.whole.shape[right] != shown.shape[right]:  # of length 1, yet in parts
        raise at.refused("where it is repeated along its axis")
    written = at.func._schema.is_mutable
    values = []
    for piece in at.first.pieces:

        def own(tensor: Any, piece: Piece = piece) -> Any:
            if tensor is at.first.whole:
                return piece.tensor
            axis = tensor.dim() + right
            return tensor if axis < 0 or tensor.shape[axis] == 1 else at.piece(tensor, axis, piece)

        changed = {k: tree_map_only(torch.Tensor, own, v) for k, v in at.arguments.items()}
        if written:  # over a copy: others may have the part, too
            with torch.enable_grad():
                changed["self"] = at.call(torch.ops.aten.clone.default, {"self": changed["self"]})
        values.append(at.again(**changed))
    axis = shown.dim() + right
    if not several:
        return at.keep(axis, values)
    at.keep(axis, [value[0] for value in values], shown)
    return at.result


_JOINING = {"sum": "add", "count_nonzero": "add", "any": "logical_or", "all": "logical_and"}


def _reduction(at: Operation) -> Any:
    """Along other axes part by part; along its own axis where parts of the result add up."""
    import torch

    axis, rank = at.first.axis, at.first.whole.dim()
    given = at.arguments.get("dim")
    listed = [given] if isinstance(given, int) else list(given or range(rank))
    wanted = [d % rank for d in listed]
    if axis not in wanted:
        values = [at.again(self=piece.tensor) for piece in at.first.pieces]
        keepdim = at.arguments.get("keepdim", False)
        made = axis if keepdim else axis - sum(d < axis for d in wanted)
        if not isinstance(at.result, tuple | list):
            return at.keep(made, values)
        for k, result in enumerate(at.result):
            at.keep(made, [value[k] for value in values], result)
        return at.result
    if at.name not in _JOINING and at.name != "mean":
        raise at.refused("whose axis it runs along")
    found = None
    for piece in at.first.pieces:
        value = at.again(self=piece.tensor)
        if at.name == "mean":
            share = piece.tensor.shape[axis] / at.first.whole.shape[axis]
            value = at.call(torch.ops.aten.mul.Scalar, {"self": value, "other": share})
        if found is None:
            found = value
            continue
        both = {"self": found, "other": value}
        name = _JOINING.get(at.name, "add")
        joining = getattr(torch.ops.aten, name)
        found = at.call(joining.Tensor if name == "add" else joining.default, both)
    return found


def _along(at: Operation) -> Any:
    """What runs along an axis and keeps it, as a softmax does."""
    if at.arguments["dim"] % at.first.whole.dim() == at.first.axis:
        raise at.refused("whose axis it runs along")
    return at.keep(at.first.axis, [at.again(self=piece.tensor) for piece in at.first.pieces])


def _layer_norm(at: Operation) -> Any:
    """Of rows that lie in one part each."""
    value = at.arguments["input"]
    behind = value.dim() - len(at.arguments["normalized_shape"])
    if at.first.whole is not value or at.first.axis >= behind:
        raise at.refused("whose axis it runs along")
    values = [at.again(input=piece.tensor) for piece in at.first.pieces]
    for k, result in enumerate(at.result):
        at.keep(at.first.axis, [value[k] for value in values], result)
    return at.result


_ALONE = rows.words("alias detach clone contiguous _to_copy gelu clamp clamp_min clamp_max")
_RESHAPES = rows.words("view _unsafe_view reshape _reshape_alias unsqueeze squeeze")
_OF_SHAPES = rows.words(
    "zeros_like ones_like empty_like full_like new_zeros new_ones new_empty new_full"
)
_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        rows.words(
            "alias detach lift_fresh lift_fresh_copy clone contiguous positive _to_copy copy fill"
            " zero gelu clamp clamp_min clamp_max div round logit log_sigmoid_forward"
        ),
        _pointwise,
    ),
    **dict.fromkeys(rows.words("max min var_mean std_mean linalg_vector_norm"), _reduction),
    **dict.fromkeys(rows.words("_softmax _log_softmax _safe_softmax"), _along),
    "native_layer_norm": _layer_norm,
}
