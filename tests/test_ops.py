"""Every elementwise op and composite, in every backend and type it claims, against PyTorch in
float64 or exact integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import fusec
from fusec.errors import DTypeError
from fusec.ir.derived import Derived, rows
from fusec.ir.dtypes import ALL
from fusec.ir.ops import Op, Rule, elementwise
from tests.oracle import (
    BACKENDS,
    DTYPES,
    EAGER,
    FLOATS,
    INTEGERS,
    Backend,
    arithmetic_type,
    assert_close,
    dtype_of,
    floats,
    integers,
    on_every_backend,
    pairs,
    same,
    values,
)

UNARY = [op for op in elementwise() if op.arity == 1]
BINARY = [op for op in elementwise() if op.arity == 2]
SHORT = {d.torch: d.name for d in ALL}

# Units in the last place that a function may be off by in float32 and float64, where it is not 1.
ULPS = {"lgamma": 4, "erfc": 4, "sinh": 2, "tan": 2}
CUDA_ULPS = {
    "exp": 2,
    "exp2": 2,
    "log2": 2,
    "log10": 2,
    "log1p": 2,
    "rsqrt": 2,
    "sin": 2,
    "cos": 2,
    "tan": 4,
    "asin": 2,
    "acos": 2,
    "atan": 2,
    "sinh": 3,
    "cosh": 2,
    "tanh": 2,
    "asinh": 3,
    "acosh": 4,
    "atanh": 3,
    "atan2": 3,
    "erf": 2,
    "erfc": 5,
    "lgamma": 8,
    "pow": 4,
}


def spelled(op: Op, *args: str) -> str:
    """``op`` as a formula writes it."""
    if op.symbol is None:
        return f"{op.name}({', '.join(args)})"
    return f"{op.symbol}{args[0]}" if len(args) == 1 else f"({args[0]} {op.symbol} {args[1]})"


def reference_of(op: Op) -> Callable[..., torch.Tensor]:
    """PyTorch's own function."""
    if op.name == "ndtr":  # PyTorch's own takes 1 + erf, which cancels
        return lambda x: torch.erfc(x * -math.sqrt(0.5)) / 2
    if isinstance(op.torch, str):
        return getattr(torch, op.torch)
    function = op.torch
    return lambda *args: function(torch, *args)


def bound(op: Op, dtype: torch.dtype, backend: Backend) -> float:
    """The ulp that ``op`` may be off by."""
    if dtype in (torch.float16, torch.bfloat16):
        return 1
    if op.name == "ndtr":  # x is rounded times sqrt(1/2), and the tail magnifies that by x^2
        return 128 if dtype is torch.float64 else 8
    table = CUDA_ULPS if backend.is_cuda else ULPS
    return table.get(op.name, 1 if op.costly else 0)


def judged(backend: Backend, op: Op, *inputs: torch.Tensor) -> torch.Tensor:
    """Where a result is compared: before Triton 3.6 libdevice took subnormal floats for 0."""
    keep = torch.ones(inputs[0].shape, dtype=torch.bool)
    if backend.is_cuda and (op.costly or op.name in ("floor", "ceil")):
        for x in inputs:
            if x.dtype is not torch.float64:
                keep &= (x.double() == 0) | (x.double().abs() >= 2.0**-126) | x.isnan()
    return keep


def absolute(op: Op, dtype: torch.dtype, backend: Backend) -> float:
    """What is allowed where relative error means little: near lgamma's zeros, and among a GPU's
    subnormals.
    """
    if op.name == "lgamma" or (op.name == "ndtr" and backend == EAGER):
        return torch.finfo(dtype).eps * 4
    return torch.finfo(dtype).smallest_normal if backend.is_cuda and op.costly else 0.0


# -- functions of one value -------------------------------------------------------------------


@on_every_backend
@pytest.mark.parametrize("name", FLOATS)
def test_unary_ops_of_floats(backend: Backend, name: str) -> None:
    dtype = dtype_of(name)
    ops = [op for op in UNARY if op.rule is not Rule.BITWISE]
    x = torch.cat([floats(dtype, count=83), floats(dtype, -1.0, 8.0, count=40)])
    results = backend.run(", ".join(spelled(op, "x") for op in ops), x)
    for op, actual in zip(ops, results, strict=True):
        expected = reference_of(op)(x.double())
        assert actual.dtype is dtype
        keep = judged(backend, op, x)
        assert_close(
            actual[keep], expected[keep], bound(op, dtype, backend),
            absolute=absolute(op, dtype, backend), what=f"{op.name} {name}", inputs=[x[keep]],
        )  # fmt: skip


