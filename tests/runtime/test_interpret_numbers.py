"""What Triton's interpreter computes in the helper process, compared with torch."""

import math

import pytest
import torch

from fusec.errors import BuildError
from fusec.runtime.build_triton import TritonProgram
from fusec.runtime.interpret import run_interpreted
from tests.runtime.kernels import HEADER, row_max_program

TRITON_NAMES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
    torch.bool: "i1",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
}
SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, 3e38, -65504.0, 0.1, 2.5]


def apply(body: str, *inputs: torch.Tensor, out: torch.dtype, helpers: str = "") -> torch.Tensor:
    """The value of expression `body` over blocks a, b, c loaded from 64 elements each."""
    names = "abc"[: len(inputs)]
    loads = "".join(f"    {name} = tl.load({name}_ptr + index)\n" for name in names)
    parameters = ", ".join(f"{name}_ptr" for name in names)
    source = (
        f"{HEADER}{helpers}@triton.jit\ndef k({parameters}, out_ptr):\n"
        f"    index = tl.arange(0, 64)\n{loads}    tl.store(out_ptr + index, {body})\n"
    )
    result = torch.empty(64, dtype=out)
    tensors = (*inputs, result)
    signature = tuple(
        (f"{name}_ptr", f"*{TRITON_NAMES[tensor.dtype]}")
        for name, tensor in zip((*names, "out"), tensors, strict=True)
    )
    run_interpreted(TritonProgram(source, "k", signature), (1, 1, 1), tensors)
    return result


