"""Every reduction in every backend: row lengths around the schedule's limits, axes, layouts,
special values, emptiness.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

import fusec
from fusec.errors import DTypeError, ShapeError
from tests.oracle import (
    FLOATS,
    INTEGERS,
    INTERPRETER,
    Backend,
    assert_close,
    dtype_of,
    on_every_backend,
    reduction_tolerance,
    reference,
    same,
)

Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A reduction over one axis: the formula, PyTorch's own in float64, and what its error is
    measured by.
    """

    text: str
    torch: Function
    scale: (
        Function  # the size of the terms: the error is relative to this, not to a sum that cancels
    )


def _size(x: torch.Tensor, axis: int) -> torch.Tensor:
    return x.abs().sum(axis, keepdim=True)


def _mean_size(x: torch.Tensor, axis: int) -> torch.Tensor:
    return x.abs().mean(axis, keepdim=True)


def _one(x: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.ones_like(x.sum(axis, keepdim=True)) * (2 + x.abs().amax())


def _zero(x: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.zeros_like(x.sum(axis, keepdim=True))


def _entropy(x: torch.Tensor, a: int) -> torch.Tensor:
    p = x.softmax(a)
    return -torch.special.xlogy(p, p).sum(a, keepdim=True)


def _spread(x: torch.Tensor, a: int) -> torch.Tensor:
    """What a rounding of the mean becomes when it is divided by the deviation."""
    return 1 + x.abs().amax() * torch.rsqrt(x.var(a, keepdim=True, correction=0) + 1e-5)


def _normalized(x: torch.Tensor, a: int) -> torch.Tensor:
    mean, var = x.mean(a, keepdim=True), x.var(a, keepdim=True, correction=0)
    return (x - mean) * torch.rsqrt(var + 1e-5)


CASES = (
    Case("sum(x{a})", lambda x, a: x.sum(a, keepdim=True), _size),
    Case("mean(x{a})", lambda x, a: x.mean(a, keepdim=True), _mean_size),
    Case("max(x{a})", lambda x, a: x.amax(a, keepdim=True), _zero),
    Case("min(x{a})", lambda x, a: x.amin(a, keepdim=True), _zero),
    Case("prod(x{a})", lambda x, a: x.prod(a, keepdim=True), _zero),
    Case("var(x{a})", lambda x, a: x.var(a, keepdim=True), _one),
    Case("std(x{a}, correction=0)", lambda x, a: x.std(a, keepdim=True, correction=0), _one),
    Case("any(x > 2{a})", lambda x, a: (x > 2).any(a, keepdim=True), _zero),
    Case("all(x > -2{a})", lambda x, a: (x > -2).all(a, keepdim=True), _zero),
    Case("argmax(x{a})", lambda x, a: x.argmax(a, keepdim=True), _zero),
    Case("argmin(x{a})", lambda x, a: x.argmin(a, keepdim=True), _zero),
    Case("norm(x{a})", lambda x, a: torch.linalg.vector_norm(x, 2, a, keepdim=True), _zero),
    Case("norm(x, p=1{a})", lambda x, a: torch.linalg.vector_norm(x, 1, a, keepdim=True), _zero),
    Case("norm(x, p=inf{a})", lambda x, a: x.abs().amax(a, keepdim=True), _zero),
    Case("logsumexp(x{a})", lambda x, a: x.logsumexp(a, keepdim=True), _one),
    Case("entropy(x{a})", _entropy, _one),
    Case("softmax(x{a})", lambda x, a: x.softmax(a), _zero),
    Case("log_softmax(x{a})", lambda x, a: x.log_softmax(a), _one),
    Case("layer_norm(x{a})", _normalized, _spread),
    Case(
        "rms_norm(x{a})", lambda x, a: x * torch.rsqrt((x * x).mean(a, keepdim=True) + 1e-6), _zero
    ),
)
FEW = tuple(
    c
    for c in CASES
    if c.text.startswith(("sum", "max", "argmax", "any", "softmax", "layer_norm", "logsumexp"))
)


def quiet(function: Function, x: torch.Tensor, axis: int) -> torch.Tensor:
    """PyTorch without its warning that one value has no variance."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(x, axis)


def check_all(
    backend: Backend,
    x: torch.Tensor,
    axis: int = -1,
    *,
    default_axis: bool = False,
    cases: tuple[Case, ...] = CASES,
) -> None:
    """Every case over one axis of ``x``, in one program."""
    text = ", ".join(case.text for case in cases).replace(
        "{a}", "" if default_axis else f", axis={axis}"
    )
    results = backend.run(text, x, keepdim=True)
    wide, count = x.double(), x.shape[axis]
    tolerance = reduction_tolerance(x.dtype, count)
    for case, actual in zip(cases, results, strict=True):
        expected = quiet(case.torch, wide, axis)
        what = f"{case.text} of {x.dtype} {list(x.shape)} along {axis}"
        if not actual.dtype.is_floating_point:
            same(actual, expected, what)
            continue
        assert actual.dtype is x.dtype, what
        relative = tolerance * expected.abs() + tolerance * case.scale(wide, axis)
        smallest = torch.finfo(x.dtype).smallest_normal if backend.is_cuda else 0.0
        if case.text.startswith(
            ("prod", "softmax", "norm")
        ):  # products and powers add up their errors
            relative = relative + expected.abs() * torch.finfo(torch.float32).eps * count**0.5
        if x.dtype is torch.float16 and case.text.startswith("softmax"):
            smallest = 2.0**-24
        assert_close(actual, expected, 1, absolute=relative + smallest, what=what)


def random(shape: tuple[int, ...], name: str, seed: int = 0) -> torch.Tensor:
    """Normal numbers of a type."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype_of(name))


# 64 is the smallest block, 2048 elements make a program, and more than 16384 are looped over.
LENGTHS = (1, 2, 3, 17, 63, 64, 65, 1000, 1024, 2049, 4097)


@on_every_backend
@pytest.mark.parametrize("name", FLOATS)
def test_rows_of_every_length(backend: Backend, name: str) -> None:
    for length in LENGTHS:
        check_all(backend, random((3, length), name, length), default_axis=True)


@on_every_backend
@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("length", [16384, 16385, 70000])
def test_rows_beyond_what_stays_in_registers(backend: Backend, name: str, length: int) -> None:
    if name in ("float64", "float16") and length == 16384:
        length = 20001
    check_all(backend, random((2, length), name, length))


@on_every_backend
@pytest.mark.parametrize("shape", [(19,), (5, 7), (3, 4, 5), (2, 3, 4, 5), (40, 3, 70)])
def test_every_axis_of_every_rank(backend: Backend, shape: tuple[int, ...]) -> None:
    for axis in range(-len(shape), len(shape)):
        cases = CASES if len(shape) == 2 else FEW
        check_all(backend, random(shape, "float32", 7), axis, cases=cases)


@on_every_backend
def test_rows_in_other_layouts(backend: Backend) -> None:
    x = random((6, 70), "float32", 3)
    y = random((3, 5, 4, 6), "float32").permute(2, 0, 3, 1)
    layouts = [
        (x[:, ::2], -1), (x[::2, 3:], -1), (x.t(), -1), (x.t(), 0), (x[:1].expand(4, 70), -1),
        (x[:, :1].expand(6, 33), -1), (y, -1), (y, 1), (random((130, 5), "bfloat16").t(), -1),
    ]  # fmt: skip
    for layout, axis in layouts:
        check_all(backend, layout, axis, cases=FEW)


SEVERAL_AXES = ("(0, 1)", "(-1, 0)", "(1, 2)", "all")


@on_every_backend
@pytest.mark.parametrize("keepdim", [False, True])
def test_several_axes_at_once(backend: Backend, keepdim: bool) -> None:
    x = random((4, 5, 6), "float32", 1)
    for layout in (x, x.permute(2, 0, 1), x[:, :1].expand(4, 7, 6)):
        for axes in SEVERAL_AXES:
            parts = [
                "sum(x, axis={a})",
                "max(x, axis={a})",
                "var(x, axis={a})",
                "prod(x, axis={a})",
            ]
            python = (
                tuple(range(3)) if axes == "all" else tuple(map(int, axes.strip("()").split(",")))
            )
            wide = layout.double()
            product = wide
            for axis in sorted((a % 3 for a in python), reverse=True):
                product = product.prod(axis, keepdim=keepdim)
            expected = [
                wide.sum(python, keepdim=keepdim), wide.amax(python, keepdim=keepdim),
                wide.var(python, keepdim=keepdim), product,
            ]  # fmt: skip
            text = ", ".join(parts).replace("{a}", axes)
            results = backend.run(text, layout, keepdim=keepdim)
            what = f"{axes} of {layout.stride()}"
            for part, actual, right in zip(parts, results, expected, strict=True):
                near = 1e-6 * float(wide.abs().sum()) if part.startswith("sum") else 0.0
                assert_close(actual, right, 32, absolute=near, what=f"{part} {what}")


@on_every_backend
def test_keepdim_and_what_an_output_drops(backend: Backend) -> None:
    x = random((4, 5), "float32")
    a, b, c, d = backend.run("sum(x), sum(x, keepdim=true), sum(x) + x, sum(x, axis=0)", x)
    assert [list(r.shape) for r in (a, b, c, d)] == [[4], [4, 1], [4, 5], [5]]
    total = backend.one("sum(x, axis=all)", x)
    assert total.shape == ()
    assert_close(total, x.double().sum(), 0, absolute=1e-5)


# -- integers and bools -----------------------------------------------------------------------


@on_every_backend
@pytest.mark.parametrize("name", [*INTEGERS, "bool"])
def test_reductions_of_integers(backend: Backend, name: str) -> None:
    dtype = dtype_of(name)
    generator = torch.Generator().manual_seed(5)
    for length in (1, 3, 65, 300):
        if dtype is torch.bool:
            x = torch.randint(0, 2, (4, length), generator=generator).bool()
            x[0], x[1] = True, False
        else:
            info = torch.iinfo(dtype)
            x = torch.randint(
                max(info.min, -(2**62)), min(info.max, 2**62), (4, length), generator=generator
            ).to(dtype)
            x[1], x[2] = info.max, info.min
        text = (
            "sum(x), prod(x), max(x), min(x), any(x), all(x), argmax(x), argmin(x), "
            "sum(x != 0), max(x, axis=0)"
        )
        total, product, most, least, some, every, at, low, count, down = backend.run(text, x)
        same(total, x.sum(-1), "sum")
        same(product, x.prod(-1), "prod")
        same(most, x.amax(-1), "max")
        same(least, x.amin(-1), "min")
        same(some, x.any(-1).bool(), "any")
        same(every, x.all(-1).bool(), "all")
        same(at, x.to(torch.int64).argmax(-1), "argmax")
        same(low, x.to(torch.int64).argmin(-1), "argmin")
        same(count, (x != 0).sum(-1), "count")
        same(down, x.amax(0), "max down")


@pytest.mark.parametrize("text", ["mean(x)", "var(x)", "norm(x)", "rms_norm(x)", "layer_norm(x)"])
def test_functions_of_floats_refuse_integers(text: str) -> None:
    with pytest.raises(DTypeError):
        fusec.compile(text)(torch.ones(3, 4, dtype=torch.int32))


# -- special values ---------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")
SPECIAL_ROWS = torch.tensor(
    [
        [1.0, NAN, 2.0],
        [INF, 1.0, NAN],
        [-INF, -INF, -INF],
        [INF, INF, 1.0],
        [INF, -INF, 0.0],
        [-INF, 1.0, 2.0],
        [-0.0, -0.0, -0.0],
        [0.0, -0.0, 0.0],
        [3e38, 3e38, 3e38],
        [-3e38, 3e38, -3e38],
        [1e-45, 1e-45, 0.0],
        [5.0, 5.0, 5.0],
        [NAN, NAN, NAN],
        [100.0, -100.0, 1e4],
    ]
)


@on_every_backend
@pytest.mark.parametrize(
    ("shape", "axis"), [((4, 100_000), -1), ((513, 33_000), -1), ((20_000, 40), 0), ((600, 7), 0)]
)
def test_a_mean_is_finite_where_the_sum_is_not(
    backend: Backend, shape: tuple[int, int], axis: int
) -> None:
    """Also of rows that several programs share, and along columns."""
    x = torch.full(shape, 3e38)
    x[1:3] = -1e38
    (mean,) = backend.run(f"mean(x, axis={axis})", x)
    assert_close(mean, x.double().mean(axis), 64, what="mean", inputs=[x])


@on_every_backend
@pytest.mark.parametrize("columns", [3, 90, 5000, 50_000])
def test_a_variance_is_finite_where_the_sum_of_squares_is_not(
    backend: Backend, columns: int
) -> None:
    """In short, resident and looped rows; with a correction, none, and one beyond the length."""
    x = torch.randn(4, columns, generator=torch.Generator().manual_seed(3)) * 2e18
    x[1] *= 1e-36
    text = f"var(x), var(x, correction=0), std(x), var(x, correction={columns + 1})"
    unbiased, biased, deviation, beyond = backend.run(text, x)
    for actual, expected in (
        (unbiased, x.double().var(-1)),
        (biased, x.double().var(-1, correction=0)),
        (deviation, x.double().std(-1)),
    ):
        assert_close(actual, expected, 32, what=text, inputs=[x])
    assert torch.isposinf(beyond).all()


@on_every_backend
@pytest.mark.parametrize("copies", [1, 30, 6000])
def test_special_values_in_rows(backend: Backend, copies: int) -> None:
    """NaN, infinities, overflow and zeros, in short, resident and looped rows, go where PyTorch
    sends them.
    """
    x = SPECIAL_ROWS.repeat(1, copies)
    text = (
        "sum(x), mean(x), max(x), min(x), prod(x), logsumexp(x), softmax(x), log_softmax(x), "
        "argmax(x), argmin(x), "
        "var(x), norm(x, p=inf), any(x), all(x)"
    )
    results = backend.run(text, x)
    wide = x.double()
    expected = [
        x.sum(-1),
        wide.mean(-1),
        x.amax(-1),
        x.amin(-1),
        x.prod(-1),
        wide.logsumexp(-1),
        wide.softmax(-1),
        wide.log_softmax(-1),
        x.argmax(-1),
        x.argmin(-1),
        x.var(-1),
        x.abs().amax(-1),
        x.any(-1),
        x.all(-1),
    ]
    names = text.replace(" ", "").split("),")
    for name, actual, right in zip(names, results, expected, strict=True):
        if name.startswith(("max", "min")):  # which zero is the larger is nowhere said
            same(actual + 0.0, right + 0.0, name)
            continue
        if name.startswith(("any", "all", "arg")):
            same(actual, right, name)
            continue
        rows = torch.ones(len(x), dtype=torch.bool)
        if name.startswith(("var", "sum")):
            rows[8:10] = False  # whether partial sums overflow depends on their order
        if copies > 1 and name.startswith("prod"):
            rows[-1] = rows[-3] = rows[10] = False  # likewise products
        smallest = torch.finfo(torch.float32).smallest_normal
        tolerance = right[rows].abs().nan_to_num(0, 0, 0).double() * 1e-5 + smallest
        assert_close(actual[rows], right[rows], 8, absolute=tolerance, what=f"{name}) x {copies}")


@on_every_backend
def test_ties_take_the_first(backend: Backend) -> None:
    x = torch.tensor([[1.0, 3, 3, 0, 0], [NAN, 1, NAN, 2, 2], [0.0, -0.0, 0.0, -0.0, 0.0]]).repeat(
        1, 40
    )
    at, low = backend.run("argmax(x), argmin(x)", x)
    same(at, torch.tensor([1, 0, 0]))
    same(low, torch.tensor([3, 0, 0]))


@on_every_backend
def test_variance_far_from_zero(backend: Backend) -> None:
    """Two passes: a mean of 1e6 does not eat the digits of a deviation of 1."""
    x = (torch.arange(20000, dtype=torch.float32) % 7 + 1e6).reshape(2, 10000)
    long = (torch.arange(70001, dtype=torch.float32) % 7 + 1e6)[None].repeat(2, 1)
    for value in (x, long):
        assert_close(
            backend.one("var(value)", value), value.double().var(-1), 0, absolute=2e-2, what="var"
        )


# -- empty ------------------------------------------------------------------------------------


@on_every_backend
@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (0, 0), (2, 0, 3), (0,)])
def test_empty_tensors(backend: Backend, shape: tuple[int, ...]) -> None:
    x = torch.empty(shape)
    text = (
        "sum(x), prod(x), mean(x), any(x), all(x), logsumexp(x), softmax(x), layer_norm(x), "
        "sum(x, axis=0)"
    )
    results = backend.run(text, x)
    expected = [
        x.sum(-1),
        x.prod(-1),
        x.mean(-1),
        x.any(-1),
        x.all(-1),
        x.logsumexp(-1),
        x.softmax(-1),
        x.clone(),
        x.sum(0),
    ]
    for actual, right in zip(results, expected, strict=True):
        same(actual, right, str(shape))


