"""fusec.h against float64: accuracy in ulp, tails, double overloads, vectorisation.

Imports numpy, torch, pytest and the shared driver.
"""

from __future__ import annotations

import ctypes
import platform
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.codegen.header import (
    DRIVER,
    HAS_COMPILER,
    INCLUDE,
    Array,
    call,
    every_float,
    library,
    pairs,
    random_pairs,
    run_compiler,
    same_bits,
    special_floats,
)

pytestmark = pytest.mark.skipif(not HAS_COMPILER, reason="needs g++")

X86 = platform.machine() in ("x86_64", "AMD64")


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """References see infinities, overflow and signalling NaN by design."""
    with np.errstate(all="ignore"):
        yield


def ulp_error(got: Array, reference: Array) -> Array:
    """Distance in units of the last float32 place of the float64 reference; 0 where both agree.

    Where the reference is NaN or rounds to infinity anything but that counts as an infinite error.
    """
    rounded = reference.astype(np.float32)
    exponent = np.maximum(np.frexp(reference)[1] - 1, -126)
    error = np.abs(got.astype(np.float64) - reference) / np.ldexp(1.0, exponent - 23)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    finite = np.isfinite(rounded) & np.isfinite(got)
    # An overflow may be one step early or late: the largest float and infinity are neighbours.
    edge = (np.abs(reference) < 3.40282366e38) & (np.abs(reference) > 3.40282337e38)
    result: Array = np.where(finite, error, np.where(same | edge, 0.0, np.inf))
    return result


