"""Views as operators: what only rearranges, cuts or reshapes a traced tensor.

Each function takes the converter and a call, and gives the value of the result, or a list. May
import ``fusec.ir`` and, of the frontend, the ``trace_*`` modules but ``trace`` and
``trace_special``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from fusec.frontend.trace_convert import Converter, Special, Specials, dims
from fusec.frontend.trace_record import Call
from fusec.frontend.trace_values import Traced, permuted, squeezed, unsqueezed
from fusec.frontend.trace_views import Step

_TABLE = Specials()


@_TABLE.of("alias", "detach", "lift_fresh", "lift_fresh_copy", "clone", "contiguous", "positive")
def _same(convert: Converter, call: Call) -> Traced:
    value = convert.values[id(call.arguments["self"])]
    return replace(value, stopped=True) if call.name == "detach" else value


@_TABLE.of("_to_copy")
def _cast(convert: Converter, call: Call) -> Traced:
    given, dtype = call.arguments["self"], call.arguments["dtype"]
    device = call.arguments.get("device")
    if device is not None and not _same_device(given.device, device):
        raise convert.unsupported(f"a copy from {given.device} to {device}", "copy it outside")
    value: Traced = convert.operand(given)
    if dtype is None:
        return value
    node = convert.builder.cast(value.operand(), convert.dtype(dtype)).node
    return replace(value, node=node)


def _same_device(own: Any, wanted: Any) -> bool:
    """Whether a copy to ``wanted`` stays; ``cuda`` without a number is any of that type."""
    return own.type == wanted.type and wanted.index in (None, own.index)


@_TABLE.of("unsqueeze")
def _unsqueeze(convert: Converter, call: Call) -> Traced:
    value = convert.tensor(call.arguments["self"])
    return unsqueezed(value, int(call.arguments["dim"]) % (len(value.axes) + 1))


@_TABLE.of("squeeze")
def _squeeze(convert: Converter, call: Call) -> Traced:
    value = convert.tensor(call.arguments["self"])
    named = call.arguments.get("dim")
    none = isinstance(named, list | tuple) and not named  # for a reduction, that is every axis
    wanted = [] if none else dims(named, len(value.axes), "squeeze", convert)
    return squeezed(value, [i for i in wanted if value.lengths[i] == 1])


@_TABLE.of("permute", "transpose", "t")
def _permute(convert: Converter, call: Call) -> Traced:
    value = convert.tensor(call.arguments["self"])
    rank = len(value.axes)
    order = list(range(rank))
    if call.name == "permute":
        order = [d % rank for d in call.arguments["dims"]]
    elif rank > 1:
        first, second = 0, 1
        if call.name == "transpose":
            first, second = (call.arguments[k] % rank for k in ("dim0", "dim1"))
        order[first], order[second] = order[second], order[first]
    return permuted(convert.views, value, order)


@_TABLE.of("expand")
def _expand(convert: Converter, call: Call) -> Traced:
    value = convert.tensor(call.arguments["self"])
    for _ in range(len(call.result.shape) - len(value.axes)):
        value = unsqueezed(value, 0)
    return value


@_TABLE.of("slice.Tensor", "select.int", "split.Tensor", "split_with_sizes", "unbind.int")
def _cut(convert: Converter, call: Call) -> Any:
    value = convert.tensor(call.arguments["self"])
    axis = int(call.arguments["dim"]) % len(value.axes)
    length = value.lengths[axis]
    if call.name == "slice":
        start, end = _bounds(convert, call, axis)
        return part_of(convert, value, axis, start, end, call.arguments["step"], call.result)
    if call.name == "select":
        index = call.arguments["index"]
        start = index if index >= 0 else length + convert.length(index)
        piece = part_of(convert, value, axis, start, start + 1, 1, None)
        return squeezed(piece, [axis])
    pieces, start = [], 0
    for part in call.result:
        if call.name == "unbind":
            piece = part_of(convert, value, axis, start, start + 1, 1, None)
            pieces.append(squeezed(piece, [axis]))
            start += 1
            continue
        end = start + convert.length(part.shape[axis])
        pieces.append(part_of(convert, value, axis, start, end, 1, part))
        start = end
    return pieces


def _bounds(convert: Converter, call: Call, axis: int) -> tuple[Any, Any]:
    """Start and end of a slice, as the length of the result tells them."""
    start = call.arguments["start"] or 0
    if start < 0:  # of a symbol, this makes a guard
        start = call.arguments["self"].shape[axis] + start
        start = 0 if start < 0 else start  # further back than the axis is long
    first = convert.length(start)
    return first, first + convert.length(call.result.shape[axis]) * call.arguments["step"]


def part_of(
    convert: Converter, value: Traced, axis: int, start: Any, end: Any, step: int, result: Any
) -> Traced:
    """``value`` from ``start`` to ``end`` along an axis; one element where there is no result."""
    length = 1 if result is None else convert.length(result.shape[axis])
    lengths = (*value.lengths[:axis], length, *value.lengths[axis + 1 :])
    own = value.axes[axis]
    if own is None or value.node.shape[own] == 1 or length == value.lengths[axis]:
        return replace(value, lengths=lengths)
    node = convert.views.cut(value.node, own, start, end, step, length)
    return replace(value, node=node, lengths=lengths)


@_TABLE.of("view.default", "_unsafe_view", "reshape", "_reshape_alias")
def _reshape(convert: Converter, call: Call) -> Traced:
    """A view of an argument, or of one axes in front of those that stay; else of a result only."""
    value = convert.values[id(call.arguments["self"])]
    lengths = tuple(map(convert.length, call.result.shape))
    if value.after:
        return replace(value, after=(*value.after, Step("reshape", lengths)))
    if [n for n in value.lengths if n != 1] == [n for n in lengths if n != 1]:
        return _ones_moved(value, lengths)
    if value.node.op.name == "input" and _is_whole(value):
        node = convert.views.further(value.node, Step("reshape", lengths), lengths)
        return replace(value, node=node, axes=tuple(range(-len(lengths), 0)), lengths=lengths)
    moved = _in_front(convert, value, lengths)
    return moved or replace(value, after=(Step("reshape", lengths),))


def _in_front(convert: Converter, value: Traced, lengths: tuple[Any, ...]) -> Traced | None:
    """The reshape of a computed value that leaves its last axes as they are, or None."""
    same = 0
    while same < min(len(lengths), len(value.lengths)) and (
        lengths[-same - 1] == value.lengths[-same - 1]
    ):
        same += 1
    front = value.axes[: len(value.axes) - same]
    rank = len(value.node.shape)
    if front != tuple(range(-rank, -rank + len(front))):
        return None
    if any(map(value.is_expanded, range(len(front)))):
        return None
    stay = rank - len(front)
    made = lengths[: len(lengths) - same]
    node = convert.views.reshaped(value.node, stay, len(front), made)
    if node is None:
        return None
    axes = (*range(-stay - len(made), -stay), *value.axes[len(front) :])
    return replace(value, node=node, axes=axes, lengths=lengths)


def _is_whole(value: Traced) -> bool:
    """Whether a tensor is its input, axis by axis, and repeats nothing of it."""
    rank = len(value.node.shape)
    same = value.axes == tuple(range(-rank, 0)) and not value.node.integer("unsqueezed")
    return same and not any(map(value.is_expanded, range(rank)))


def _ones_moved(value: Traced, lengths: tuple[Any, ...]) -> Traced:
    """A reshape that only drops or makes axes of length 1."""
    value = squeezed(value, [i for i, n in enumerate(value.lengths) if n == 1])
    for i, n in enumerate(lengths):
        if n == 1:
            value = unsqueezed(value, i)
    return value


VIEWS: Mapping[str, Special] = MappingProxyType(_TABLE)
