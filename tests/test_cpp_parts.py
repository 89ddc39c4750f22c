"""The C++ backend's reductions of long rows and columns, which go in parts, and of rows so short
that they are lanes. Imports pytest, torch and fusec.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import fusec
from fusec import settings
from fusec.codegen.schedule_cpp import LANE_ROW, SHARED_COLUMN, SHARED_ROW, SHORT_ROW
from fusec.runtime.build_cpp import find_compiler

# Without a compiler there is no C++ backend, and nothing of it to test; .ci/run installs one.
pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")

INCLUDE = Path(fusec.__file__).parent / "codegen" / "include"
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-std=c++17")
REDUCTIONS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "sum(round(4*x){})": lambda x, axis: (4 * x).round().sum(axis),  # exact in float32
    "mean(x{})": lambda x, axis: x.mean(axis),
    "max(x{})": lambda x, axis: x.amax(axis),
    "min(x{})": lambda x, axis: x.amin(axis),
    "prod(sign(x){})": lambda x, axis: x.sign().prod(axis),
    "var(x{}, correction=0)": lambda x, axis: x.var(axis, correction=0),
    "logsumexp(x{})": lambda x, axis: x.logsumexp(axis),
    "any(x > 3.2{})": lambda x, axis: (x > 3.2).any(axis),
    "all(x > -4.5{})": lambda x, axis: (x > -4.5).all(axis),
}
FULL = {
    "softmax(x{})": lambda x, axis: x.softmax(axis),
    "x - mean(x{}, keepdim=true)": lambda x, axis: x - x.mean(axis, keepdim=True),
    "x * max(abs(x){}, keepdim=true)": lambda x, axis: x * x.abs().amax(axis, keepdim=True),
}
FORMULAS = {**REDUCTIONS, **FULL}
TOLERANCE = {torch.float32: 3e-6, torch.float64: 1e-13, torch.bfloat16: 9e-3}


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def check(formula: str, x: torch.Tensor, axis: int) -> torch.Tensor:
    """The result for ``x``, which is right and has the same bits on any number of threads."""
    function = fusec.compile(formula.format(f", axis={axis}"))
    found = []
    for threads in (1, 3):
        with settings.override(num_threads=threads):
            found.append(function(x))
    assert all(torch.equal(found[0], other) for other in found[1:])
    expected = FORMULAS[formula](x.double(), axis)
    if expected.dtype is torch.bool:
        assert torch.equal(found[0], expected)
    else:
        tolerance = TOLERANCE[x.dtype]
        torch.testing.assert_close(found[0].double(), expected, rtol=tolerance, atol=tolerance)
    return found[0]


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("cols", [SHARED_ROW - 1, SHARED_ROW, SHARED_ROW + 1, 200_003])
def test_long_rows(formula: str, cols: int) -> None:
    x = numbers(3, cols)
    together = check(formula, x, -1)
    assert torch.equal(together[1], check(formula, x[1], -1))  # nor do the other rows matter


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("length", [SHARED_COLUMN - 1, SHARED_COLUMN, SHARED_COLUMN + 1, 9001])
def test_long_columns(formula: str, length: int) -> None:
    x = numbers(length, 70)
    together = check(formula, x, 0)
    assert torch.equal(together[..., :40], check(formula, x[:, :40].clone(), 0))


@pytest.mark.parametrize("formula", ["sum(round(4*x){})", "mean(x{})", "softmax(x{})"])
@pytest.mark.parametrize("columns", [2047, 2048, 2049, 4100])
def test_stretches_of_columns(formula: str, columns: int) -> None:
    for length in (SHARED_COLUMN - 3, SHARED_COLUMN + 3):
        check(formula, numbers(length, columns), 0)


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("cols", [1, 2, 3, 8, SHORT_ROW, SHORT_ROW + 1, 31, LANE_ROW - 1, LANE_ROW])
def test_short_rows(formula: str, cols: int) -> None:
    for rows in (1, 2, 67, 2051):
        check(formula, numbers(rows, cols), -1)


def test_which_rows_are_lanes() -> None:
    def lanes(formula: str, cols: int, dtype: torch.dtype = torch.float32) -> bool:
        x = torch.empty(100, cols, dtype=dtype)
        return "fusec::ABREAST" in fusec.compile(formula, backend="cpp").show("cpp", x)

    assert [cols for cols in range(14, 67) if lanes("sum(x)", cols)] == list(range(14, 64))
    written = [cols for cols in range(14, 67) if lanes("softmax(x)", cols)]
    assert written == [cols for cols in range(14, 64) if cols not in (32, 48)]
    assert lanes("softmax(x)", 8, torch.float64)
    assert not lanes("softmax(x)", 16, torch.float64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("formula", ["mean(x{})", "max(x{})", "softmax(x{})"])
def test_other_types(formula: str, dtype: torch.dtype) -> None:
    for shape, axis in (((2, 70_001), -1), ((5003, 33), 0), ((300, 7), -1)):
        check(formula, numbers(*shape, dtype=dtype), axis)


@pytest.mark.parametrize(("shape", "axis"), [((2, 70_001), -1), ((5003, 33), 0), ((300, 7), -1)])
def test_whole_numbers(shape: tuple[int, int], axis: int) -> None:
    x = torch.randint(-99, 99, shape, generator=torch.Generator().manual_seed(1))
    for dtype in (torch.int64, torch.int32, torch.int8):
        function = fusec.compile(f"sum(x, axis={axis}), max(x, axis={axis})")
        total, largest = function(x.to(dtype))
        assert torch.equal(total, x.sum(axis))
        assert torch.equal(largest, x.amax(axis).to(dtype))


def test_everything_at_once() -> None:
    x, y = numbers(300, 1000), numbers(300, 1000)
    loss = fusec.compile("mean((x - y)^2, axis=all)", inputs=["x", "y"])
    expected = (x.double() - y.double()).square().mean()
    found = [loss(x, y), loss(x.reshape(-1), y.reshape(-1)), loss(x[None], y[None])]
    for value in found:
        assert torch.equal(value, found[0])
        torch.testing.assert_close(value.double(), expected, rtol=1e-7, atol=0)


@pytest.mark.parametrize(("shape", "axis"), [((2, 70_001), -1), ((5003, 33), 0), ((300, 7), -1)])
def test_not_a_number_is_kept(shape: tuple[int, int], axis: int) -> None:
    x = numbers(*shape)
    x[1, 5] = float("nan")
    for formula in ("mean(x{})", "max(x{})", "min(x{})", "softmax(x{})"):
        found = fusec.compile(formula.format(f", axis={axis}"))(x)
        expected = FORMULAS[formula](x, axis)
        assert torch.equal(found.isnan(), expected.isnan())


@pytest.mark.parametrize(("shape", "axis"), [((2, 70_001), -1), ((5003, 33), 0), ((300, 7), -1)])
def test_results_may_be_the_input(shape: tuple[int, int], axis: int) -> None:
    x = numbers(*shape)
    expected = x.double().softmax(axis).float()
    fusec.compile(f"softmax(x, axis={axis})")(x, out=x)
    torch.testing.assert_close(x, expected, rtol=3e-6, atol=1e-9)


def test_large_results_pass_the_caches() -> None:
    x = numbers(2, 2_100_001)
    function = fusec.compile("softmax(x)")
    assert "fusec::Block<float, BLOCK> out_block" in function.show("cpp", x)
    torch.testing.assert_close(function(x), x.double().softmax(-1).float(), rtol=3e-6, atol=1e-12)


def test_a_buffer_for_a_row_is_no_longer_than_pays() -> None:
    function = fusec.compile("exp(x) / sum(exp(x))")
    for cols, kept in ((1 << 22, True), (1 + (1 << 22), False)):
        source = function.show("cpp", torch.empty(2, cols, device="meta"))
        assert ("fusec::Row<float> exp_row(cols)" in source) is kept


def test_names_of_the_loops_are_free_for_inputs() -> None:
    names = ("parts", "team", "several", "part", "step")
    function = fusec.compile("sum(parts + team + several + part + step, axis=0)", inputs=names)
    values = [numbers(1500, 9) for _ in names]
    total = sum(value.double() for value in values)
    torch.testing.assert_close(function(*values).double(), total.sum(0), rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize(
    ("formula", "shape"),
    [
        ("softmax(x)", (8, 1 << 20)), ("mean(x^2, axis=all)", (4096, 4096)),
        ("sum(x, axis=0), max(x, axis=0)", (65536, 256)), ("softmax(x, axis=0)", (4096, 64)),
        ("var(x)", (8, 1 << 20)), ("softmax(tanh(x)), max(x)", (64, 1 << 17)),
        ("softmax(x)", (4096, 8)), ("var(x), x - mean(x)", (4096, 16)),
    ],
)  # fmt: skip
def test_sources_compile_without_a_warning(
    formula: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    compiler = find_compiler()
    assert compiler is not None
    source = fusec.compile(formula).show("cpp", torch.empty(shape, device="meta"))
    assert max(map(len, source.splitlines())) <= 100
    path = tmp_path / "kernel.cpp"
    path.write_text(source)
    for more in (["-fopenmp"], ["-Wno-unknown-pragmas", "-Wno-unused-parameter"]):
        command = [*compiler.command, *WARNINGS, *more, f"-I{INCLUDE}", str(path)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr) == (0, "")