@on_every_backend
@pytest.mark.parametrize("text", ["max(x)", "min(x)", "argmax(x)", "argmin(x)", "norm(x, p=inf)"])
def test_a_maximum_of_nothing_is_an_error(backend: Backend, text: str) -> None:
    function = backend.compile(text)
    function(backend.place(torch.ones(3, 5)))  # the kind is known: the check belongs to each call
    with pytest.raises(ShapeError, match="length 0"):
        function(backend.place(torch.ones(3, 0)))


# -- programs of several reductions -----------------------------------------------------------

PROGRAMS = {
    "both axes": "x / sum(x * x, axis=0) + x / sum(x * x)",
    "columns then rows": "softmax(softmax(x, axis=0))",
    "rows then columns": "softmax(softmax(x), axis=0), max(x)",
    "three levels": "m = mean(x, axis=0); d = x - m; s = sum(d / (mean(d*d) + 1), axis=0); s, d*s",
    "rows then all": "m = max(x); sum(exp(x - m), axis=all)",
    "all then rows": "x2 = x / sum(abs(x), axis=all); sum(x2), x2",
    "a broadcast operand": "sum(x * w + c), mean(w), x + mean(w * w)",
    "an outer sum": "sum(c + w), max(c * w, axis=0)",
    "of a row": "sum(w) + x, softmax(w)",
    "several outputs": "sum(x), x * 2, max(x, axis=0), mean(x, axis=all), w + 1",
    "twice normalised": "y = layer_norm(x); rms_norm(y + c) * w",
    "argmax feeds": "i = argmax(x); index(x, -1) == i, sum(where(index(x, -1) < i, x, 0))",
    "var and mean": "mean(x), var(x), std(x, axis=0), (x - mean(x)) / std(x)",
    "sizes": "sum(x) / size(x, -1) + size(x, 0), index(x, 0) + index(x, 1) * size(x, 0)",
    "reduce a reduction": "sum(max(x, axis=0), axis=all), max(sum(x), axis=0)",
    "a sum used many times": "s = sum(x); s * x + s, s, s * s, x / s",
}


