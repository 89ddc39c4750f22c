"""The loop nests of the C++ backend: tiles of turned operands, rows side by side, results past the
caches. Imports pytest, torch and fusec.
"""

from __future__ import annotations

import pytest
import torch

import fusec
from fusec.codegen import schedule_cpp
from fusec.runtime.build_cpp import find_compiler

# Without a compiler there is no C++ backend, and nothing of it to test; .ci/run installs one.
pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int8)
SHAPES = ((1, 1), (1, 65), (64, 64), (63, 130), (65, 3), (200, 64), (70, 300))


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, on which every sum and product here is exact."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-5, 6, shape, generator=generator).to(dtype)


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of every size go past the caches."""
    monkeypatch.setattr(schedule_cpp, "STREAM_BYTES", 0)
    monkeypatch.setattr(schedule_cpp, "STREAM_STRETCH", 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("large", [False, True])
def test_turned_operands(dtype: torch.dtype, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results that are large go past the caches from here as well."""
    if large:
        monkeypatch.setattr(schedule_cpp, "STREAM_BYTES", 0)
        monkeypatch.setattr(schedule_cpp, "STREAM_STRETCH", 0)
    f = fusec.compile("2*x + y*b + c", inputs=["x", "y", "b", "c"])
    for rows, cols in SHAPES:
        x, y = numbers(rows, cols, dtype=dtype), numbers(cols, rows, dtype=dtype).T
        b, c = numbers(cols, dtype=dtype), numbers(rows, 1, dtype=dtype)
        for first, second in ((x, y), (y, x), (y, y)):
            assert torch.equal(f(first, second, b, c), 2 * first + second * b + c)


def test_turned_operands_in_a_batch() -> None:
    f = fusec.compile("x - y", inputs=["x", "y"])
    x, y = numbers(3, 70, 90), numbers(3, 90, 70).transpose(1, 2)
    assert torch.equal(f(x, y), x - y)
    x, y = numbers(2, 5, 66, 67), numbers(2, 66, 67, 5).permute(0, 3, 1, 2)
    assert torch.equal(f(x, y), x - y)


def test_a_turned_operand_is_read_through_a_tile() -> None:
    f = fusec.compile("x - y", inputs=["x", "y"])
    source = f.show("cpp", numbers(70, 90), numbers(90, 70).T)
    assert "fusec::turn(&y_ptr[row_start + col_start * rows], rows," in source
    assert "y_tile[(row - row_start + strip - col_start) * fusec::TILE + col - strip]" in source
    assert "x_tile" not in source


def test_turned_operands_of_which_an_axis_is_split() -> None:
    """Rows that are two axes of the operand are copied one by one."""
    f = fusec.compile("x - y", inputs=["x", "y"])
    for sizes in ((70, 3, 90), (300, 2, 5)):
        x, y = numbers(*sizes), numbers(sizes[2], sizes[1], sizes[0]).permute(2, 1, 0)
        assert torch.equal(f(x, y), x - y)
        z = numbers(sizes[2] + 1, *sizes[:2])[1:].permute(1, 2, 0)
        assert torch.equal(f(x, z), x - z)


