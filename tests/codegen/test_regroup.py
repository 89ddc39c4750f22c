"""Elementwise kernels whose rows begin between vectors: what is taken as rows instead."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import fusec
from fusec.codegen.candidates import around
from fusec.codegen.kernel import Config, Form
from tests.oracle import Backend, assert_close, on_every_backend, reference

AFFINE, NORM = "x * w + b", "(x - m) * r * w + b"
INDEXED = "where(index(-1) <= index(-2), x, 0) + index(-2) * w + index(-1)"
# x, what all rows share, what each row has for itself; and how a Triton kernel takes them.
MATRICES = [
    (1024, 33),
    (1026, 33),
    (1025, 7),
    (64, 2),
    (2048, 3),
    (7, 1001),
    (512, 100),
    (16, 513),
    (7, 5001),
    (3, 8195),
    (2, 4098),
]
IMAGES = [(20, 16, 49), (16, 32, 7), (17, 3, 49), (3, 16, 25), (32, 4, 196), (2, 18, 5, 40)]


def values(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers, whose products and sums every type here holds."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-4, 5, shape, generator=generator).to(dtype)


def source(text: str, *inputs: torch.Tensor) -> str:
    return fusec.compile(text).show("triton", *inputs, target="sm_90")


def check(backend: Backend, text: str, *inputs: torch.Tensor) -> None:
    (expected,) = reference(text, *inputs)
    assert_close(backend.one(text, *inputs), expected, 1, what=f"{text} {inputs[0].shape}")


@on_every_backend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8, torch.float64])
@pytest.mark.parametrize("shape", MATRICES)
def test_matrices(backend: Backend, shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, w, r = (values(*s, dtype=dtype) for s in (shape, shape[1:], (shape[0], 1)))
    check(backend, AFFINE, x, w, w)
    check(backend, "x * w", x, w)
    check(backend, "x + r", x, r)
    check(backend, INDEXED, x, w)
    if dtype.is_floating_point:
        check(backend, NORM, x, r, r, w, w)


@on_every_backend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", IMAGES)
def test_images(backend: Backend, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Values of channels, of images, of places, and of nothing but images and channels."""
    x = values(*shape, dtype=dtype)
    rank = len(shape)
    for kept in ({1}, {0}, {rank - 1}, {0, 1}, {0, rank - 1}):
        w = values(*(n if k in kept else 1 for k, n in enumerate(shape)), dtype=dtype)
        check(backend, AFFINE, x, w, w)


@on_every_backend
@pytest.mark.parametrize("count", [1, 7, 1023, 1025, 2047, 2048, 2056, 4099])
def test_lengths(backend: Backend, count: int) -> None:
    """Whole blocks, and one that is not."""
    for dtype in (torch.bfloat16, torch.float32, torch.int8, torch.bool):
        x = values(count, dtype=dtype)
        check(backend, "where(x > 0, x, index(0) + 0)", x)


@on_every_backend
def test_what_does_not_lie_as_the_index_runs(backend: Backend) -> None:
    x, w = values(33, 64, dtype=torch.float32).T, values(33, dtype=torch.float32)
    check(backend, AFFINE, x, w, w)
    check(backend, AFFINE, values(64, 66, dtype=torch.float32)[:, ::2], w, w)
    check(backend, AFFINE, values(33, dtype=torch.float32).expand(64, 33), w, w)
    check(
        backend,
        AFFINE,
        values(64, 33, dtype=torch.float32),
        w.flip(0),
        values(1, 33, dtype=torch.float32).expand(64, 33),
    )


def test_results_that_lie_otherwise() -> None:
    x, w = values(64, 33, dtype=torch.float32), values(33, dtype=torch.float32)
    f = fusec.compile("x * w", backend="triton")
    for out in (torch.zeros(33, 64).T, torch.zeros(64, 40)[:, :33]):
        assert torch.equal(f(x, w, out=out), x * w)