def samples(dtype: torch.dtype = torch.float32, scale: float = 3.0, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(64, generator=generator, dtype=torch.float64) * scale
    values[: len(SPECIAL)] = torch.tensor(SPECIAL, dtype=torch.float64)
    return values.to(dtype)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    finite = ~expected.double().isnan()
    assert torch.equal(actual.double()[finite].signbit(), expected.double()[finite].signbit())


# ---- numbers ----


@pytest.mark.parametrize("target", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_float_conversions_round_as_torch(source: torch.dtype, target: torch.dtype) -> None:
    values = samples(source, scale=100.0)
    name = {"bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}[TRITON_NAMES[target]]
    same(apply(f"a.to(tl.{name})", values, out=target), values.to(target))


def test_ties_and_carries_round_to_even_in_bfloat16() -> None:
    bits = torch.arange(64, dtype=torch.int32) * 0x8000 + 0x3FFE0000 + torch.arange(64) % 3 - 1
    values = bits.to(torch.int32).view(torch.float32)
    same(apply("a.to(tl.bfloat16)", values, out=torch.bfloat16), values.bfloat16())


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
def test_float8_rounds_as_torch_and_saturates(kind: torch.dtype, source: torch.dtype) -> None:
    name = "float8e4nv" if kind is torch.float8_e4m3fn else "float8e5"
    values = samples(source, scale=50.0)
    largest = torch.finfo(kind).max
    expected = values.float().clamp(-largest, largest).to(kind)
    actual = apply(f"a.to(tl.{name})", values, out=kind)
    same(actual.float(), expected.float())
    small = (torch.arange(64) * torch.finfo(kind).tiny / 16).to(source)
    same(apply(f"a.to(tl.{name})", small, out=kind).float(), small.to(kind).float())


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_loads_exactly(kind: torch.dtype) -> None:
    for start in range(0, 256, 64):
        stored = torch.arange(start, start + 64, dtype=torch.uint8).view(kind)
        same(apply("a.to(tl.float32)", stored, out=torch.float32), stored.float())


@pytest.mark.parametrize("operation", ["+", "-", "*", "/"])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_narrow_arithmetic(operation: str, kind: torch.dtype) -> None:
    a, b = samples(kind), samples(kind, seed=1)
    expected = eval(f"a {operation} b")
    actual = apply(f"(a {operation} b).to(a.dtype)", a, b, out=kind)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def test_comparison_and_choice_of_bfloat16() -> None:
    a, b = samples(torch.bfloat16), samples(torch.bfloat16, seed=1)
    same(apply("tl.where(a < b, a, b)", a, b, out=a.dtype), torch.where(a < b, a, b))
    same(apply("(a * -1.0).to(a.dtype)", a, out=a.dtype), -a)
    same(apply("tl.abs(a)", a, out=a.dtype), a.abs())


def test_maximum_propagates_nan_when_asked() -> None:
    a, b = samples(), samples(seed=1).roll(5)
    keep = apply("tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)", a, b, out=torch.float32)
    torch.testing.assert_close(keep, torch.maximum(a, b), rtol=0, atol=0, equal_nan=True)
    lose = apply("tl.maximum(a, b)", a, b, out=torch.float32)
    torch.testing.assert_close(lose, torch.fmax(a, b), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", [torch.int8, torch.int32, torch.int64, torch.uint8])
def test_floats_become_integers_by_truncation(kind: torch.dtype) -> None:
    name = {"i8": "int8", "i32": "int32", "i64": "int64", "u8": "uint8"}[TRITON_NAMES[kind]]
    values = torch.linspace(-2.75 if kind.is_signed else 0.0, 99.9, 64)
    same(apply(f"a.to(tl.{name})", values, out=kind), values.to(kind))
    narrow = values.bfloat16()
    same(apply(f"a.to(tl.{name})", narrow, out=kind), narrow.to(kind))


def test_out_of_range_saturates_to_integers() -> None:
    values = torch.full((64,), math.nan)
    values[:5] = torch.tensor([math.inf, -math.inf, 1e30, -1e30, 2147483520.0])
    got = apply("a.to(tl.int32)", values, out=torch.int32)
    top, bottom = 2**31 - 1, -(2**31)
    assert got[:6].tolist() == [top, bottom, top, bottom, 2147483520, 0]
    got = apply("a.to(tl.int64)", values.double(), out=torch.int64)
    assert got[:4].tolist() == [2**63 - 1, -(2**63), 2**63 - 1, -(2**63)]


def test_integers_become_narrow_floats() -> None:
    values = torch.arange(64) * 37 - 999
    same(apply("a.to(tl.bfloat16)", values, out=torch.bfloat16), values.bfloat16())
    flags = values % 3 == 0
    same(apply("a.to(tl.bfloat16)", flags, out=torch.bfloat16), flags.bfloat16())
    same(apply("a < 5", values, out=torch.bool), values < 5)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_fma_rounds_once(kind: torch.dtype) -> None:
    # (1 + e)(1 - e) - 1 is -e^2, and 0 when the product is rounded first.
    e = 2.0 ** -torch.arange(10, 74, dtype=torch.float64).clamp(
        max=22 if kind.itemsize == 4 else 50
    )
    a, b, c = (1 + e).to(kind), (1 - e).to(kind), torch.full((64,), -1.0, dtype=kind)
    same(apply("tl.fma(a, b, c)", a, b, c, out=kind), (-e * e).to(kind))
    a, b, c = samples(kind), samples(kind, seed=1), samples(kind, seed=2)
    got = apply("tl.fma(a, b, c)", a, b, c, out=kind)
    torch.testing.assert_close(got, a * b + c, equal_nan=True)


@pytest.mark.parametrize(
    ("body", "function"),
    [
        ("tl.exp(a)", torch.exp),
        ("tl.exp2(a)", torch.exp2),
        ("tl.log(a)", torch.log),
        ("tl.sqrt_rn(a)", torch.sqrt),
        ("tl.rsqrt(a)", torch.rsqrt),
        ("tl.div_rn(1.0, a)", torch.reciprocal),
        ("tl.erf(a)", torch.erf),
        ("tl.sigmoid(a)", torch.sigmoid),
        ("tl.floor(a)", torch.floor),
    ],
)
def test_functions_of_the_language(body: str, function) -> None:
    a = samples()
    got = apply(body, a, out=torch.float32)
    expected = function(a.double()).float()
    torch.testing.assert_close(got, expected, rtol=3e-7, atol=1e-44, equal_nan=True)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_clamp(kind: torch.dtype) -> None:
    a, low, high = samples(kind), torch.full((64,), -1.0).to(kind), torch.full((64,), 1.0).to(kind)
    keep = apply("tl.clamp(a, b, c, tl.PropagateNan.ALL)", a, low, high, out=kind)
    torch.testing.assert_close(keep, a.clamp(-1.0, 1.0), rtol=0, atol=0, equal_nan=True)
    lose = apply("tl.clamp(a, b, c)", a, low, high, out=kind)
    torch.testing.assert_close(lose, torch.where(a.isnan(), low, a.clamp(-1.0, 1.0)))


LIBDEVICE = {
    "acos": torch.acos, "acosh": torch.acosh, "asin": torch.asin, "asinh": torch.asinh,
    "atan": torch.atan, "atanh": torch.atanh, "ceil": torch.ceil, "cos": torch.cos,
    "cosh": torch.cosh, "erf": torch.erf, "erfc": torch.erfc, "exp": torch.exp,
    "exp2": torch.exp2, "expm1": torch.expm1, "floor": torch.floor, "lgamma": torch.lgamma,
    "log": torch.log, "log10": torch.log10, "log1p": torch.log1p, "log2": torch.log2,
    "nearbyint": torch.round, "rint": torch.round, "rsqrt": torch.rsqrt, "sin": torch.sin,
    "sinh": torch.sinh, "sqrt": torch.sqrt, "tan": torch.tan, "tanh": torch.tanh,
    "trunc": torch.trunc, "fast_tanhf": torch.tanh, "abs": torch.abs,
}  # fmt: skip


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_libdevice_of_one_argument(kind: torch.dtype) -> None:
    for seed, scale in enumerate((0.5, 8.0)):
        a = samples(kind, scale=scale, seed=seed)
        for name, function in LIBDEVICE.items():
            got = apply(f"libdevice.{name}(a)", a, out=kind)
            expected = function(a.double()).to(kind)
            tolerance = {"rtol": 2e-15, "atol": 1e-15} if kind is torch.float64 else {}
            if kind is torch.float32:
                tolerance = {"rtol": 1.2e-7, "atol": 1e-45}
            torch.testing.assert_close(got, expected, **tolerance, equal_nan=True, msg=name)


def test_libdevice_of_two_arguments() -> None:
    a, b = samples(), samples(seed=1).roll(3)
    for name, function in {
        "atan2": torch.atan2, "fmod": torch.fmod, "pow": torch.pow,
        "copysign": torch.copysign, "hypot": torch.hypot, "nextafter": torch.nextafter,
    }.items():  # fmt: skip
        got = apply(f"libdevice.{name}(a, b)", a, b, out=torch.float32)
        wide = a if name == "nextafter" else a.double()
        expected = function(wide, b.to(wide.dtype)).float()
        torch.testing.assert_close(got, expected, rtol=1.2e-7, atol=0, equal_nan=True, msg=name)
    got = apply("libdevice.pow(a, 3.0)", a, out=torch.float32)
    torch.testing.assert_close(got, (a.double() ** 3).float(), rtol=0, atol=0, equal_nan=True)
    got = apply("libdevice.pow(2.0, a)", a, out=torch.float32)
    torch.testing.assert_close(got, torch.exp2(a.double()).float(), equal_nan=True)


def test_libdevice_tests_of_floats() -> None:
    a = samples()
    same(apply("libdevice.isnan(a)", a, out=torch.bool), a.isnan())
    same(apply("libdevice.isinf(a)", a, out=torch.bool), a.isinf())
    same(apply("libdevice.signbit(a) != 0", a, out=torch.bool), a.signbit())


def test_libdevice_has_no_narrow_functions() -> None:
    with pytest.raises(BuildError, match="takes float32 or float64"):
        apply("libdevice.exp(a)", samples(torch.bfloat16), out=torch.bfloat16)
    with pytest.raises(BuildError, match=r"no stand-in for libdevice\.unheard"):
        apply("libdevice.unheard(a)", samples(), out=torch.float32)


# ---- reductions ----

WELFORD = """@triton.jit
def merge(mean_a, square_a, count_a, mean_b, square_b, count_b):
    count = count_a + count_b
    delta = mean_b - mean_a
    share = count_b / count
    return mean_a + delta * share, square_a + square_b + delta * delta * count_a * share, count


@triton.jit
def welford(x):
    return tl.reduce((x, x * 0, x * 0 + 1), 0, merge)


"""


def test_reduction_of_several_values() -> None:
    a = torch.randn(64, dtype=torch.float64) + 100
    got = apply("welford(a)[1] + index * 0.0", a, out=torch.float64, helpers=WELFORD)
    torch.testing.assert_close(got[0], a.var(correction=0) * 64)
    got = apply("welford(a)[0] + index * 0.0", a, out=torch.float64, helpers=WELFORD)
    torch.testing.assert_close(got[7], a.mean())


def test_builtin_reductions() -> None:
    a = torch.randn(64)
    same(apply("tl.max(a) + index * 0.0", a, out=torch.float32), a.max().expand(64))
    same(apply("tl.argmax(a, 0) + index * 0", a, out=torch.int64), a.argmax().expand(64))
    same(apply("tl.argmin(a, 0) + index * 0", a, out=torch.int64), a.argmin().expand(64))
    got = apply("tl.sum(a) + index * 0.0", a, out=torch.float32)
    torch.testing.assert_close(got[0], a.sum())
    a[11] = math.nan
    same(apply("tl.max(a) + index * 0.0", a, out=torch.float32), a.nan_to_num(-9).max().expand(64))
    flat = apply(
        "tl.sum(tl.sum(tl.reshape(a, (8, 8)), 1, keep_dims=True)) + index * 0",
        torch.arange(64),
        out=torch.int64,
    )
    assert flat[0] == 63 * 32


@pytest.mark.parametrize("axis", [0, 1])
def test_reduction_over_an_axis(axis: int) -> None:
    source = HEADER + (
        "@triton.jit\ndef k(x, out):\n"
        "    rows, columns = tl.arange(0, 4), tl.arange(0, 16)\n"
        "    tile = tl.load(x + rows[:, None] * 16 + columns[None, :])\n"
        f"    tl.store(out + {'columns' if axis == 0 else 'rows'}, tl.max(tile, {axis}))\n"
    )
    x, out = torch.randn(4, 16), torch.empty(4 if axis else 16)
    program = TritonProgram(source, "k", (("x", "*fp32"), ("out", "*fp32")))
    run_interpreted(program, (1, 1, 1), [x, out])
    same(out, x.amax(axis))


def test_rows_with_a_custom_function() -> None:
    x, out = torch.randn(5, 100).bfloat16(), torch.empty(5)
    x[3, 7] = math.nan
    run_interpreted(row_max_program(), (5, 1, 1), [x, out, 100])
    torch.testing.assert_close(out, x.float().tanh().amax(1), equal_nan=True)
