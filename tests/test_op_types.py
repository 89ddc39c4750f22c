"""Casts, promotion, 8-bit floats, literals and run-time numbers, in every backend and type."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import fusec
from fusec.errors import DTypeError
from fusec.ir.dtypes import ALL
from tests.oracle import (
    DTYPES,
    FLOAT8,
    Backend,
    arithmetic_type,
    assert_close,
    dtype_of,
    floats,
    on_every_backend,
    same,
    values,
)

SHORT = {d.torch: d.name for d in ALL}


# -- types ------------------------------------------------------------------------------------


@on_every_backend
@pytest.mark.parametrize("name", DTYPES)
def test_promotion_with_every_type(backend: Backend, name: str) -> None:
    """The type and the value of a + b, for tensors and for a 0-d b, are PyTorch's."""
    a = torch.tensor([1, 0, 1, 2]).to(dtype_of(name))
    for zero_dim in (False, True):
        others = [torch.tensor([3, 1, 0, 2]).to(dtype_of(n)) for n in DTYPES]
        if zero_dim:
            others = [o[0].clone() for o in others]
        text = ", ".join(f"a + b{k}" for k in range(len(others)))
        for other, actual in zip(others, backend.run(text, a, *others), strict=True):
            same(actual, a + other, f"{name} + {other.dtype}")


def representable(x: torch.Tensor, target: torch.dtype) -> torch.Tensor:
    """Which values keep their integer part in ``target``: for the others a conversion has no one
    right result.
    """
    if not x.dtype.is_floating_point or target.is_floating_point or target is torch.bool:
        return torch.ones(x.shape, dtype=torch.bool)
    info = torch.iinfo(target)
    wide = x.double().trunc()
    return (wide >= info.min) & (wide <= info.max) & (wide < 2.0**63)


def cast_values(dtype: torch.dtype) -> torch.Tensor:
    """Values at and beside the ties of the narrower floats."""
    if not dtype.is_floating_point:
        return values(dtype)
    ties = [1 + 2.0**-k for k in (4, 8, 9, 11, 12, 24, 25)] + [
        1 + 3 * 2.0**-k for k in (4, 8, 11, 24)
    ]
    more = [
        2.5,
        3.5,
        -2.5,
        127.9,
        -128.9,
        255.5,
        447.0,
        448.0,
        464.0,
        465.0,
        57344.0,
        61440.0,
        65504.0,
        65519.0,
    ]
    more += [
        65520.0,
        2.0**-24,
        2.0**-25,
        3 * 2.0**-26,
        2.0**-133,
        2.0**-134,
        3.3e38,
        3.4e38,
        2.0**31 - 1,
    ]
    return torch.cat([floats(dtype), torch.tensor([*ties, *more], dtype=torch.float64).to(dtype)])


@on_every_backend
@pytest.mark.parametrize("name", [*DTYPES, *FLOAT8])
def test_casts_from_every_type_to_every_type(backend: Backend, name: str) -> None:
    dtype = dtype_of(name)
    x = all_float8(dtype) if name in FLOAT8 else cast_values(dtype)
    targets = [*DTYPES, *FLOAT8]
    results = backend.run(", ".join(f"{SHORT[t]}(x)" for t in targets), x)
    for target, actual in zip(targets, results, strict=True):
        kind = dtype_of(target)
        assert actual.dtype is kind
        keep = representable(x, kind)
        expected = converted(x, kind)
        if target in FLOAT8:
            actual, expected = actual.float(), expected.float()
        same(actual[keep], expected[keep], f"{name} to {target}")