@on_every_backend
@pytest.mark.parametrize("name", [*INTEGERS, "bool"])
def test_unary_ops_of_integers(backend: Backend, name: str) -> None:
    dtype = dtype_of(name)
    ops = [op for op in UNARY if dtype is not torch.bool or op.rule is not Rule.PROMOTE]
    x = values(dtype)
    results = backend.run(", ".join(spelled(op, "x") for op in ops), x)
    for op, actual in zip(ops, results, strict=True):
        what = f"{op.name} {name}"
        if op.rule is Rule.FLOAT:
            assert actual.dtype is torch.float32
            expected = reference_of(op)(x.float().double())
            assert_close(
                actual, expected, bound(op, torch.float32, backend),
                absolute=absolute(op, torch.float32, backend), what=what, inputs=[x],
            )  # fmt: skip
        else:
            same(actual, reference_of(op)(x), what)


@pytest.mark.parametrize("text", ["-x", "x - x", "~y"])
def test_ops_that_pytorch_refuses(text: str) -> None:
    function = fusec.compile(text)
    value = torch.ones(3, dtype=torch.bool if "x" in text else torch.float32)
    with pytest.raises(DTypeError):
        function(value)


# -- functions of two values ------------------------------------------------------------------

_EXACT_FLOAT = ("floor_divide", "remainder", "fmod", "maximum", "minimum", "copysign")


@on_every_backend
@pytest.mark.parametrize("name", FLOATS)
def test_binary_ops_of_floats(backend: Backend, name: str) -> None:
    dtype = dtype_of(name)
    ops = [op for op in BINARY if op.rule is not Rule.BITWISE]
    a, b = pairs(floats(dtype, count=18), floats(dtype, -3.0, 5.0, count=14))
    results = backend.run(", ".join(spelled(op, "a", "b") for op in ops), a, b)
    for op, actual in zip(ops, results, strict=True):
        what = f"{op.name} {name}"
        if op.rule is Rule.BOOL:
            same(actual, reference_of(op)(a, b), what)
            continue
        assert actual.dtype is dtype
        exact = op.name in _EXACT_FLOAT
        width = arithmetic_type(dtype) if exact else torch.float64
        expected = reference_of(op)(a.to(width), b.to(width))
        if op.name in ("fmod", "remainder"):
            own = fmod if op.name == "fmod" else remainder
            expected = own(a.to(width), b.to(width))
        most = 0 if exact and not backend.is_cuda else bound(op, dtype, backend)
        if op.name in ("add", "sub", "mul", "div", "maximum", "minimum", "copysign"):
            most = 1 if op.name == "div" and backend.is_cuda and dtype.itemsize == 2 else 0
        if op.name in ("maximum", "minimum"):  # which zero is the larger is nowhere said
            actual, expected = actual + 0.0, expected + 0.0
        keep = judged(backend, op, a, b)
        assert_close(
            actual[keep], expected[keep], most, absolute=absolute(op, dtype, backend), what=what,
            inputs=[a[keep], b[keep]],
        )  # fmt: skip


