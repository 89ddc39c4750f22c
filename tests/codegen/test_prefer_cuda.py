"""Where ``backend="auto"`` takes CUDA C++ on a GPU, and why."""

from __future__ import annotations

import pytest
import torch

import fusec

ODD, LONG = "rows of odd length", "registers of several blocks"
SHORT, ONCE = "threads that take several vectors of a short row", "a row that is read once"
SEVERAL = "threads that exchange little"
FOUND_AGAIN = "where(exp(x) == max(exp(x)), x, 0)"
ENTROPY = "p = softmax(x)\n-sum(p * log_softmax(x))"


@pytest.mark.parametrize(
    ("formula", "shape", "dtype", "reason"),
    [
        ("softmax(x)", (64, 4096), torch.bfloat16, None),
        ("softmax(x)", (64, 4097), torch.bfloat16, ODD),
        ("sum(x)", (64, 4097), torch.float32, ODD),
        ("sum(x)", (64, 4097), torch.int32, None),
        ("softmax(x)", (64, 100), torch.bfloat16, ODD),
        ("softmax(x)", (64, 104), torch.bfloat16, None),
        ("softmax(x)", (64, 15), torch.bfloat16, None),
        ("softmax(x)", (64, 17), torch.bfloat16, ODD),
        ("sum(x)", (64, 127), torch.bfloat16, None),
        ("sum(x)", (64, 129), torch.bfloat16, ODD),
        ("sum(x)", (64, 17), torch.float32, ODD),
        ("mean(x, axis=(0, 2))", (8, 64, 4097), torch.bfloat16, None),
        ("mean(x, axis=(0, 2))", (8, 64, 65536), torch.float32, None),
        ("mean(x, axis=(1, 2))", (64, 17, 17), torch.float32, ODD),
        ("softmax(x)", (64, 32768), torch.bfloat16, LONG),
        ("softmax(x)", (64, 32768), torch.float32, None),
        ("softmax(x)", (64, 65536), torch.float32, LONG),
        ("softmax(x)", (64, 64), torch.bfloat16, None),
        ("logsumexp(x)", (64, 64), torch.bfloat16, SHORT),
        ("var(x)", (64, 512), torch.bfloat16, SHORT),
        ("var(x)", (64, 520), torch.bfloat16, None),
        ("sum(x)", (64, 256), torch.float32, SHORT),
        ("sum(x)", (64, 257), torch.float32, ODD),
        ("sum(x)", (64, 16), torch.float32, None),
        ("logsumexp(x)", (64, 1024), torch.bfloat16, None),
        ("logsumexp(x)", (64, 16384), torch.bfloat16, LONG),
        ("logsumexp(x)", (64, 32768), torch.bfloat16, ONCE),
        ("logsumexp(x)", (64, 16384), torch.float32, None),
        ("logsumexp(x)", (64, 32768), torch.float32, ONCE),
        (ENTROPY, (64, 16), torch.bfloat16, None),
        (ENTROPY, (64, 1000), torch.bfloat16, SEVERAL),
        (ENTROPY, (64, 4096), torch.float32, SEVERAL),
        (ENTROPY, (64, 4100), torch.bfloat16, ODD),
        ("logsumexp(x)", (64, 50257), torch.bfloat16, ONCE),
        ("logsumexp(x)", (64, 131072), torch.float32, ONCE),
        (ENTROPY, (64, 1 << 22), torch.bfloat16, ONCE),
        ("sum(x)", (64, 131072), torch.bfloat16, LONG),
        ("sum(x)", (64, 262144), torch.bfloat16, None),
        ("softmax(x)", (8, 1 << 22), torch.float32, None),
        ("softmax(x)", (8, 1 << 22), torch.bfloat16, "a loop over a long row"),
        ("sum(x)", (8, (1 << 22) + 1), torch.bfloat16, ODD),
        ("sum(x)", ((1 << 26) + 1,), torch.float32, ODD),
        ("softmax(x)", (8, (1 << 22) + 1), torch.bfloat16, ODD),
        ("softmax(x)", (8, (1 << 22) + 1), torch.float32, ODD),
        ("logsumexp(x)", ((1 << 26) + 1,), torch.float32, ONCE),
        ("var(x)", ((1 << 26) + 1,), torch.float32, None),
        ("var(x)", ((1 << 26) + 1,), torch.bfloat16, ODD),
        ("sum(x, axis=0)", (4097, 64), torch.float32, None),
        ("x * 2", (64, 4097), torch.float32, None),
        ("max(exp(x))", (64, 4097), torch.float32, ODD),
        ("where(x == max(x), x, 0)", (64, 4097), torch.float32, ODD),
        (FOUND_AGAIN, (64, 4097), torch.float32, ODD),
        (f"y = {FOUND_AGAIN}\ny, sum(y, axis=0)", (64, 4097), torch.float32, None),
    ],
)
def test_what_runs_as_cuda(
    formula: str, shape: tuple[int, ...], dtype: torch.dtype, reason: str | None
) -> None:
    x = torch.empty(shape, dtype=dtype, device="meta")
    plan = fusec.compile(formula).show("plan", x)
    assert ("CUDA C++ on a GPU" in plan) == (reason is not None)
    if reason is not None:
        assert f"CUDA C++ on a GPU: {reason}" in plan


