"""Sums over rows that the kernel of the rows takes along, as the backward of a norm has them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import fusec
from fusec import settings
from fusec.codegen import schedule
from fusec.codegen.kernel import Config
from fusec.ir.dtypes import BF16, F32
from fusec.runtime.specialize import Argument, lay_out_all
from tests.formulas import run_all, same_bits
from tests.programs_oracle import unwritten_is_nan

NORM = """
gw = g * w
d = x - m
gw * r - sum(gw) * r - d * r * r * sum(gw * d), sum(g * (d * r), axis=0), 2 * sum(g, axis=0)
"""
BACKENDS = ("cpp", "triton")


def inputs(rows: int, cols: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows + cols)
    shapes = {"g": (rows, cols), "w": (cols,), "x": (rows, cols), "m": (rows, 1), "r": (rows, 1)}
    return {n: torch.randn(s, generator=generator).to(dtype) for n, s in shapes.items()}


def compare(text: str, values: dict[str, Any], backend: str) -> fusec.CompiledFunction:
    function = fusec.compile(text, backend=backend, inputs=list(values))
    exact = run_all(text, precision="float64", **values)
    results = function(**values)
    results = results if isinstance(results, tuple) else (results,)
    for got, want in zip(results, exact, strict=True):
        # float32 sums of up to 2048 terms; 16-bit results are rounded once
        step = max(torch.finfo(got.dtype).eps, 2.0**-20)
        assert (got.double() - want).abs().max().item() <= step * want.abs().max().item()
    return function


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "cols"), [(64, 1024), (37, 1030), (50, 2048), (17, 1025)])
def test_sums_are_right(rows: int, cols: int, dtype: torch.dtype, backend: str) -> None:
    function = compare(NORM, inputs(rows, cols, dtype), backend)
    assert [v.kernel for v in function.variants] == ["kernel_1", "kernel_2"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", [1, 2, 15, 16, 33])
def test_few_rows(rows: int, backend: str) -> None:
    compare(NORM, inputs(rows, 1024), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "text",
    [
        "sum(x), sum(x, axis=0)",
        "max(x), sum(x * x, axis=0)",
        "x / sum(x * x), exp(sum(x, axis=0) * 0.01)",
        "softmax(x), sum(softmax(x), axis=0)",  # the sum waits for another one: two kernels of rows
        "sum(x), sum(x * sum(x, axis=0), axis=0)",
        "sum(x), sum(x, axis=0), sum(x * x, axis=0), max(x, axis=0)",
        "sum(x), sum(x * index(-1), axis=0)",
        "sum(x), sum(x * index(0), axis=0)",
        "softmax(x), sum(x / (index(0) + 1), axis=0), max(x + index(-2) * 0.5)",
        "sum(where(index(0) > 7, x, 0)), sum(x * (2 * index(0) + index(-1)), axis=0)",
    ],
)
def test_other_programs(text: str, backend: str) -> None:
    x = torch.rand(40, 1100, generator=torch.Generator().manual_seed(1)) + 0.5
    compare(text, {"x": x}, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_more_axes_and_layouts(backend: str) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(4, 9, 1100, generator=generator) + 0.5
    compare("x / sum(x), sum(x * x, axis=(0, 1))", {"x": x}, backend)
    compare("x / sum(x, axis=(1, 2)), sum(x * x, axis=0)", {"x": x}, backend)
    compare("x / sum(x), sum(x * x, axis=(0, 1))", {"x": x.transpose(0, 1)}, backend)
    compare("x / sum(x), sum(x * x, axis=0)", {"x": x[0].repeat(4, 1).t()}, backend)


# The gradient of a norm beside a residual: it is added up too, for the bias of what comes before.
RESIDUAL = """
gw = g * w
d = x - m
dx = gw * r - sum(gw) * r - d * r * r * sum(gw * d) + e
dx, sum(dx, axis=0), sum(g * (d * r), axis=0), 2 * sum(g, axis=0) + 1
"""


def residual_inputs(rows: int, cols: int) -> dict[str, torch.Tensor]:
    found = inputs(rows, cols)
    return {**found, "e": torch.randn(rows, cols, generator=torch.Generator().manual_seed(1))}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("rows", "cols"), [(40, 1024), (100, 1100)])
def test_what_rows_come_to_is_added_up_too(rows: int, cols: int, backend: str) -> None:
    before = fusec.stats().compiles
    compare(RESIDUAL, residual_inputs(rows, cols), backend)
    assert fusec.stats().compiles - before == 2
    compare("y = x / sum(x)\ny, sum(y, axis=0)", {"x": torch.rand(rows, cols) + 0.5}, backend)


def test_as_many_columns_are_carried_as_registers_do_for() -> None:
    for cols, columns, kernels in ((4096, 3, 2), (8192, 2, 3), (16384, 0, 3)):
        values = residual_inputs(2, 8)
        shapes = {"w": (cols,), "m": (512, 1), "r": (512, 1)}
        given = {n: shapes.get(n, (512, cols)) for n in values}
        arguments = [
            Argument(F32, s, torch.empty(s, device="meta").stride()) for s in given.values()
        ]
        special = fusec.compile(RESIDUAL, inputs=list(given)).specialization(arguments)
        _, laid, _ = lay_out_all(special, arguments, dict(special.sizes(arguments)), {}, "triton")
        assert len(laid) == kernels
        assert max(len(one.region.columns) for one in laid) == columns


def test_each_tensor_is_read_once() -> None:
    meta = {n: torch.empty_like(v, device="meta") for n, v in inputs(512, 4096).items()}
    function = fusec.compile(NORM, inputs=list(meta))
    source = function.show("triton", *meta.values())
    for name in ("g", "x", "w", "m", "r"):
        assert source.count(f"tl.load({name}_ptr") == 1
    # Programs take rows in turns, with some rows on their way, and combine two sums in one step.
    assert "for row in tl.range(program, rows, tl.num_programs(0), num_stages=3):" in source
    assert source.count("combine_fn=_add_both") == 1
    assert "tl.sum(" not in source.partition("store the sums")[0]
    assert "atomic" not in source
    assert "adds up" in function.show("plan", *meta.values())


def test_rows_that_leave_no_registers_have_kernels_of_their_own() -> None:
    meta = {n: torch.empty_like(v, device="meta") for n, v in inputs(64, 16384).items()}
    source = fusec.compile(NORM, inputs=list(meta)).show("triton", *meta.values())
    assert source.count("tl.load(x_ptr") >= 2


def test_threads_change_nothing() -> None:
    values = inputs(300, 1024)
    found = []
    for threads in (1, 2, 5):
        with settings.override(num_threads=threads):
            found.append(fusec.compile(NORM, inputs=list(values))(**values))
    for other in found[1:]:
        assert all(same_bits(a, b) for a, b in zip(found[0], other, strict=True))


def test_the_number_of_blocks_depends_on_the_rows_alone() -> None:
    for backend in ("cpp", "triton"):
        rows = [SimpleNamespace(rows=n) for n in (1, 16, 100, 10**6)]
        counts = [schedule.carrying(Config(), (), cast("Any", n), backend).chunks for n in rows]
        assert counts == sorted(counts)
        assert counts[0] == 0


@pytest.mark.parametrize(
    ("cols", "dtype", "programs", "warps", "stages"),
    [
        (1024, torch.bfloat16, 396, 4, 5),
        (2048, torch.bfloat16, 264, 8, 5),
        (4096, torch.bfloat16, 132, 8, 5),
        (8192, torch.bfloat16, 132, 16, 3),
        (4096, torch.float32, 132, 16, 3),
    ],
)
def test_what_was_quickest_on_an_h200(
    cols: int, dtype: torch.dtype, programs: int, warps: int, stages: int
) -> None:
    meta = {n: v.to("meta") for n, v in inputs(32768, 1, dtype).items()}
    meta |= {n: torch.empty(32768, cols, dtype=dtype, device="meta") for n in ("g", "x")}
    meta["w"] = torch.empty(cols, dtype=dtype, device="meta")
    shown = fusec.compile(NORM, inputs=list(meta)).show("kernel", *meta.values())
    assert f"tile 1 x {cols}, {warps} warps" in shown
    source = fusec.compile(NORM, inputs=list(meta)).show("triton", *meta.values())
    assert f"num_stages={stages}):" in source
    kind = BF16 if dtype is torch.bfloat16 else F32
    arguments = [Argument(kind, tuple(v.shape), v.stride()) for v in meta.values()]
    special = fusec.compile(NORM, inputs=list(meta)).specialization(arguments)
    _, laid, _ = lay_out_all(special, arguments, dict(special.sizes(arguments)), {}, "triton")
    assert [one.config.chunks for one in laid] == [programs, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_backward_of_a_norm_is_two_kernels(backend: str) -> None:
    function = fusec.compile("layer_norm(x, w, b)", backend=backend)
    generator = torch.Generator().manual_seed(3)
    x, w, b = (
        torch.randn(s, generator=generator).requires_grad_() for s in ((40, 1024), 1024, 1024)
    )
    given = torch.randn(40, 1024, generator=generator)
    before = fusec.stats().compiles
    got = torch.autograd.grad(function(x, w, b), [x, w, b], given)
    assert fusec.stats().compiles - before == 3  # forward, rows with their sums, the sums' sum
    double = [v.detach().double().requires_grad_() for v in (x, w, b)]
    exact = torch.nn.functional.layer_norm(double[0], (1024,), double[1], double[2])
    want = torch.autograd.grad(exact, double, given.double())
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5)


WHOLE = (
    "exp(x), sum(x, axis=0), sum(x)",
    "sum(x, axis=0), sum(x), x*2",
    "x - sum(x, axis=0), sum(x)",
    "s = sum(x, axis=0)\ns, sum(x), exp(s) * 2, x * s",
    "s = sum(x, axis=0)\nsum(x), s, softmax(x * s)",
    "s = sum(x, axis=0)\nsum(x), s, max(x * s, axis=0)",
    "s = sum(x, axis=0)\nt = sum(x)\ns, t, x * s * t, max(x + t, axis=0)",
    "a = exp(x)\na, sum(a, axis=0), sum(a), max(a)",
    "a = exp(x)\nsum(a, axis=0), softmax(a), a",
    "a = exp(x)\na, sum(a, axis=0), sum(x) * sum(a * x)",
    "x * 2, x * w, sum(x * w, axis=0), sum(x)",
    "sum(x * w, axis=0), sum(x * w), x * 2, w * 2, sum(x * w, axis=0) * w",
)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("text", WHOLE)
def test_what_rows_have_beside_the_sums_is_written(text: str, backend: str) -> None:
    generator = torch.Generator().manual_seed(len(text))
    x, w = (0.05 * torch.randn(s, generator=generator) for s in ((600, 65), (65,)))
    with unwritten_is_nan():
        compare(text, {"x": x, "w": w} if "w" in text else {"x": x}, backend)


def test_a_row_has_what_does_not_wait_for_the_sums() -> None:
    x = torch.randn(600, 64)
    for text, names in (
        ("exp(x), sum(x, axis=0), sum(x)", ["kernel_2", "kernel_1"]),
        ("x - sum(x, axis=0), sum(x)", ["kernel_1", "kernel_2"]),
    ):
        function = fusec.compile(text, backend="cpp")
        function(x)
        assert [v.kernel for v in function.variants] == names


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_that_are_summed_over_rows_and_over_columns(backend: str) -> None:
    generator = torch.Generator().manual_seed(4)
    kind = {"generator": generator, "dtype": torch.float64}
    x, w, b = (torch.randn(s, **kind).requires_grad_() for s in ((1024, 33), (33,), (1024, 1)))
    given = torch.randn(1024, 33, **kind)
    function = fusec.compile("tanh(x * w) + b * x", backend=backend)
    with unwritten_is_nan():
        got = torch.autograd.grad(function(x, w, b), [x, w, b], given)
    want = torch.autograd.grad(torch.tanh(x * w) + b * x, [x, w, b], given)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "cols"), [(4096, 4096), (1000, 1030), (8192, 8192), (37, 2048)])
def test_sums_on_the_gpu(rows: int, cols: int, dtype: torch.dtype) -> None:
    values = {n: v.cuda() for n, v in inputs(rows, cols, dtype).items()}
    function = fusec.compile(NORM, inputs=list(values))
    exact = run_all(NORM, precision="float64", **values)
    first = function(**values)
    for got, want in zip(first, exact, strict=True):
        step = max(torch.finfo(got.dtype).eps, 2.0**-18)
        assert (got.double() - want).abs().max().item() <= step * want.abs().max().item()
    for again, before in zip(function(**values), first, strict=True):
        assert torch.equal(again, before)