@on_every_backend
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("shape", [(5, 70), (70, 5), (2, 3, 66)])
def test_programs(backend: Backend, name: str, shape: tuple[int, ...]) -> None:
    x = random(shape, "float32", 2)
    w = random((shape[-1],), "float32", 3)
    c = random((*shape[:-1], 1), "float32", 4)
    values = {"x": x, "w": w, "c": c}
    function = backend.compile(PROGRAMS[name])
    chosen = [values[n] for n in function.inputs]
    results = function(*map(backend.place, chosen))
    expected = reference(PROGRAMS[name], *chosen)
    for actual, right in zip(
        results if isinstance(results, tuple) else (results,), expected, strict=True
    ):
        assert_close(
            actual.cpu(),
            right,
            64,
            absolute=1e-4 * (1 + right.double().abs().nan_to_num().mean()),
            what=name,
        )


@on_every_backend
@pytest.mark.parametrize("length", [5, 70, 17000])
def test_programs_of_long_rows(backend: Backend, length: int) -> None:
    x, w, b = (
        random((2, length), "bfloat16"),
        random((length,), "float32", 1),
        random((length,), "bfloat16", 2),
    )
    text = "y = layer_norm(x, w, b); y, max(y), softmax(y + x)"
    expected = reference(text, x, w, b)
    for actual, right in zip(backend.run(text, x, w, b), expected, strict=True):
        assert_close(actual, right, 1, absolute=1e-5, what=text)


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(INTERPRETER, id="interpreter"),
        pytest.param(Backend("triton", "cuda"), id="gpu", marks=pytest.mark.gpu),
    ],
)
@pytest.mark.parametrize("rows", [1, 3])
def test_programs_that_share_rows_and_weights(backend: Backend, rows: int) -> None:
    """Neighbouring programs take the same part of neighbouring rows, and so the same weights."""
    x, w, b = (
        random((rows, 140_000), "bfloat16"),
        random((140_000,), "float32", 1),
        random((140_000,), "bfloat16", 2),
    )
    text = "y = layer_norm(x, w, b); y, max(y)"
    expected = reference(text, x, w, b)
    for actual, right in zip(backend.run(text, x, w, b), expected, strict=True):
        assert_close(actual, right, 1, absolute=1e-5, what=text)
    source = backend.compile(text).show("triton", x, w, b)
    assert ("split = program // rows" in source) == (rows > 1)


