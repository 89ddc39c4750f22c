"""Elementwise kernels of long rows that begin or end between vectors: a piece of one row to a
program.
"""

from __future__ import annotations

import random

import pytest
import torch

import fusec
from fusec.codegen.candidates import around
from fusec.codegen.kernel import Config, Form
from tests.oracle import INTERPRETER, Backend, assert_close, on_every_backend, reference

LENGTHS = [8192, 8193, 8195, 8199, 8200, 16385, 30522, 50257]
TYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.int64]
PLACED = "where(index(-1) == t, x, 0) - (x - m) * w + b * index(-2)"


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
@pytest.mark.parametrize("cols", [8193, 8200])
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


@on_every_backend
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("cols", [8193, 8199, 8200, 10237])
def test_rows_one_behind_the_other(backend: Backend, cols: int, dtype: torch.dtype) -> None:
    """What each row has for itself, what all share, and where an element is."""
    x, m, w = (values(*shape, dtype=dtype) for shape in ((5, cols), (5, 1), (cols,)))
    t = torch.tensor([[0], [cols - 1], [7], [-1], [cols]])
    check(backend, "x * w", x, w)
    check(backend, "x - m", x, m)
    check(backend, PLACED, t, x, m, w, w)


@pytest.mark.parametrize("cols", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_long_rows(cols: int, dtype: torch.dtype) -> None:
    x, m, w = (values(*shape, dtype=dtype) for shape in ((3, cols), (3, 1), (cols,)))
    check(INTERPRETER, PLACED, torch.full((3, 1), cols - 1), x, m, w, w)
    text = "cast_like(where(index(-1) == t, a, 0.0) - exp(x - m - l) * s, x)"
    t, own = torch.full((3, 1), cols - 2), values(3, 1)
    check(INTERPRETER, text, t, own, x, own, own, own)


@on_every_backend
@pytest.mark.parametrize("cols", [8193, 8200])
def test_operands_that_begin_otherwise(backend: Backend, cols: int) -> None:
    """Rows with gaps among rows without, rows that begin elsewhere, transposed ones, shared."""
    x, m = values(3, cols), values(3, 1)
    views = [
        filled(padded(3, cols)),
        filled(padded(3, cols + 1, by=3)[:, 1:]),
        filled(padded(3, cols + 8)[:, 8:]),
        filled(torch.zeros(cols, 3).T),
        values(cols).expand(3, cols),
        filled(torch.zeros(3, 2 * cols)[:, ::2]),
        values(2 * cols)[::2],
    ]
    for view in views:
        check(backend, "x * y + m", x, view, m)
        check(backend, "y - m * 2", view, m)


@on_every_backend
def test_types_beside_each_other(backend: Backend) -> None:
    """Vectors are as long as the narrowest type wants them."""
    flags = values(3, 8195, dtype=torch.int8) > 0
    x, wide = values(3, 8195, dtype=torch.bfloat16), values(3, 8195, dtype=torch.float64)
    check(backend, "where(f, x, m)", flags, x, values(3, 1, dtype=torch.bfloat16))
    check(backend, "where(f, x, 1)", flags[:, :1], x)
    check(backend, "x > m", x, values(3, 1, dtype=torch.bfloat16))
    check(backend, "x * wide - m", x, wide, values(3, 1))
    check(backend, "i64(x) + k", x, values(3, 1, dtype=torch.int64))


@on_every_backend
def test_several_results_and_axes(backend: Backend) -> None:
    x, m, w = values(2, 3, 8195), values(2, 1, 1), values(3, 1)
    check(backend, "s = x * w; s - m, s * m", x, m, w)
    check(backend, "x * w + index(-1) - index(-2) * index(-3)", x, w)
    check(backend, "x * v + m", filled(padded(2, 3, 8195)), values(2, 1, 8195), values(1, 3, 1))
    check(backend, "(x - m) * w", values(1, 8195), values(1, 1), values(8195))


@on_every_backend
def test_gathers(backend: Backend) -> None:
    x, t, table = values(3, 8195), torch.tensor([2, 0, 8194]), values(3, 8195)
    expected = x + table.gather(1, t[:, None])
    assert torch.equal(backend.one("table[t] + x", table=table, t=t, x=x).cpu(), expected)


@pytest.mark.parametrize("cols", LENGTHS)
def test_results_that_lie_otherwise(cols: int) -> None:
    """Nothing beside them is written."""
    x, m = values(3, cols), values(3, 1)
    for width, first in ((cols + 1, 1), (cols + 9, 2), (cols + 16, 8)):
        whole = torch.zeros(3, width)
        check_out("x - m", whole, whole[:, first : first + cols], x, m)
    whole = torch.zeros(cols, 4)
    check_out("x - m", whole, whole.T[:3], x, m)
    whole = torch.zeros(3 * cols + 20)
    check_out("x - m", whole, whole[7 : 7 + 3 * cols].view(3, cols), x, m)


def test_an_operand_is_written_over() -> None:
    x, m = values(4, 8195), values(4, 1)
    expected = x * m + 1
    assert fusec.compile("x * m + 1", backend="triton")(x, m, out=x) is x
    assert torch.equal(x, expected)


def test_random_programs() -> None:
    generator = random.Random(20)
    for _ in range(12):
        names = ["x", "y", "m", "w", "f32(index(-1))", "2.0"]
        for _ in range(generator.randint(2, 6)):
            a, b = generator.choice(names), generator.choice(names)
            form = generator.choice(
                ["({} + {})", "({} - {})", "maximum({}, {})", "minimum({}, {})"]
            )
            names.append(form.format(a, b))
        text = f"{names[-1]} + x - y * m + w"
        cols, rows = generator.choice(LENGTHS[:6]), generator.randint(2, 4)
        y = values(rows, cols) if generator.random() < 0.5 else filled(padded(rows, cols))
        given = {"x": values(rows, cols), "y": y, "m": values(rows, 1), "w": values(cols)}
        check(INTERPRETER, text, *(given[n] for n in fusec.compile(text).inputs))


def source(text: str, *inputs: torch.Tensor) -> str:
    return fusec.compile(text).show("triton", *inputs, target="sm_90")


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16, row: int = 0) -> torch.Tensor:
    """Without memory; ``row``: how far apart rows begin."""
    strides = (row, 1) if row else torch.empty(shape, device="meta").stride()
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


