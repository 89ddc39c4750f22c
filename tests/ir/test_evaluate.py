"""Promotion and operators against PyTorch, and what the evaluator promises of its own."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusec.errors import FusecError, ShapeError
from fusec.ir.dtypes import ALL
from fusec.ir.evaluate import evaluate
from tests.formulas import graph_of, run, run_all, same_bits

TYPES = [getattr(torch, d.torch) for d in ALL if d.bits != 8 or not d.is_float]
NUMBERS: list[Any] = [True, 3, 2.5]
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "a + b": operator.add,
    "a - b": operator.sub,
    "a * b": operator.mul,
    "a / b": operator.truediv,
    "a // b": operator.floordiv,
    "a % b": operator.mod,
    "a ^ b": operator.pow,
    "a < b": operator.lt,
    "a == b": operator.eq,
    "a & b": operator.and_,
    "maximum(a, b)": lambda a, b: torch.maximum(torch.as_tensor(a), torch.as_tensor(b)),
    "where(a < b, a, b)": lambda a, b: torch.where(a < b, a, b),
}
VALUES = {"tensor": [3.0, 1.0, 2.0], "zero-dimensional": 2.0}


def operand(dtype: torch.dtype, kind: str, shift: int) -> torch.Tensor:
    return (torch.tensor(VALUES[kind], dtype=torch.float64) + shift).to(dtype)


def expected(function: Callable[[Any, Any], Any], a: Any, b: Any) -> torch.Tensor | None:
    """PyTorch's answer, or None where it refuses."""
    try:
        return torch.as_tensor(function(a, b))
    except (RuntimeError, NotImplementedError):
        return None


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.allclose(a.double(), b.double(), rtol=1e-2)


def agree(text: str, function: Callable[[Any, Any], Any], a: Any, b: Any) -> bool:
    want = expected(function, a, b)
    try:
        got = run(text, a=a, b=b)
    except FusecError:
        return want is None
    return want is not None and close(got, want)


def is_exception(text: str, a: Any, b: Any) -> bool:
    """Where the reference takes no numbers (maximum), or has a special case (b ^ True)."""
    both = all(isinstance(x, torch.Tensor) for x in (a, b))
    bools = all(getattr(x, "dtype", type(x)) in (torch.bool, bool) for x in (a, b))
    return not both and ("maximum" in text or ("^" in text and bools))


@pytest.mark.parametrize("text", OPERATORS)
def test_promotion_of_tensors_is_that_of_torch(text: str) -> None:
    wrong = []
    for first, second in itertools.product(TYPES, TYPES):
        for kinds in itertools.product(VALUES, VALUES):
            a, b = operand(first, kinds[0], 0), operand(second, kinds[1], 1)
            if not agree(text, OPERATORS[text], a, b):
                wrong.append((first, second, kinds))
    assert wrong == []


@pytest.mark.parametrize("text", OPERATORS)
def test_promotion_of_numbers_is_that_of_torch(text: str) -> None:
    """Numbers given at run time, and the same ones written into the formula."""
    wrong = []
    for dtype, kind, number in itertools.product(TYPES, VALUES, NUMBERS):
        tensor = operand(dtype, kind, 0)
        for name, a, b in (("b", tensor, number), ("a", number, tensor)):
            written = re.sub(rf"\b{name}\b", str(number).lower(), text)
            for form in (text, written):
                if not is_exception(text, a, b) and not agree(form, OPERATORS[text], a, b):
                    wrong.append((dtype, kind, number, form))
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "dtype", "values", "want"),
    [
        ("x + 300", torch.int8, [100], [-112]),
        ("x == 300", torch.int8, [44], [True]),
        ("x & 300", torch.int8, [100], [36]),
        ("x // y", torch.int64, [7, -7, 3], [0, 0, 0]),
        ("x % y", torch.uint8, [7, 8, 3], [0, 0, 0]),
        ("x ^ -y ", torch.int64, [1, 2, -1], [1, 1, 1]),
        ("-(2^62) * 2 * x", torch.int64, [1], [-(2**63)]),
        ("floor(x) + round(x)", torch.int32, [3], [6]),
    ],
)
def test_integers_wrap_and_division_by_zero_gives_zero(
    text: str, dtype: torch.dtype, values: list[int], want: list[Any]
) -> None:
    x = torch.tensor(values, dtype=dtype)
    arrays = {"x": x, "y": torch.zeros_like(x)} if "y" in text else {"x": x}
    assert run(text, **arrays).tolist() == want


