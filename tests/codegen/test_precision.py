"""Functions take their fast forms for what is stored in 16 bits, and not where more is seen."""

from __future__ import annotations

import pytest
import torch

import fusec
from tests.oracle import Backend, reference


@pytest.mark.parametrize("backend", ["cpp", "triton", "cuda"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("f32(exp(x))", 4),
        ("exp(x) * y", 4),
        ("f32(tanh(x) * 2)", 4),
        ("f64(exp(x) + 1)", 4),
        ("where(exp(x) > 1, exp(x), y)", 4),
        ("f32(sum(exp(x)))", 4),
        ("f32(softmax(x))", 16),
        ("s = exp(x)\ns, s * y", 4),  # one value for both
        ("f32(exp(sum(x, axis=0)))", 8),
        # sums over rows that come along with those of rows
        ("y = x * (1 + x)\ny * rsqrt(mean(y^2) + 1), f32(exp(sum(y, axis=0) / 8))", 8),
    ],
)
def test_wide_results_of_narrow_values_are_accurate(
    text: str, steps: int, dtype: torch.dtype, backend: str
) -> None:
    x = torch.linspace(-3, 3, 1024).reshape(2, 512).to(dtype)
    inputs = (x, torch.ones(2, 512))[: len(fusec.compile(text).inputs)]
    result = Backend(backend, "cpu").run(text, *inputs)[-1].double()
    exact = reference(text, *inputs)[-1].double()
    assert ((result - exact).abs() / exact.abs()).max() < steps * 2.0**-24


@pytest.mark.parametrize("backend", ["cpp", "triton", "cuda"])
@pytest.mark.parametrize(
    "text", ["i64(exp(x) * 1000)", "f32(i64(exp(x) * 1000))", "exp(x) > 30000", "argmax(exp(x))"]
)
def test_integers_and_truths_of_narrow_values_are_accurate(text: str, backend: str) -> None:
    x = torch.linspace(9, 16, 1024).reshape(2, 512).half()
    result = Backend(backend, "cpu").run(text, x)[0].double()
    exact = reference(text, x)[0].double()
    assert ((result - exact).abs() <= exact.abs() * 2.0**-22 + (exact > 2)).all()
    function = fusec.compile(text, backend="cpp")
    assert "fast::" not in function.show("cpp", x)


@pytest.mark.parametrize(
    "text",
    ["floor(x / g)", "ceil(x / g)", "trunc(x / g)", "round(x / g)", "x / g // 1", "x / g % 1"],
)
def test_what_is_cut_off_is_divided_exactly(text: str) -> None:
    """On a GPU the quick division of a number by itself may lie below 1."""
    x = torch.arange(1, 1025).reshape(2, 512).half()
    function = fusec.compile(text, backend="triton")
    source = function.show("triton", x, x)
    assert "tl.div_rn(x, g)" in source
    assert torch.equal(function(x, x), fusec.compile(text, backend="torch")(x, x))
    assert "tl.div_rn" not in fusec.compile("x / g", backend="triton").show("triton", x, x)


@pytest.mark.parametrize("text", ["exp(x)", "tanh(x) * 2", "softmax(x)", "bf16(f32(x)) + exp(x)"])
def test_narrow_results_take_fast_forms(text: str) -> None:
    x = torch.empty(2, 512, dtype=torch.bfloat16)
    assert "fast::" in fusec.compile(text).show("cpp", x)
    assert "fast::" not in fusec.compile(text, numerics="precise").show("cpp", x)
