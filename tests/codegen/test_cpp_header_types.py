"""fusec.h against torch: division, rounding, extremes, integers, storage types, casts.

Imports numpy, torch, pytest and the shared driver.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.codegen.header import (
    HAS_COMPILER,
    Array,
    call,
    differing,
    every_float,
    library,
    pairs,
    random_pairs,
    same_bits,
    special_floats,
)

pytestmark = pytest.mark.skipif(not HAS_COMPILER, reason="needs g++")


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """References see infinities, overflow and signalling NaN by design."""
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("suffix", ["f32", "f64"])
@pytest.mark.parametrize("name", ["remainder", "floor_divide", "fmod"])
def test_float_division(name: str, suffix: str) -> None:
    dtype = np.float32 if suffix == "f32" else np.float64
    for x, y in (pairs(special_floats()), random_pairs(200_000)):
        x, y = x.astype(dtype), y.astype(dtype)
        # fmod of floats is exact, so float64 has the same one. torch's float32 vector code has
        # not: it gives NaN where the quotient overflows or the divisor is nearly subnormal.
        wide = dtype if name == "floor_divide" else np.float64
        sides = (torch.from_numpy(side.astype(wide)) for side in (x, y))
        expected = getattr(torch, name)(*sides).numpy().astype(dtype)
        got = call(f"{name}_{suffix}", dtype, x, y)
        wrong = differing(got, expected)
        assert wrong.size == 0, [(x[i], y[i], got[i], expected[i]) for i in wrong[:5]]


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round", "abs", "sign"])
@pytest.mark.parametrize("suffix", ["f32", "f64"])
def test_rounding_and_sign(name: str, suffix: str) -> None:
    halves = np.arange(-8, 8, 0.25)
    x = np.concatenate([every_float(40_009).astype(np.float64), halves])
    x = x.astype(np.float32 if suffix == "f32" else np.float64)
    expected = getattr(torch, name)(torch.from_numpy(x)).numpy()
    assert same_bits(call(f"{name}_{suffix}", x.dtype, x), expected)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_extremes(name: str, dtype: Any) -> None:
    suffix = f"{np.dtype(dtype).kind}{np.dtype(dtype).itemsize * 8}"
    values = special_floats() if np.dtype(dtype).kind == "f" else np.array([-(2**31), -1, 0, 7])
    x, y = pairs(values.astype(dtype))
    expected = getattr(torch, name)(torch.from_numpy(x), torch.from_numpy(y)).numpy()
    np.testing.assert_array_equal(call(f"{name}_{suffix}", dtype, x, y), expected)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
def test_integer_division(dtype: Any) -> None:
    info = np.iinfo(dtype)
    suffix = f"{np.dtype(dtype).kind}{info.bits}"
    edges = [info.min, info.min + 1, info.max, 0, 1, 2, 3, 7, *([-1, -2, -7] if info.min else [])]
    x, y = pairs(np.array(edges, dtype=dtype))
    quotients, rests = [], []
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        quotients.append(a // b if b else 0)
        rests.append(a % b if b else 0)
    wrapped = np.array([q & (2**info.bits - 1) for q in quotients], dtype=np.uint64).astype(dtype)
    np.testing.assert_array_equal(call(f"floor_divide_{suffix}", dtype, x, y), wrapped)
    np.testing.assert_array_equal(call(f"remainder_{suffix}", dtype, x, y), rests)
    usable = (y != 0) & ~((x == info.min) & (y == dtype(-1 if info.min else 1)))
    a, b = (torch.from_numpy(side[usable].astype(np.int64)) for side in (x, y))
    if dtype is not np.uint64:
        truncated = torch.div(a, b, rounding_mode="trunc").numpy()
        got = call(f"trunc_divide_{suffix}", dtype, x[usable], y[usable])
        np.testing.assert_array_equal(got, truncated)
        got = call(f"fmod_{suffix}", dtype, x[usable], y[usable])
        np.testing.assert_array_equal(got, torch.fmod(a, b).numpy())


def test_integer_power() -> None:
    x, y = pairs(np.array([-3, -2, -1, 0, 1, 2, 3, 5, 40, -9, 63], dtype=np.int64))
    expected = torch.pow(torch.from_numpy(x), torch.from_numpy(y)).numpy()
    np.testing.assert_array_equal(call("pow_i64", np.int64, x, y), expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
def test_small_integers(dtype: Any) -> None:
    info = np.iinfo(dtype)
    x, y = pairs(np.array([info.min, info.max, 0, 1, 2, 3, 7, 100], dtype=dtype))
    usable = y > 0
    x, y = x[usable], y[usable]
    a, b = torch.from_numpy(x), torch.from_numpy(y)
    suffix = f"{np.dtype(dtype).name}_t"
    for name in ("floor_divide", "remainder", "pow"):
        expected = getattr(torch, name)(a, b).numpy()
        np.testing.assert_array_equal(call(f"{name}_{suffix}", dtype, x, y), expected)
    np.testing.assert_array_equal(
        call(f"maximum_{suffix}", dtype, x, y), torch.maximum(a + b, a).numpy()
    )
    np.testing.assert_array_equal(call(f"abs_{suffix}", dtype, x, y), torch.abs(a).numpy())


STORAGE = [
    ("bf16", torch.bfloat16, np.uint16),
    ("f16", torch.float16, np.uint16),
    ("f8e4m3", torch.float8_e4m3fn, np.uint8),
    ("f8e5m2", torch.float8_e5m2, np.uint8),
]


def integer_view(tensor: torch.Tensor, bits: Any) -> Array:
    """The bit patterns of a tensor of a narrow float type."""
    signed = tensor.view(torch.int16 if bits is np.uint16 else torch.int8)
    return signed.numpy().view(bits)


@pytest.mark.parametrize(("name", "dtype", "bits"), STORAGE, ids=[row[0] for row in STORAGE])
def test_storage_types(name: str, dtype: torch.dtype, bits: Any) -> None:
    codes = np.arange(np.iinfo(bits).max + 1, dtype=np.uint32).astype(bits)
    signed = torch.from_numpy(codes.view(np.int16 if bits is np.uint16 else np.int8))
    loaded = signed.view(dtype).to(torch.float32).numpy()
    assert same_bits(call(f"load_{name}", np.float32, codes), loaded)

    # All values, the midpoints between neighbours (ties), and both sides of each.
    finite = np.sort(loaded[np.isfinite(loaded)].astype(np.float64))
    ties = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    near = [np.nextafter(ties, np.float32(side)) for side in (-np.inf, np.inf)]
    limits = np.array([448, 463.9, 464, 464.1, 480, 57344, 61440, 65519.9, 65520], dtype=np.float32)
    x = np.concatenate([every_float(), finite.astype(np.float32), ties, *near, limits, -limits])
    for source, prefix in ((x, "store_"), (x.astype(np.float64), "store_f64_")):
        expected = torch.from_numpy(source).to(dtype)
        got = call(f"{prefix}{name}", bits, source)
        equal = got == integer_view(expected, bits)
        again = call(f"load_{name}", np.float32, got)
        both_nan = np.isnan(again) & torch.isnan(expected.to(torch.float32)).numpy()
        wrong = np.flatnonzero(~(equal | both_nan))
        assert wrong.size == 0, [(source[i], got[i]) for i in wrong[:5]]


CASTS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "int64"]


@pytest.mark.parametrize("target", CASTS)
@pytest.mark.parametrize("source", ["f32", "f64"])
def test_casts(target: str, source: str) -> None:
    edges = [-2.0, 300.0, 1e20, -1e20, 2.0**31, -(2.0**31), 3e9, 5e9, 1e10, 40000.0, -40000.0]
    x = np.concatenate([every_float(40_009), np.array(edges), np.linspace(-70000, 70000, 9999)])
    x = x.astype(np.float32 if source == "f32" else np.float64)
    expected = torch.from_numpy(x).to(getattr(torch, target)).numpy()
    suffix = target if target == "bool" else f"{target}_t"
    got = call(f"cast_{source}_{suffix}", expected.dtype, x)
    np.testing.assert_array_equal(got, expected)


def test_casts_to_wide_unsigned() -> None:
    x = np.array([-2.0, 0.0, 3e9, 2.0**40 + 2.0**18, 2.0**63, 2.0**64 - 2.0**40], dtype=np.float32)
    narrow = call("cast_f32_uint32_t", np.uint32, x[:4])
    assert narrow.tolist() == [2**32 - 2, 0, 3_000_000_000, 2**18]
    wide = call("cast_f32_uint64_t", np.uint64, x)
    assert wide.tolist() == [2**64 - 2, 0, 3 * 10**9, 2**40 + 2**18, 2**63, 2**64 - 2**40]


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_finish_has_a_fixed_order(seed: int) -> None:
    generator = np.random.default_rng(seed)
    acc = generator.normal(size=64).astype(np.float32)
    combine = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
    for spoiled, (name, operation) in itertools.product((False, True), combine.items()):
        part = acc.copy()
        if spoiled:
            part[generator.integers(64)] = np.nan
        function = getattr(library(), f"finish_{name}_f32")
        function.restype = ctypes.c_float
        got = np.float32(function(ctypes.c_void_p(part.ctypes.data)))
        while part.size > 1:
            part = operation(part[: part.size // 2], part[part.size // 2 :])
        assert same_bits(np.array(got), np.array(part[0])), name
