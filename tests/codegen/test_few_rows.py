"""Few rows: each is on its way alone and what all share comes first, and no bit is another."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import fusec
from fusec.codegen.kernel import Config
from fusec.ir.dtypes import BF16, F32, DType
from fusec.runtime.specialize import Argument, lay_out_all
from tests.formulas import same_bits

NORM = "layer_norm(x, w, b)"
TEXTS = ("logsumexp(x)", "var(x)", "sum(x)", "max(x)", "softmax(x)", "rms_norm(x, w)", NORM)


def config_of(
    text: str, rows: int, cols: int, dtype: DType, invariant: bool = False, backend: str = "triton"
) -> Config:
    row = Argument(dtype, (cols,), (1,))
    function = fusec.compile(text, batch_invariant=invariant)
    shared = len(function.inputs) - 1
    arguments = [Argument(dtype, (rows, cols), (cols, 1)), *[row] * shared]
    special = function.specialization(arguments)
    (laid,) = lay_out_all(special, arguments, dict(special.sizes(arguments)), {}, backend)[1]
    return laid.config


def test_short_rows_share_a_warp_unless_they_are_few() -> None:
    for text, rows, tile in (
        ("logsumexp(x)", 132, (1, 1024, 1)),
        ("logsumexp(x)", 2049, (2, 1024, 1)),
        (NORM, 132, (1, 1024, 2)),
        (NORM, 1 << 17, (1, 1024, 2)),
    ):
        config = config_of(text, rows, 1024, BF16)
        assert (config.block_rows, config.block_cols, config.warps) == tile
        assert config.early == (rows <= 2048)
    for cols, dtype, rows, warps in (
        (64, BF16, 16, 1),
        (256, F32, 2, 1),
        (1000, BF16, 1, 1),
        (4096, BF16, 1, 4),
        (4096, F32, 1, 16),
    ):
        config = config_of(NORM, 1 << 19, cols, dtype)
        assert (config.block_rows, config.warps) == (rows, warps)
    # Eight threads would have such a row among others, and 32 alone.
    assert config_of("logsumexp(x)", 132, 64, BF16).block_rows == 32


@pytest.mark.parametrize("cols", range(2, 10))
def test_rows_of_few_elements_are_taken_whole(cols: int) -> None:
    """By a thread, element by element, but where a load holds one or several."""
    whole = cols <= 7 and cols != 4
    for text in ("sum(x)", "max(x*x)", "mean(x)"):
        config = config_of(text, 1 << 20, cols, BF16)
        assert (config.block_cols == 1, config.resident) == (whole, not whole)
    for text in ("softmax(x)", "var(x)", "layer_norm(x, w, b)"):
        assert config_of(text, 1 << 20, cols, BF16).resident


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int32, torch.bool])
@pytest.mark.parametrize("cols", range(1, 9))
def test_rows_of_few_elements(cols: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(cols)
    x = torch.randint(-9, 9, (1100, cols), generator=generator).to(dtype)
    total, largest, least, product = fusec.compile(
        "sum(x), max(x), min(x), prod(x)", backend="triton"
    )(x)
    assert torch.equal(total, x.sum(-1, dtype=total.dtype))
    assert torch.equal(largest, x.amax(-1))
    assert torch.equal(least, x.amin(-1))
    assert torch.equal(product, x.prod(-1, dtype=torch.int64).to(product.dtype))
    for text, expected in (("sum(x)", total), ("max(x)", largest), ("min(x)", least)):
        function = fusec.compile(text, backend="triton")
        assert torch.equal(function(x), expected)
        assert torch.equal(function(x[:3]), expected[:3])
        assert torch.equal(function(x[7]), expected[7])
    if dtype.is_floating_point:
        mean = fusec.compile("mean(x)", backend="triton")
        assert torch.allclose(mean(x).double(), x.double().mean(-1), rtol=2**-8, atol=0)
        x[5], x[6, 0] = float("inf"), float("nan")
        found = fusec.compile("max(x)", backend="triton")(x)
        assert found[5] == float("inf")
        assert found[6].isnan()


@pytest.mark.parametrize("backend", ["triton", "cuda"])
@pytest.mark.parametrize("cols", [7, 63, 64, 1000, 1024, 4096, 4097, 40_000, 300_001])
def test_batch_invariance_asks_for_no_number_of_rows(cols: int, backend: str) -> None:
    def chosen(text: str, rows: int, dtype: DType) -> Config:
        config = config_of(text, rows, cols, dtype, invariant=True, backend=backend)
        # Offsets, and whether blocks stay, change no order of additions.
        stays = {"turns": False, "staged": (), "ahead": 0, "warps": 8, "blocks": 4, "block_rows": 1}
        return replace(config, wide_index=False, **stays if config.turns else {})

    for text in (*TEXTS, "softmax(x), sum(x)"):
        for dtype in (BF16, F32):
            many = chosen(text, 1 << 17, dtype)
            for rows in (1, 2, 8, 513):  # a row alone as well, whose tensor has no axis of rows
                assert chosen(text, rows, dtype) == many


@pytest.mark.parametrize("backend", ["triton", "cuda"])
@pytest.mark.parametrize("length", [63, 4096, 40_000])
def test_batch_invariance_asks_for_no_number_of_columns(length: int, backend: str) -> None:
    for text in ("sum(x, axis=0)", "softmax(x, axis=0)", "var(x, axis=0)"):
        configs = {
            config_of(text, length, columns, F32, invariant=True, backend=backend)
            for columns in (2, 8, 513)
        }
        assert len({replace(c, wide_index=False) for c in configs}) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["auto", "triton", "cuda"])
@pytest.mark.parametrize("cols", [7, 63, 64, 1000, 4097, 50_257, 300_001])
def test_a_batch_changes_no_bit(cols: int, backend: str) -> None:
    function = fusec.compile("softmax(x), sum(x), var(x)", backend=backend, batch_invariant=True)
    x = torch.randn(600, cols, device="cuda")
    many = function(x)
    for rows in (1, 2, 33):
        for few, all_rows in zip(function(x[:rows]), many, strict=True):
            assert same_bits(few, all_rows[:rows])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("cols", [64, 256, 1000, 1024, 4096])
@pytest.mark.parametrize("text", TEXTS)
def test_few_rows_have_the_bits_they_have_among_many(
    text: str, cols: int, dtype: torch.dtype
) -> None:
    function = fusec.compile(text, backend="triton")
    x = 3 * torch.randn(4097, cols, device="cuda", dtype=dtype)
    shared = [torch.randn(cols, device="cuda", dtype=dtype) for _ in function.inputs[1:]]
    many = function(x, *shared)
    for rows in (2, 9, 2048):
        assert same_bits(function(x[:rows], *shared), many[:rows])


def test_rows_that_share_weights_have_more_parts_where_they_are_longest() -> None:
    for text, rows, block, splits in (
        ("softmax(x)", 8, 8192, 512),
        (NORM, 8, 4096, 1024),
        (NORM, 32, 4096, 256),
        (NORM, 1, 8192, 512),  # nobody shares its weights
    ):
        config = config_of(text, rows, 1 << 22, F32)
        assert (config.block_cols, config.splits) == (block, splits)


def test_kernels_of_many_tensors_take_short_pieces_of_each() -> None:
    gate = "silu(x) * y"
    for text, block, warps in ((gate, 2048, 4), ("x*y + z*a, x*a", 1024, 8)):
        shape = (64, 4096)
        function = fusec.compile(text)
        arguments = [Argument(BF16, shape, (4096, 1)) for _ in function.inputs]
        special = function.specialization(arguments)
        sizes = dict(special.sizes(arguments))
        (laid,) = lay_out_all(special, arguments, sizes, {}, "triton")[1]
        assert (laid.config.block_cols, laid.config.warps) == (block, warps)


@pytest.mark.parametrize("length", [*range(2, 9), 17, 900])
@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("sum(x, axis=all)", (1, -1)),
        ("sum(x)", (1, -1)),
        ("max(x)", (-1,)),
        ("sum(x, axis=-2)", (-1, 1)),
        ("sum(x) + sum(y, axis=-2)", (-1, 1)),
        ("x + mean(y, axis=all)", (-1, 1)),
        ("var(x, axis=all)", (1, -1)),
    ],
)
@pytest.mark.parametrize("gap", [1, 2])
@pytest.mark.parametrize("invariant", [False, True])
def test_a_lone_row_is_all_that_a_program_takes(
    text: str, shape: tuple[int, ...], length: int, gap: int, invariant: bool
) -> None:
    """The guards around the memory of a call tell of stores beside it."""
    function = fusec.compile(text, backend="triton", batch_invariant=invariant)
    values = [torch.randn(length * gap)[::gap].view(shape) for _ in function.inputs]
    expected = fusec.compile(text, backend="cpp")(*values)
    torch.testing.assert_close(function(*values), expected, equal_nan=True)


@pytest.mark.parametrize("cols", [2, 3, 5, 6, 7])
def test_a_short_lone_row_has_the_bits_it_has_among_others(cols: int) -> None:
    function = fusec.compile("sum(x)", backend="triton", batch_invariant=True)
    x = torch.randn(600, cols)
    many = function(x)
    for few in (x[:1], x[0], x[:3]):
        assert same_bits(function(few).reshape(-1), many[: few.numel() // cols])
