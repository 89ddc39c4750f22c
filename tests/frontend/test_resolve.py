"""Names, shapes, axes, gathers and errors; numbers are the matter of tests/ir."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusec.errors import (
    DTypeError,
    FusecError,
    ShapeError,
    UnknownNameError,
    UnsupportedError,
)
from fusec.frontend import resolve_walk
from fusec.frontend.parser import parse
from fusec.frontend.resolve import check, free_names, resolve
from fusec.ir.dtypes import F32
from fusec.ir.graph import InputSpec
from fusec.ir.node import Dim
from fusec.source import Source
from tests.formulas import graph_of, run, run_all, same_bits
from tests.work import grows_linearly

ROW, OTHER = torch.zeros(3), torch.zeros(4)
MATRIX = torch.arange(12.0).reshape(3, 4)
INTEGERS, BOOLS = torch.tensor([1, 2, 3]), torch.tensor([True, False, True])


def names_of(text: str) -> tuple[str, ...]:
    return free_names(parse(Source(text)))


def checked(text: str, inputs: list[str] | None = None) -> tuple[str, ...]:
    source = Source(text)
    return check(parse(source), source, inputs)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("b * a + b", ("b", "a")),
        ("x + inf + nan + pi + true + false", ("x",)),
        ("y = x\nx = 2\nx * y", ("x",)),
        ("y = y + 1\ny", ("y",)),
        ("def f(v) = v * scale\nf(x)", ("scale", "x")),
        ("scale = 2 * z\ndef f(v) = v * scale\nf(x)", ("z", "x")),
        ("a if c else b", ("a", "c", "b")),
        ("sum(x, axis=all)", ("x",)),
        ("sum(x, axis=all) + all", ("x", "all")),
        ("x[t] + max(lambda_)", ("x", "t", "lambda_")),
    ],
)
def test_free_names_are_the_inputs(text: str, names: tuple[str, ...]) -> None:
    assert names_of(text) == names
    assert checked(text) == names


def test_inputs_may_be_named_in_any_order() -> None:
    assert checked("a * b", ["b", "a", "unused"]) == ("b", "a", "unused")
    assert checked("x * pi", ["x", "pi"]) == ("x", "pi")
    with pytest.raises(UnknownNameError, match="unknown name 'z'; the inputs are x, y"):
        checked("x + z", ["x", "y"])
    for bad in (["x", "x"], ["x", "2y"], ["x", "not"]):
        with pytest.raises(FusecError, match="inputs="):
            checked("x", bad)


@pytest.mark.parametrize(
    ("text", "kind", "start"),
    [
        ("foo(x)", UnknownNameError, "1:1: error: unknown function 'foo'"),
        ("1 + sigmod(x)", UnknownNameError, "1:5: error: unknown function 'sigmod'"),
        ("a = f(x)\ndef f(v) = v\na", UnknownNameError, "1:5: error: unknown function 'f'"),
        ("def f(v) = f(v)\nf(x)", UnsupportedError, "1:12: error: 'f' calls itself"),
        ("def f(v) = g(v)\ndef g(v) = f(v)\ng(x)", UnknownNameError, "1:12: error: unknown"),
        ("softmax(x, dim=-1)", UnknownNameError, "1:12: error: 'softmax' has no keyword 'dim'"),
        ("max(x, 0)", UnknownNameError, "1:1: error: 'max' does not take 2 arguments"),
        ("exp(x, x)", UnknownNameError, "1:1: error: 'exp' does not take 2 arguments"),
        ("clamp(x, low=0, hi=1)", UnknownNameError, "1:10: error: 'clamp' has no keyword 'low'"),
        ("def f(a, b) = a\nf(x)", UnknownNameError, "2:1: error: 'f' does not take 1 argument"),
        ("1 + 2", UnsupportedError, "1:1: error: the formula uses no input"),
    ],
)
def test_errors_that_need_no_shapes(text: str, kind: type[FusecError], start: str) -> None:
    with pytest.raises(kind) as caught:
        checked(text)
    assert str(caught.value).startswith(f"<formula>:{start}")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("sigmod(x)", "did you mean 'sigmoid'?"),
        ("softmax(x, dim=-1)", "did you mean 'axis'?"),
        ("max(x, 0)", "use maximum(a, b) for the max of two values, and axis= for an axis"),
        ("sum()", "the form is sum(x, *, axis=-1, keepdim=false)"),
    ],
)
def test_hints(text: str, hint: str) -> None:
    with pytest.raises(FusecError) as caught:
        checked(text)
    assert caught.value.diagnostic.hint == hint


def values_for(text: str) -> dict[str, Any]:
    known = {"x": ROW, "y": OTHER, "X": MATRIX, "i": INTEGERS, "b": BOOLS}
    return {name: known[name] for name in names_of(text)}


@pytest.mark.parametrize(
    ("text", "kind", "start"),
    [
        ("x + y", ShapeError, "1:3: error: shapes do not fit, 3 against 4: x is [3], y is [4]"),
        ("(x # +\n ^ y)", ShapeError, "2:2: error: shapes do not fit"),
        ("x ** y", ShapeError, "1:3: error: shapes do not fit"),
        ("1 < x < y", ShapeError, "1:7: error: shapes do not fit, 3 against 4: x is [3]"),
        ("x and y", ShapeError, "1:3: error: shapes do not fit"),
        ("k = 2 * y\nx + k", ShapeError, "2:3: error: shapes do not fit, 3 against 4: x is [3], k"),
        ("def f(a, c) = a - c\nf(x, y)", ShapeError, "1:17: error: shapes do not fit"),
        ("lerp(x, y, 0.5)", ShapeError, "1:1: error: shapes do not fit"),
        ("sum(x, axis=2)", ShapeError, "1:1: error: axis 2 is out of range: x has rank 1"),
        ("mean(X, axis=(0, -2))", ShapeError, "1:1: error: axis (0, -2) names an axis twice"),
        ("sum(X, axis=0.5)", ShapeError, "1:1: error: axis must be an integer"),
        ("sum(X, axis=x)", ShapeError, "1:1: error: axis must be an integer"),
        ("(x, x) + 1", DTypeError, "1:1: error: a tuple of values stands only in the last line"),
        ("x + (0, 1)", DTypeError, "1:1: error: a tuple is no operand"),
        ("i^-1", DTypeError, "1:1: error: integers to negative integer powers are not allowed"),
        ("1 + mean(i)", DTypeError, "1:5: error: mean needs floats, and i is i64"),
        ("b - b", DTypeError, "1:1: error: '-' does not work on bools, and b is bool"),
        ("x * -b", DTypeError, "1:5: error: '-' does not work on bools"),
        ("b // b", DTypeError, "1:1: error: '//' does not work on bools"),
        ("x & x", DTypeError, "1:1: error: '&' needs integers or bools, not floats"),
        ("~x", DTypeError, "1:1: error: '~' needs integers or bools, not floats"),
        ("where(x, 1, 2)", DTypeError, "1:7: error: the condition of where must be bool, and x"),
        ("i8(i) ^ 300", DTypeError, "1:1: error: 300 does not fit i8"),
        ("maximum(i8(i), 300)", DTypeError, "1:1: error: 300 does not fit i8"),
        ("i + 2^70", DTypeError, "1:1: error: 1180591620717411303424 does not fit i64"),
        ("2^99999999 * x", UnsupportedError, "1:1: error: the number has more than 1023 bits"),
        ("x * (1 // 0)", UnsupportedError, "1:5: error: integer division by zero"),
        ("x[i]", ShapeError, "1:1: error: positions do not fit: x is [3], i is [3]"),
        ("X[x]", DTypeError, "1:3: error: positions must be integers, and x is f32"),
        ("x[0]", UnsupportedError, "1:3: error: x[t] needs a tensor t of positions"),
        ("norm(x, p=3)", UnsupportedError, "1:1: error: norm takes p=1, p=2 or p=inf"),
        ("sum(x, keepdim=x)", DTypeError, "1:1: error: keepdim must be true or false"),
        ("var(x, unbiased=3)", DTypeError, "1:1: error: unbiased must be true or false"),
        (
            "index(X, axis=all)",
            UnsupportedError,
            "1:1: error: index, argmax and argmin take one axis",
        ),
        ("argmax(X, axis=(0, 1))", UnsupportedError, "1:1: error: index, argmax"),
        ("index(-1) + sum(x) + sum(y)", ShapeError, "1:1: error: index(-1) has no one meaning"),
        ("sum(X, axis=0)[i]", UnsupportedError, "1:1: error: x[t] of a reduction over another"),
    ],
)
def test_errors_that_need_shapes(text: str, kind: type[FusecError], start: str) -> None:
    with pytest.raises(kind) as caught:
        graph_of(text, values_for(text))
    assert str(caught.value).startswith(f"<formula>:{start}")


def test_a_shape_error_shows_both_operands_and_the_call() -> None:
    with pytest.raises(ShapeError) as caught:
        graph_of("def f(a, c) = a - exp(c)\n1 + f(x, y)", {"x": ROW, "y": OTHER})
    assert str(caught.value) == (
        "<formula>:1:17: error: shapes do not fit, 3 against 4: x is [3], exp(c) is [4]\n"
        "1 | def f(a, c) = a - exp(c)\n"
        "  |                 ^\n"
        "<formula>:1:15: note: x is [3]\n"
        "1 | def f(a, c) = a - exp(c)\n"
        "  |               ^\n"
        "<formula>:1:19: note: exp(c) is [4]\n"
        "1 | def f(a, c) = a - exp(c)\n"
        "  |                   ^^^^^^\n"
        "<formula>:2:5: note: in this call of 'f'\n"
        "2 | 1 + f(x, y)\n"
        "  |     ^^^^^^^\n"
        "hint: lengths must be equal, or 1"
    )


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("sum(x)", (2, 3)),
        ("x - sum(x)", (2, 3, 5)),
        ("sum(x) + 1", (2, 3)),
        ("sum(x) / size(-1) + index(-2)", (2, 3)),
        ("sum(x, axis=1)", (2, 5)),
        ("sum(x, axis=(0, 2))", (3,)),
        ("sum(x, axis=[0, -1])", (3,)),
        ("sum(x, axis=all)", ()),
        ("sum(sum(x), axis=0)", (3,)),
        ("sum(x) + sum(x, axis=1)", (2, 3, 5)),
        ("sum(x, keepdim=true)", (2, 3, 1)),
        ("mean(x, keepdim=True) + sum(x)", (2, 3, 1)),
        ("mean(x, axis=all, keepdim=true)", (1, 1, 1)),
        ("argmax(x)", (2, 3)),
        ("any(x > 0)", (2, 3)),
        ("sum(x) * w", (2, 3, 5)),
        ("softmax(x)", (2, 3, 5)),
        ("one", (2, 1)),
        ("one + sum(one)", (2, 1)),
        ("sum(one)", (2,)),
        ("x[t]", (2, 3)),
        ("logsumexp(x) - x[t]", (2, 3)),
        ("index(-1)", (5,)),
        ("index(-2) + 0", (3,)),
        ("size(x, 0) + 0 * h", ()),
        ("h", ()),
        ("zero * 2", ()),
        ("sum(zero)", ()),
    ],
)
def test_outputs_drop_the_axes_that_were_reduced(text: str, shape: tuple[int, ...]) -> None:
    values = {
        "x": torch.zeros(2, 3, 5),
        "w": torch.zeros(5),
        "one": torch.zeros(2, 1),
        "t": torch.zeros(2, 3, dtype=torch.int64),
        "h": 2.0,
        "zero": torch.zeros(()),
    }
    if not names_of(text):
        text += " + 0 * max(x, axis=all)"
    used = {name: values[name] for name in names_of(text)}
    assert tuple(run(text, **used).shape) == shape
    kept = run(text, keepdim=True, **used)
    assert kept.squeeze().shape == run(text, **used).squeeze().shape


def test_results_have_names() -> None:
    graph = graph_of("y = x + 1\ny, x, y, x * 2, y * 3", {"x": ROW}).graph
    assert [o.name for o in graph.outputs] == ["y", "out", "y_1", "out_1", "out_2"]
    assert graph.side.names[graph.outputs[0].node] == "y"
    assert all(node in graph.side.spans for node in graph.nodes() if node.args)


def test_equal_lengths_get_one_name() -> None:
    source = Source("a * b + c")
    specs = tuple(
        InputSpec(n, F32, (Dim(f"{n}.0"), 1 if n == "b" else Dim(f"{n}.1"))) for n in "abc"
    )
    resolved = resolve(source, parse(source), specs)
    pairs = {(first.name, second.name) for first, second in resolved.equal}
    assert pairs == {("a.0", "b.0"), ("a.0", "c.0"), ("a.1", "c.1")}
    assert resolved.graph.inputs[2].shape == (Dim("a.0"), Dim("a.1"))
    assert resolved.graph.outputs[0].node.shape == (Dim("a.0"), Dim("a.1"))


def test_lengths_that_never_meet_stay_apart() -> None:
    resolved = graph_of("sum(x) + sum(y)", {"x": ROW, "y": OTHER})
    assert resolved.equal == ()
    assert len({d for s in resolved.graph.inputs for d in s.shape}) == 2


def test_functions_are_hygienic() -> None:
    text = "x = 2 * a\ndef f(a) = a + x\nx = 100\nf(3 * a) + x"
    assert run(text, a=torch.tensor(1.0)).item() == 3 + 2 + 100
    text = "def f(v) = v + 1\ndef f(v) = 2 * v\ndef exp(v) = f(v)\nexp(a)"
    assert run(text, a=torch.tensor(4.0)).item() == 8
    text = "def total(v, axis) = sum(v, axis=axis)\ntotal(X, 0), total(X, (0, 1))"
    first, second = run_all(text, X=MATRIX)
    assert (first.tolist(), second.item()) == ([12, 15, 18, 21], 66)


def test_gather_goes_down_to_the_inputs() -> None:
    x, w = torch.randn(3, 4), torch.randn(4)
    t = torch.tensor([3, 0, 2], dtype=torch.int32)
    picked = x.gather(1, t.long()[:, None])[:, 0]
    assert same_bits(run("(2 * x)[t]", x=x, t=t), 2 * picked)
    assert same_bits(run("(x * w)[t]", x=x, w=w, t=t), picked * w[t.long()])
    assert same_bits(run("(x - max(x))[t]", x=x, t=t), picked - x.amax(1))
    assert run("(index(-1) + 0 * index(-2))[t] + 0 * i32(x[t])", x=x, t=t).tolist() == [3, 0, 2]
    assert same_bits(run("x[t % 4 + 0 * t]", x=x, t=t), picked)
    assert same_bits(run("x[u]", x=x, u=t[:, None]), picked)
    one = torch.tensor([[2]])
    assert same_bits(run("sum(x, axis=0)[u]", x=x, u=one).reshape(()), x.sum(0)[2])
    ops = [n.op.name for n in graph_of("exp(x)[t]", {"x": x, "t": t}).graph.nodes()]
    assert ops == ["input", "input", "gather", "exp"]


def test_positions_and_lengths() -> None:
    x = torch.randn(4, 4)
    causal = "softmax(where(index(-1) <= index(-2), x, -inf))"
    mask = torch.ones(4, 4).tril().bool()
    want = torch.where(mask, x, float("-inf")).softmax(-1)
    torch.testing.assert_close(run(causal, x=x), want)
    assert run("sum(x) * 0 + size(x)", x=torch.zeros(2, 5)).tolist() == [5, 5]
    assert run("0 * sum(x, axis=all) + size(x, (0, 1))", x=torch.zeros(2, 5)).item() == 10
    assert run("0 * x + size(0) + index(x, 0)", x=torch.zeros(1, 2)).tolist() == [[1.0, 1.0]]
    assert run("x + index()", x=torch.zeros(2, 3).half()).dtype is torch.float16


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1/2", 0.5),
        ("7//2 - 7%-2", 4.0),
        ("-2^2", -4.0),
        ("2^-1", 0.5),
        ("2^0.5", 2**0.5),
        ("1/0", float("inf")),
        ("-1/0.0", float("-inf")),
        ("10.0^400", float("inf")),
        ("-(10.0^401)", float("-inf")),
        ("0^-1", float("inf")),
        ("1 < 2 < 3", 1.0),
        ("not (1 < 2 and 3)", 0.0),
        ("1 if 0 else 2.5", 2.5),
        ("sqrt(16) + exp(0)", 5.0),
        ("5 & 3 | 8", 9.0),
        ("floor(2.5) + maximum(1, 2)", 4.0),
        ("where(true, 1, 2.5)", 1.0),
        ("f32(3) + i64(2.7)", 5.0),
    ],
)
def test_literals_are_python_numbers(text: str, value: float) -> None:
    assert run(f"x * ({text})", x=torch.ones(1, dtype=torch.float64)).item() == value


def test_run_time_numbers_compute_in_python() -> None:
    x = torch.ones(2, dtype=torch.float64)
    assert run("x * (h / k)", x=x, h=1, k=3).tolist() == [1 / 3] * 2
    assert run("x * (h + k)", x=x, h=True, k=True).tolist() == [2.0] * 2
    assert run("h * k", h=2.5, k=2).dtype is torch.float32
    assert run("h * k", h=3, k=2).dtype is torch.int64


def test_cast_like_takes_the_type_of_another_value() -> None:
    i, h = torch.tensor([1, 2], dtype=torch.int8), torch.tensor([1.0]).half()
    assert run("cast_like(2.7, i) + i", i=i).tolist() == [3, 4]
    assert run("cast_like(inf, i) * 0 + i", i=i).dtype is torch.int8
    assert run("cast_like(i, h)", i=i, h=h).dtype is torch.float16
    assert run("h * cast_like(1e-9, h) * 1e9", h=h).item() == pytest.approx(1.0)


def test_conditions() -> None:
    x = torch.tensor([-1.0, 0.0, 2.0, float("nan")])
    assert run("1 if x else 0", x=x).tolist() == [1, 0, 1, 1]
    assert run("not x", x=x).tolist() == [False, True, False, False]
    assert run("x > -2 and x or x == 0", x=x).tolist() == [True, True, True, False]
    assert run("-2 < x <= 0", x=x).tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    "text",
    ["+".join(["x"] * 10_000), "(" * 5000 + "x" + ")" * 5000, "-" * 5000 + "x"],
    ids=["terms", "parentheses", "signs"],
)
def test_depth_and_length(text: str) -> None:
    source = Source(text)
    program = parse(source)
    specs = (InputSpec("x", F32, (Dim("x.0"),)),)
    assert resolve(source, program, specs).graph.outputs[0].node.shape == specs[0].shape


def test_resolving_takes_linear_work() -> None:
    def work(terms: int) -> Callable[[], object]:
        source = Source("+".join(["exp(x)*y"] * terms))
        program = parse(source)
        specs = tuple(InputSpec(n, F32, (Dim(f"{n}.0"),)) for n in "xy")
        return lambda: resolve(source, program, specs)

    work(1)()  # built-in functions are read once
    assert grows_linearly(work, 100)


def test_an_expansion_that_explodes_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve_walk, "MOST_STEPS", 10_000)
    lines = ["def f0(v) = v + 1"]
    lines += [f"def f{i}(v) = f{i - 1}(f{i - 1}(v))" for i in range(1, 40)]
    with pytest.raises(UnsupportedError, match="expands to more than"):
        graph_of("\n".join([*lines, "f39(x)"]), {"x": ROW})


@pytest.mark.parametrize("name", ["median", "sort", "cumsum"])
def test_what_scans_or_sorts_is_no_slip_of_the_pen(name: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        run(f"{name}(x)", x=torch.ones(3))
    assert str(caught.value).endswith("hint: it scans or sorts, which no kernel of fusec does")
