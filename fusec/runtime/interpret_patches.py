"""Makes Triton's interpreter compute what a GPU computes.

Part of the helper process that interprets Triton; may import numpy, triton and interpret_numbers.
As it comes, the interpreter truncates where it should round to bfloat16, adds the bits of narrow
floats as integers, counts loops with Python's integers, and reduces with custom functions one
element at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter

from fusec.runtime.interpret_numbers import (
    NARROW,
    decode,
    encode,
    fused_multiply_add,
    to_integer,
)

Handle = interpreter.TensorHandle
_Builder = interpreter.InterpreterBuilder
# Older versions let NaN win in all four.
_EXTREMES = {
    "create_maxnumf": np.fmax,
    "create_minnumf": np.fmin,
    "create_maximumf": np.maximum,
    "create_minimumf": np.minimum,
}
_original_binary = _Builder.binary_op
_original_unary = _Builder.unary_op
_original_fp_to_fp = _Builder.create_fp_to_fp
_original_patch = interpreter._patch_lang


def install() -> None:
    """Change the interpreter of this process, once."""
    _Builder.cast_impl = cast
    _Builder.create_fp_to_fp = convert_float
    _Builder.binary_op = binary
    _Builder.unary_op = unary
    _Builder.create_fma = multiply_add
    _Builder.create_clampf = clamp
    _Builder.create_rsqrt = reciprocal_root
    _Builder.get_all_ones_value = all_ones
    _Builder.get_bf16 = bfloat16_constant
    for name, operation in _EXTREMES.items():
        setattr(_Builder, name, _binary_method(operation))
    interpreter.ReduceOps.apply_impl = reduce_by_pairs
    # Patched once and for good, so that a call of a helper function need not patch again.
    interpreter._patch_lang = patch_language
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter.InterpretedFunction.__call__ = call_function
    # Kernels of which one begins before another ends; here they run one after the other.
    tl.inline_asm_elementwise = lambda *_, **__: None


def call_function(self: Any, *arguments: Any, **keywords: Any) -> Any:
    """A call of one @triton.jit function by another."""
    return self.rewrite()(*arguments, **keywords)


def patch_language(function: Any) -> Any:
    """What the interpreter changes of the language for a launch, and ``tl.range``."""
    scope = _original_patch(function)
    tl.range = counted
    return scope


def counted(start: Any, end: Any = None, step: Any = 1, **_: Any) -> Iterator[Any]:
    """What a loop counts: tensors, as they are where Triton compiles it."""
    bounds = (0, start, step) if end is None else (start, end, step)
    wide = any(isinstance(b, tl.tensor) and b.dtype == tl.int64 for b in bounds)
    kind, dtype = (tl.int64, np.int64) if wide else (tl.int32, np.int32)
    for value in range(*bounds):
        yield tl.tensor(Handle(np.array([value], dtype), kind), kind)


def cast(self: Any, source: Any, target: Any) -> Any:
    """Conversion between any two types, rounded to nearest even; to integers, truncated."""
    before, after = source.dtype.scalar, target.scalar
    if before.is_ptr() or after.is_ptr():
        return Handle(source.data.astype(interpreter._get_np_dtype(after)), after)
    values = decode(source.data, before.name)
    return Handle(_store(values, after, from_float=before.is_floating()), after)


def convert_float(self: Any, source: Any, target: Any, rounding: Any) -> Any:
    """Conversion between float formats; only rounding to nearest even is ours."""
    if rounding == ir.ROUNDING_MODE.RTZ:
        return _original_fp_to_fp(self, source, target, rounding)
    return cast(self, source, target)


def binary(self: Any, left: Any, right: Any, operation: Callable[..., Any]) -> Any:
    """An operation of two operands; narrow floats are computed in float32 and rounded."""
    kind = left.dtype.scalar
    if kind.name not in NARROW:
        result = _original_binary(self, left, right, operation)
        # A comparison keeps the type of its operands here, and as a scalar would spread as one.
        return Handle(result.data, tl.int1) if result.data.dtype == np.bool_ else result
    values = operation(decode(left.data, kind.name), decode(right.data, kind.name))
    if values.dtype == np.bool_:
        return Handle(values, tl.int1)
    return Handle(encode(values, kind.name), kind)


def _binary_method(operation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, left, right: self.binary_op(left, right, operation)


def unary(self: Any, argument: Any, operation: Callable[..., Any]) -> Any:
    """An operation of one operand; narrow floats are computed in float32 and rounded."""
    kind = argument.dtype.scalar
    if kind.name not in NARROW:
        return _original_unary(self, argument, operation)
    return Handle(encode(operation(decode(argument.data, kind.name)), kind.name), kind)


def reciprocal_root(self: Any, argument: Any) -> Any:
    """1 / sqrt(x), rounded once."""
    wide = argument.data.astype(np.float64)
    return Handle((1.0 / np.sqrt(wide)).astype(argument.data.dtype), argument.dtype.scalar)


def all_ones(self: Any, kind: Any) -> Any:
    """A value with every bit set, which older versions ask of unsigned types as -1."""
    value = np.full(1, -1, dtype=np.int64).astype(interpreter._get_np_dtype(kind))
    return Handle(value, kind.scalar)


def bfloat16_constant(self: Any, value: float) -> Any:
    """A number as bfloat16, which older versions lack."""
    return Handle(encode(np.array([value], dtype=np.float32), tl.bfloat16.name), tl.bfloat16)


def multiply_add(self: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once."""
    kind = z.dtype.scalar
    values = fused_multiply_add(*(decode(one.data, kind.name) for one in (x, y, z)))
    return Handle(_store(values, kind, from_float=True), kind)