def test_a_piece_of_one_row_has_its_values_once() -> None:
    inputs = meta(64, 8193), meta(64, 1), meta(64, 1)
    text = source("(x - m) * r", *inputs)
    assert "    start = row_start // 8 * 8 + program % pieces * BLOCK" in text
    assert text.count("m = tl.load(m_ptr + row).to(tl.float32)\n") == 1
    assert text.count("tl.load(x_ptr + i") == text.count("tl.store(out_ptr + i") == 2
    assert text.count("mask=mask") == 2
    assert "row_mask" not in text
    kernel = fusec.compile("(x - m) * r").show("kernel", *inputs)
    assert (
        "all tiles inside a row without masks, the first begins at a vector of 8 in out" in kernel
    )


def test_what_is_written_decides_where_pieces_begin() -> None:
    """Other rows are moved element by element where they begin otherwise."""
    m = meta(64, 1)
    text = source("x - m", meta(64, 8193, row=8200), m)
    assert "row_start = row * cols" in text
    assert "x_ptr + row * x_row_stride + col" in text
    assert "out_ptr + i" in text
    text = source("x - m", meta(64, 8192, row=8201), m)  # they begin between, and end at them
    assert "pieces" not in text
    text = source("(x > m) | (x < n)", meta(64, 8193), m, m)
    assert "row_start // 16 * 16" in text


@pytest.mark.parametrize(
    ("cols", "dtype", "pieces"),
    [(8191, torch.bfloat16, False), (8193, torch.bfloat16, True), (8196, torch.bfloat16, True),
     (8200, torch.bfloat16, False), (8196, torch.float32, False), (8197, torch.float32, True),
     (8193, torch.int64, True), (8194, torch.int64, False)],
)  # fmt: skip
def test_which_rows_go_in_pieces(cols: int, dtype: torch.dtype, pieces: bool) -> None:
    inputs = meta(64, cols, dtype=dtype), meta(64, 1, dtype=dtype), meta(64, 1, dtype=dtype)
    text = source("x * m - n", *inputs)
    assert ("pieces = tl.cdiv" in text) == pieces


@pytest.mark.parametrize("rows", [64, 70000])
def test_vectors_in_machine_code(rows: int) -> None:
    """Rows that begin between vectors are moved as vectors, also with offsets of 64 bits."""
    function = fusec.compile("(x - m) * r")
    inputs = meta(rows, 50257), meta(rows, 1), meta(rows, 1)
    ptx = function.show("ptx", *inputs, target="sm_90")
    assert "st.global.v4.b32" in ptx
    assert "ld.global.v4.b32" in ptx


@pytest.mark.parametrize("text", ["x * m", "x * w", "(x - m) * r * w"])
def test_a_flat_index_is_kept_where_it_is_quicker(text: str) -> None:
    named = {"x": meta(64, 8193), "w": meta(8193)}
    inputs = [named.get(name, meta(64, 1)) for name in fusec.compile(text).inputs]
    assert "pieces" not in source(text, *inputs)


def test_one_kernel_serves_many_lengths() -> None:
    f = fusec.compile("x * m - m*n", backend="triton")
    for rows, cols in ((3, 8193), (5, 8195), (2, 16385)):
        x, m = values(rows, cols), values(rows, 1)
        torch.testing.assert_close(f(x, m, m), x * m - m * m)
    assert len(f.variants) == 1


def test_offsets_of_64_bits() -> None:
    text = source("x * m - n", meta(70000, 50257), meta(70000, 1), meta(70000, 1))
    assert "program = tl.program_id(0).to(tl.int64)" in text


def test_a_search_keeps_to_one_row() -> None:
    piece = Config(1, 2048, apart=True)
    assert {c.block_rows for c in around(piece, Form.TILE, "triton")} == {1}
    assert max(c.block_cols for c in around(piece, Form.TILE, "triton")) == 8192


def test_names_of_the_kernel_are_not_those_of_a_user() -> None:
    x, border = values(16, 5001), torch.full((16, 1), 1e6)
    check(INTERPRETER, "(x - border) * r", x, border, values(16, 1))
    check(INTERPRETER, "(x - beyond) * r * index(-1)", x, border, values(16, 1))
    x = filled(padded(3, 8193))
    check(INTERPRETER, "pieces = x * 2; (x - start) * pieces", x, values(3, 1))
