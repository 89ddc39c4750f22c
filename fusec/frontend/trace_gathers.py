"""Operators that pick elements by positions: gathers, ``x[arange(n), t]``, losses of classes.

Each function takes the converter and a call, and gives the value of the result, or a tuple. May
import ``fusec.errors``, ``fusec.ir`` and, of the frontend, ``resolve_values`` and the ``trace_*``
modules but ``trace`` and ``trace_special``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from fusec.errors import UnsupportedError
from fusec.frontend.resolve_values import Tensor
from fusec.frontend.trace_convert import Converter, Special, Specials
from fusec.frontend.trace_record import Call
from fusec.frontend.trace_reshape import part_of
from fusec.frontend.trace_values import (
    Traced,
    aligned,
    common_lengths,
    permuted,
    squeezed,
    unsqueezed,
)

_TABLE = Specials()
_NONE, _MEAN, _SUM = 0, 1, 2  # PyTorch's numbers for ways to reduce a loss


@_TABLE.of("gather")
def _gather(convert: Converter, call: Call) -> Traced:
    value, index = (convert.tensor(call.arguments[k]) for k in ("self", "index"))
    value, index = (v if v.axes else unsqueezed(v, 0) for v in (value, index))
    axis = int(call.arguments["dim"]) % len(value.axes)
    for k, length in enumerate(index.lengths):
        if k != axis and length != value.lengths[k]:  # positions for the first rows alone
            value = part_of(convert, value, k, 0, length, 1, call.arguments["index"])
    picked = taken(convert, value, index, axis)
    return picked if call.result.dim() else squeezed(picked, [0])


def taken(convert: Converter, value: Traced, index: Traced, axis: int) -> Traced:
    """The elements of ``value`` along ``axis`` at the positions ``index``, of the same rank."""
    last = len(value.axes) - 1
    own = value.axes[axis]
    if own is None or value.node.shape[own] == 1:  # all elements are one
        kept = (*value.axes[:axis], None, *value.axes[axis + 1 :])
        return replace(value, axes=kept, lengths=index.lengths)
    one_each = index.lengths[axis] == 1
    if axis == last and one_each:
        return _picked(convert, value, index)
    # x[..., 1, C] at t[..., K, 1]: the axis moves to the end, and one of length 1 takes its place
    order = [*(k for k in range(last + 1) if k != axis), axis]
    moved = unsqueezed(permuted(convert.views, value, order), axis)
    return squeezed(_picked(convert, moved, unsqueezed(index, last + 1)), [last + 1])


def _picked(convert: Converter, value: Traced, index: Traced) -> Traced:
    """``value[..., index]``; ``index`` has the last axis with length 1."""
    (x, t), axes = aligned(convert.views, [value, index])
    lengths = common_lengths([replace(value, lengths=(*value.lengths[:-1], 1)), index])
    if axes[-1] == -1 and t.node.shape:
        try:
            return Traced(convert.walker.gatherer.at(x.value, t.node), axes, lengths)
        except UnsupportedError:  # of a reduction, say: it is compared with every position instead
            pass
    return _compared(convert, value, index)


def _compared(convert: Converter, value: Traced, index: Traced) -> Traced:
    """``sum(where(position == index, value, 0))`` along the last axis, in the value's own type."""
    last = len(value.axes) - 1
    places = positions_along(convert, value, last)
    dtype = value.node.dtype
    zero = "x and not x" if dtype.is_bool else "0"
    chosen = convert.pointwise(f"where(i == t, x, {zero})", i=places, t=index, x=value)
    picked = convert.reduce("any" if dtype.is_bool else "sum", chosen, [last], True)
    return replace(picked, node=convert.builder.cast(Tensor(picked.node), dtype).node)


def positions_along(convert: Converter, value: Traced, axis: int) -> Traced:
    """0, 1, 2 ... along an axis of ``value``, with as many axes as from there on."""
    places = convert.positions(value.lengths[axis])
    for _ in range(len(value.axes) - axis - 1):
        places = unsqueezed(places, len(places.axes))
    return places


@_TABLE.of("diagonal")
def _diagonal(convert: Converter, call: Call) -> Traced:
    """Of each row, the element at its own position, and so many to the right."""
    value = convert.tensor(call.arguments["self"])
    rank = len(value.axes)
    first, second = (int(call.arguments[k]) % rank for k in ("dim1", "dim2"))
    shift, length = int(call.arguments["offset"]), call.result.shape[-1]
    order = [*(k for k in range(rank) if k not in (first, second)), first, second]
    value = permuted(convert.views, value, order)
    start, count = max(0, -shift), convert.length(length)
    lengths = (*value.lengths[:-2], count, value.lengths[-1])
    if value.lengths != lengths:
        rows = call.result.unsqueeze(-1)
        value = part_of(convert, value, rank - 2, start, start + count, 1, rows)
    places = convert.positions(count)
    index = convert.pointwise("i + s", i=places, s=max(0, shift))
    index = unsqueezed(index, 1)
    for _ in range(rank - 2):
        index = unsqueezed(index, 0)
    return squeezed(taken(convert, value, index, rank - 1), [rank - 1])


