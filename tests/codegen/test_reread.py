"""Rows that results need as they were read are read again, from the cache that was told to keep
them; what took a special function, and rows that are few or long, stay in registers.
"""

from __future__ import annotations

import re

import pytest
import torch

import fusec
from fusec.codegen import schedule
from tests.oracle import assert_close, reduction_tolerance, reference

NORM = "layer_norm(x, w, b)"
ADDED = "h = x + r\nh * rsqrt(mean(h^2) + 1e-6) * w, h"
SHARED = {"w", "b"}


def source(text: str, rows: int, cols: int, dtype: torch.dtype = torch.float32) -> str:
    """The Triton kernel of a formula for rows of data and what all of them share."""
    function = fusec.compile(text, backend="triton")
    shapes = [(cols,) if name in SHARED else (rows, cols) for name in function.inputs]
    return function.show("triton", *[torch.empty(s, device="meta", dtype=dtype) for s in shapes])


def told(text: str, rows: int = 1 << 15, cols: int = 4096) -> list[tuple[str, str]]:
    """What is loaded, in order, and what the caches are told of it."""
    loads = re.findall(
        r"(\w+) = tl\.load\((?:[^()]|\([^()]*\))*?(?:eviction_policy=\"(\w+)\")?\s*\)",
        source(text, rows, cols),
    )
    return [(str(name), str(policy)) for name, policy in loads]


TWICE, LAST = "evict_last", "evict_first"


@pytest.mark.parametrize(
    ("text", "loads"),
    [
        ("rms_norm(x, w)", [("x", TWICE), ("x", LAST), ("w", TWICE)]),
        (NORM, [("x", TWICE), ("x", LAST), ("w", TWICE), ("b", TWICE)]),
        (ADDED, [("x", TWICE), ("r", TWICE), ("x", LAST), ("r", LAST), ("w", TWICE)]),
        ("y * (g - sum(y * g))", [("y", TWICE), ("g", TWICE), ("y", LAST), ("g", LAST)]),
        ("log_softmax(x)", [("x", TWICE), ("x", LAST)]),
        ("softmax(x)", [("x", "")]),  # its exponentials are held
        ("exp(x) / sum(exp(x)) + x", [("x", TWICE), ("x", LAST)]),
        ("logsumexp(x)", [("x", "")]),
        ("y = x - mean(x)\ny * rsqrt(mean(y^2))", [("x", TWICE), ("x", LAST)]),
    ],
)
def test_which_rows_are_read_again(text: str, loads: list[tuple[str, str]]) -> None:
    assert sorted(told(text)) == sorted(loads)


@pytest.mark.parametrize(
    ("rows", "cols"),
    [(1 << 15, 4097), (1 << 15, 512), (2048, 4096), (1 << 13, 32768)],
    ids=["uneven", "short", "few", "long"],
)
def test_others_stay_in_registers(rows: int, cols: int) -> None:
    assert "evict" not in source(NORM, rows, cols)


@pytest.mark.parametrize("text", ["rms_norm(x + y + z, w)", "rms_norm(x + y + z + u + v, w)"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("cols", [1024, 2048])
def test_several_operands_make_a_power_of_two_of_warps(
    text: str, dtype: torch.dtype, cols: int
) -> None:
    """Triton takes no other, and three rows of a KiB each would have three."""
    function = fusec.compile(text, backend="triton")
    kinds = {"x": torch.float32}  # and with one of another type
    inputs = [
        torch.empty(cols if n in SHARED else (1 << 15, cols), device="meta",
                    dtype=kinds.get(n, dtype))
        for n in function.inputs
    ]  # fmt: skip
    assert "registers" in function.show("plan", *inputs, target="sm_90")


def test_what_is_gathered_from_is_no_row_that_is_read_again() -> None:
    x = torch.empty(1 << 15, 4096, device="meta")
    t = torch.empty(1 << 15, dtype=torch.int64, device="meta")
    loss = fusec.compile("logsumexp(x) - x[t]", backend="triton").show("kernel", x, t)
    assert "8 warps, resident, even\n" in loss
    logsumexp = fusec.compile("logsumexp(x)", backend="triton").show("kernel", x)
    assert "8 warps, resident, even\n" in logsumexp


def test_few_rows_are_reduced_as_many_are() -> None:
    """Their results have the bits that they have among many."""
    few, many = (warps(NORM, rows) for rows in (8, 1 << 15))
    assert few == many == 16


def test_the_kernel_says_so() -> None:
    x, w = torch.empty(1 << 15, 4096, device="meta"), torch.empty(4096, device="meta")
    norm = fusec.compile("rms_norm(x, w)", backend="triton")
    assert "resident, even, read again" in norm.show("kernel", x, w)
    assert "read again" not in norm.show("kernel", x[:8], w)


def warps(text: str, rows: int) -> int:
    function = fusec.compile(text, backend="triton")
    shapes = [(4096,) if name in SHARED else (rows, 4096) for name in function.inputs]
    tensors = [torch.empty(s, device="meta") for s in shapes]
    found = re.search(r"(\d+) warps", function.show("kernel", *tensors))
    assert found
    return int(found[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "text",
    [
        "rms_norm(x, w)",
        NORM,
        ADDED,
        "log_softmax(x)",
        "y * (g - sum(y * g))",
        "y = x - mean(x)\ny * rsqrt(mean(y^2)), max(y) - x, sum(x)",
        "s = softmax(x)\nx * sum(s * g) - s + exp(x)",
        "-sum(softmax(x) * log_softmax(x)) * x + var(x)",
    ],
)
def test_results_are_those_of_the_formula(
    text: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "FULL_GRID", 2)  # three rows are many
    monkeypatch.setattr(schedule, "REREAD_ROW_BYTES", 0)
    function = fusec.compile(text, backend="triton")
    generator = torch.Generator().manual_seed(len(text))
    inputs = [
        torch.randn((2048,) if name in SHARED else (3, 2048), generator=generator).to(dtype)
        for name in function.inputs
    ]
    assert "evict_first" in function.show("triton", *inputs)
    expected = reference(text, *inputs)
    results = function(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    for result, wanted in zip(results, expected, strict=True):
        most = wanted.double().abs().max()
        tolerance = 8 * reduction_tolerance(dtype, 2048)
        assert_close(result, wanted, 1, absolute=tolerance * most, what=text)
