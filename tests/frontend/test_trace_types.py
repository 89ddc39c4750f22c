"""Operators over tensors of two types: the value and the type are those of eager PyTorch, which
computes all of an operator in the type that its operands have in common.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

import fusec

Tensor = torch.Tensor
TYPES = (
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.float16,
    torch.bfloat16, torch.float32, torch.float64,
)  # fmt: skip
OPERATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add, an integer": lambda a, b: torch.add(a, b, alpha=2),
    "add, a float": lambda a, b: torch.add(a, b, alpha=0.1),
    "add, of a value": lambda a, b: torch.add(a, b.flatten()[0], alpha=3),
    "add, to a value": lambda a, b: torch.add(a.flatten()[0], b, alpha=3),
    "add, of a number": lambda a, b: torch.add(a, 3, alpha=2),
    "add, of a float": lambda a, b: torch.add(b, 2.5, alpha=100),
    "add, written": lambda a, b: a.clone().add_(b, alpha=3),
    "sub, an integer": lambda a, b: torch.sub(a, b, alpha=3),
    "sub, a float": lambda a, b: torch.sub(a, b, alpha=0.1),
    "rsub, an integer": lambda a, b: torch.rsub(a, b, alpha=3),
    "rsub, a float": lambda a, b: torch.rsub(a, b, alpha=0.1),
    "rsub, of a number": lambda a, b: torch.rsub(a, 3, alpha=2),
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "addcmul, an integer": lambda a, b: torch.addcmul(a, a, b, value=3),
    "addcmul, a float": lambda a, b: torch.addcmul(a, b, b, value=1.5),
    "addcmul, of a value": lambda a, b: torch.addcmul(a, b.flatten()[0], b),
    "addcmul, written": lambda a, b: a.clone().addcmul_(b, b, value=2),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b),
    "addcdiv, a float": lambda a, b: torch.addcdiv(b, a, b, value=0.3),
    "addr": lambda a, b: torch.addr(a, a, b, beta=2, alpha=3),
    "xlogy": lambda a, b: torch.xlogy(a, b),
    "xlog1py": lambda a, b: torch.special.xlog1py(a, b),
    "hypot": lambda a, b: torch.hypot(a, b),
    "logaddexp": lambda a, b: torch.logaddexp(a, b),
    "atan2": lambda a, b: torch.atan2(a, b),
    "copysign": lambda a, b: torch.copysign(a, b),
    "remainder": lambda a, b: torch.remainder(a, b),
    "mul": lambda a, b: torch.mul(a, b),
    "float_power": lambda a, b: torch.float_power(a, b),
    "maximum": lambda a, b: torch.maximum(a, b),
    "clamp": lambda a, b: torch.clamp(a, b, b + b),
    "where": lambda a, b: torch.where(a > b, a, b),
    "where, of a float": lambda a, b: torch.where(a > b, a, 2.5),
    "threshold": lambda a, b: torch.threshold(a, 0.5, 20),
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "mse_loss": lambda a, b: torch.nn.functional.mse_loss(a, b, reduction="none"),
}
# In 16 bits eager PyTorch rounds after each operation, and those above have up to three.
ROUNDINGS = {torch.float16: 3, torch.bfloat16: 3, torch.float32: 8, torch.float64: 8}


def numbers(dtype: torch.dtype, values: tuple[int, ...]) -> Tensor:
    if dtype is torch.bool:
        return torch.tensor([v % 2 == 1 for v in values])
    if dtype.is_floating_point:
        return (torch.tensor(values, dtype=torch.float64) / 3 + 0.1).to(dtype)
    return torch.tensor(values).to(dtype)


def known(function: Callable[[], Tensor]) -> bool:
    """Whether PyTorch computes this of these types."""
    try:
        function()
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    return True


def same(name: str, got: Tensor, wanted: Tensor) -> None:
    assert got.dtype is wanted.dtype, name
    if not wanted.dtype.is_floating_point:
        assert torch.equal(got, wanted), name
        return
    bound = ROUNDINGS[wanted.dtype] * torch.finfo(wanted.dtype).eps
    torch.testing.assert_close(
        got, wanted, rtol=bound, atol=bound, equal_nan=True, msg=lambda text: f"{name}: {text}"
    )


@pytest.mark.parametrize(
    ("first", "second"),
    list(itertools.product(TYPES, TYPES)),
    ids=lambda dtype: str(dtype).removeprefix("torch."),
)
def test_operators_of_two_types(first: torch.dtype, second: torch.dtype) -> None:
    a = numbers(first, (100, -128, 3, 7, -1, 50))
    b = numbers(second, (5, 100, -128, 90, 3, 6))
    functions = {k: f for k, f in OPERATORS.items() if known(lambda f=f: f(a, b))}
    compiled = fusec.compile(lambda a, b: {k: f(a, b) for k, f in functions.items()})
    got = compiled(a, b)
    for name, function in functions.items():
        same(name, got[name], function(a, b))


@pytest.mark.parametrize("second", [torch.int8, torch.uint8, torch.float16])
def test_gradients_of_two_types(second: torch.dtype) -> None:
    b = numbers(second, (5, 100, -128, 90, 3, 6))
    grads = []
    for wrap in (fusec.compile, lambda function: function):
        a = numbers(torch.float32, (100, -128, 3, 7, -1, 50)).requires_grad_()
        function = wrap(lambda a, b: torch.rsub(b, a * a, alpha=3) + torch.addcmul(a, b, b) * a)
        function(a, b).sum().backward()
        grads.append(a.grad)
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("value", [2.5, -1.5, 0.5])
def test_a_float_that_scales_integers_is_an_integer(value: float) -> None:
    def function(a: Tensor, s: float) -> Tensor:
        return torch.addcmul(a, a, a, value=s)

    a = torch.tensor([2**30 + 1, 5, -7])
    assert torch.equal(fusec.compile(function)(a, value), function(a, value))
    fixed = fusec.compile(lambda a: function(a, value))
    assert torch.equal(fixed(a), function(a, value))


def test_models_compute_in_the_common_type() -> None:
    def function(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        found = (torch.add(a, b, alpha=2), torch.sub(a, b, alpha=2), torch.addcmul(a, b, b))
        return (*found, torch.rsub(b, a, alpha=3), torch.xlogy(a.double(), b.float()))

    a, b = torch.zeros(3), torch.tensor([100, -128, 3], dtype=torch.int8)
    compiled = torch.compile(function, backend="fusec")
    for got, wanted in zip(compiled(a, b), function(a, b), strict=True):
        torch.testing.assert_close(got, wanted, equal_nan=True)


def test_a_formula_takes_the_logarithm_in_the_common_type() -> None:
    a, b = torch.rand(9, dtype=torch.float64) + 1, torch.rand(9) + 1
    got = fusec.compile("xlogy(a, b)")(a, b)
    torch.testing.assert_close(got, torch.xlogy(a, b), rtol=1e-14, atol=0)