def test_a_number_is_not_rounded_to_16_bits() -> None:
    x = torch.tensor([1.0, 3.0]).half()
    want = (x.float() / 1e6 * 1e6).half()
    assert same_bits(run("x / h * h", x=x, h=1e6), want)
    assert same_bits(run("x / 1e6 * 1e6", x=x), want)


def test_16_bit_values_round_at_casts_and_at_the_end_only() -> None:
    x = torch.tensor([300.0, 3.1]).half()
    assert same_bits(run("x * x / x", x=x), x)
    assert run("f16(x * x) / x", x=x)[0].isinf()
    b = torch.tensor([1.0]).bfloat16()
    assert run("(b + 0.001) - b", b=b).item() == pytest.approx(0.001, rel=1e-2)
    assert run("bf16(b + 0.001) - b", b=b).item() == 0.0


def test_float64_precision_keeps_the_outputs_and_rounds_at_casts_the_user_wrote() -> None:
    x = torch.tensor([0.1], dtype=torch.float32)
    out = run("x / 3", x=x, precision="float64")
    assert out.dtype is torch.float64
    assert out.item() == x.double().item() / 3
    cast = run("bf16(x / 3)", x=x, precision="float64")
    assert cast.item() == (x.double() / 3).bfloat16().item()
    i = torch.tensor([16777217])
    assert run("x * i", x=torch.ones(1), i=i, precision="float64").item() == 16777217
    with pytest.raises(FusecError, match="precision must be"):
        run("x", x=x, precision="float16")


def test_eight_bit_floats_compute_in_float32() -> None:
    x = torch.tensor([1.5, -2.0]).to(torch.float8_e4m3fn)
    assert same_bits(run("x * x", x=x), x.float() * x.float())
    assert run("x", x=x).dtype is torch.float8_e4m3fn
    assert same_bits(run("f8e5m2(exp(x))", x=x), x.float().exp().to(torch.float8_e5m2))


@pytest.mark.parametrize("text", ["x", "x + 0 * y", "2 * y", "sum(x)", "sum(x) + y"])
def test_outputs_are_fresh_and_contiguous(text: str) -> None:
    x, y = torch.randn(3, 4), torch.randn(1, 4).expand(3, 4)
    out = run(text, x=x, y=y) if "y" in text else run(text, x=x)
    assert out.is_contiguous()
    assert out.data_ptr() not in (x.data_ptr(), y.data_ptr())


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_a_maximum_over_nothing_is_an_error_as_in_torch(name: str) -> None:
    with pytest.raises(ShapeError, match=rf"{name} over an axis of length 0 \(x\.1\)"):
        run(f"{name}(x)", x=torch.zeros(3, 0))
    assert run(f"{name}(x)", x=torch.zeros(0, 3)).shape == (0,)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("sum(x)", 0.0),
        ("prod(x)", 1.0),
        ("mean(x)", float("nan")),
        ("var(x)", float("nan")),
        ("logsumexp(x)", float("-inf")),
        ("any(x)", False),
        ("all(x)", True),
        ("norm(x)", 0.0),
    ],
)
def test_other_reductions_over_nothing(text: str, want: float) -> None:
    out = run(text, x=torch.zeros(2, 0))
    assert out.shape == (2,)
    assert all(v == want or (v != v and want != want) for v in out.tolist())
    assert run("softmax(x)", x=torch.zeros(2, 0)).shape == (2, 0)


def test_gather_outside_gives_nan_or_zero() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    t = torch.tensor([-1, 2])
    assert run("x[t]", x=x, t=t).isnan().all()
    assert run("x[t]", x=x.int(), t=t).tolist() == [0, 0]
    assert run("x[t]", x=x, t=torch.tensor([1, 0])).tolist() == [2.0, 3.0]
    assert run("x[t]", x=torch.zeros(2, 0), t=t).isnan().all()


def test_inputs_must_have_the_shapes_of_the_graph() -> None:
    x = torch.zeros(3, 4)
    graph = graph_of("x + y", {"x": x, "y": x}).graph
    with pytest.raises(ShapeError, match="y is"):
        evaluate(graph, {"x": x, "y": torch.zeros(3, 5)}, torch)
    with pytest.raises(ShapeError, match="no value for the input 'y'"):
        evaluate(graph, {"x": x}, torch)
    with pytest.raises(ShapeError, match="rank 1"):
        evaluate(graph, {"x": x, "y": torch.zeros(4)}, torch)


def test_deep_graphs_and_several_outputs() -> None:
    x = torch.ones(2)
    assert run("+".join(["x"] * 10_000), x=x).tolist() == [10_000.0] * 2
    first, second = run_all("y = x + 1\ny, y * 2", x=x)
    assert (first.tolist(), second.tolist()) == ([2.0, 2.0], [4.0, 4.0])