def fmod(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """C's fmod, which is exact; PyTorch's gives NaN on the CPU where a / b overflows."""
    with numpy.errstate(invalid="ignore"):
        return torch.from_numpy(numpy.fmod(a.numpy(), b.numpy()))


def remainder(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """fmod moved to the sign of b."""
    rest = fmod(a, b)
    return torch.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


def wrap(number: int, dtype: torch.dtype) -> int:
    """``number`` modulo the span of an integer type."""
    info = torch.iinfo(dtype)
    return (number - info.min) % (1 << info.bits) + info.min


def integer_power(a: int, b: int, dtype: torch.dtype) -> int:
    """a^b that wraps; a negative exponent leaves what truncation leaves of the fraction, and 0 for
    a zero base.
    """
    if b >= 0:
        return wrap(pow(a, b, 1 << 64), dtype)
    return {1: 1, -1: 1 if b % 2 == 0 else -1}.get(a, 0)


INTEGER_OPS: dict[str, Callable[[int, int, torch.dtype], int | bool]] = {
    "add": lambda a, b, t: wrap(a + b, t),
    "sub": lambda a, b, t: wrap(a - b, t),
    "mul": lambda a, b, t: wrap(a * b, t),
    "floor_divide": lambda a, b, t: wrap(a // b, t) if b else 0,
    "remainder": lambda a, b, t: a % b if b else 0,
    "fmod": lambda a, b, t: int(math.copysign(1, a)) * (abs(a) % abs(b)) if b else 0,
    "pow": integer_power,
    "gradient_as": lambda a, b, t: a,
    "maximum": lambda a, b, t: max(a, b),
    "minimum": lambda a, b, t: min(a, b),
    "bit_and": lambda a, b, t: a & b,
    "bit_or": lambda a, b, t: a | b,
    "bit_xor": lambda a, b, t: a ^ b,
    "lt": lambda a, b, t: a < b,
    "le": lambda a, b, t: a <= b,
    "gt": lambda a, b, t: a > b,
    "ge": lambda a, b, t: a >= b,
    "eq": lambda a, b, t: a == b,
    "ne": lambda a, b, t: a != b,
}  # fmt: skip


@on_every_backend
@pytest.mark.parametrize("name", INTEGERS)
def test_binary_ops_of_integers(backend: Backend, name: str) -> None:
    dtype = dtype_of(name)
    assert {op.name for op in BINARY} == {*INTEGER_OPS, "div", "atan2", "copysign"}
    a, b = pairs(integers(dtype), integers(dtype))
    results = backend.run(", ".join(spelled(op, "a", "b") for op in BINARY), a, b)
    numbers = list(zip(a.tolist(), b.tolist(), strict=True))
    for op, actual in zip(BINARY, results, strict=True):
        what = f"{op.name} {name}"
        if op.name in INTEGER_OPS:
            expected = [INTEGER_OPS[op.name](x, y, dtype) for x, y in numbers]
            kind = torch.bool if op.rule is Rule.BOOL else dtype
            assert actual.dtype is kind
            assert_close(actual, torch.tensor(expected, dtype=kind), 0, what=what, inputs=[a, b])
            continue
        assert actual.dtype is torch.float32
        expected_float = reference_of(op)(a.float().double(), b.float().double())
        assert_close(
            actual, expected_float, bound(op, torch.float32, backend), what=what, inputs=[a, b],
            absolute=absolute(op, torch.float32, backend),
        )  # fmt: skip


@on_every_backend
def test_binary_ops_of_bools(backend: Backend) -> None:
    ops = [
        op
        for op in BINARY
        if op.name not in ("sub", "floor_divide", "remainder", "fmod", "pow", "atan2", "copysign")
    ]
    a, b = pairs(torch.tensor([False, True]), torch.tensor([False, True]))
    results = backend.run(", ".join(spelled(op, "a", "b") for op in ops), a, b)
    for op, actual in zip(ops, results, strict=True):
        same(actual, reference_of(op)(a, b), op.name)


@on_every_backend
@pytest.mark.parametrize("name", DTYPES)
def test_where_and_logic(backend: Backend, name: str) -> None:
    dtype = dtype_of(name)
    a = values(dtype)
    b, c = a.flip(0).clone(), torch.arange(len(a)) % 3 == 0
    picked, negated, both, either = backend.run(
        "where(c, a, b), a if not c else b, a and c, a or b", a=a, b=b, c=c
    )
    same(picked, torch.where(c, a, b))
    same(negated, torch.where(c, b, a))
    same(both, (a != 0) & c)
    same(either, (a != 0) | (b != 0))


# -- composites -------------------------------------------------------------------------------


def torch_function(row: Derived) -> Callable[..., torch.Tensor] | None:
    """The function of PyTorch that a composite agrees with."""
    if row.torch is None:
        return None
    place: Any = torch.nn.functional if row.torch.startswith("F.") else torch
    return getattr(place, row.torch.removeprefix("F."))


_FUNCTIONAL = [
    r
    for r in rows()
    if not r.reduction and r.torch and all(not p.keyword_only for p in r.parameters)
]
_DEFAULTS: dict[str, tuple[float, ...]] = {
    "clamp": (-1.5, 2.0),
    "clamp_min": (-1.5,),
    "clamp_max": (2.0,),
    "softplus_3": (2.0, 20.0),
}
_TESTED = [
    r
    for r in _FUNCTIONAL
    if sum(p.default is None for p in r.parameters) == 1 or r.name in _DEFAULTS
]


def derived_bound(dtype: torch.dtype) -> tuple[float, float]:
    """Ulp and absolute error of a composite: a few roundings, and the cancellation in its own
    formula.
    """
    if dtype.itemsize == 2:
        return 1, torch.finfo(torch.float32).eps * 8
    return 8, torch.finfo(dtype).eps * 8


@on_every_backend
@pytest.mark.parametrize("name", FLOATS)
def test_composites_of_one_value(backend: Backend, name: str) -> None:
    dtype = dtype_of(name)
    x = torch.cat(
        [
            torch.linspace(-9, 25, 69, dtype=torch.float64).to(dtype),
            torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0], dtype=dtype),
        ]
    )
    calls = [f"{r.name}({', '.join(map(str, ['x', *_DEFAULTS.get(key(r), ())]))})" for r in _TESTED]
    results = backend.run(", ".join(calls), x)
    most, absolute = derived_bound(dtype)
    for row, actual in zip(_TESTED, results, strict=True):
        function = torch_function(row)
        assert function is not None
        expected = function(x.double(), *_DEFAULTS.get(key(row), ()))
        if not expected.dtype.is_floating_point:
            same(actual, expected, row.name)
            continue
        assert actual.dtype is dtype
        assert_close(
            actual, expected, most, absolute=absolute, what=f"{row.name} {name}", inputs=[x]
        )


def key(row: Derived) -> str:
    """Two rows are called softplus."""
    return f"{row.name}_{len(row.parameters)}" if row.name == "softplus" else row.name


@on_every_backend
@pytest.mark.parametrize("name", FLOATS)
def test_composites_of_two_values(backend: Backend, name: str) -> None:
    dtype = dtype_of(name)
    some = torch.tensor([-3.0, -1.0, -0.0, 0.0, 0.5, 2.0, 7.0, math.inf, -math.inf, math.nan])
    a, b = pairs(some.to(dtype), some.to(dtype))
    w = torch.linspace(-1, 2, len(a)).to(dtype)
    names = [
        "hypot(a, b)",
        "xlogy(a, b)",
        "logaddexp(a, b)",
        "heaviside(a, b)",
        "swiglu(a, b)",
        "geglu(a, b)",
        "lerp(a, b, w)",
    ]
    results = backend.run(", ".join(names), a=a, b=b, w=w)
    wide = [a.double(), b.double()]
    silu, gelu = torch.nn.functional.silu, torch.nn.functional.gelu
    finite = a.isfinite() & b.isfinite()
    expected = [
        torch.hypot(*wide),
        torch.xlogy(*wide),
        torch.logaddexp(*wide),
        torch.heaviside(*wide),
    ]
    expected += [silu(wide[0]) * wide[1], gelu(wide[0]) * wide[1], torch.lerp(*wide, w.double())]
    most, absolute = derived_bound(dtype)
    for text, actual, right in zip(names, results, expected, strict=True):
        keep = finite if text.startswith("lerp") else torch.ones_like(finite)
        assert actual.dtype is dtype
        assert_close(
            actual[keep], right[keep], most, absolute=absolute, what=text, inputs=[a[keep], b[keep]]
        )


@on_every_backend
def test_gelu_tanh_and_relu2(backend: Backend) -> None:
    x = torch.linspace(-6, 6, 97)
    tanh, squared = backend.run("gelu_tanh(x), relu2(x)", x)
    right = torch.nn.functional.gelu(x.double(), approximate="tanh")
    assert_close(tanh, right, 4, absolute=1e-6, what="gelu_tanh")
    same(squared, torch.relu(x) ** 2)


@pytest.mark.parametrize("numerics", ["precise", "fast"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_other_numerics_stay_close(backend: Backend, numerics: str) -> None:
    x = torch.linspace(-4, 4, 65)
    function = backend.compile(
        "tanh(x) / (2 + exp(x)), gelu_tanh(x), sqrt(abs(x))", numerics=numerics
    )
    results = [r.cpu() for r in function(backend.place(x))]
    wide = x.double()
    expected = [
        wide.tanh() / (2 + wide.exp()),
        torch.nn.functional.gelu(wide, approximate="tanh"),
        wide.abs().sqrt(),
    ]
    for actual, right in zip(results, expected, strict=True):
        assert_close(
            actual, right, 4 if numerics == "precise" else 32, absolute=2e-6, what=numerics
        )


@on_every_backend
def test_literals_as_operands_of_functions_with_a_body(backend: Backend) -> None:
    x = torch.tensor([0.5, -1.5, 3.0])
    i = torch.tensor([3, -2, 5], dtype=torch.int32)
    results = backend.run("x // 2.5, 2 % x, 7 // x, x % 2, 7 % i, i // 2, 2 ^ abs(i)", x, i)
    expected = [x // 2.5, 2 % x, 7 // x, x % 2, 7 % i, i // 2, 2 ** i.abs()]
    for actual, right in zip(results, expected, strict=True):
        same(actual, right)


@on_every_backend
def test_truth_of_one_value_beside_many(backend: Backend) -> None:
    one, many = torch.tensor([0.0]), torch.tensor([0.0, 2.0, -1.0])
    either, both = backend.run("one or many, one < 1 and many > 0", one, many)
    same(either, many != 0)
    same(both, many > 0)
