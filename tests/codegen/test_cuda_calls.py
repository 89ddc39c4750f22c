"""Functions of long code stand once where writing them out would take a compiler long."""

from __future__ import annotations

import pytest
import torch

import fusec
from tests.oracle import reference


def source(text: str, dtype: torch.dtype) -> str:
    function = fusec.compile(text, backend="cuda")
    return function.show("cuda", *[torch.empty(64, 64, dtype=dtype) for _ in function.inputs])


@pytest.mark.parametrize(
    ("text", "dtype", "called"),
    [
        ("sin(x)", torch.bfloat16, ()),  # one to an element is quicker in its place
        ("lgamma(x)", torch.bfloat16, ("lgammaf",)),  # as long as two
        ("sin(x) + cos(x)", torch.float32, ("sinf", "cosf")),
        ("sin(x) + cos(x)", torch.float64, ()),  # of few elements
        ("sin(x) + cos(x)", torch.bfloat16, ("sinf", "cosf")),
        ("sin(x) + cos(x) + x^2.5 + lgamma(x)", torch.float32, ("sinf", "cosf", "powf", "lgammaf")),
        ("tan(x) * sin(x) * x^y * cos(y) * cos(x) * sin(y) * tan(y)", torch.float64,
         ("sin", "cos", "tan", "pow")),
        ("exp(x) + erf(x) + log(x) + tanh(x)", torch.bfloat16, ()),
    ],
)  # fmt: skip
def test_what_is_called(text: str, dtype: torch.dtype, called: tuple[str, ...]) -> None:
    printed = source(text, dtype)
    assert printed.count("__noinline__") == len(called)
    assert all(f"called_{name}(" in printed for name in called)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "text",
    [
        "sin(x) + cos(x) * sin(y) * cos(y) + x^y + tan(x) + tan(y)",
        "a = sin(x)\nb = cos(x)\nsum(a * b * x^2.5 * cos(a) * sin(b) * y, axis=1)",
    ],
)
def test_results_are_those_of_the_formula(text: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(7)
    x, y = (torch.rand(5, 300, generator=generator, dtype=torch.float64).to(dtype) for _ in "xy")
    function = fusec.compile(text, backend="cuda")
    assert "called_" in function.show("cuda", x, y)
    (wanted,) = reference(text, x, y)
    error = {torch.bfloat16: 2**-7, torch.float32: 2**-20, torch.float64: 2**-45}[dtype]
    torch.testing.assert_close(function(x, y).double(), wanted.double(), rtol=error, atol=error)
