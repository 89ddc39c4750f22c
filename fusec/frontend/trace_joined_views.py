"""Views of concatenations: an axis moves in each part, a piece of the whole is a piece of a part.

May import, of the frontend, ``trace_joined``, ``trace_record`` and ``trace_rows``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fusec.frontend.trace_joined import Joined, Operation, Piece, Rule
from fusec.frontend.trace_record import Call

# -- axes that move -------------------------------------------------------------------------------


def _unsqueeze(at: Operation) -> Any:
    dim = at.arguments["dim"] % at.result.dim()
    return _each(at, at.first.axis + (dim <= at.first.axis))


def _squeeze(at: Operation) -> Any:
    """By the axes of the whole: those of a part may be of length 1 where its own are not."""
    import torch

    whole, axis = at.first.whole, at.first.axis
    given = at.arguments.get("dim", range(whole.dim()))
    listed = [given] if isinstance(given, int) else list(given)
    wanted = sorted({d % whole.dim() for d in listed} - {axis})
    wanted = [d for d in wanted if whole.shape[d] == 1]
    squeeze = torch.ops.aten.squeeze.dims
    values = [at.call(squeeze, {"self": p.tensor, "dim": wanted}) for p in at.first.pieces]
    return at.keep(axis - sum(d < axis for d in wanted), values)


def _permute(at: Operation) -> Any:
    rank = at.first.whole.dim()
    order = list(range(rank))
    if at.name == "permute":
        order = [d % rank for d in at.arguments["dims"]]
    elif rank > 1:
        pair = (at.arguments[k] % rank for k in ("dim0", "dim1")) if at.name != "t" else (0, 1)
        a, b = pair
        order[a], order[b] = order[b], order[a]
    return _each(at, order.index(at.first.axis))


def _expand(at: Operation) -> Any:
    size = list(at.arguments["size"])
    axis = at.first.axis + len(size) - at.first.whole.dim()
    size[axis] = -1
    return _each(at, axis, size=size)


def _each(at: Operation, axis: int, **changed: Any) -> Any:
    """The view of each part; the result is in parts along ``axis``."""
    return at.keep(axis, [at.again(self=p.tensor, **changed) for p in at.first.pieces])


# -- pieces ---------------------------------------------------------------------------------------


def _slice(at: Operation) -> Any:
    axis = at.arguments["dim"] % at.first.whole.dim()
    if axis != at.first.axis:
        return _each(at, at.first.axis)
    start, step = at.arguments["start"] or 0, at.arguments["step"]
    length = at.first.whole.shape[axis]
    start = start if start >= 0 else start + length
    start = 0 if start < 0 else start
    return _cut(at, start, step, at.result)


def _select(at: Operation) -> Any:
    import torch

    whole, axis = at.first.whole, at.first.axis
    own = at.arguments["dim"] % whole.dim()
    if own != axis:
        return _each(at, axis - (own < axis))
    index = at.arguments["index"]
    index = index if index >= 0 else index + whole.shape[axis]
    found = _one(at, index)
    return _stand_for(
        at, at.result, torch.ops.aten.select.int, {"self": found, "dim": axis, "index": 0}
    )


def _split(at: Operation) -> Any:
    """``split``, ``chunk``, ``unbind``: several pieces."""
    import torch

    axis = at.first.axis
    own = at.arguments["dim"] % at.first.whole.dim()
    if own != axis:
        values = [at.again(self=piece.tensor) for piece in at.first.pieces]
        made = axis - (at.name == "unbind" and own < axis)
        for k, result in enumerate(at.result):
            at.keep(made, [value[k] for value in values], result)
        return at.result
    start: Any = 0
    for result in at.result:
        if at.name == "unbind":
            found = _one(at, start)
            select = torch.ops.aten.select.int
            _stand_for(at, result, select, {"self": found, "dim": axis, "index": 0})
            start += 1
            continue
        _cut(at, start, 1, result)
        start = start + result.shape[axis]
    return at.result


def _one(at: Operation, index: Any) -> Any:
    """The only element along the axis at ``index``, which stays as an axis of length 1."""
    import torch

    first = at.first
    for piece in first.pieces:
        length = piece.tensor.shape[first.axis]
        if piece.step != 1:
            if index % piece.step != piece.start:
                continue
            inner = index // piece.step
        else:
            inner = index - piece.start
        if inner >= 0 and inner < length:
            bounds = {"dim": first.axis, "start": inner, "end": inner + 1, "step": 1}
            return at.call(torch.ops.aten.slice.Tensor, {"self": piece.tensor, **bounds})
    raise at.refused("and the place lies in none of its parts")


def _cut(at: Operation, start: Any, step: int, result: Any) -> Any:
    """``result``, which is the whole from ``start`` on, as the parts that lie there."""
    import torch

    first, axis = at.first, at.first.axis
    length = result.shape[axis]
    alias, slicing = torch.ops.aten.alias.default, torch.ops.aten.slice.Tensor
    for piece in first.pieces:
        same = piece.step == step or piece.tensor.shape[axis] == 1
        if same and piece.start == start and piece.tensor.shape[axis] == length:
            return _stand_for(at, result, alias, {"self": piece.tensor})
    count = len(first.pieces)
    if first.alternates and step == 1 and start % count == 0 and length % count == 0:
        bounds = {"dim": axis, "start": start // count, "end": (start + length) // count, "step": 1}
        return at.keep(
            axis, [at.call(slicing, {"self": p.tensor, **bounds}) for p in first.pieces], result
        )
    if step != 1 or first.alternates:
        raise at.refused("and this slice is none of its parts")
    found: list[Piece] = []
    for piece in first.pieces:
        own = piece.tensor.shape[axis]
        if piece.start >= start + length or start >= piece.start + own:
            continue
        low = start - piece.start if start > piece.start else 0
        high = own if piece.start + own <= start + length else start + length - piece.start
        bounds = {"dim": axis, "start": low, "end": high, "step": 1}
        cut = at.call(slicing, {"self": piece.tensor, **bounds})
        found.append(Piece(cut, piece.start + low - start))
    if len(found) > 1:
        return at.put(result, axis, found)
    if found:
        return _stand_for(at, result, alias, {"self": found[0].tensor})
    nothing = {"dim": axis, "start": 0, "end": 0, "step": 1}
    return _stand_for(at, result, slicing, {"self": first.pieces[0].tensor, **nothing})


def _stand_for(at: Operation, result: Any, func: Any, arguments: Mapping[str, Any]) -> Any:
    """``result``, a view of the whole, with the value that another operator gives."""
    found = at.call(func, arguments)
    inner: Joined | None = at.joins.known.get(id(found))
    if inner is not None:
        return at.put(result, inner.axis, inner.pieces)
    at.recorder.owner.add(result)
    call = Call("alias", "alias.default", {"self": found}, result, at.where)
    at.recorder.tape.calls.append(call)
    return result


# -- reshapes -------------------------------------------------------------------------------------


def _reshape(at: Operation) -> Any:
    """In parts as long as these stay side by side, or those of length 1 come to alternate."""
    for rule in (_kept, _merged, _divided, _alternating):
        found = rule(at, tuple(at.first.whole.shape), tuple(at.result.shape))
        if found is not None:
            return found
    return at.torn(at.first)


def _reshaped(at: Operation, axis: int, made: Sequence[tuple[Any, Any, int]]) -> Any:
    """Each part with its length along ``axis``; ``made`` has length, start and step of each."""
    import torch

    aten = torch.ops.aten
    shape = list(at.result.shape)
    pieces = []
    for piece, (length, start, step) in zip(at.first.pieces, made, strict=True):
        own = [*shape[:axis], length, *shape[axis + 1 :]]
        order = torch.contiguous_format
        value = at.call(aten.clone.default, {"self": piece.tensor, "memory_format": order})
        value = at.call(aten._unsafe_view.default, {"self": value, "size": own})
        pieces.append(Piece(value, start, step))
    return at.put(at.result, axis, pieces)


def _lengths(at: Operation) -> list[Any]:
    return [piece.tensor.shape[at.first.axis] for piece in at.first.pieces]


def _kept(at: Operation, old: Sequence[Any], new: Sequence[Any]) -> Any:
    """The axis stays as long as it is."""
    front = math.prod(old[: at.first.axis])
    for axis, length in enumerate(new):
        if length == old[at.first.axis] and math.prod(new[:axis]) == front:
            pieces = zip(_lengths(at), at.first.pieces, strict=True)
            return _reshaped(at, axis, [(n, p.start, p.step) for n, p in pieces])
    return None


def _merged(at: Operation, old: Sequence[Any], new: Sequence[Any]) -> Any:
    """The axis becomes one with those behind it."""
    if at.first.alternates:
        return None
    front = math.prod(old[: at.first.axis])
    for axis, length in enumerate(new):
        for end in range(at.first.axis + 2, len(old) + 1):
            inner = math.prod(old[at.first.axis + 1 : end])
            whole = old[at.first.axis] * inner
            if length == whole and math.prod(new[:axis]) == front:
                pieces = zip(_lengths(at), at.first.pieces, strict=True)
                return _reshaped(at, axis, [(n * inner, p.start * inner, 1) for n, p in pieces])
    return None


def _divided(at: Operation, old: Sequence[Any], new: Sequence[Any]) -> Any:
    """The axis becomes several, of which the first has whole parts."""
    if at.first.alternates:
        return None
    front = math.prod(old[: at.first.axis])
    for axis in range(len(new)):
        for end in range(axis + 2, len(new) + 1):
            inner = math.prod(new[axis + 1 : end])
            same = new[axis] * inner == old[at.first.axis] and math.prod(new[:axis]) == front
            if same and all(n % inner == 0 for n in _lengths(at)):
                pieces = zip(_lengths(at), at.first.pieces, strict=True)
                return _reshaped(at, axis, [(n // inner, p.start // inner, 1) for n, p in pieces])
    return None


def _alternating(at: Operation, old: Sequence[Any], new: Sequence[Any]) -> Any:
    """The axis, along which each part has length 1, becomes one with those in front of it."""
    if any(n != 1 for n in _lengths(at)):
        return None
    count, behind = len(at.first.pieces), math.prod(old[at.first.axis + 1 :])
    for axis, length in enumerate(new):
        if math.prod(new[axis + 1 :]) != behind:
            continue
        for start in range(at.first.axis):
            inner = math.prod(old[start : at.first.axis])
            if length == inner * count:
                return _reshaped(at, axis, [(inner, k, count) for k in range(count)])
    return None


VIEWS: Mapping[str, Rule] = MappingProxyType(
    {
        "unsqueeze": _unsqueeze,
        "squeeze": _squeeze,
        **dict.fromkeys(("permute", "transpose", "t"), _permute),
        "expand": _expand,
        "slice": _slice,
        "select": _select,
        **dict.fromkeys(("split", "split_with_sizes", "unbind"), _split),
        **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias"), _reshape),
    }
)
