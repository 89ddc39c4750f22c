"""Operators that make tensors of numbers, and those that fill one.

Each function takes the converter and a call, and gives the value of the result. May import
``fusec.ir`` and, of the frontend, ``resolve_values`` and the ``trace_*`` modules but ``trace`` and
``trace_special``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fusec.frontend.resolve_values import Tensor
from fusec.frontend.trace_convert import Converter, Special, Specials
from fusec.frontend.trace_record import Call
from fusec.frontend.trace_values import Traced, unsqueezed

_TABLE = Specials()


@_TABLE.of(
    *("scalar_tensor", "full", "full_like", "new_full"),
    *("zero", "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones"),
    *("empty", "empty_like", "new_empty"),
)
def _constant(convert: Converter, call: Call) -> Traced:
    arguments = call.arguments
    given = [arguments[k] for k in ("fill_value", "s", "value") if k in arguments]
    return _number(convert, call, given[0] if given else int("ones" in call.name))


def _number(convert: Converter, call: Call, value: Any) -> Traced:
    """``value`` in the place of every element of the result."""
    number = convert.number(value)
    node = convert.builder.cast(number, convert.dtype(call.result.dtype)).node
    rank = len(call.result.shape)
    return Traced(node, (None,) * rank, tuple(map(convert.length, call.result.shape)))


@_TABLE.of("copy", "fill")
def _filled(convert: Converter, call: Call) -> Traced:
    """The type and the lengths are those of the tensor that is written to."""
    given = call.arguments["src" if call.name == "copy" else "value"]
    if not hasattr(given, "untyped_storage"):
        return _number(convert, call, given)
    value = convert.tensor(given)
    for _ in range(len(call.result.shape) - len(value.axes)):
        value = unsqueezed(value, 0)
    return value


@_TABLE.of("arange", "arange.start", "arange.start_step")
def _arange(convert: Converter, call: Call) -> Traced:
    places = convert.positions(convert.length(call.result.shape[0]))
    start, step = call.arguments.get("start", 0), call.arguments.get("step", 1)
    dtype = convert.dtype(call.result.dtype)
    index = Tensor(places.node)
    if dtype.is_float or start != 0 or step != 1:
        index = convert.evaluate(
            "start + step * i", i=index, start=convert.number(start), step=convert.number(step)
        )
    node = convert.builder.cast(Tensor(index.node), dtype).node
    return Traced(node, places.axes, places.lengths)


CREATIONS: Mapping[str, Special] = MappingProxyType(_TABLE)