@pytest.mark.parametrize("threads", ["1", "3"])
def test_rows_side_by_side(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_NUM_THREADS", threads)
    f = fusec.compile("sum(x, axis=0), max(x, axis=0) - x, mean(x*x, axis=0)")
    for rows, cols in ((3, 1), (50, 63), (50, 65), (9, 1537), (2, 5000)):
        x = numbers(rows, cols)
        total, distance, square = f(x)
        assert torch.equal(total, x.sum(0))
        assert torch.equal(distance, x.amax(0) - x)
        torch.testing.assert_close(square, (x * x).mean(0), rtol=1e-6, atol=0)


@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize("dtype", DTYPES)
def test_streams_write_every_element_once(dtype: torch.dtype) -> None:
    flat, tile = fusec.compile("2*x + 1"), fusec.compile("2*x + b", inputs=["x", "b"])
    for rows, cols in (*SHAPES, (3, 1023), (2, 1024), (5, 1025), (1, 5000)):
        x, b = numbers(rows, cols, dtype=dtype), numbers(cols, dtype=dtype)
        for offset in (0, 1, 7):
            room = torch.full((rows * cols + 64,), 99, dtype=dtype)
            out = room[offset : offset + rows * cols].view(rows, cols)
            flat(x, out=out)
            assert torch.equal(out, 2 * x + 1)
            tile(x, b, out=out)
            assert torch.equal(out, 2 * x + b)
            assert (room[:offset] == 99).all()
            assert (room[offset + rows * cols :] == 99).all()


@pytest.mark.usefixtures("streaming")
def test_streams_in_place_and_overlapping() -> None:
    f = fusec.compile("2*x + 1")
    for length in (1, 1000, 5000):
        x = numbers(length)
        expected = 2 * x + 1
        f(x, out=x)
        assert torch.equal(x, expected)
        room = numbers(length + 1)
        expected = 2 * room[:-1] + 1
        f(room[:-1], out=room[1:])
        assert torch.equal(room[1:], expected)


@pytest.mark.usefixtures("streaming")
def test_streams_of_rows() -> None:
    f = fusec.compile("h = x + y; h - mean(h), h, max(h)", inputs=["x", "y"])
    for rows, cols in (*SHAPES, (3, 1023), (2, 4097)):
        x, y = numbers(rows, cols), numbers(rows, cols)
        centred, h, largest = f(x, y)
        assert torch.equal(h, x + y)
        assert torch.equal(largest, (x + y).amax(-1))
        torch.testing.assert_close(centred, h - h.mean(-1, keepdim=True), rtol=1e-6, atol=1e-5)


def test_only_large_results_stream() -> None:
    f = fusec.compile("2*x + 1")
    assert "Block" not in f.show("cpp", torch.empty(1000, 1000))
    large = torch.empty(4096, 4096)
    text = f.show("cpp", large)
    assert "constexpr int64_t BLOCK = 128;" in text
    assert "fusec::Block<float, BLOCK> out_block;" in text
    # What has fetched the next row while it reduced this one does nothing else while it writes.
    assert "constexpr int64_t BLOCK = 1024;" in fusec.compile("softmax(x)").show("cpp", large)
    norm = fusec.compile("rms_norm(x)").show("cpp", large)
    assert "constexpr int64_t BLOCK = 128;" in norm
    assert "fusec::prefetch<BLOCK>(&x_ptr[(row + ahead) * cols + start]);" in norm


@pytest.mark.usefixtures("streaming")
def test_streams_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(33, 1100, generator=torch.Generator().manual_seed(0))
    for formula in ("softmax(x)", "gelu(x)", "x*rsqrt(mean(x*x) + 1e-6)"):
        streamed = fusec.compile(formula)(x)
        with monkeypatch.context() as patch:
            patch.setattr(schedule_cpp, "STREAM_BYTES", 1 << 60)
            plain = fusec.compile(formula)(x)
        assert torch.equal(streamed, plain)


def test_rows_that_are_only_reduced_fetch_what_follows_in_memory() -> None:
    far = "fusec::prefetch(&x_ptr[row * cols + start + fusec::FAR]);"
    for text, cols, fetched in (
        ("sum(x)", 256, True),
        ("max(x * w)", 256, True),
        ("sum(x)", 40_000, False),  # in parts
        ("softmax(x)", 256, False),  # its last sweep fetches the next row
        ("logsumexp(x)", 256, False),
    ):
        function = fusec.compile(text, backend="cpp")
        given = [torch.empty(64, cols, device="meta"), torch.empty(cols, device="meta")]
        assert (far in function.show("cpp", *given[: len(function.inputs)])) == fetched


@pytest.mark.parametrize("cols", [1, 63, 256, 2047, 2048, 5000])
def test_a_later_sweep_fetches_a_row_that_is_far_enough(cols: int) -> None:
    text = "ahead = exp(x - max(x))\nahead / sum(ahead)"  # and the name is the user's to take
    function = fusec.compile(text, backend="cpp")
    x = torch.randn(70, cols)
    torch.testing.assert_close(function(x), torch.softmax(x, -1))
    if cols >= 256:  # others run as lanes
        assert "fusec::prefetch(&x_ptr[(row + ahead) * cols + start]);" in function.show("cpp", x)
