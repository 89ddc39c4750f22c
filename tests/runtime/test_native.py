"""PyTorch's own function is found by its numbers, and never found where it differs."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from fusec.runtime.native import find_native

MATRIX = torch.empty(40, 40)
ROW = torch.empty(40)


def rounded_gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))


def softmax(x: torch.Tensor) -> torch.Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred**2).mean(-1, keepdim=True) + 1e-5) * w + b


@pytest.mark.parametrize(
    ("function", "values", "expected"),
    [
        (rounded_gelu, (MATRIX,), 'torch.nn.functional.gelu(x, approximate="tanh")'),
        (functional.gelu, (MATRIX,), "torch.nn.functional.gelu(x)"),
        (lambda x: x * torch.sigmoid(x), (MATRIX,), "torch.nn.functional.silu(x)"),
        (lambda x: torch.clamp(x, min=0), (MATRIX,), "torch.nn.functional.relu(x)"),
        (softmax, (MATRIX,), "torch.nn.functional.softmax(x, -1)"),
        (lambda x: x.sum(-1), (MATRIX,), "torch.sum(x, -1)"),
        (lambda x: x.sum(-2), (MATRIX,), "torch.sum(x, -2)"),
    ],
)
def test_one_input(
    function: Callable[..., object], values: tuple[torch.Tensor, ...], expected: str
) -> None:
    found = find_native(function, ("x",), values)
    assert found is not None
    assert found.expression == expected


def test_layer_norm_finds_order_and_epsilon() -> None:
    found = find_native(
        lambda b, x, w: layer_norm(x, w, b), ("b", "x", "w"), (ROW, torch.empty(20, 40), ROW)
    )
    assert found is not None
    assert found.expression == ("torch.nn.functional.layer_norm(x, x.shape[-1:], w, b, eps=1e-05)")


def test_cross_entropy() -> None:
    def loss(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(x, -1) - torch.take_along_dim(x, t[:, None], -1).squeeze(-1)

    target = torch.zeros(30, dtype=torch.int64)
    found = find_native(loss, ("x", "t"), (torch.empty(30, 50), target))
    assert found is not None
    assert found.name == "cross_entropy"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: functional.gelu(x) * 1.001,
        lambda x: torch.clamp(x, min=0, max=20),  # relu6 and relu are near, and others
        lambda x: functional.layer_norm(x, x.shape[-1:], eps=3e-5),
        lambda x: (x, x),
        lambda x: torch.softmax(x, -2),
        lambda x: torch.sqrt(-(x**2) - 1),  # NaN everywhere agrees with too much
    ],
)
def test_what_is_only_similar_is_not_taken(function: Callable[..., object]) -> None:
    assert find_native(function, ("x",), (MATRIX,)) is None


def test_a_formula_without_tensors_has_none() -> None:
    assert find_native(lambda a: a, ("a",), (0.5,)) is None


def test_empty_inputs_are_told_apart_all_the_same() -> None:
    found = find_native(functional.silu, ("x",), (torch.empty(0, 4),))
    assert found is not None
    assert found.name == "silu"
    assert find_native(lambda x: x + 1, ("x",), (torch.empty(0, 4),)) is None


def test_the_source_of_a_call_runs() -> None:
    found = find_native(rounded_gelu, ("x",), (MATRIX,))
    assert found is not None
    namespace: dict[str, object] = {"torch": torch}
    exec(found.source(("x",)), namespace)
    function = namespace["native"]
    assert callable(function)
    x = torch.randn(9)
    torch.testing.assert_close(function(x), functional.gelu(x, approximate="tanh"))