@pytest.mark.parametrize(("columns", "cuda"), [(16384, False), (32768, False), (65536, True)])
def test_two_rows_that_are_added_up(columns: int, cuda: bool) -> None:
    x, w = (torch.empty(*s, columns, dtype=torch.bfloat16, device="meta") for s in ((64,), ()))
    norm = fusec.compile("h = x + r\nh * rsqrt(mean(h^2) + 1e-6) * w, h")
    assert ("CUDA C++ on a GPU" in norm.show("plan", x, x, w)) == cuda


@pytest.mark.parametrize(("columns", "cuda"), [(33, True), (100, False), (513, True), (1028, True)])
def test_weights_across_vectors(columns: int, cuda: bool) -> None:
    """Triton's threads load 8 bytes of rows of 100 elements, and of weights that all rows share."""
    x, w = (torch.empty(*s, columns, dtype=torch.bfloat16, device="meta") for s in ((64,), ()))
    plan = fusec.compile("layer_norm(x, w, w)").show("plan", x, w)
    assert ("CUDA C++ on a GPU" in plan) == cuda


@pytest.mark.parametrize(("formula", "cuda"), [("softmax(x)", False), ("logsumexp(x)", True)])
@pytest.mark.parametrize(("columns", "apart"), [(30522, 30528), (1001, 1008)])
def test_rows_with_gaps_are_written_without(
    formula: str, cuda: bool, columns: int, apart: int
) -> None:
    """Rows of the result begin between wide loads and those of the operand do not: CUDA C++ would
    store single elements (0.66 ms for Triton's 0.28 over 50257 columns).
    """
    x = torch.empty_strided((64, columns), (apart, 1), dtype=torch.bfloat16, device="meta")
    assert ("CUDA C++ on a GPU" in fusec.compile(formula).show("plan", x)) == cuda


def test_long_rows_that_share_weights_stay() -> None:
    x, w = (torch.empty(*s, 1 << 22, dtype=torch.bfloat16, device="meta") for s in ((8,), ()))
    assert "CUDA C++ on a GPU" not in fusec.compile("rms_norm(x, w)").show("plan", x, w)


@pytest.mark.gpu
def test_the_choice_is_what_runs() -> None:
    f = fusec.compile("softmax(x)")
    for columns, backend in ((4096, "triton"), (4097, "cuda")):
        x = torch.randn(64, columns, device="cuda", dtype=torch.bfloat16)
        torch.testing.assert_close(f(x), torch.softmax(x, -1))
        assert f.variants[-1].backend == backend
