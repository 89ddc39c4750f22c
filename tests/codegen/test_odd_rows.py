"""Elementwise kernels of long rows that begin or end between vectors: a piece of one row to a
program.
"""

from __future__ import annotations

import pytest
import torch

import fusec
from fusec.codegen.candidates import around
from fusec.codegen.kernel import Config, Form
from tests.oracle import INTERPRETER, Backend, assert_close, on_every_backend, reference

LENGTHS = [8192, 8193, 8195, 8199, 8200, 16385, 30522, 50257]
TYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.int64]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, whose products and sums every type here holds."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-3, 4, shape, generator=generator).to(dtype)


def padded(*shape: int, dtype: torch.dtype = torch.float32, by: int = 8) -> torch.Tensor:
    """Zeros in rows that begin at multiples of ``by``, with gaps behind them."""
    return torch.zeros(*shape[:-1], -(-shape[-1] // by) * by, dtype=dtype)[..., : shape[-1]]


def filled(view: torch.Tensor) -> torch.Tensor:
    """``view`` with small whole numbers in it."""
    return view.copy_(values(*view.shape, dtype=view.dtype))


def check(backend: Backend, text: str, *inputs: torch.Tensor) -> None:
    expected = reference(text, *inputs)
    found = backend.run(text, *inputs)
    for result, wanted in zip(found, expected, strict=True):
        if wanted.dtype.is_floating_point:
            assert_close(result, wanted, 1, what=f"{text} {inputs[0].shape}")
        else:
            assert torch.equal(result, wanted), f"{text} {inputs[0].shape}"


def check_out(text: str, whole: torch.Tensor, place: torch.Tensor, *inputs: torch.Tensor) -> None:
    """``place`` is part of ``whole``, of which nothing else may change."""
    whole.fill_(77)
    inside = torch.zeros_like(whole, dtype=torch.bool)
    inside.as_strided(place.shape, place.stride(), place.storage_offset()).fill_(True)
    f = fusec.compile(text, backend="triton")
    result = f(*inputs, out=place)
    (expected,) = reference(text, *inputs)
    assert torch.equal(result, expected.to(result.dtype))
    assert bool((whole[~inside] == 77).all())


@on_every_backend
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("cols", [8192, 8193, 8199, 8200, 16385])
def test_rows_with_gaps_behind_them(backend: Backend, cols: int, dtype: torch.dtype) -> None:
    a, b = (filled(padded(3, cols, dtype=dtype, by=by)) for by in (16, 32))
    check(backend, "a * b + a", a, b)
    check(backend, "(a - m) * w + b", a, values(3, 1, dtype=dtype), values(cols, dtype=dtype), b)


@pytest.mark.parametrize("dtype", [*TYPES, torch.bool])
@pytest.mark.parametrize("cols", LENGTHS)
def test_results_with_gaps_behind_their_rows(cols: int, dtype: torch.dtype) -> None:
    for rows, by in ((3, 8), (1, 8), (2, 64)):
        whole = torch.zeros(rows, -(-cols // by) * by, dtype=dtype)
        whole = whole if dtype is not torch.bool else whole.to(torch.int8)
        x = values(rows, cols, dtype=whole.dtype)
        check_out("x", whole, whole[:, :cols], x)


def test_a_search_keeps_to_one_row() -> None:
    piece = Config(1, 2048, apart=True)
    assert {c.block_rows for c in around(piece, Form.TILE, "triton")} == {1}
    assert max(c.block_cols for c in around(piece, Form.TILE, "triton")) == 8192


def test_names_of_the_kernel_are_not_those_of_a_user() -> None:
    x, border = values(16, 5001), values(16, 1)
    check(INTERPRETER, "(x - border) * index(-1)", x, border)
    check(INTERPRETER, "beyond = x * 2; (x - border) * beyond", x, border)
    x = filled(padded(3, 8193))
    check(INTERPRETER, "pieces = x * 2; (x - start) * pieces", x, values(3, 1))