@_TABLE.of("index.Tensor")
def _index(convert: Converter, call: Call) -> Traced:
    """``x[arange(n), t]``: one element of each row."""
    value = convert.tensor(call.arguments["self"])
    indices = [None if i is None else convert.tensor(i) for i in call.arguments["indices"]]
    rank = len(value.axes)
    plain = len(indices) == rank and all(
        i is not None and i.node.op.name == "index" and i.lengths == (value.lengths[k],)
        for k, i in enumerate(indices[:-1])
    )
    last = indices[-1]
    if not plain or rank != 2 or last is None or last.lengths != value.lengths[:1]:
        raise convert.unsupported(
            "indexing with tensors, other than x[arange(n), t] where n is x.shape[0]",
            "use torch.gather(x, -1, t)",
        )
    return squeezed(taken(convert, value, unsqueezed(last, 1), 1), [1])


@_TABLE.of("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss(convert: Converter, call: Call) -> Any:
    arguments = call.arguments
    value, target = _with_batch(convert, arguments)
    picked = squeezed(taken(convert, value, unsqueezed(target, 1), 1), [1])
    ignored, weight = arguments["ignore_index"], _weight_of(convert, arguments, target)
    text = "where(t == k, 0, -x)" if weight is None else "where(t == k, 0, -x * w)"
    weights = {} if weight is None else {"w": weight}
    loss = convert.pointwise(text, t=target, k=ignored, x=picked, **weights)
    if arguments["reduction"] == _NONE:
        zero = convert.builder.cast(convert.number(0.0), convert.dtype(call.result[1].dtype)).node
        return _without_batch(loss, call.result[0]), Traced(zero, (), ())
    counted = "cast_like(t != k, x)" if weight is None else "where(t == k, 0, w)"
    count = convert.pointwise(counted, t=target, k=ignored, **(weights if weights else {"x": loss}))
    every = range(len(loss.axes))
    total, count = (convert.reduce("sum", v, every, False) for v in (loss, count))
    if arguments["reduction"] == _SUM:
        return total, count
    return convert.pointwise("a / b", a=total, b=count), count


def _with_batch(convert: Converter, arguments: Mapping[str, Any]) -> tuple[Traced, Traced]:
    """What is given for each class, along axis 1, and the classes; one row gets an axis."""
    value, target = convert.tensor(arguments["self"]), convert.tensor(arguments["target"])
    if len(value.axes) == 1:
        return unsqueezed(value, 0), target if target.axes else unsqueezed(target, 0)
    return value, target


def _without_batch(value: Traced, result: Any) -> Traced:
    return squeezed(value, [0]) if value.axes and not result.dim() else value


def _weight_of(convert: Converter, arguments: Mapping[str, Any], target: Traced) -> Traced | None:
    """The weight of each element's class, or None."""
    if arguments["weight"] is None:
        return None
    weight = convert.tensor(arguments["weight"])
    for _ in target.axes:
        weight = unsqueezed(weight, 0)
    index = unsqueezed(target, len(target.axes))
    return squeezed(taken(convert, weight, index, len(target.axes)), [len(target.axes)])


@_TABLE.of("nll_loss_backward", "nll_loss2d_backward")
def _nll_loss_backward(convert: Converter, call: Call) -> Traced:
    arguments = call.arguments
    value, target = _with_batch(convert, arguments)
    given, mean = convert.tensor(arguments["grad_output"]), arguments["reduction"] == _MEAN
    given = unsqueezed(given, 1) if given.axes else given
    weight = _weight_of(convert, arguments, target)
    operands = {"n": convert.tensor(arguments["total_weight"])} if mean else {}
    text = "g / n" if mean else "g"
    if weight is not None:
        operands["w"], text = unsqueezed(weight, 1), f"w * {text}"
    found = convert.pointwise(
        f"where((i == t) and (t != k), -({text}), 0)",
        i=positions_along(convert, value, 1),
        t=unsqueezed(target, 1),
        k=arguments["ignore_index"],
        g=given,
        **operands,
    )
    return squeezed(found, [0]) if call.result.dim() == 1 else found


GATHERS: Mapping[str, Special] = MappingProxyType(_TABLE)