def clamp(self: Any, argument: Any, low: Any, high: Any, propagate: Any) -> Any:
    """min(max(x, low), high), where NaN wins or loses as asked."""
    keeps_nan = propagate == ir.PROPAGATE_NAN.ALL
    largest, smallest = (np.maximum, np.minimum) if keeps_nan else (np.fmax, np.fmin)
    return self.binary_op(self.binary_op(argument, low, largest), high, smallest)


def reduce_by_pairs(self: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """tl.reduce with whatever function, by halving the axis; neighbours are combined in order."""
    arrays = [tensor.handle.data for tensor in inputs]
    kinds = [tensor.dtype for tensor in inputs]
    rank = arrays[0].ndim
    if self.axis is None:
        arrays = [array.reshape(-1) for array in arrays]
    axis = 0 if self.axis is None else self.axis % rank
    combine = self.combine_fn.rewrite() if hasattr(self.combine_fn, "rewrite") else self.combine_fn
    while arrays[0].shape[axis] > 1:  # a power of two, as every block in Triton
        first = [_every_other(array, axis, 0) for array in arrays]
        second = [_every_other(array, axis, 1) for array in arrays]
        result = combine(*map(_tensor, first, kinds), *map(_tensor, second, kinds))
        results = result if isinstance(result, tuple) else (result,)
        arrays = [
            np.broadcast_to(_stored(one, kind), first[0].shape)
            for one, kind in zip(results, kinds, strict=True)
        ]
    arrays = [array.squeeze(axis) for array in arrays]
    if self.keep_dims and self.axis is None:
        arrays = [array.reshape((1,) * rank) for array in arrays]
    elif self.keep_dims:
        arrays = [np.expand_dims(array, axis) for array in arrays]
    return [_tensor(array, kind) for array, kind in zip(arrays, kinds, strict=True)]


def _every_other(array: Any, axis: int, start: int) -> Any:
    index = [slice(None)] * array.ndim
    index[axis] = slice(start, None, 2)
    return array[tuple(index)]


def _tensor(array: Any, kind: Any) -> Any:
    """A tensor of the interpreter, in which a scalar is an array of one element."""
    if array.ndim == 0:
        return tl.tensor(Handle(array.reshape(1), kind), kind)
    return tl.tensor(Handle(array, kind), tl.block_type(kind, list(array.shape)))


def _stored(result: Any, kind: Any) -> Any:
    """What a combining function returned, in the type of its input."""
    if not isinstance(result, tl.tensor):  # a Python number or a constant
        value = np.asarray(getattr(result, "value", result))
        return _store(value, kind, from_float=value.dtype.kind == "f")
    if result.dtype == kind:
        return result.handle.data
    values = decode(result.handle.data, result.dtype.name)
    return _store(values, kind, from_float=result.dtype.is_floating())


def _store(values: Any, kind: Any, *, from_float: bool) -> Any:
    if kind.name in NARROW:
        return encode(values, kind.name)
    dtype = interpreter._get_np_dtype(kind)
    if from_float and not kind.is_floating():
        return to_integer(values, dtype)
    return values.astype(dtype)