def stable_sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) in float64 without overflow in either tail."""
    e = np.exp(-np.abs(x))
    result: Array = np.where(x < 0, e, 1.0) / (1.0 + e)
    return result


def by_torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Array], Array]:
    """A torch function as a function of arrays."""
    return lambda x: function(torch.from_numpy(x)).numpy()


# Name, float64 reference, greatest error allowed in ulp: what an exhaustive run found, rounded up.
ACCURACY: list[tuple[str, Callable[[Array], Array], float]] = [
    ("exp", np.exp, 1.0),
    ("exp2", np.exp2, 1.0),
    ("expm1", np.expm1, 1.5),
    ("log", np.log, 1.0),
    ("log2", np.log2, 1.5),
    ("log10", np.log10, 1.0),
    ("log1p", np.log1p, 1.7),
    ("log1pexp", lambda x: np.logaddexp(x, 0.0), 2.1),
    ("tanh", np.tanh, 1.5),
    ("sigmoid", stable_sigmoid, 1.5),
    ("erf", by_torch(torch.erf), 1.1),
    ("rsqrt", lambda x: 1.0 / np.sqrt(x), 1.5),
    ("sqrt", np.sqrt, 0.501),
    ("sin", np.sin, 1.0),
    ("cos", np.cos, 1.0),
    ("tan", np.tan, 0.501),
]
LIBRARY: list[tuple[str, Callable[[Array], Array]]] = [
    ("erfc", by_torch(torch.erfc)),
    ("asin", np.arcsin),
    ("acos", np.arccos),
    ("atan", np.arctan),
    ("sinh", np.sinh),
    ("cosh", np.cosh),
    ("asinh", np.arcsinh),
    ("acosh", np.arccosh),
    ("atanh", np.arctanh),
    ("lgamma", by_torch(torch.lgamma)),
]


@pytest.mark.parametrize(("name", "reference", "bound"), ACCURACY, ids=[row[0] for row in ACCURACY])
def test_accuracy(name: str, reference: Callable[[Array], Array], bound: float) -> None:
    x = every_float()
    got = call(f"{name}_f32", np.float32, x)
    expected = reference(x.astype(np.float64))
    error = ulp_error(got, expected)
    worst = int(np.argmax(error))
    assert error[worst] <= bound, f"{name}({x[worst]!r}) = {got[worst]!r}, not {expected[worst]!r}"
    zero = (expected == 0) & (got == 0)
    assert np.array_equal(np.signbit(got[zero]), np.signbit(expected[zero]))


# For results of 16 bits: name, reference, greatest relative error; half a step of float16 is 2^-12.
FAST: list[tuple[str, Callable[[Array], Array], float]] = [
    ("exp", np.exp, 2.0**-17),
    ("log1p", np.log1p, 2.0**-18),
    ("log1pexp", lambda x: np.logaddexp(x, 0.0), 2.0**-17),
    ("tanh", np.tanh, 2.0**-16),
    ("ndtr", by_torch(torch.special.ndtr), 2.0**-15),
]


@pytest.mark.parametrize(("name", "reference", "bound"), FAST, ids=[row[0] for row in FAST])
def test_fast_forms(name: str, reference: Callable[[Array], Array], bound: float) -> None:
    x = every_float()
    got = call(f"fast_{name}_f32", np.float32, x).astype(np.float64)
    expected = reference(x.astype(np.float64))
    assert np.array_equal(np.isnan(got), np.isnan(expected))
    within = np.abs(expected) < 3.3e38  # nearer to the largest float it may be infinity already
    beyond = ~(np.abs(expected) < 3.5e38)
    assert np.array_equal(got[beyond], expected.astype(np.float32)[beyond], equal_nan=True)
    # What float16 cannot hold to all its digits may lose some here; float32 subnormals do anyway.
    tail = 2.0**-24 if name == "ndtr" else 2.0**-126
    error = np.abs(got - expected)[within] / np.maximum(np.abs(expected[within]), tail)
    worst = int(np.argmax(error))
    assert error[worst] <= bound, (x[within][worst], got[within][worst], expected[within][worst])
    zero = (expected == 0) & (got == 0)
    assert np.array_equal(np.signbit(got[zero]), np.signbit(expected[zero]))


@pytest.mark.parametrize(("name", "reference"), LIBRARY, ids=[row[0] for row in LIBRARY])
def test_library_functions(name: str, reference: Callable[[Array], Array]) -> None:
    x = every_float(stride=40_009)
    expected = reference(x.astype(np.float64))
    error = ulp_error(call(f"{name}_f32", np.float32, x), expected)
    # lgamma loses relative accuracy at its zeros between negative integers, in every C library.
    usable = x > 0 if name == "lgamma" else np.ones(x.shape, dtype=bool)
    assert np.max(error[usable]) <= 4.0


@pytest.mark.parametrize("name", [row[0] for row in ACCURACY] + [row[0] for row in LIBRARY])
def test_double_overloads(name: str) -> None:
    references = {key: function for key, function, _ in ACCURACY} | dict(LIBRARY)
    generator = np.random.default_rng(0)
    x = np.concatenate([generator.normal(size=1000) * 3, special_floats().astype(np.float64)])
    expected = references[name](x)
    got = call(f"{name}_f64", np.float64, x)
    np.testing.assert_allclose(got, expected, rtol=1e-14, atol=0 if name != "lgamma" else 1e-14)


def test_tails() -> None:
    def at(name: str, value: float) -> float:
        x = np.full(16, value, dtype=np.float32)
        return float(call(f"{name}_f32", np.float32, x)[0])

    assert 0 < at("exp", -95.0) < 1.1754944e-38
    assert at("exp", -104.5) == 0.0
    assert at("exp", 88.7) < float("inf")
    assert at("exp", 88.8) == float("inf")
    assert 0 < at("sigmoid", -100.0) < 1e-40
    assert at("sin", 1e30) == np.float32(np.sin(np.float64(np.float32(1e30))))
    assert at("log", 1e-45) == np.float32(np.log(np.float64(np.float32(1e-45))))
    assert [at("log", v) for v in (0.0, -0.0, float("inf"))] == [-float("inf")] * 2 + [float("inf")]
    assert at("tanh", 20.0) == 1.0
    assert at("erf", -6.0) == -1.0


def test_pow() -> None:
    for x, y in (pairs(special_floats()), random_pairs(500_000, 1.5)):
        expected = np.power(x.astype(np.float64), y.astype(np.float64))
        got = call("pow_f32", np.float32, x, y)
        error = ulp_error(got, expected)
        worst = int(np.argmax(error))
        assert error[worst] <= 0.51, (x[worst], y[worst], got[worst], expected[worst])
        finite = np.isfinite(expected)
        assert np.array_equal(np.signbit(got[finite]), np.signbit(expected[finite]))


@pytest.mark.parametrize("march", ["native", "x86-64"] if X86 else ["native"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [("int8_t", np.int8), ("uint16_t", np.uint16), ("float", np.float32), ("double", np.float64)],
)
def test_blocks_are_written_past_the_caches(name: str, kind: type[Any], march: str) -> None:
    """Every alignment and length around a line: each element once, and nothing beside them."""
    write = getattr(library(march), f"write_{name}")
    room = np.zeros(1024 + 128, dtype=kind)
    lead = (-room.ctypes.data % 64) // room.itemsize
    numbers = np.arange(1024).astype(kind)
    for offset in (0, 1, 5, 15):
        for count in (0, 1, 3, 31, 32, 33, 63, 64, 65, 100, 1000, 1024):
            room[:] = 77
            first = lead + offset
            address = room.ctypes.data + first * room.itemsize
            write(ctypes.c_void_p(address), ctypes.c_int64(count))
            assert np.array_equal(room[first : first + count], numbers[:count])
            assert (room[:first] == 77).all()
            assert (room[first + count :] == 77).all()


@pytest.mark.parametrize("march", ["native", "x86-64"] if X86 else ["native"])
@pytest.mark.parametrize("name", ["bf16", "f16", "f8e4m3", "f8e5m2"])
def test_blocks_are_rounded_as_single_results(name: str, march: str) -> None:
    """Lines with and without subnormal numbers, infinities and NaN, at every place in a line."""
    kind = np.uint8 if name.startswith("f8") else np.uint16
    write = getattr(library(march), f"round_{name}")
    numbers = every_float(3_000_017)[:1024].copy()
    numbers[500:] = np.random.default_rng(0).normal(size=524).astype(np.float32)
    numbers[600:700] *= np.float32(2.0**-131)  # among numbers that are not, and alone
    numbers[700:780] *= np.logspace(-8, 5, 80, dtype=np.float32)
    expected = call(f"store_{name}", kind, numbers)
    room = np.zeros(1024 + 128, dtype=kind)
    lead = (-room.ctypes.data % 64) // room.itemsize
    for offset in (0, 1, 17):
        for count in (1, 33, 700, 1024):
            room[:] = 77
            first = lead + offset
            address = room.ctypes.data + first * room.itemsize
            write(
                ctypes.c_void_p(numbers.ctypes.data),
                ctypes.c_void_p(address),
                ctypes.c_int64(count),
            )
            written = room[first : first + count]
            nan = np.isnan(numbers[:count])
            assert np.array_equal(written[~nan], expected[:count][~nan])
            back = call(f"load_{name}", np.float32, written.copy())
            assert np.isnan(back[nan]).all()
            assert (room[:first] == 77).all()
            assert (room[first + count :] == 77).all()


def test_rows_abreast_share_the_rows_out() -> None:
    function = library().rows_abreast
    function.restype = ctypes.c_int64
    for rows, threads, expected in (
        (1, 2, 64), (64, 2, 64), (129, 2, 64), (1000, 2, 512), (4096, 2, 2048), (4096, 16, 256),
        (5000, 64, 128), (10**9, 3, 2048),
    ):  # fmt: skip
        assert function(ctypes.c_int64(rows), ctypes.c_int64(threads)) == expected


VECTORISED = [
    *(f"fast_{name}_f32" for name, _, _ in FAST),
    *(f"{name}_f32" for name, _, _ in ACCURACY),
    *(f"{name}_f32" for name in ("floor", "ceil", "trunc", "round", "abs", "sign")),
    *("pow_f32", "maximum_f32", "minimum_f32", "maximum_f64"),
    *("cast_f32_int32_t", "cast_f32_uint8_t"),
    *(f"{way}_{name}" for way in ("load", "store") for name in ("bf16", "f16", "f8e4m3", "f8e5m2")),
]


def scalar_functions(assembly: str) -> set[str]:
    """Functions that call anything, or that never touch a 32-byte register."""
    bodies = re.findall(r"^(\w+):\n(.*?)^\t\.size\t\1,", assembly, re.MULTILINE | re.DOTALL)
    assert len(bodies) > 100, "the listing was not understood"
    called = re.compile(r"^\t(?:call|jmp)\t(?!\.L)", re.MULTILINE)
    return {name for name, body in bodies if called.search(body) or "%ymm" not in body}


@pytest.mark.skipif(not X86, reason="names an x86 instruction set")
def test_loops_vectorise() -> None:
    scalar = scalar_functions(run_compiler("-march=x86-64-v3", "-S", DRIVER, "-o", "-"))
    assert not set(VECTORISED) & scalar
    assert "asin_f32" in scalar, "a library call must count as scalar"


def has_avx2() -> bool:
    """Whether this processor runs x86-64-v3 code."""
    facts = Path("/proc/cpuinfo")
    return X86 and facts.exists() and {"avx2", "fma"} <= set(facts.read_text("utf-8").split())


@pytest.mark.skipif(not has_avx2(), reason="needs a processor with AVX2 and FMA")
@pytest.mark.parametrize("name", [row[0] for row in ACCURACY])
def test_results_do_not_depend_on_the_instruction_set(name: str) -> None:
    x = every_float(20_011)
    here, there = (call(f"{name}_f32", np.float32, x, march=m) for m in ("native", "x86-64-v3"))
    assert same_bits(here, there)


def test_header_is_light() -> None:
    """<cmath>, <algorithm> and their like would cost more than compiling a kernel does."""
    listed = run_compiler("-M", INCLUDE / "fusec.h").replace("\\\n", " ").split()
    names = {Path(path).name for path in listed[1:]}
    assert "stdint.h" in names
    assert not names & {"cmath", "cstdlib", "type_traits", "algorithm", "vector", "math.h"}