@on_every_backend
def test_gathers(backend: Backend) -> None:
    table, t = values(64, 33, dtype=torch.float32), torch.arange(64) % 33
    x = values(64, 33, dtype=torch.float32)
    same = table.gather(1, t[:, None]) + x
    assert torch.equal(backend.one("table[t] + x", table=table, t=t, x=x).cpu(), same)


def test_a_flat_index_finds_its_place() -> None:
    x, w, r = (torch.empty(*s, device="meta") for s in ((64, 33), (33,), (64, 1)))
    text = source("x * w + r", x, w, r)
    for line in ("row = i // cols", "col = i % cols", "i = tl.program_id(0) * BLOCK"):
        assert text.count(f"    {line}") == 1
    assert text.count("tl.load(w_ptr + col, mask=mask, other=0.0)") == 1
    assert text.count("tl.load(r_ptr + row, mask=mask, other=0.0)") == 1
    assert "; 8 bytes per element" in text


def test_channels_are_columns() -> None:
    x, w = (torch.empty(*s, device="meta") for s in ((64, 16, 49), (16, 1)))
    text = source("x * w", x, w)
    assert "    col_0 = col // col_size_1\n" in text
    assert "tl.load(w_ptr + col_0, mask=col_mask, other=0.0)" in text


def test_rows_of_16_bits_that_share_much_are_taken_together() -> None:
    x, w = (torch.empty(*s, dtype=torch.bfloat16, device="meta") for s in ((1024, 33), (33,)))
    text = source(AFFINE, x, w, w)
    assert "    col_1 = col % col_size_1\n" in text
    assert "tl.load(w_ptr + col_1, mask=col_mask, other=0.0)" in text
    assert "i % cols" in source("x * w", x, w)
    assert "i % cols" in source(AFFINE, x.float(), w.float(), w.float())


@pytest.mark.parametrize(
    ("dtype", "count", "apart"),
    [
        (torch.float32, 1000003, True),
        (torch.float32, 1000004, False),
        (torch.bfloat16, 1000004, True),
        (torch.bfloat16, 1000008, False),
        (torch.int8, 1000008, True),
        (torch.float64, 1000002, False),
        (torch.float64, 1000001, True),
    ],
)
def test_whole_blocks_have_no_masks(dtype: torch.dtype, count: int, apart: bool) -> None:
    x = torch.empty(count, dtype=dtype, device="meta")
    text = source("x * 2", x)
    assert ("if start + BLOCK <= n:" in text) == apart
    assert text.count("mask=mask") == 2
    kernel = fusec.compile("x * 2", backend="triton").show("kernel", x)
    assert ("all tiles but the last without masks" in kernel) == apart


def test_an_operand_is_written_over() -> None:
    """A flat index loads and stores the same element."""
    x, w = values(64, 33, dtype=torch.float32), values(33, dtype=torch.float32)
    expected = x * w + w
    f = fusec.compile(AFFINE, backend="triton")
    assert torch.equal(f(x, w, w, out=x), expected)
    assert torch.equal(x, expected)


@pytest.mark.parametrize(
    ("cols", "dtype", "two"),
    [(5001, torch.float32, True), (5001, torch.bfloat16, True), (511, torch.float32, False),
     (513, torch.float32, True), (1023, torch.bfloat16, False), (5000, torch.bfloat16, False)],
)  # fmt: skip
def test_a_program_of_long_rows_has_values_of_two(cols: int, dtype: torch.dtype, two: bool) -> None:
    """It loads them once, where others load one for each element."""
    x, r, w = values(64, cols, dtype=dtype), values(64, 1, dtype=dtype), values(cols, dtype=dtype)
    text = source("(x - r) * w + index(-2)", x, r, w)
    assert ("border = (first + 1) * cols" in text) == two
    assert ("r_ptr + first + 1, mask=border < n" in text) == two
    assert "border" not in source("x * w", x, w)


def test_a_search_keeps_to_two_rows() -> None:
    """A longer block might meet three."""
    two = Config(1, 2048, two_rows=True)
    assert max(c.block_cols for c in around(two, Form.FLAT, "triton")) == 2048
    assert (
        max(c.block_cols for c in around(replace(two, two_rows=False), Form.FLAT, "triton")) > 2048
    )
