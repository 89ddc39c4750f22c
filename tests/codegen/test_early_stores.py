"""Rows that many programs share: what waits for no reduction is written by the kernel that first
computes it, so that the one that combines the parts need not compute it again.
"""

from __future__ import annotations

import pytest
import torch

import fusec
from fusec.codegen.kernel import Kernel
from fusec.ir.dtypes import by_torch_name
from fusec.runtime.specialize import (
    Argument,
    kernel_of,
    lay_out_all,
    parts_of,
)

COLUMNS = "y = x * g; y, sum(y, axis=0)"
ROWS = "x - 1, x - mean(x), max(x), exp(x - max(x)) / sum(exp(x - max(x)))"


def kernels(text: str, shape: tuple[int, int], count: int, backend: str) -> list[Kernel]:
    """The kernels of a formula over contiguous float32 tensors."""
    compiled = fusec.compile(text)
    dtype = by_torch_name("float32")
    assert dtype is not None
    arguments = [Argument(dtype, shape, (shape[1], 1))] * count
    special = compiled.specialization(arguments)
    special, laid, _ = lay_out_all(special, arguments, special.sizes(arguments), {}, backend)
    return [kernel_of(special, one, part) for one in laid for part in parts_of(one)]


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_what_waits_for_nothing_is_written_first(backend: str) -> None:
    first, second = kernels(COLUMNS, (4096, 256), 2, backend)
    assert {p.buffer for p in first.pointers if p.written} >= {"y"}
    assert {p.buffer for p in first.pointers if not p.written} == {"x", "g"}
    read = {p.buffer for p in second.pointers if not p.written}
    assert not read & {"x", "g"}
    assert [p.buffer for p in second.pointers if p.written] == ["out"]
    assert first.divided
    assert not second.divided


def test_every_result_is_written_once() -> None:
    made = kernels(ROWS, (2, 1 << 18), 1, "triton")
    assert len(made) > 1
    written = [p.buffer for k in made for p in k.pointers if p.written]
    results = [name for name in written if not name.endswith("_parts")]
    assert sorted(set(results)) == sorted(results)
    assert len([n for n in results if n.startswith("out")]) == 4


@pytest.mark.parametrize("backend", ["triton", "cuda"])
@pytest.mark.parametrize(("text", "shape"), [(COLUMNS, (2048, 40)), (ROWS, (2, 40_001))])
def test_results_are_those_of_pytorch(backend: str, text: str, shape: tuple[int, int]) -> None:
    made = kernels(text, shape, 2 if text is COLUMNS else 1, backend)
    assert len(made) > 1 or (backend, text) == ("cuda", ROWS)  # there a cluster shares a row
    torch.manual_seed(0)
    x, g = torch.randn(2, *shape)
    inputs = (x, g) if text is COLUMNS else (x,)
    own = fusec.compile(text, backend=backend)(*inputs)
    wanted = fusec.compile(text, backend="torch")(*[i.double() for i in inputs])
    for result, exact in zip(own, wanted, strict=True):
        torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-4)


def test_a_result_may_be_written_over_what_is_read() -> None:
    torch.manual_seed(0)
    x, g = torch.randn(2, 2048, 40)
    before, sums = x.clone(), torch.empty(40)
    fusec.compile(COLUMNS, backend="triton")(x, g, out=(x, sums))
    assert torch.equal(x, before * g)
    exact = (before.double() * g.double()).sum(0)
    torch.testing.assert_close(sums.double(), exact, rtol=1e-5, atol=1e-4)
