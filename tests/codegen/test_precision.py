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


@pytest.mark.parametrize("text", ["exp(x)", "tanh(x) * 2", "softmax(x)", "bf16(f32(x)) + exp(x)"])
def test_narrow_results_take_fast_forms(text: str) -> None:
    x = torch.empty(2, 512, dtype=torch.bfloat16)
    assert "fast::" in fusec.compile(text).show("cpp", x)
    assert "fast::" not in fusec.compile(text, numerics="precise").show("cpp", x)
