"""Reductions along a strided axis whose rows are taken several at a time, as one stretch."""

from __future__ import annotations

import pytest
import torch

import fusec
from fusec.codegen import schedule_columns
from fusec.codegen.kernel import Config
from fusec.ir.dtypes import BF16, F32, F64, I8, DType
from fusec.runtime.specialize import Argument, lay_out_all
from tests.oracle import assert_close, reduction_tolerance, reference

TEXTS = (
    "sum(x, axis=0)",
    "mean(x, axis=0)",
    "max(x, axis=0)",
    "min(abs(x), axis=0)",
    "sum(x^2 + 1, axis=0)",
    "sum(x, axis=0) / max(x, axis=0)",
)
# Elements of a row, odd and even, and how many rows there are beyond whole stretches: short ones,
# whose tiles are asked for ahead, and long ones.
KINDS = {torch.bfloat16: BF16, torch.float32: F32, torch.float64: F64}
SHAPES = [(1024, 33), (1025, 33), (2063, 7), (1151, 40), (515, 1030), (514, 2049), (519, 72)]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer stretches are enough, and shorter ones are long, which the interpreter has time for."""
    monkeypatch.setattr(schedule_columns, "LEAST_STRETCHES", 8)
    monkeypatch.setattr(schedule_columns, "LONG_STRETCH", 4096)


def values(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (3 * torch.randn(*shape, generator=generator)).to(dtype)


def config_of(text: str, *inputs: tuple[tuple[int, ...], tuple[int, ...], DType]) -> Config:
    """The Config of the first kernel; inputs as shape, strides and type."""
    arguments = [Argument(dtype, shape, strides) for shape, strides, dtype in inputs]
    special = fusec.compile(text).specialization(arguments)
    sizes = dict(special.sizes(arguments))
    return lay_out_all(special, arguments, sizes, {}, "triton")[1][0].config


def plain(
    rows: int, cols: int, dtype: DType = BF16
) -> tuple[tuple[int, int], tuple[int, int], DType]:
    return (rows, cols), (cols, 1), dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "cols"), SHAPES)
@pytest.mark.parametrize("text", TEXTS)
def test_stretches_come_to_the_same(text: str, rows: int, cols: int, dtype: torch.dtype) -> None:
    x = values(rows, cols, dtype=dtype)
    function = fusec.compile(text, backend="triton")
    (expected,) = reference(text, x)
    most = expected.double().abs().max()
    tolerance = 4 * reduction_tolerance(dtype, rows)
    assert_close(function(x), expected, 1, absolute=tolerance * most, what=text)
    assert config_of(text, plain(rows, cols, KINDS[dtype])).fold > 1


def test_a_kernel_says_so() -> None:
    x = torch.empty(4096, 33, dtype=torch.bfloat16, device="meta")
    text = fusec.compile("sum(x, axis=0)").show("kernel", x)
    assert text.count("16 columns, one behind the other in memory, taken as one") == 1


@pytest.mark.parametrize("left", range(9))
def test_what_fills_no_stretch_counts(left: int) -> None:
    x = torch.ones(1024 + left, 33)
    x[1024:] = 2
    got = fusec.compile("sum(x, axis=0)", backend="triton")(x)
    assert torch.equal(got, torch.full((33,), 1024.0 + 2 * left))


@pytest.mark.parametrize("rows", [1024, 1030])
def test_what_is_not_a_number_stays_in_its_column(rows: int) -> None:
    x = torch.ones(rows, 33)
    x[3, 5], x[rows - 1, 7], x[rows - 1, 8] = torch.nan, torch.inf, torch.nan
    total, largest = fusec.compile("sum(x, axis=0), max(x, axis=0)", backend="triton")(x)
    for got in (total, largest):
        assert got.isnan().nonzero().flatten().tolist() == [5, 8]
        assert got.isposinf().nonzero().flatten().tolist() == [7]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.bool])
def test_integers_and_truths(dtype: torch.dtype) -> None:
    x = (values(1029, 33, dtype=torch.float32) * 2).to(dtype)
    total = fusec.compile("sum(x, axis=0)", backend="triton")(x)
    assert torch.equal(total, x.sum(0))


def test_two_operands_and_a_number() -> None:
    g, x = values(1029, 33, dtype=torch.bfloat16), values(1029, 33, dtype=torch.float32)
    function = fusec.compile("sum(a * g * x, axis=0)", backend="triton")
    got = function(a=0.5, g=g, x=x)
    expected = (0.5 * g.double() * x.double()).sum(0)
    assert (got.double() - expected).abs().max() <= 2e-5 * expected.abs().max()
    number = (), (), F32
    assert config_of("sum(a * g * x, axis=0)", number, plain(1029, 33), plain(1029, 33)).fold > 1


def test_several_axes_are_one() -> None:
    x = values(33, 32, 33, dtype=torch.float32)
    function = fusec.compile("sum(x, axis=(0, 1))", backend="triton")
    expected = x.double().sum((0, 1))
    assert (function(x).double() - expected).abs().max() <= 2e-6 * x.abs().sum((0, 1)).max()
    assert config_of("sum(x, axis=(0, 1))", ((33, 32, 33), (1056, 33, 1), F32)).fold > 1


def test_whose_rows_are_taken_together() -> None:
    text = "sum(x, axis=0)"
    assert config_of(text, plain(4096, 33)).fold == 16
    assert config_of(text, plain(4096, 4097)).fold == 8
    assert config_of(text, plain(4096, 4097, F32)).fold == 4
    assert config_of(text, plain(8192, 4097, I8)).fold == 16
    assert config_of(text, plain(1 << 20, 3)).fold == 256
    # even and long enough, or too few
    assert config_of(text, plain(4096, 64)).fold == 1
    assert config_of(text, plain(4096, 4096)).fold == 1
    assert config_of(text, plain(512, 33)).fold == 1
    # gaps between rows, rows that are turned, and values that are not for each element
    assert config_of(text, ((4096, 33), (34, 1), BF16)).fold == 1
    assert config_of("sum(x, axis=1)", ((33, 4096), (1, 33), BF16)).fold == 16
    assert config_of("sum(x, axis=1)", plain(33, 4096)).fold == 1
    assert config_of("sum(x * w, axis=0)", plain(4096, 33), ((33,), (1,), BF16)).fold == 1
    assert config_of("sum(x * w, axis=0)", plain(4096, 33), ((4096, 1), (1, 1), BF16)).fold == 1
    assert config_of("var(x, axis=0)", plain(4096, 33)).fold == 1
    assert config_of("sum(index(x, 0) * x, axis=0)", plain(4096, 33)).fold == 1


def test_places_are_those_of_the_elements() -> None:
    x = values(1029, 33, dtype=torch.float32)
    got = fusec.compile("sum(index(x, 0) * x, axis=0)", backend="triton")(x)
    expected = (torch.arange(1029, dtype=torch.float64)[:, None] * x.double()).sum(0)
    assert (got.double() - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("rows", "cols"),
    [(32760, 4097), (2670, 50257), (262144, 33), (1 << 20, 3), (134217, 1000), (8195, 513)],
)
def test_stretches_on_the_gpu(
    rows: int, cols: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    x = values(rows, cols, dtype=dtype).cuda()
    function = fusec.compile("sum(x, axis=0), max(x, axis=0)", backend="triton")
    total, largest = function(x)
    assert torch.equal(largest, x.amax(0))
    expected = x.double().sum(0)
    error = (total.double() - expected).abs().max()
    assert error <= 4 * reduction_tolerance(dtype, rows) * x.double().abs().sum(0).max()
    assert torch.equal(function(x)[0], total)
    kind = KINDS[dtype]
    assert config_of("sum(x, axis=0), max(x, axis=0)", plain(rows, cols, kind)).fold > 1
