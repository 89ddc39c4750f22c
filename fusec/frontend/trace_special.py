"""Operators that are more than an expression: activations with options, softmaxes, norms.

Each function takes the converter and a call, and gives the value of the result, or a tuple. May
import ``fusec.errors``, ``fusec.ir`` and, of the frontend, ``resolve_values`` and the ``trace_*``
modules but ``trace`` itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from fusec.frontend import trace_rows as rows
from fusec.frontend.resolve_values import Axes
from fusec.frontend.trace_convert import Converter, Special, Specials, correction_of, dims
from fusec.frontend.trace_creation import CREATIONS
from fusec.frontend.trace_gathers import GATHERS, positions_along
from fusec.frontend.trace_record import Call
from fusec.frontend.trace_reshape import VIEWS
from fusec.frontend.trace_values import Traced, split, squeezed, unsqueezed
from fusec.frontend.trace_views import Step
from fusec.ir.dtypes import DType

_TABLE = Specials({**VIEWS, **CREATIONS, **GATHERS})


def _axis(call: Call, value: Traced, name: str = "dim") -> int:
    rank = max(len(value.axes), 1)
    return int(call.arguments[name]) % rank


# -- activations with options ---------------------------------------------------------------------


@_TABLE.of("gelu")
def _gelu(convert: Converter, call: Call) -> Traced:
    tanh = call.arguments["approximate"] == "tanh"
    x = convert.operand(call.arguments["self"])
    return convert.pointwise("gelu_tanh(x)" if tanh else "gelu(x)", x=x)


@_TABLE.of("clamp", "clamp_min", "clamp_max")
def _clamp(convert: Converter, call: Call) -> Traced:
    names = {"min": "lo", "max": "hi"}
    bounds = {own: call.arguments.get(k) for k, own in names.items()}
    found = {k: convert.operand(v) for k, v in bounds.items() if v is not None}
    dtype = convert.dtype(call.result.dtype)
    found = {k: _in_unsigned(v, dtype) for k, v in found.items()}
    name = "clamp" if len(found) == 2 else "clamp_min" if "lo" in found else "clamp_max"
    text = f"{name}(x, {', '.join(found)})"  # no maximum: its gradient differs at the bounds
    return convert.pointwise(text, x=convert.operand(call.arguments["self"]), **found)


def _in_unsigned(value: Any, dtype: DType) -> Any:
    """A negative number in an unsigned type, where PyTorch lets it wrap."""
    plain = type(value) is int and dtype.is_integer and dtype.minimum == 0
    return value % (dtype.maximum + 1) if plain and -dtype.maximum <= value < 0 else value


@_TABLE.of("masked_fill")
def _masked_fill(convert: Converter, call: Call) -> Traced:
    x, mask, value = (convert.operand(call.arguments[k]) for k in ("self", "mask", "value"))
    value = _in_unsigned(value, convert.dtype(call.result.dtype))
    return convert.pointwise("where(mask, value, x)", mask=mask, value=value, x=x)


@_TABLE.of("sign", "sgn")
def _sign(convert: Converter, call: Call) -> Traced:
    x = convert.operand(call.arguments["self"])
    return x if x.node.dtype.is_bool else convert.pointwise("sign(x)", x=x)


@_TABLE.of("div.Tensor_mode", "div.Scalar_mode")
def _rounded_quotient(convert: Converter, call: Call) -> Traced:
    a, b = (convert.operand(call.arguments[k]) for k in ("self", "other"))
    mode = call.arguments["rounding_mode"]
    if mode == "floor":
        return convert.pointwise("a // b", a=a, b=b)
    if mode is None:
        return convert.pointwise("a / b", a=a, b=b)
    floats = call.result.dtype.is_floating_point
    return convert.pointwise("trunc(a / b)" if floats else "(a - fmod(a, b)) // b", a=a, b=b)


@_TABLE.of("round.decimals")
def _rounded(convert: Converter, call: Call) -> Traced:
    decimals = call.arguments["decimals"]
    text = "round(x * s) / s" if decimals >= 0 else "round(x / s) * s"
    x = convert.tensor(call.arguments["self"])
    return convert.pointwise(text, x=x, s=float(10 ** abs(decimals)))


@_TABLE.of("logit")
def _logit(convert: Converter, call: Call) -> Traced:
    x, eps = convert.tensor(call.arguments["self"]), call.arguments["eps"]
    if eps is None:
        return convert.pointwise("logit(x)", x=x)
    return convert.pointwise("logit(clamp(x, eps, 1 - eps))", x=x, eps=eps)


@_TABLE.of("log_sigmoid_forward")
def _log_sigmoid(convert: Converter, call: Call) -> Any:
    return convert.pointwise("logsigmoid(x)", x=convert.tensor(call.arguments["self"])), None


@_TABLE.of("binary_cross_entropy")
def _binary_cross_entropy(convert: Converter, call: Call) -> Traced:
    """Within 1e-12 of 0 and 1, PyTorch divides by 1e-12 in the gradient: there it is that of a
    parabola. The gradient of the target is of logarithms without a bound.
    """
    arguments = call.arguments
    x, t = convert.tensor(arguments["self"]), convert.tensor(arguments["target"])
    fixed = {"x": replace(x, stopped=True), "t": replace(t, stopped=True)}
    entropy = "-(t * clamp_min(log(x), -100) + (1 - t) * clamp_min(log1p(-x), -100))"
    least = 9.999999960041972e-13  # what 1e-12 is in float32
    edge = convert.pointwise("x * (1 - x) < least", x=x, least=least)
    inside = convert.pointwise(entropy, x=convert.pointwise("where(e, 0.5, x)", e=edge, x=x), t=t)
    of_target = convert.pointwise("-(t * log(x) + (1 - t) * log1p(-x))", x=fixed["x"], t=t)
    outside = convert.pointwise(
        "o + (x * x / 2 - t * x) / least", o=of_target, x=x, t=fixed["t"], least=least
    )
    loss = convert.pointwise(
        "gradient_as(v, where(e, a, b))",
        v=convert.pointwise(entropy, **fixed),
        e=edge,
        a=outside,
        b=inside,
    )
    if arguments["weight"] is not None:
        loss = convert.pointwise("l * w", l=loss, w=convert.tensor(arguments["weight"]))
    if arguments["reduction"] == 0:
        return loss
    name = "mean" if arguments["reduction"] == 1 else "sum"
    return convert.reduce(name, loss, range(len(loss.axes)), False)


# -- rows -----------------------------------------------------------------------------------------


# The safe one gives zeros, with a gradient of zeros, where a row has nothing but -inf: what attends
# to nothing is nothing.
_NOTHING = "max(x, axis=axis) == -inf"
_SOFTMAXES = {
    "_softmax": "softmax(x, axis=axis)",
    "_log_softmax": "log_softmax(x, axis=axis)",
    "_safe_softmax": f"gradient_as(where({_NOTHING}, 0, softmax(x, axis=axis)),"
    f" where({_NOTHING}, 0, softmax(where({_NOTHING}, 0, x), axis=axis)))",
}
_OF_ONE = {
    "_softmax": "x - x + 1",
    "_log_softmax": "x - x",
    "_safe_softmax": "where(x == -inf, 0, x - x + 1)",
}


@_TABLE.of(*_SOFTMAXES)
def _softmax(convert: Converter, call: Call) -> Traced:
    value = convert.tensor(call.arguments["self"])
    if call.result.dtype != call.arguments["self"].dtype:
        dtype = convert.dtype(call.result.dtype)
        value = replace(value, node=convert.builder.cast(value.operand(), dtype).node)
    if not value.axes:
        return convert.pointwise(_OF_ONE[call.name], x=value)
    axis = _axis(call, value)
    if value.axes[axis] is None or value.is_expanded(axis):
        raise convert.unsupported("a softmax over an axis of equal elements", "expand afterwards")
    own = value.axes[axis]
    assert own is not None
    result = convert.evaluate(_SOFTMAXES[call.name], x=value.operand(), axis=Axes((own,)))
    return replace(value, node=result.node)


@_TABLE.of("max.dim", "min.dim")
def _extreme(convert: Converter, call: Call) -> Any:
    value = convert.tensor(call.arguments["self"])
    wanted = dims(call.arguments["dim"], len(value.axes), call.name, convert)
    keepdim = call.arguments["keepdim"]
    functions = (call.name, f"arg{call.name}")
    largest, place = (convert.reduce(f, value, wanted, True) for f in functions)
    if value.axes and value.node.dtype.is_float:  # the gradient goes to that one element
        chosen = convert.pointwise(
            "where(i == p, x, 0)", i=positions_along(convert, value, wanted[0]), p=place, x=value
        )
        one = convert.reduce("sum", chosen, wanted, True)
        largest = convert.pointwise("gradient_as(a, b)", a=largest, b=one)
    found = (largest, place)
    return found if keepdim else tuple(squeezed(v, wanted) for v in found)


@_TABLE.of("max.default", "min.default")
def _largest(convert: Converter, call: Call) -> Traced:
    value = convert.tensor(call.arguments["self"])
    return convert.reduce(call.name, value, range(len(value.axes)), False)


@_TABLE.of("var_mean", "std_mean")
def _spread_and_mean(convert: Converter, call: Call) -> Any:
    value = convert.tensor(call.arguments["self"])
    wanted = dims(call.arguments.get("dim"), len(value.axes), call.name, convert)
    keepdim = call.arguments["keepdim"]
    spread = convert.reduce(
        call.name[:3], value, wanted, keepdim, correction=correction_of(call.arguments)
    )
    return spread, convert.reduce("mean", value, wanted, keepdim)


@_TABLE.of("linalg_vector_norm")
def _norm(convert: Converter, call: Call) -> Traced:
    value = convert.tensor(call.arguments["self"])
    dtype, order = call.arguments.get("dtype"), call.arguments["ord"]
    if dtype is not None:
        value = replace(
            value, node=convert.builder.cast(value.operand(), convert.dtype(dtype)).node
        )
    wanted = dims(call.arguments["dim"], len(value.axes), call.name, convert)
    keepdim = call.arguments["keepdim"]
    if order in (1, 2, float("inf")):
        return convert.reduce("norm", value, wanted, keepdim, p=order)
    if order == -float("inf"):
        return convert.reduce("min", convert.pointwise("abs(x)", x=value), wanted, keepdim)
    if order == 0:
        ones = convert.pointwise("where(x == 0, x - x, 1)", x=value)  # with a gradient, of zeros
        return convert.reduce("sum", ones, wanted, keepdim)
    if order < 0:
        raise convert.unsupported(
            f"a norm of order {order}", "write it out: x.abs().pow(p).sum(dim).pow(1 / p)"
        )
    # As in PyTorch, no gradient goes to a zero, where the power has none or an infinite one.
    root = "where(x == 0, 0, where(x == 0, 1, x) ^ p)"
    powers = convert.pointwise(root, x=convert.pointwise("abs(x)", x=value), p=order)
    total = convert.reduce("sum", powers, wanted, keepdim)
    return convert.pointwise(root, x=total, p=1 / order)


@_TABLE.of("native_layer_norm")
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
    given = {k: arguments[k] for k in ("weight", "bias") if arguments.get(k) is not None}
    per_column = {k: convert.tensor(v) for k, v in given.items()}
    statistics = _statistics(convert, call, centre, scale)
    return _scaled(convert, less, scale, per_column), *statistics


@_TABLE.of("native_group_norm")
def _group_norm(convert: Converter, call: Call) -> Any:
    """Channels are an axis of groups and one of what a group has; the result is reshaped."""
    whole = convert.tensor(call.arguments["input"])
    value = _in_groups(convert, call, whole, 1)
    wanted = list(range(2, len(value.axes)))
    centre = convert.reduce("mean", value, wanted, True)
    less = convert.pointwise("x - m", x=value, m=centre)
    spread = convert.reduce("mean", convert.pointwise("d * d", d=less), wanted, True)
    scale = convert.pointwise("rsqrt(v + eps)", v=spread, eps=call.arguments["eps"])
    result = _scaled(convert, less, scale, _of_channels(convert, call, len(wanted)))
    result = replace(result, after=(Step("reshape", whole.lengths),))
    statistics = squeezed(centre, wanted), squeezed(scale, wanted)
    return result, *_statistics(convert, call, *statistics)


def _statistics(convert: Converter, call: Call, *statistics: Traced) -> tuple[Traced, ...]:
    """The statistics of a norm, which PyTorch keeps in more bits than what it norms on a GPU."""
    found = []
    for value, tensor in zip(statistics, call.result[1:], strict=True):
        dtype = convert.dtype(tensor.dtype)
        found.append(replace(value, node=convert.builder.cast(value.operand(), dtype).node))
    return tuple(found)


@_TABLE.of("native_group_norm_backward")
def _group_norm_backward(convert: Converter, call: Call) -> Any:
    """As that of a layer norm, of rows that are groups."""
    arguments = call.arguments
    whole = convert.tensor(arguments["input"])
    value = _in_groups(convert, call, whole, 1)
    grad = _in_groups(convert, call, convert.tensor(arguments["grad_out"]), 1)
    wanted = list(range(2, len(value.axes)))
    centre, scale = (convert.tensor(arguments[k]) for k in ("mean", "rstd"))
    for axis in wanted:
        centre, scale = unsqueezed(centre, axis), unsqueezed(scale, axis)
    norm = convert.pointwise("(x - m) * s", x=value, m=centre, s=scale)
    product = convert.pointwise("g * n", g=grad, n=norm)
    of_input = None
    if arguments["output_mask"][0]:
        inner = _of_channels(convert, call, len(wanted))
        if inner:
            grad_in, both = (convert.pointwise("g * weight", g=g, **inner) for g in (grad, product))
        else:
            grad_in, both = grad, product
        means = [convert.reduce("mean", v, wanted, True) for v in (grad_in, both)]
        of_input = convert.pointwise(
            "(g - a - n * b) * s", g=grad_in, n=norm, a=means[0], b=means[1], s=scale
        )
        of_input = replace(of_input, after=(Step("reshape", whole.lengths),))
    rest = [0, *wanted[1:]]
    sums = [convert.reduce("sum", v, rest, False) for v in (product, grad)]
    one_axis = (Step("reshape", (whole.lengths[1],)),)
    of_weight, of_bias = (replace(v, after=one_axis) for v in sums)
    mask = arguments["output_mask"]
    return of_input, of_weight if mask[1] else None, of_bias if mask[2] else None


def _in_groups(convert: Converter, call: Call, value: Traced, axis: int) -> Traced:
    """``value`` with an axis of channels as two."""
    if value.axes[axis] is None or value.is_expanded(axis):
        raise convert.unsupported("a group_norm over equal channels", "expand afterwards")
    groups = call.arguments["group"]
    parts = (convert.length(groups), convert.length(call.arguments["C"] // groups))
    return split(convert.views, value, axis, parts)


def _of_channels(convert: Converter, call: Call, rank: int) -> dict[str, Traced]:
    """What a group_norm has for each channel, before the ``rank`` - 1 axes that follow them."""
    found = {}
    for name in ("weight", "bias"):
        if call.arguments.get(name) is not None:
            own = _in_groups(convert, call, convert.tensor(call.arguments[name]), 0)
            for _ in range(rank - 1):
                own = unsqueezed(own, len(own.axes))
            found[name] = own
    return found


@_TABLE.of("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
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
    convert: Converter, value: Traced, scale: Traced, given: Mapping[str, Traced]
) -> Traced:
    """A norm's last step, with ``weight`` and ``bias`` if there are such."""
    text = "x * s"
    text += " * weight" if "weight" in given else ""
    text += " + bias" if "bias" in given else ""
    return convert.pointwise(text, x=value, s=scale, **given)


SPECIAL: Mapping[str, Special] = MappingProxyType(_TABLE)


def knows(name: str, overload: str) -> bool:
    """Whether an operator has a row in any of the tables, so that nothing takes it apart."""
    tables: tuple[Mapping[str, Any], ...] = (
        SPECIAL, rows.EXPRESSIONS, rows.SAME_NAMES, rows.REDUCTIONS
    )  # fmt: skip
    return any(name in table or overload in table for table in tables)
