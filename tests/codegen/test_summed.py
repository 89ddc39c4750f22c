"""Sums of one operand over rows or columns: tiles asked for ahead, in turns or alone."""

from __future__ import annotations

import re

import pytest
import torch

import fusec
from fusec.codegen import schedule, schedule_columns
from fusec.codegen.kernel import Config
from fusec.ir.dtypes import BF16, F32, F64, DType
from fusec.runtime.specialize import Argument, lay_out_all
from tests.oracle import assert_close, reduction_tolerance, reference

TEXTS = (
    "sum(x, axis=0)",
    "mean(x, axis=0)",
    "max(x, axis=0)",
    "sum(x^2, axis=0)",
    "var(x, axis=0)",
)
# What is asked for ahead and who joins the parts, by the shape: few columns, many; rows that begin
# at multiples of 16 bytes, and others; short columns and long ones.
SHAPES = [(132, 256), (132, 264), (132, 257), (100, 1544), (600, 512), (600, 513), (40, 256)]


def values(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (3 * torch.randn(*shape, generator=generator)).to(dtype)


def check(text: str, x: torch.Tensor, length: int) -> fusec.CompiledFunction:
    function = fusec.compile(text, backend="triton")
    (expected,) = reference(text, x)
    most = expected.double().abs().max()
    tolerance = 4 * reduction_tolerance(x.dtype, length)
    assert_close(function(x), expected, 1, absolute=tolerance * most, what=text)
    return function


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer columns count as many, which the interpreter has the time for."""
    monkeypatch.setattr(schedule_columns, "SHORT_ACROSS", 256)
    monkeypatch.setattr(schedule_columns, "JOINED_ACROSS", 255)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("rows", "cols"), SHAPES)
@pytest.mark.parametrize("text", TEXTS)
def test_sums_over_rows(text: str, rows: int, cols: int, dtype: torch.dtype) -> None:
    check(text, values(rows, cols, dtype=dtype), rows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "cols"), [(2100, 64), (1100, 80), (1100, 72), (1100, 67)])
@pytest.mark.parametrize("text", TEXTS)
def test_sums_over_many_rows(text: str, rows: int, cols: int, dtype: torch.dtype) -> None:
    """Programs share the columns, take tiles in turns, and others join what they leave."""
    check(text, values(rows, cols, dtype=dtype), rows)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("text", ["sum(x)", "mean(x)", "max(x)", "var(x)", "logsumexp(x)"])
def test_sums_of_long_rows(text: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows are as many as there are multiprocessors, so none is shared; a row alone is."""
    monkeypatch.setattr(schedule, "MULTIPROCESSORS", 3)
    for length in (65536, 70000):
        check(text, values(rows, length, dtype=torch.bfloat16), length)


def config_of(text: str, shape: tuple[int, int], dtype: DType) -> Config:
    arguments = [Argument(dtype, shape, (shape[1], 1))]
    special = fusec.compile(text).specialization(arguments)
    sizes = dict(special.sizes(arguments))
    (laid,) = lay_out_all(special, arguments, sizes, {}, "triton")[1]
    return laid.config


@pytest.mark.parametrize(
    ("shape", "dtype", "tile", "stages", "joined", "bare"),
    [
        ((132, 16384), BF16, (128, 16, 2), 5, None, True),
        ((132, 262144), BF16, (128, 8, 1), 3, None, True),
        ((132, 50257), BF16, (64, 8, 8), 1, None, True),
        ((8, 262144), BF16, (128, 8, 1), 1, None, False),
        ((8, 50257), BF16, (128, 8, 4), 1, None, False),
        ((4096, 32768), BF16, (64, 64, 16), 1, None, True),
        ((2048, 32768), BF16, (128, 16, 2), 3, None, True),
        ((8192, 16384), F32, (64, 32, 16), 1, None, True),
        ((2670, 50257), BF16, (1024, 1, 4), 1, (64, 4), True),
        ((1000, 50257), BF16, (64, 32, 8), 1, None, True),
        ((32768, 4096), BF16, (64, 64, 2), 1, None, False),
        ((131072, 1024), BF16, (64, 64, 2), 3, (8, 4), True),
        ((131072, 1024), F32, (64, 64, 2), 1, (16, 4), True),
        ((134217, 1000), F32, (1024, 8, 4), 3, (16, 4), True),
        ((134217, 1000), BF16, (1024, 8, 4), 3, (16, 4), True),
    ],
)
def test_how_columns_are_summed(
    shape: tuple[int, int],
    dtype: DType,
    tile: tuple[int, int, int],
    stages: int,
    joined: tuple[int, int] | None,
    bare: bool,
) -> None:
    config = config_of("sum(x, axis=0)", shape, dtype)
    assert (config.block_rows, config.block_cols, config.warps) == tile
    assert (config.stages, config.combine, config.bare) == (stages, joined, bare)


def test_long_columns_are_summed_without_parts() -> None:
    narrow, wide = (config_of("sum(x, axis=0)", (8192, 16384), kind) for kind in (BF16, F32))
    assert (narrow.splits, narrow.unroll, narrow.caching[1]) == (1, 2, "evict_first")
    assert (wide.splits, wide.unroll, wide.caching) == (1, 4, ())
    assert config_of("sum(x, axis=0)", (8192, 16388), BF16).splits > 1


def test_how_long_rows_are_summed() -> None:
    for rows, tile in ((8, (4096, 4, 3)), (132, (8192, 32, 1)), (512, (4096, 4, 3))):
        config = config_of("sum(x)", (rows, 262144), BF16)
        assert (config.block_cols, config.warps, config.stages) == tile
        assert (config.splits > 1) == (rows == 8)
    assert config_of("var(x)", (512, 262144), BF16).splits > 1
    assert config_of("sum(x)", (132, 262145), BF16).stages == 1


@pytest.mark.parametrize("dtype", [BF16, F32, F64])
@pytest.mark.parametrize("rows", [8, 132, 264, 265, 512])
@pytest.mark.parametrize("cols", [16384, 65536, 262144, 1 << 22])
def test_what_is_ahead_fits_shared_memory(rows: int, cols: int, dtype: DType) -> None:
    """That of a block on consumer GPUs, 99 KiB, beside what warps exchange."""
    for text in ("sum(x)", "var(x)", "sum(x, axis=0)"):
        for shape in ((rows, cols), (cols, rows)):
            config = config_of(text, shape, dtype)
            tile = config.block_rows * config.block_cols * dtype.itemsize
            assert config.stages == 1 or config.stages * tile <= 96 << 10


def test_only_sums_of_one_operand_as_it_lies_go_in_turns() -> None:
    """Parts of a variance are weighed as stretches."""
    x = torch.empty(524288, 256, dtype=torch.bfloat16, device="meta")
    for text, turns in (
        ("sum(x, axis=0)", True),
        ("mean(x, axis=0)", True),
        ("var(x, axis=0)", False),
        ("sum(x * y, axis=0)", False),
    ):
        inputs = (x, x) if "y" in text else (x,)
        source = fusec.compile(text, backend="triton").show("triton", *inputs)
        assert ("range(first, cols, SPLITS" in source) == turns, text
        assert ("num_stages=3" in source) == turns, text


@pytest.mark.parametrize("across", [128, 1024, 4096])
@pytest.mark.parametrize("text", ["d = gelu(x) * g\nd, sum(d, axis=0)", "sum(gelu(x) * g, axis=0)"])
def test_threads_take_few_elements_of_what_is_computed(text: str, across: int) -> None:
    """Their code is as long: the gradient of a gelu with its sum took seconds to build."""
    inputs = [torch.empty(4096, across, dtype=torch.bfloat16, device="meta") for _ in range(2)]
    kernel = fusec.compile(text, backend="triton").show("kernel", *inputs)
    tiles = re.findall(r"tile (\d+) x (\d+), (\d+) warps, looped", kernel)
    assert tiles
    for rows, cols, warps in tiles:
        assert int(rows) * int(cols) <= 32 * 32 * int(warps), kernel
