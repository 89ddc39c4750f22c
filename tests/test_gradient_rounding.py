"""What a result is rounded to when it is stored does not change a gradient of 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec
from fusec.ir.graph import Graph
from fusec.passes.grad import gradient
from fusec.passes.save import keep
from tests.formulas import graph_of

Tensor = torch.Tensor
BACKENDS = pytest.mark.parametrize("backend", ["cpp", "triton", "cuda", "torch"])
NARROW = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


def gradients(function: Callable[..., Any], *values: Tensor) -> list[Tensor]:
    """The gradients of the sum of the first result."""
    leaves = [v.clone().requires_grad_() for v in values]
    result = function(*leaves)
    first = result[0] if isinstance(result, tuple) else result
    return list(torch.autograd.grad(first.sum(), leaves))


NEAR = torch.tensor([[100.0, 100.5, 101.0, 100.5, 100.0], [-3.0, -3.25, -3.0, -2.5, -2.75]])
# A program, and its first result in float64.
PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "m = mean(x); sum((x - m)^4), m": lambda x: ((x - x.mean(-1, keepdim=True)) ** 4).sum(-1),
    "s = std(x); sum(exp(x - max(x)) * s), s": lambda x: (
        (x - x.amax(-1, keepdim=True)).exp() * x.std(-1, keepdim=True)
    ).sum(-1),
    "l = logsumexp(x); sum(exp(x - l)^2), l": lambda x: (
        (x - x.logsumexp(-1, keepdim=True)).exp() ** 2
    ).sum(-1),
    "n = norm(x); sum(cos(x - n)), n": lambda x: (x - x.norm(dim=-1, keepdim=True)).cos().sum(-1),
    "h = 1.01 * x; m = mean(h); sum((h - m)^4), h, m": lambda x: (
        (1.01 * x - 1.01 * x.mean(-1, keepdim=True)) ** 4
    ).sum(-1),
    "h = 1.01 * x; sum(exp(h - 101)), h": lambda x: (1.01 * x - 101).exp().sum(-1),
    "h = 1.01 * x; max(h), h": lambda x: (1.01 * x).amax(-1),
    "m = mean(x, axis=all); sum((x - m)^3 / 1000), m": lambda x: ((x - x.mean()) ** 3 / 1000).sum(
        -1
    ),
}


@BACKENDS
@NARROW
@pytest.mark.parametrize("text", PROGRAMS)
def test_a_further_result_leaves_a_gradient_alone(
    text: str, dtype: torch.dtype, backend: str
) -> None:
    x = NEAR.to(dtype)
    (got,) = gradients(fusec.compile(text, backend=backend), x)
    (want,) = gradients(PROGRAMS[text], x.double())
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), want, rtol=step, atol=1e-3 * want.abs().max().item())


def test_the_first_of_two_results_has_the_gradient_that_it_has_alone() -> None:
    x = NEAR.bfloat16()
    (alone,) = gradients(fusec.compile("m = mean(x); sum((x - m)^4)"), x)
    (beside,) = gradients(fusec.compile("m = mean(x); sum((x - m)^4), m"), x)
    assert torch.equal(alone, beside)


OWN: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], list[float]]] = {
    "logsumexp(x * y)": (lambda x, y: (x * y).logsumexp(-1), [100.0, 0.0, 30.0, 99.0]),
    "logsumexp(exp(x * y))": (lambda x, y: (x * y).exp().logsumexp(-1), [4.0, 3.9, 1.0, 0.0]),
    "log(sum(exp(x * y - 90))) + 90": (lambda x, y: (x * y).logsumexp(-1), [90.0, 91.0, 89.5, 0.0]),
    "norm(x * y)": (lambda x, y: (x * y).norm(dim=-1), [3.0, 4.0, 5.0, 0.0]),
    "std(x * y)": (lambda x, y: (x * y).std(-1), [100.0, 100.5, 101.0, 99.0]),
}


@BACKENDS
@NARROW
@pytest.mark.parametrize("text", OWN)
def test_an_operation_that_reads_its_own_result(
    text: str, dtype: torch.dtype, backend: str
) -> None:
    function, points = OWN[text]
    x, y = torch.tensor([points]).to(dtype), torch.tensor([1.01]).to(dtype)
    got = gradients(fusec.compile(text, backend=backend), x, y)
    want = gradients(function, x.double(), y.double())
    for one, other in zip(got, want, strict=True):
        bound = torch.finfo(dtype).eps * other.abs().max().item()
        torch.testing.assert_close(one.double(), other, rtol=0.0, atol=bound)


def kept(text: str, **shapes: tuple[int, ...]) -> dict[str, str]:
    """What the gradient of a formula of bfloat16 starts from, and how."""
    values = {name: torch.ones(shape).bfloat16() for name, shape in shapes.items()}
    graph: Graph = graph_of(text, values).graph
    crossing = keep(graph, gradient(graph, list(values)).graph).crossing
    return {c.name: c.how for c in crossing}


@pytest.mark.parametrize(
    "text", ["softmax(x)", "tanh(x)", "sigmoid(x)", "exp(x)", "log_softmax(x)"]
)
def test_a_result_as_large_as_the_input_that_multiplies_is_read(text: str) -> None:
    assert kept(text, x=(8, 4)) == {"out": "result"}


def test_what_moves_fewest_bytes() -> None:
    rows, row = (8, 4), (4,)
    assert kept("h = softmax(x); h, sum(h * v)", x=rows, v=row)["h"] == "result"
    residual = kept("h = x + r; h, rms_norm(h, w)", x=rows, r=rows, w=row)
    assert residual == {"h": "result", "row_rsqrt": "kept", "w": "input"}
    assert "h" in kept("h = x + r; h, layer_norm(h)", x=rows, r=rows)
    assert kept("h = x + w; h, layer_norm(h)", x=rows, w=row).get("x") == "input"
    assert kept("h = x + r; h, logsumexp(h)", x=rows, r=rows) == {
        "x": "input", "r": "input", "row_add": "kept"
    }  # fmt: skip
    assert kept("max(x)", x=rows) == {"x": "input", "out": "result"}