@on_every_backend
@pytest.mark.parametrize("shift", [0, 84, -60])
def test_entropy_of_a_softmax_without_a_maximum(backend: Backend, shift: int) -> None:
    """What is not below its maximum keeps the order of the formula: e * x overflows before e."""
    x = random((3, 40), "float32", 1) + shift
    x[:, 3] += 3
    result = backend.one("s = sum(exp(x))\nsum(exp(x) / s * (x - log(s)))", x)
    d = x.double()
    expected = (d.softmax(-1) * d.log_softmax(-1)).sum(-1)
    assert_close(result, expected, 8, absolute=3e-5, what=str(shift))


@on_every_backend
@pytest.mark.parametrize("index", ["int64", "int32"])
def test_cross_entropy(backend: Backend, index: str) -> None:
    for length in (3, 65, 20000):
        x = random((4, length), "float32", length)
        t = torch.tensor([0, length - 1, 1, length // 2], dtype=dtype_of(index))
        expected = torch.nn.functional.cross_entropy(x.double(), t.long(), reduction="none")
        assert_close(
            backend.one("cross_entropy(x, t)", x, t), expected, 8, absolute=4e-6, what=str(length)
        )


@on_every_backend
def test_a_row_depends_on_nothing_but_itself(backend: Backend) -> None:
    x = random((200, 300), "float32", 9)
    function = backend.compile("softmax(x), sum(x), layer_norm(x)")
    whole = function(backend.place(x))
    for part in (slice(0, 2), slice(57, 60), slice(100, 200)):
        for all_rows, some_rows in zip(
            whole, function(backend.place(x[part].clone())), strict=True
        ):
            if backend.name != "torch":
                same(some_rows.cpu(), all_rows[part].cpu())
    again = function(backend.place(x))
    for first, second in zip(whole, again, strict=True):
        same(first.cpu(), second.cpu())
