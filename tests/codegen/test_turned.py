"""Reductions of operands that run along the rows beside others that run along the columns."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fusec
from fusec.codegen.kernel import Config
from fusec.ir.dtypes import BF16, F32, F64, DType
from fusec.runtime.specialize import Argument, lay_out_all
from tests.formulas import same_bits
from tests.oracle import assert_close, reduction_tolerance, reference

ROWS = ("softmax(x + y)", "sum(x + y)", "max(x * y)", "var(x - y)", "h = x + y; h, rms_norm(h)")
COLUMNS = ("sum(x + y, axis=0)", "softmax(x + y, axis=0)", "h = x + y; h, sum(h, axis=0), max(h)")
# Rows that are held, rows that are not, sums that are shared out, and few of each.
SHAPES = [(40, 300), (33, 1000), (70, 1025), (5, 5000), (2100, 70), (1, 2000)]


def pair(*shape: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The first transposed in its last two axes, the second not."""
    made = torch.Generator().manual_seed(sum(shape))
    *batch, rows, cols = shape
    turned = torch.randn(*batch, cols, rows, generator=made).to(dtype).mT
    return turned, torch.randn(*shape, generator=made).to(dtype)


def check(text: str, *inputs: torch.Tensor, **options: Any) -> None:
    found = fusec.compile(text, backend="triton", **options)(*inputs)
    length = max(inputs[0].shape)
    tolerance = 4 * reduction_tolerance(inputs[0].dtype, length)
    several = found if isinstance(found, tuple) else (found,)
    for own, expected in zip(several, reference(text, *inputs), strict=True):
        most = expected.double().abs().max()
        assert_close(own, expected, 1, absolute=tolerance * most, what=text)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("text", [*ROWS, *COLUMNS])
def test_reductions_of_turned_operands(
    text: str, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x, y = pair(*shape, dtype=dtype)
    check(text, x, y)
    check(text, y, x)


@pytest.mark.parametrize("text", ["softmax(x + y)", "sum(x + y)", "sum(x * y, axis=1)"])
def test_reductions_of_turned_operands_in_a_batch(text: str) -> None:
    check(text, *pair(3, 40, 1100, dtype=torch.float32))
    x, y = pair(3, 40, 70, dtype=torch.float32)
    check(text, x.transpose(0, 1), y.transpose(0, 1))


def test_a_result_that_is_turned_is_written_whole() -> None:
    """As the gradient of a key, which is scaled, laid out anew, and added up for its bias."""
    x, _ = pair(300, 130, dtype=torch.float32)
    whole = torch.full((300, 136), float("nan"))
    out = whole[:, :130], torch.empty(130)
    function = fusec.compile("h = 0.5 * x; h, sum(h, axis=0)", backend="triton")
    function(x, out=out)
    torch.testing.assert_close(out[0], 0.5 * x)
    torch.testing.assert_close(out[1], (0.5 * x).sum(0))
    assert whole[:, 130:].isnan().all()


def test_rows_have_the_same_bits_in_any_batch() -> None:
    for text in ("softmax(x + y)", "sum(x + y)"):
        x, y = pair(70, 1500, dtype=torch.float32)
        function = fusec.compile(text, backend="triton", batch_invariant=True)
        some = function(x[:3], y[:3])
        assert same_bits(some, function(x, y)[:3])


def config_of(text: str, rows: int, cols: int, dtype: DType) -> Config:
    function = fusec.compile(text)
    lying, turned = (
        Argument(dtype, (rows, cols), (cols, 1)),
        Argument(dtype, (rows, cols), (1, rows)),
    )
    arguments = [turned, lying][: len(function.inputs)]
    special = function.specialization(arguments)
    laid = lay_out_all(special, arguments, dict(special.sizes(arguments)), {}, "triton")[1]
    return laid[0].config


@pytest.mark.parametrize(
    ("text", "cols", "dtype", "tile"),
    [
        ("softmax(x + y)", 256, BF16, (32, 256, 4)),
        ("softmax(x + y)", 1024, BF16, (16, 1024, 8)),
        ("softmax(x + y)", 4096, F32, (4, 4096, 8)),
        ("softmax(x + y)", 2048, F64, (4, 2048, 4)),
        ("softmax(x + y)", 16384, BF16, (16, 256, 8)),
        ("sum(x + y)", 1024, F32, (16, 1024, 8)),
        ("sum(x + y)", 4096, F32, (64, 128, 8)),
    ],
)
def test_tiles_have_several_rows(
    text: str, cols: int, dtype: DType, tile: tuple[int, int, int]
) -> None:
    config = config_of(text, 8192, cols, dtype)
    assert (config.block_rows, config.block_cols, config.warps) == tile
    assert config.block_rows * config.block_cols * dtype.itemsize <= 96 * 1024


def test_a_turned_sum_is_shared_out_where_rows_are_few() -> None:
    few, many = (config_of("sum(x + y)", rows, 4096, F32).splits for rows in (1024, 1 << 17))
    assert few > 8
    assert many == 1


def test_values_of_rows_in_a_batch_turn_nothing() -> None:
    """Images and values for their channels, of each image: the sum over images and places runs
    along the places.
    """
    images, channels = (4, 256, 1024), (4, 256, 1)
    function = fusec.compile("sum(x * a + b, axis=(0, 2))")
    arguments = [
        Argument(BF16, images, (256 * 1024, 1024, 1)),
        *[Argument(BF16, channels, (512, 1, 1))] * 2,
    ]
    special = function.specialization(arguments)
    laid = lay_out_all(special, arguments, dict(special.sizes(arguments)), {}, "triton")[1]
    assert laid[0].config.block_rows == 1
