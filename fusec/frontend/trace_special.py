"""Operators that are more than an expression: creation, softmaxes, norms, gathers.

Each function takes the converter and a call, and gives the value of the result, or a tuple. May
import ``fusec.errors``, ``fusec.ir`` and, of the frontend, ``resolve_values`` and the ``trace_*``
modules but ``trace`` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from fusec.frontend import trace_rows as rows
from fusec.frontend.resolve_values import Axes, Literal, Tensor
from fusec.frontend.trace_convert import Converter, Special, correction_of, dims
from fusec.frontend.trace_record import Call
from fusec.frontend.trace_reshape import VIEWS, part_of
from fusec.frontend.trace_values import (
    Traced,
    aligned,
    common_lengths,
    squeezed,
    unsqueezed,
)
from fusec.ir.dtypes import I64
from fusec.ir.node import Dim, TensorType, make

_TABLE: dict[str, Special] = dict(VIEWS)


def _for(*names: str) -> Callable[[Special], Special]:
    def keep(function: Special) -> Special:
        _TABLE.update(dict.fromkeys(names, function))
        return function

    return keep


def _axis(call: Call, value: Traced, name: str = "dim") -> int:
    rank = max(len(value.axes), 1)
    return int(call.arguments[name]) % rank


# -- creation -------------------------------------------------------------------------------------


@_for("scalar_tensor", "full", "full_like", "new_full", "zeros", "zeros_like", "new_zeros", "ones",
      "ones_like", "new_ones", "empty", "empty_like", "new_empty")  # fmt: skip
def _constant(convert: Converter, call: Call) -> Traced:
    arguments = call.arguments
    value = arguments.get("fill_value", arguments.get("s", 1 if "ones" in call.name else 0))
    number = convert.number(value)
    node = convert.builder.cast(number, convert.dtype(call.result.dtype)).node
    rank = len(call.result.shape)
    return Traced(node, (None,) * rank, tuple(map(convert.length, call.result.shape)))


@_for("arange", "arange.start", "arange.start_step")
def _arange(convert: Converter, call: Call) -> Traced:
    length = convert.length(call.result.shape[0])
    dim = convert.views.dims.get(length)
    if dim is None and length != 1:
        raise convert.unsupported(
            f"arange makes {length} positions, and no argument has an axis of that length",
            "pass the positions as an argument",
        )
    start, step = call.arguments.get("start", 0), call.arguments.get("step", 1)
    if dim is None:
        index = convert.builder.tensor(Literal(0))
    else:
        index = Tensor(make("index", (), TensorType(I64, (dim,)), axis=-1, dim=dim.name))
    dtype = convert.dtype(call.result.dtype)
    if dtype.is_float or start != 0 or step != 1:
        index = convert.evaluate(
            "start + step * i", i=index, start=convert.number(start), step=convert.number(step)
        )
    node = convert.builder.cast(Tensor(index.node), dtype).node
    return Traced(node, (-1 if dim is not None else None,), (length,))


# -- activations with options ---------------------------------------------------------------------


@_for("gelu")
def _gelu(convert: Converter, call: Call) -> Traced:
    tanh = call.arguments["approximate"] == "tanh"
    x = convert.tensor(call.arguments["self"])
    return convert.pointwise("gelu_tanh(x)" if tanh else "gelu(x)", x=x)


@_for("clamp", "clamp_min", "clamp_max")
def _clamp(convert: Converter, call: Call) -> Traced:
    names = {"min": "lo", "max": "hi"}
    bounds = {own: call.arguments.get(k) for k, own in names.items()}
    found = {k: convert.operand(v) for k, v in bounds.items() if v is not None}
    name = "clamp" if len(found) == 2 else "clamp_min" if "lo" in found else "clamp_max"
    text = f"{name}(x, {', '.join(found)})"  # no maximum: its gradient differs at the bounds
    return convert.pointwise(text, x=convert.tensor(call.arguments["self"]), **found)


@_for("div.Tensor_mode", "div.Scalar_mode")
def _rounded_quotient(convert: Converter, call: Call) -> Traced:
    a, b = (convert.operand(call.arguments[k]) for k in ("self", "other"))
    mode = call.arguments["rounding_mode"]
    if mode == "floor":
        return convert.pointwise("a // b", a=a, b=b)
    if mode is None:
        return convert.pointwise("a / b", a=a, b=b)
    floats = call.result.dtype.is_floating_point
    return convert.pointwise("trunc(a / b)" if floats else "(a - fmod(a, b)) // b", a=a, b=b)


@_for("logit")
def _logit(convert: Converter, call: Call) -> Traced:
    x, eps = convert.tensor(call.arguments["self"]), call.arguments["eps"]
    if eps is None:
        return convert.pointwise("logit(x)", x=x)
    return convert.pointwise("logit(clamp(x, eps, 1 - eps))", x=x, eps=eps)


@_for("log_sigmoid_forward")
def _log_sigmoid(convert: Converter, call: Call) -> Any:
    return convert.pointwise("logsigmoid(x)", x=convert.tensor(call.arguments["self"])), None


# -- rows -----------------------------------------------------------------------------------------


@_for("_softmax", "_log_softmax", "_safe_softmax")
def _softmax(convert: Converter, call: Call) -> Traced:
    value = convert.tensor(call.arguments["self"])
    if call.result.dtype != call.arguments["self"].dtype:
        dtype = convert.dtype(call.result.dtype)
        value = replace(value, node=convert.builder.cast(value.operand(), dtype).node)
    if not value.axes:
        return convert.pointwise("x - x" if "log" in call.name else "x - x + 1", x=value)
    axis = _axis(call, value)
    if value.axes[axis] is None or value.is_expanded(axis):
        raise convert.unsupported("a softmax over an axis of equal elements", "expand afterwards")
    name = "log_softmax" if "log" in call.name else "softmax"
    own = value.axes[axis]
    assert own is not None
    result = convert.evaluate(f"{name}(x, axis=axis)", x=value.operand(), axis=Axes((own,)))
    return replace(value, node=result.node)


@_for("max.dim", "min.dim")
def _extreme(convert: Converter, call: Call) -> Any:
    value = convert.tensor(call.arguments["self"])
    wanted = dims(call.arguments["dim"], len(value.axes), call.name, convert)
    keepdim = call.arguments["keepdim"]
    functions = (call.name, f"arg{call.name}")
    return tuple(convert.reduce(f, value, wanted, keepdim) for f in functions)


@_for("max.default", "min.default")
def _largest(convert: Converter, call: Call) -> Traced:
    value = convert.tensor(call.arguments["self"])
    return convert.reduce(call.name, value, range(len(value.axes)), False)


@_for("var_mean", "std_mean")
def _spread_and_mean(convert: Converter, call: Call) -> Any:
    value = convert.tensor(call.arguments["self"])
    wanted = dims(call.arguments.get("dim"), len(value.axes), call.name, convert)
    keepdim = call.arguments["keepdim"]
    spread = convert.reduce(
        call.name[:3], value, wanted, keepdim, correction=correction_of(call.arguments)
    )
    return spread, convert.reduce("mean", value, wanted, keepdim)


@_for("linalg_vector_norm")
def _norm(convert: Converter, call: Call) -> Traced:
    value = convert.tensor(call.arguments["self"])
    dtype, order = call.arguments.get("dtype"), call.arguments["ord"]
    if dtype is not None:
        value = replace(
            value, node=convert.builder.cast(value.operand(), convert.dtype(dtype)).node
        )
    wanted = dims(call.arguments["dim"], len(value.axes), call.name, convert)
    keepdim = call.arguments["keepdim"]
    if order not in (1, 2, float("inf")):
        raise convert.unsupported(
            f"a norm of order {order}", "write it out: x.abs().pow(p).sum(dim).pow(1 / p)"
        )
    return convert.reduce("norm", value, wanted, keepdim, p=order)


@_for("native_layer_norm")
def _layer_norm(convert: Converter, call: Call) -> Any:
    arguments = call.arguments
    value = convert.tensor(arguments["input"])
    rank = len(value.axes)
    wanted = list(range(rank - len(arguments["normalized_shape"]), rank))
    centre = convert.reduce("mean", value, wanted, True)
    less = convert.pointwise("x - m", x=value, m=centre)
    square = convert.pointwise("d * d", d=less)
    spread = convert.reduce("mean", square, wanted, True)
    scale = convert.pointwise("rsqrt(v + eps)", v=spread, eps=arguments["eps"])
    return _scaled(convert, less, scale, arguments), centre, scale


@_for("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
      "cudnn_batch_norm", "_batch_norm_no_update")  # fmt: skip
def _batch_norm(convert: Converter, call: Call) -> Any:
    arguments = call.arguments
    value = convert.tensor(arguments.get("input", arguments.get("self")))
    if arguments.get("training") and arguments.get("running_mean") is not None:
        raise convert.unsupported(
            f"aten.{call.overload} in training changes its running statistics", "use eval()"
        )
    per_channel = {}
    for name in ("running_mean", "running_var", "weight", "bias"):
        if arguments.get(name) is not None:
            own = convert.tensor(arguments[name])
            for _ in range(len(value.axes) - 2):
                own = unsqueezed(own, len(own.axes))
            per_channel[name] = own
    if "running_mean" not in per_channel:
        others = [i for i in range(len(value.axes)) if i != 1]
        per_channel["running_mean"] = convert.reduce("mean", value, others, True)
        per_channel["running_var"] = convert.reduce("var", value, others, True, correction=0)
    eps = arguments.get("eps", arguments.get("epsilon"))
    text = "(x - running_mean) * rsqrt(running_var + eps)"
    text += " * weight" if "weight" in per_channel else ""
    text += " + bias" if "bias" in per_channel else ""
    result = convert.pointwise(text, x=value, eps=eps, **per_channel)
    return (result, *([None] * (len(call.result) - 1)))


def _scaled(
    convert: Converter, value: Traced, scale: Traced, arguments: Mapping[str, Any]
) -> Traced:
    text, operands = "x * s", {"x": value, "s": scale}
    for name, symbol in (("weight", "*"), ("bias", "+")):
        if arguments.get(name) is not None:
            operands[name] = convert.tensor(arguments[name])
            text = f"{text} {symbol} {name}"
    return convert.pointwise(text, **operands)


# -- gathers --------------------------------------------------------------------------------------


@_for("gather")
def _gather(convert: Converter, call: Call) -> Traced:
    value, index = (convert.tensor(call.arguments[k]) for k in ("self", "index"))
    axis = _axis(call, value)
    if index.lengths[axis] != 1:
        raise convert.unsupported("gather of more than one element from each row", "one at a time")
    for k, length in enumerate(index.lengths):
        if k != axis and length != value.lengths[k]:  # positions for the first rows alone
            value = part_of(convert, value, k, 0, length, 1, call.arguments["index"])
    return _taken(convert, value, index, axis)


def _taken(convert: Converter, value: Traced, index: Traced, axis: int) -> Traced:
    """``value[..., index]`` along its last axis; ``index`` has that axis with length 1."""
    (x, t), axes = aligned(convert.views, [value, index])
    if axes[axis] != -1 or value.is_expanded(axis):
        raise convert.unsupported("gather along an axis that is not the last", "transpose before")
    positions = t.node
    if len(positions.shape) < len(x.node.shape) and not positions.shape:
        raise convert.unsupported("gather with one position for all", "use indexing")
    gathered = convert.walker.gatherer.gather(x.operand(), _positions(convert, positions, x))
    return Traced(
        gathered.node,
        axes,
        common_lengths([replace(value, lengths=(*value.lengths[:-1], 1)), index]),
    )


def _positions(convert: Converter, positions: Any, x: Traced) -> Tensor:
    """Positions with as many axes as what they pick from."""
    if len(positions.shape) == len(x.node.shape):
        return Tensor(positions)
    raise convert.unsupported("gather with positions of another rank", "expand the positions")


@_for("index.Tensor")
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
            "indexing with tensors, other than x[arange(n), t]", "use torch.gather(x, -1, t)"
        )
    return squeezed(_taken(convert, value, unsqueezed(last, 1), 1), [1])


@_for("nll_loss_forward")
def _nll_loss(convert: Converter, call: Call) -> Any:
    arguments = call.arguments
    value, target = convert.tensor(arguments["self"]), convert.tensor(arguments["target"])
    if arguments["weight"] is not None or len(value.axes) != 2:
        raise convert.unsupported("this loss takes class weights", "multiply by weight[target]")
    taken = squeezed(_taken(convert, value, unsqueezed(target, 1), 1), [1])
    ignored = arguments["ignore_index"]
    loss = convert.pointwise("where(t == k, 0, -x)", t=target, k=ignored, x=taken)
    counted = convert.pointwise("cast_like(t != k, x)", t=target, k=ignored, x=loss)
    if arguments["reduction"] == 0:
        zero = convert.builder.cast(convert.number(0.0), convert.dtype(call.result[1].dtype)).node
        return loss, Traced(zero, (), ())
    total = convert.reduce("sum", loss, [0], False)
    count = convert.reduce("sum", counted, [0], False)
    if arguments["reduction"] == 2:
        return total, count
    return convert.pointwise("a / b", a=total, b=count), count


@_for("nll_loss_backward")
def _nll_loss_backward(convert: Converter, call: Call) -> Traced:
    arguments = call.arguments
    value = convert.tensor(arguments["self"])
    if arguments["weight"] is not None or len(value.axes) != 2:
        raise convert.unsupported("this loss takes class weights", "multiply by weight[target]")
    classes = _positions_along(convert, value, 1)
    target = unsqueezed(convert.tensor(arguments["target"]), 1)
    given, mean = convert.tensor(arguments["grad_output"]), arguments["reduction"] == 1
    given = unsqueezed(given, 1) if given.axes else given
    text = (
        "where((i == t) and (t != k), -(g / n), 0)"
        if mean
        else ("where((i == t) and (t != k), -g, 0)")
    )
    counted = {"n": convert.tensor(arguments["total_weight"])} if mean else {}
    return convert.pointwise(
        text, i=classes, t=target, k=arguments["ignore_index"], g=given, **counted
    )


def _positions_along(convert: Converter, value: Traced, axis: int) -> Traced:
    """0, 1, 2 ... along an axis, as long as that of ``value``."""
    own = value.axes[axis]
    extent = 1 if own is None else value.node.shape[own]
    if not isinstance(extent, Dim):
        raise convert.unsupported("positions along an axis of equal elements", "expand afterwards")
    node = make("index", (), TensorType(I64, (extent,)), axis=-1, dim=extent.name)
    return Traced(node, (-1,), (value.lengths[axis],))


SPECIAL: Mapping[str, Special] = MappingProxyType(_TABLE)


def knows(name: str, overload: str) -> bool:
    """Whether an operator has a row in any of the tables, so that nothing takes it apart."""
    tables: tuple[Mapping[str, Any], ...] = (
        SPECIAL, rows.EXPRESSIONS, rows.SAME_NAMES, rows.REDUCTIONS
    )  # fmt: skip
    return any(name in table or overload in table for table in tables)
