"""Narrow floats and C mathematics over numpy arrays, as a GPU computes them. May import numpy only.

Part of the helper process that interprets Triton. bfloat16 lives in uint16 arrays and the 8-bit
formats in uint8 arrays, as in Triton's interpreter, whose own conversions truncate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# Format -> (exponent bits, mantissa bits, largest finite code, code of NaN).
_FLOAT8 = {"fp8e4nv": (4, 3, 0x7E, 0x7F), "fp8e5": (5, 2, 0x7B, 0x7F)}
NARROW = frozenset({"bf16", *_FLOAT8})


def decode(data: Array, kind: str) -> Array:
    """The numbers behind stored bits: float32 for narrow formats, `data` itself for others."""
    if kind == "bf16":
        return (data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if kind in _FLOAT8:
        return np.asarray(_DECODED[kind][data])
    return data


def encode(values: Array, kind: str) -> Array:
    """Numbers rounded to nearest even into the bits of a narrow format.

    The 8-bit formats saturate, infinities included, as the conversion instructions of GPUs do.
    """
    single = values.astype(np.float32)
    if kind == "bf16":
        return _encode_bfloat16(single)
    _, _, largest, not_a_number = _FLOAT8[kind]
    finite = np.abs(_DECODED[kind][: largest + 1].astype(np.float64))
    middles = (finite[:-1] + finite[1:]) / 2
    size = np.abs(single).astype(np.float64)
    below = np.searchsorted(middles, np.nan_to_num(size, nan=0.0, posinf=finite[-1]))
    at_middle = middles[np.minimum(below, len(middles) - 1)] == size
    code = below + (at_middle & (below % 2 == 1))
    code = np.where(np.isnan(single), not_a_number, code).astype(np.uint8)
    return np.where(np.signbit(single), code | 0x80, code).astype(np.uint8)


def to_integer(values: Array, dtype: np.dtype[Any]) -> Array:
    """Floats truncated to integers; out of range saturates and NaN gives 0, as on a GPU."""
    if dtype == np.bool_:
        return np.asarray(values != 0)
    limits = np.iinfo(dtype)
    wide = np.nan_to_num(
        np.trunc(values.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf
    )
    # The largest int64 is no float64: compare first, and convert only what fits.
    too_large, too_small = wide >= float(limits.max), wide <= float(limits.min)
    fits = np.where(too_large | too_small, 0.0, wide).astype(dtype)
    return np.where(too_large, limits.max, np.where(too_small, limits.min, fits)).astype(dtype)


def fused_multiply_add(x: Array, y: Array, z: Array) -> Array:
    """x * y + z in the type of z, rounded once."""
    if z.dtype == np.float64:
        return np.asarray(_fma(x, y, z), dtype=np.float64)
    # The product of two float32 is exact in float64. Rounding the sum there to odd, and only then
    # to float32, rounds once.
    product = x.astype(np.float64) * y.astype(np.float64)
    other = z.astype(np.float64)
    total = np.asarray(product + other)
    part = total - product
    lost = (product - (total - part)) + (other - part)
    inexact = np.isfinite(total) & (lost != 0) & (total.view(np.uint64) % 2 == 0)
    nearer = np.nextafter(total, np.where(lost > 0, np.inf, -np.inf))
    return np.where(inexact, nearer, total).astype(z.dtype)


def elementwise(function: Callable[..., float]) -> Callable[..., Array]:
    """A function of Python floats over arrays; where it raises, `inf` or NaN as C gives them."""

    def guarded(*values: float) -> float:
        try:
            return function(*values)
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan

    vectorised = np.vectorize(guarded, otypes=[np.float64])
    return lambda *arrays: vectorised(*(array.astype(np.float64) for array in arrays))


def _exact_fma(x: float, y: float, z: float) -> float:
    from fractions import Fraction

    plain = x * y + z
    if not all(map(math.isfinite, (x, y, z))) or x * y == 0:
        return plain
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    try:
        return float(exact) if exact else plain
    except OverflowError:
        return math.copysign(math.inf, exact)


def _encode_bfloat16(single: Array) -> Array:
    bits = np.ascontiguousarray(single).view(np.uint32).reshape(single.shape)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # Rounding up a NaN could carry into the sign: keep its sign and make it quiet.
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(single), quiet, rounded).astype(np.uint16)


def _decode_table(kind: str) -> Array:
    exponent_bits, mantissa_bits, largest, _ = _FLOAT8[kind]
    bias = 2 ** (exponent_bits - 1) - 1
    code = np.arange(128)
    exponent, mantissa = code >> mantissa_bits, code % 2**mantissa_bits
    normal = (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)
    subnormal = mantissa * 2.0 ** (1 - bias - mantissa_bits)
    values = np.where(exponent == 0, subnormal, normal)
    values[largest + 1 :] = np.nan
    if kind == "fp8e5":
        values[largest + 1] = np.inf
    return np.concatenate([values, -values]).astype(np.float32)


_DECODED = {kind: _decode_table(kind) for kind in _FLOAT8}
_fma = np.vectorize(_exact_fma, otypes=[np.float64])
