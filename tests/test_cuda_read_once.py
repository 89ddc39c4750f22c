"""Rows that CUDA C++ reads once, tile by tile, with running values in every thread: what is only
reduced needs no row in registers.
"""

from __future__ import annotations

import pytest
import torch

from fusec.codegen import schedule_cuda
from tests.oracle import EMULATED, Backend, assert_close, reduction_tolerance, reference

BOTH = pytest.mark.parametrize(
    "backend",
    [
        pytest.param(EMULATED, id="emulated"),
        pytest.param(Backend("cuda", "cuda"), id="gpu", marks=pytest.mark.gpu),
    ],
)
INF, NAN = float("inf"), float("nan")
ENTROPY = "p = softmax(x)\n-sum(p * log_softmax(x))"
# Whole tiles and none, a rest of whole vectors, and elements around those.
LENGTHS = [1025, 2048, 2049, 4096, 6151]


@pytest.fixture(autouse=True)
def short_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two warps, so that short rows have several tiles."""
    monkeypatch.setattr(schedule_cuda, "READ_COLUMNS", 1024)
    monkeypatch.setattr(schedule_cuda, "READ_THREADS", 64)


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (3 * torch.randn(*shape, generator=torch.Generator().manual_seed(0))).to(dtype)


def near(backend: Backend, text: str, *inputs: torch.Tensor) -> None:
    """Every result within the error of a good sum, relative to the largest there is."""
    x = inputs[0]
    results = backend.run(text, *inputs)
    for actual, expected in zip(results, reference(text, *inputs), strict=True):
        finite = expected[expected.isfinite()]
        most = finite.double().abs().amax() if finite.numel() else 1.0
        relative = 4 * reduction_tolerance(actual.dtype, x.shape[-1])
        assert_close(actual, expected, 1, absolute=relative * most, what=text)


@BOTH
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rows_read_once(
    backend: Backend,
    dtype: torch.dtype,
    length: int,
    shared: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Few rows are shared out over blocks, many are not."""
    parts = 2 if shared else 1
    monkeypatch.setattr(schedule_cuda, "splits_of", lambda *counts: parts)
    x, t = values(3, length, dtype=dtype), torch.tensor([0, length - 1, 7])
    near(backend, "logsumexp(x) - x[t]", x, t)
    near(backend, ENTROPY, x)
    near(backend, "max(x), logsumexp(2 * x + 1), sum(x)", x)


def rows_of_special_values(length: int) -> torch.Tensor:
    """Rows of infinities and NaN, alone and among others, in first and last places."""
    x = values(10, length, dtype=torch.bfloat16)
    x[0, 17] = x[1, 0] = x[2, -1] = NAN
    x[3] = -INF
    x[4, : length - 1] = -INF
    x[5, length // 2 :] = -INF
    x[6, 3] = INF
    x[7, -1], x[7, 0] = INF, -INF
    x[8] = 1e38
    x[8, 1] = -1e38
    x[9] = -5.0
    return x


@BOTH
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("length", [2048, 2049])
def test_special_values(
    backend: Backend, length: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN stays, an infinity gives what PyTorch gives, and parts of nothing but -inf count as 0."""
    parts = 2 if shared else 1
    monkeypatch.setattr(schedule_cuda, "splits_of", lambda *counts: parts)
    x = rows_of_special_values(length)
    for text in ("logsumexp(x)", "max(x)", "log(sum(exp(x - max(x))))", "logsumexp(0.5 * x)"):
        near(backend, text, x)
    finite = x.clone()
    finite[finite == -INF] = -1e38  # 0 times -inf is no number, in PyTorch as here
    near(backend, ENTROPY, finite)
    near(backend, ENTROPY, x)


@BOTH
def test_an_entropy_keeps_its_digits_far_from_zero(backend: Backend) -> None:
    """What one element outweighs has an entropy near 0, wherever that element is."""
    x = values(4, 2049)
    x[1, 5], x[2, 2048], x[3] = 60.0, 3e4, x[3] + 1e4
    actual, expected = backend.one(ENTROPY, x), reference(ENTROPY, x)[0]
    assert_close(actual, expected, 64, absolute=2e-6, what=ENTROPY)


@BOTH
@pytest.mark.parametrize("length", [2048, 2049])
def test_the_same_bits_in_any_batch(backend: Backend, length: int) -> None:
    """Neither how many rows there are nor where one begins in memory decides, where that is asked
    for.
    """
    text = "p = softmax(x)\nlogsumexp(x), -sum(p * log_softmax(x))"
    function = backend.compile(text, batch_invariant=True)
    x = values(9, length, dtype=torch.bfloat16)
    many = function(backend.place(x))
    for row in (0, 3, 8):
        alone = function(backend.place(x[row : row + 1].clone()))
        for one, all_rows in zip(alone, many, strict=True):
            assert torch.equal(one, all_rows[row : row + 1])
