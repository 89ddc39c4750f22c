"""Integer arithmetic of CUDA C++ wraps as PyTorch's does, and never overflows as C++ sees it.

nvcc and NVRTC take signed overflow for impossible and have no option that says otherwise, so a
right result here is not enough: the emulated kernels are compiled with checks for undefined
behaviour as well, and the machine code is looked at where a compiler would fold a comparison.
"""

from __future__ import annotations

import re

import pytest
import torch

import fusec
from fusec.runtime import emulate_cuda
from fusec.runtime.build_cuda import find_compiler
from tests.oracle import EMULATED, Backend, dtype_of, integers, pairs, same

SIGNED = ("int64", "int32", "int16", "int8")
BOTH = pytest.mark.parametrize(
    "backend",
    [
        pytest.param(EMULATED, id="emulated"),
        pytest.param(Backend("cuda", "cuda"), id="gpu", marks=pytest.mark.gpu),
    ],
)
TEXTS = {
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
    "a * b": lambda a, b: a * b,
    "-a": lambda a, b: -a,
    "abs(a)": lambda a, b: a.abs(),
    "a * 3 - b + 7": lambda a, b: a * 3 - b + 7,
    "a + 1 > a": lambda a, b: a + 1 > a,
    "a - b < a": lambda a, b: a - b < a,
    "-a < 0": lambda a, b: -a < 0,
    "abs(a) >= 0": lambda a, b: a.abs() >= 0,
    "a * 2 // 2": lambda a, b: torch.div(a * 2, 2, rounding_mode="floor"),
}


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulated kernels say on stderr where something undefined happens."""
    flags = ("-O1", "-fno-openmp", "-w", "-fno-wrapv", "-fsanitize=undefined")
    monkeypatch.setattr(emulate_cuda, "_FLAGS", flags)


@BOTH
@pytest.mark.parametrize("name", SIGNED)
def test_arithmetic_wraps(
    backend: Backend, name: str, checked: None, capfd: pytest.CaptureFixture[str]
) -> None:
    a, b = pairs(integers(dtype_of(name)), integers(dtype_of(name)))
    together = list(TEXTS)
    results = backend.run(", ".join(together), a, b)
    for text, actual in zip(together, results, strict=True):
        same(actual, TEXTS[text](a, b), f"{text} of {name}")
    assert capfd.readouterr().err == ""


@BOTH
@pytest.mark.parametrize("length", [7, 100, 1500, 40000])
def test_sums_and_products_wrap(
    backend: Backend, length: int, checked: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """Among lanes, warps and blocks: each joins what its threads have."""
    x = torch.full((3, length), torch.iinfo(torch.int64).max)
    x[1] = torch.iinfo(torch.int64).min
    x[2] = torch.arange(length) * 2 + 3
    total, product, mixed = backend.run("sum(x), prod(x), sum(x * x - 1)", x)
    same(total, x.sum(-1), "sum")
    same(product, x.prod(-1), "prod")
    same(mixed, (x * x - 1).sum(-1), "sum of products")
    assert capfd.readouterr().err == ""


@BOTH
def test_columns_and_positions_wrap(
    backend: Backend, checked: None, capfd: pytest.CaptureFixture[str]
) -> None:
    x = torch.full((70, 33), torch.iinfo(torch.int64).max)
    total, moved = backend.run("sum(x, axis=0), x + index(-1) * 3 - index(-2)", x)
    same(total, x.sum(0))
    same(moved, x + torch.arange(33) * 3 - torch.arange(70)[:, None])
    assert capfd.readouterr().err == ""


def test_the_checks_see_an_overflow(checked: None, capfd: pytest.CaptureFixture[str]) -> None:
    """A kernel with a plain sum in the place of the one that wraps is caught."""
    wrapping = emulate_cuda.HELPERS["wrapping_add"]
    plain = wrapping.replace("static_cast<Bits>(a) + static_cast<Bits>(b)", "a + b")
    assert plain != wrapping
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(emulate_cuda.HELPERS, "wrapping_add", plain)
        EMULATED.run("a + 2", torch.full((5,), torch.iinfo(torch.int32).max, dtype=torch.int32))
    assert "signed integer overflow" in capfd.readouterr().err


@pytest.mark.skipif(find_compiler() is None, reason="neither NVRTC nor nvcc is installed")
def test_a_compiler_folds_no_comparison() -> None:
    """``a + 1 > a`` is true wherever nothing overflows; here it depends on ``a``."""
    x = torch.empty(4096, dtype=torch.int32, device="meta")
    ptx = fusec.compile("x + 1 > x", backend="cuda").show("ptx", x)
    assert re.search(r"setp\.\w+\.s32", ptx)
    stored = re.findall(r"st\.global\.\S+\s+\[.*\], (.*);", ptx)
    assert stored
    assert not all(re.fullmatch(r"\{?(0|1|257|16843009)(, \d+)*\}?", value) for value in stored)
