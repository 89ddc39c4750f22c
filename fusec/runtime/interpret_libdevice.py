"""Stands in for `triton.language.extra.libdevice` in Triton's interpreter, which has none.

Part of the helper process that interprets Triton; may import numpy, triton and interpret_numbers.
Float32 functions are computed in float64 and rounded once: nearer to the exact value than a GPU is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from fusec.runtime.interpret_numbers import Array, elementwise, fused_multiply_add


def _log_gamma(x: float) -> float:
    return math.inf if math.isinf(x) or (x <= 0 and x == math.floor(x)) else math.lgamma(x)


def _gamma(x: float) -> float:
    return math.copysign(math.inf, x) if x == 0 else math.gamma(x)


def _remainder(x: float, y: float) -> float:
    return math.remainder(x, y)


def _round_away(x: Array) -> Array:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


# Name -> function of float64 arrays. What fusec uses and its neighbours in the library.
_WIDE: dict[str, Callable[..., Any]] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": elementwise(math.erf),
    "erfc": elementwise(math.erfc),
    "exp": np.exp,
    "exp10": lambda x: np.power(10.0, x),
    "exp2": np.exp2,
    "expm1": np.expm1,
    "fdim": lambda x, y: np.where(x <= y, 0.0, x - y),
    "fmod": np.fmod,
    "hypot": np.hypot,
    "lgamma": elementwise(_log_gamma),
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "normcdf": elementwise(lambda x: 0.5 * math.erfc(-x / math.sqrt(2.0))),
    "pow": np.power,
    "rcbrt": lambda x: 1.0 / np.cbrt(x),
    "remainder": elementwise(_remainder),
    "round": _round_away,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sin": np.sin,
    "sinh": np.sinh,
    "tan": np.tan,
    "tanh": np.tanh,
    "tgamma": elementwise(_gamma),
}
# The quick forms promise less; the accurate functions keep any promise.
_QUICK = {
    "fast_cosf": "cos",
    "fast_exp10f": "exp10",
    "fast_expf": "exp",
    "fast_log10f": "log10",
    "fast_log2f": "log2",
    "fast_logf": "log",
    "fast_powf": "pow",
    "fast_sinf": "sin",
    "fast_tanf": "tan",
    "fast_tanhf": "tanh",
    "rsqrt_rn": "rsqrt",
}
# Name -> function in the type of its arguments.
_NATIVE: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "add_rn": np.add,
    "ceil": np.ceil,
    "copysign": np.copysign,
    "div_rn": np.divide,
    "fast_dividef": np.divide,
    "floor": np.floor,
    "fma": fused_multiply_add,
    "fma_rn": fused_multiply_add,
    "mul_rn": np.multiply,
    "nearbyint": np.rint,
    "nextafter": np.nextafter,
    "rcp_rn": lambda x: np.divide(x.dtype.type(1), x),
    "rint": np.rint,
    "sqrt": np.sqrt,
    "sqrt_rn": np.sqrt,
    "sub_rn": np.subtract,
    "trunc": np.trunc,
}
# Name -> function that gives truth values, and the type they come in.
_TESTS: dict[str, tuple[Callable[..., Any], Any]] = {
    "finitef": (np.isfinite, tl.int1),
    "isfinited": (np.isfinite, tl.int1),
    "isinf": (np.isinf, tl.int1),
    "isnan": (np.isnan, tl.int1),
    "signbit": (np.signbit, tl.int32),
}


class Libdevice:
    """Has a function for every name of the tables above."""

    def __init__(self) -> None:
        for name, function in _WIDE.items():
            setattr(self, name, _wide(name, function))
        for name, other in _QUICK.items():
            setattr(self, name, _wide(name, _WIDE[other]))
        for name, function in _NATIVE.items():
            setattr(self, name, _native(name, function))
        for name, (function, kind) in _TESTS.items():
            setattr(self, name, _native(name, function, kind))

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"the interpreter has no stand-in for libdevice.{name}")


def _wide(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    return _native(name, lambda *arrays: function(*(x.astype(np.float64) for x in arrays)))


def _native(name: str, function: Callable[..., Any], kind: Any = None) -> Callable[..., Any]:
    def stand_in(*arguments: Any) -> Any:
        tensors = _promoted(name, arguments)
        element = tensors[0].type.scalar
        result_kind = element if kind is None else kind
        data = np.asarray(function(*(tensor.handle.data for tensor in tensors)))
        data = data.astype(interpreter._get_np_dtype(result_kind))
        shape = tensors[0].type.get_block_shapes() if tensors[0].type.is_block() else None
        full = result_kind if shape is None else tl.block_type(result_kind, shape)
        return tl.tensor(interpreter.TensorHandle(data, result_kind), full)

    return stand_in


def _promoted(name: str, arguments: tuple[Any, ...]) -> list[Any]:
    """The arguments as tensors of one shape and one type, which the library must have."""
    semantic = interpreter.interpreter_semantic
    tensors = [semantic.to_tensor(argument) for argument in arguments]
    for index in range(1, len(tensors)):
        tensors[0], tensors[index] = semantic.binary_op_type_checking_impl(
            tensors[0], tensors[index], arithmetic_check=True
        )
    for index in range(1, len(tensors)):  # later arguments may have widened the first
        tensors[0], tensors[index] = semantic.binary_op_type_checking_impl(
            tensors[0], tensors[index], arithmetic_check=True
        )
    if tensors[0].type.scalar not in (tl.float32, tl.float64):
        raise TypeError(f"libdevice.{name} takes float32 or float64, not {tensors[0].type.scalar}")
    return tensors
