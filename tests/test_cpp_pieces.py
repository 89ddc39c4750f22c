"""Long rows that the C++ backend reads once: in pieces, each swept twice from a cache. Imports
pytest, torch and fusec.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import fusec
from fusec import settings
from fusec.codegen.schedule_cpp import SHARED_ROW
from fusec.runtime.build_cpp import find_compiler

# Without a compiler there is no C++ backend, and nothing of it to test; .ci/run installs one.
pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")

PIECE = 4096
COLS = 70_001  # five parts, the last of which ends with a piece that is not whole
ENTROPY = "p = softmax(x); m = max(x); d = x - m; s = sum(exp(d)); log(s) - sum(exp(d) * d) / s"


def entropy(x: torch.Tensor) -> torch.Tensor:
    below = x - x.amax(-1, keepdim=True)
    total = below.exp().sum(-1)
    return total.log() - (below.exp() * below).sum(-1) / total


Reference = Callable[[torch.Tensor], torch.Tensor]
IN_ONE_SWEEP: dict[str, Reference] = {
    "var(x)": lambda x: x.var(-1),
    "std(x, correction=0)": lambda x: x.std(-1, correction=0),
    "sqrt(sum((x - mean(x))^2))": lambda x: (x - x.mean(-1, keepdim=True)).norm(dim=-1),
    "logsumexp(x)": lambda x: x.logsumexp(-1),
    "sum(exp(x - max(x)))": lambda x: (x - x.amax(-1, keepdim=True)).exp().sum(-1),
    ENTROPY: entropy,
}
WRITTEN: dict[str, Reference] = {
    "softmax(x)": lambda x: x.softmax(-1),
    "layer_norm(x)": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
}
FORMULAS = {**IN_ONE_SWEEP, **WRITTEN}
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4, torch.float64: 1e-13}


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


DATA: dict[str, Callable[[], torch.Tensor]] = {
    "normal": lambda: numbers(2, COLS),
    "rising": lambda: numbers(2, COLS) + torch.linspace(-50, 50, COLS, dtype=torch.float64),
    "falling": lambda: numbers(2, COLS) - torch.linspace(-50, 50, COLS, dtype=torch.float64),
    "one above all": lambda: numbers(2, COLS).index_fill(1, torch.tensor([COLS - 1]), 80.0),
}


@pytest.mark.parametrize("formula", FORMULAS)
def test_memory_is_swept_once(formula: str) -> None:
    """What does not write along the row has one loop over its parts, what does one more."""
    long, short = (torch.empty(4, cols, device="meta") for cols in (SHARED_ROW, SHARED_ROW - 1))
    source = fusec.compile(formula).show("cpp", long)
    assert source.count("parts.begin(part)") == 1 + (formula in WRITTEN)
    assert source.count("piece += fusec::PIECE") == 1
    assert "fusec::PIECE" not in fusec.compile(formula).show("cpp", short)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("formula", FORMULAS)
def test_results(formula: str, data: str, dtype: torch.dtype) -> None:
    x = DATA[data]().to(dtype)
    expected = FORMULAS[formula](x.double())
    found = fusec.compile(formula)(x)
    assert found.dtype is dtype
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("formula", ["var(x)", "std(x, correction=0)", "logsumexp(x)"])
def test_rows_far_from_zero(formula: str) -> None:
    """Also where float32 has no room for the mean, and where halves of a row are far apart."""
    x = (1e4 + numbers(4, 1 << 18)).float()
    x[1, 1 << 17 :] *= 0.5
    x[2] = 16777216.0
    x[2, ::2] += 2
    x[3] -= 2e4
    expected = FORMULAS[formula](x.double())
    torch.testing.assert_close(fusec.compile(formula)(x).double(), expected, rtol=2e-7, atol=0)


@pytest.mark.parametrize("value", [0.1, -1e4 / 3, 1e30, 1e-30])
@pytest.mark.parametrize("cols", [SHARED_ROW, COLS])
def test_equal_elements_have_no_variance(value: float, cols: int) -> None:
    x = torch.full((2, cols), value)
    mean, variance, deviation = fusec.compile("mean(x), var(x), std(x)")(x)
    assert torch.equal(mean, x[:, 0])
    assert torch.equal(variance, torch.zeros(2))
    assert torch.equal(deviation, torch.zeros(2))


def test_equal_elements_of_float64_have_a_deviation() -> None:
    """Around a mean that is rounded, less than nothing may be left of it: that counts as 0."""
    values = torch.rand(400, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    deviation = fusec.compile("std(x)")(values.expand(-1, COLS).contiguous())
    assert deviation.max() < 1e-14  # and so none is NaN


@pytest.mark.parametrize("formula", FORMULAS)
def test_bits_depend_on_the_row_alone(formula: str) -> None:
    x = numbers(7, COLS).float()
    function = fusec.compile(formula)
    found = []
    for threads in (1, 2, 3, 5):
        with settings.override(num_threads=threads):
            found += [function(x), torch.stack([function(row) for row in x])]
    assert all(torch.equal(found[0], other) for other in found[1:])


PLACES = (0, PIECE - 1, PIECE, 16384, COLS // 2, COLS - 1)
SPECIAL = (math.nan, math.inf, -math.inf, 1e38, -1e38)


def same_kind(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal in what is no number or infinite, and near in the rest."""
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isposinf(), expected.isposinf())
    assert torch.equal(found.isneginf(), expected.isneginf())
    finite = expected.isfinite()
    torch.testing.assert_close(found[finite], expected[finite], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_special_values_do_as_in_a_short_row(formula: str, dtype: torch.dtype) -> None:
    """The same elements in a row that goes in one piece, where the reductions take a sweep each."""
    rows = []
    for first in SPECIAL:
        for second in SPECIAL:
            for place, other in zip(PLACES, PLACES[1:] + PLACES[:1], strict=True):
                row = numbers(COLS).to(dtype)
                row[place], row[other] = first, second
                rows.append(row)
    x = torch.stack(rows)
    short = x[:, list(PLACES)].contiguous()
    found, expected = (fusec.compile(formula)(v) for v in (x, short))
    if formula in WRITTEN:
        found = found[:, list(PLACES)]
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(kind(found), kind(expected))


@pytest.mark.parametrize("formula", FORMULAS)
def test_rows_of_infinities(formula: str) -> None:
    x = torch.full((4, COLS), -math.inf)
    x[1] = math.inf
    x[2, -1] = 1.5  # a maximum in the last piece alone
    x[3, :PIECE] = -1000.0  # and far below 0, in the first alone
    same_kind(fusec.compile(formula)(x), FORMULAS[formula](x))


def test_sums_that_overflow_float64() -> None:
    """As where each reduction has a sweep: the mean is not finite, and no more is the variance."""
    x = torch.full((1, COLS), 1e308, dtype=torch.float64)
    mean, variance = fusec.compile("mean(x), var(x)")(x)
    assert (mean.item(), variance.item()) == (math.inf, math.inf)


def test_deviations_as_large_as_their_squares_fit() -> None:
    x = torch.full((1, COLS), 1e19)
    x[:, ::2] = -1e19
    expected = x.double().var(-1)
    torch.testing.assert_close(fusec.compile("var(x)")(x).double(), expected, rtol=1e-6, atol=0)


def test_pairs_and_others_in_one_sweep() -> None:
    x, w, t = (
        numbers(3, COLS).float(),
        numbers(COLS, seed=1).float(),
        torch.tensor([0, 5, COLS - 1]),
    )
    formula = "y = x*w + 1; logsumexp(y) - y[t], var(x), max(x), sum(x*x), mean(w*x), x - w"
    function = fusec.compile(formula, inputs=["x", "w", "t"])
    assert function.show("cpp", x, w, t).count("parts.begin(part)") == 1
    X, W = x.double(), w.double()
    Y = X * W + 1
    picked = Y.gather(1, t[:, None])[:, 0]
    expected = (
        Y.logsumexp(1) - picked,
        X.var(1),
        X.amax(1),
        (X * X).sum(1),
        (W * X).mean(1),
        X - W,
    )
    for found, wanted in zip(function(x, w, t), expected, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)


def test_costly_values_wait_for_the_second_sweep() -> None:
    x = 40 * numbers(2, COLS).float()
    function = fusec.compile("logsumexp(30 * tanh(x / 30))")
    source = function.show("cpp", x)
    assert source.count("tanh(x") == 1 + source.splitlines()[0].count("tanh(x")
    assert "(fusec::PIECE);" in source
    kernel = fusec.compile("logsumexp(30 * tanh(x / 30))", backend="cpp").show("kernel", x)
    pieces = kernel[kernel.index("for each piece of the row:") :]
    assert pieces.index("keep row_sum_terms") < pieces.index("recall row_sum_terms")
    expected = (30 * (x.double() / 30).tanh()).logsumexp(1)
    torch.testing.assert_close(function(x).double(), expected, rtol=1e-6, atol=0)


def test_positions_and_merged_axes() -> None:
    x = numbers(5, 3, 40_000).float()
    seen = fusec.compile("logsumexp(where(index(-1) <= 9000*index(-2), x, -inf))")
    mask = torch.arange(40_000) <= 9000 * torch.arange(3)[:, None]
    expected = x.double().masked_fill(~mask, -math.inf).logsumexp(-1)
    torch.testing.assert_close(seen(x).double(), expected, rtol=1e-6, atol=0)
    planes = fusec.compile("var(x, axis=(-2, -1))")
    apart = x[:, :, ::2]
    found, wanted = planes(apart), apart.double().var((-2, -1))
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=0)


def test_names_of_pieces_are_free_for_inputs() -> None:
    names = ("piece", "piece_end", "apart", "row_mean_piece")
    values = [numbers(2, COLS, seed=k).float() for k in range(4)]
    total = sum(value.double() for value in values)
    found = fusec.compile("var(piece + piece_end + apart + row_mean_piece)", inputs=names)(*values)
    torch.testing.assert_close(found.double(), total.var(-1), rtol=1e-6, atol=0)