def converted(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """PyTorch's conversion, which to e4m3 is by float32: beyond 448 it is that, or before PyTorch
    2.13 NaN.
    """
    return (x.float() if dtype is torch.float8_e4m3fn else x).to(dtype)


def all_float8(dtype: torch.dtype) -> torch.Tensor:
    """All 256 values of an 8-bit float."""
    return torch.arange(256, dtype=torch.uint8).view(dtype)


@on_every_backend
@pytest.mark.parametrize("name", FLOAT8)
def test_float8_is_storage(backend: Backend, name: str) -> None:
    dtype = dtype_of(name)
    x, short = all_float8(dtype), SHORT[name]
    total, back, largest = backend.run(f"x * 1.25 + x, {short}(x * 1.25), maximum(x, 0)", x)
    same(total, x.float() * 1.25 + x.float())
    assert back.dtype is dtype
    same(back.float(), converted(x.float() * 1.25, dtype).float())
    same(largest, torch.maximum(x.float(), torch.zeros(())))


@on_every_backend
def test_a_cast_to_a_narrow_float_rounds_in_the_middle(backend: Backend) -> None:
    x = torch.linspace(-3, 3, 61)
    kept, rounded = backend.run("(x + 1/3) * 3, f32(bf16(x + 1/3)) * 3", x)
    same(rounded, (x + 1 / 3).bfloat16().float() * 3)
    assert (kept != rounded).any()


@on_every_backend
def test_a_value_of_sixteen_bits_is_rounded_once(backend: Backend) -> None:
    x, y = torch.linspace(1, 3, 61).bfloat16(), torch.linspace(2, 9, 61).bfloat16()
    whole, twice = backend.run("x * y + y, bf16(x * y) + y", x, y)
    same(whole, (x.float() * y.float() + y.float()).bfloat16())
    same(twice, ((x * y).float() + y.float()).bfloat16())
    assert (whole != twice).any()


# -- numbers ----------------------------------------------------------------------------------

_LITERALS: list[tuple[str, Any]] = [
    ("0.1", 0.1),
    ("3", 3),
    ("-7", -7),
    ("2.5", 2.5),
    ("1e-5", 1e-5),
    ("inf", math.inf),
    ("nan", math.nan),
    ("pi", math.pi),
    ("true", True),
]


@on_every_backend
@pytest.mark.parametrize("name", DTYPES)
def test_literals_are_weakly_typed(backend: Backend, name: str) -> None:
    dtype = dtype_of(name)
    x = torch.tensor([0, 1, 1, 3]).to(dtype)
    results = backend.run(", ".join(f"x + ({text})" for text, _ in _LITERALS), x)
    for (text, value), actual in zip(_LITERALS, results, strict=True):
        expected = x + value
        assert actual.dtype is expected.dtype, text
        if dtype.is_floating_point:  # PyTorch rounds the number to 16 bits first, on the CPU alone
            expected = (x.to(arithmetic_type(dtype)) + value).to(dtype)
        assert_close(actual, expected, 0, what=f"{name} + {text}")


@on_every_backend
def test_large_and_exact_literals(backend: Backend) -> None:
    x = torch.tensor([0, 1, -1])
    wide, mask, shifted = backend.run(
        "x + 9223372036854775807, x & 4611686018427387904, x * 4294967297", x
    )
    same(wide, x + (2**63 - 1))
    same(mask, x & 2**62)
    same(shifted, x * 4294967297)
    y = torch.tensor([1.0, 3.0], dtype=torch.float64)
    tenth, third = backend.run("y * 0.1, y + 1/3", y)
    same(tenth, y * 0.1)
    same(third, y + 1 / 3)


@on_every_backend
@pytest.mark.parametrize("name", DTYPES)
def test_numbers_at_run_time(backend: Backend, name: str) -> None:
    """The type and value of x * s + x is PyTorch's for every kind of number, and a new value
    builds nothing.
    """
    dtype = dtype_of(name)
    x = torch.tensor([0, 1, 1, 3]).to(dtype)
    function = backend.compile("x * s + x")
    for kind, numbers in {
        "float": (2.5, 0.1, -3.25, 1.0, 0.0),
        "int": (3, -2, 1, 0),
        "bool": (True, False),
    }.items():
        before = fusec.stats()
        for position, number in enumerate(numbers):
            actual = function(backend.place(x), number).cpu()
            expected = x * number + x
            assert actual.dtype is expected.dtype, (kind, number)
            wide = expected.dtype in (torch.float16, torch.bfloat16)
            expected = (x.float() * number + x.float()).to(dtype) if wide else expected
            assert_close(actual, expected, 0, what=f"{name} * {number}")
            if position == 0:
                before = fusec.stats()
        assert fusec.stats() == before, kind
    assert len(function.variants) <= 3


@on_every_backend
def test_integer_numbers_wrap_as_the_tensor_does(backend: Backend) -> None:
    x = torch.tensor([1, 2], dtype=torch.uint8)
    same(backend.one("x + s", x, 300), torch.tensor([45, 46], dtype=torch.uint8))
    same(backend.one("x + s", x, -1), torch.tensor([0, 1], dtype=torch.uint8))
    same(backend.one("x + 300", x), torch.tensor([45, 46], dtype=torch.uint8))


@pytest.mark.parametrize("position", [0, 1])
def test_a_number_beyond_64_bits_is_refused_at_every_call(position: int) -> None:
    function = fusec.compile("x + s")
    x = torch.ones(3)
    if position:
        function(x, 1)
    with pytest.raises(DTypeError, match="64 bits"):
        function(x, 2**64)
