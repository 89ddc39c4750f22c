"""What one kernel of shared rows has stored is read by the next, where that is fewer tensors."""

from __future__ import annotations

import pytest
import torch

import fusec
from tests.oracle import Backend, reference

COLS = 40_000  # shared out over programs
NORM = "h = x + r\nh * rsqrt(mean(h^2) + 1e-6), h"


def tensors(*names: str, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    seeded = torch.Generator().manual_seed(len(names))
    return tuple(torch.randn(3, COLS, generator=seeded).to(dtype) for _ in names)


def read_by_the_last(text: str, dtype: torch.dtype = torch.float32, rows: int = 3) -> str:
    """What the header of the last kernel says that it reads."""
    function = fusec.compile(text, backend="triton")
    shape = torch.empty(rows, 300_000, device="meta", dtype=dtype)
    source = function.show("triton", *[shape for _ in function.inputs])
    last = source[source.rindex("\nreads ") :]
    return last[: last.index(";")].removeprefix("\nreads ")


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        (NORM, "h f32, row_mean_parts f32"),
        ("h = x * r + x\nh - mean(h), h", "h f32, row_mean_parts f32"),
        # one tensor instead of one
        ("h = 2 * x\nh - mean(h), h", "x f32, row_mean_parts f32"),
        # both are needed beside it
        ("h = x + r\nx * r - mean(h), h", "x f32, r f32, row_mean_parts f32"),
        ("h = x + r\nx * mean(h) + h * r, h", "x f32, r f32, row_mean_parts f32"),
        # two results of three tensors
        ("h = x + r\nk = h * z\nk - mean(k), h, k", "k f32, row_mean_parts f32"),
    ],
)
def test_fewer_tensors_are_read(text: str, reads: str) -> None:
    assert read_by_the_last(text) == reads


def test_what_was_rounded_is_computed_again() -> None:
    assert read_by_the_last(NORM, torch.bfloat16) == "x bf16, r bf16, row_mean_parts f32"


@pytest.mark.parametrize("backend", ["triton", "cuda"])
@pytest.mark.parametrize(
    "text",
    [
        NORM,
        "x = x + r\nx * rsqrt(mean(x^2) + 1e-6), x",  # a result that is called as an input is
        "h = x + r\nk = h * z\nk - mean(k), h, k",
        "h = x + r\nsoftmax(h), h - max(h), h",
        "h = x * r\nvar(h) * h + sum(x, axis=0), h",
    ],
)
def test_results_are_those_of_the_formula(text: str, backend: str) -> None:
    function = fusec.compile(text)
    inputs = tensors(*function.inputs)
    results = Backend(backend, "cpu").run(text, *inputs)
    for result, expected in zip(results, reference(text, *inputs), strict=True):
        torch.testing.assert_close(result.double(), expected.double(), rtol=1e-5, atol=1e-5)


def test_given_results_are_read_where_they_lie() -> None:
    function = fusec.compile(NORM, backend="triton")
    x, r = tensors("x", "r")
    wide = torch.empty(3, 2 * COLS)
    outs = (torch.empty(3, COLS), wide[:, ::2])
    function(x, r, out=outs)
    for given, made in zip(outs, function(x, r), strict=True):
        assert torch.equal(given, made)
