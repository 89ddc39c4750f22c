"""Floats among the arguments of a traced function: numbers of each call, wherever they come out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import fusec
from fusec.errors import UnknownNameError, UnsupportedError

Tensor = torch.Tensor
X = torch.tensor([1.0, 2.0, 4.0])


@dataclass
class Pair:
    first: Any
    second: Any


@dataclass(frozen=True)
class Case:
    """What a function returns, and the floats that it is called with in turn."""

    function: Callable[[Tensor, float], Any]
    values: Sequence[float] = (2.5, 3.5, 0.25, 2.5)


CASES: dict[str, Case] = {
    "itself": Case(lambda x, s: (x * s, s)),
    "itself alone": Case(lambda x, s: s),
    "in a dict": Case(lambda x, s: {"y": x * s, "lr": s * 0.5}),
    "in a dataclass": Case(lambda x, s: Pair([x * s, -s], Pair(s / 4, None))),
    "without a kernel": Case(lambda x, s: (x, x.t(), s * 0.5)),
    "with a length": Case(lambda x, s: (x * s, s * x.shape[0], x.shape[0], x.shape[0] + 0.5)),
    "compared": Case(lambda x, s: (x * s, s > 3, s == 2.5, not s)),
    "made an integer": Case(lambda x, s: (x * s, int(s), math.floor(s), math.ceil(s), round(s))),
    "rounded": Case(lambda x, s: (x * s, round(s, 1), s // 2, s % 2), (2.57, 3.51, 1.0)),
    "mathematics": Case(lambda x, s: (x, math.exp(s), math.sqrt(s), math.sin(s), math.log(s))),
    "symbolic": Case(lambda x, s: (x, torch.sym_sqrt(s), torch.sym_float(s))),
    "largest": Case(lambda x, s: (x, max(s, 3.0), min(s, 3.0), abs(-s), s**2)),
    "no float to sympy": Case(lambda x, s: (x, s - s, s * 0.0, s + 1.0 - s)),
    "a branch": Case(lambda x, s: x * s if s else s, (1.0, 0.0, -0.0, 0.0, 2.0)),
    "in a branch": Case(lambda x, s: (x * s, -s) if s else (x / 2, s, s * -1.0), (1.0, 0.0, -0.0)),
    "zeros": Case(lambda x, s: (x * s, s, -s), (0.0, -0.0, 1.0, -0.0, 0.0)),
    "sign of zero": Case(lambda x, s: x * math.copysign(1.0, s), (0.0, -0.0, 0.0)),
    "not finite": Case(
        lambda x, s: (x * s, s, s * 2, s > 3, s == s), (2.5, math.inf, math.nan, -math.inf, 2.5)
    ),
    "a branch on what is not finite": Case(
        lambda x, s: x * s if s > 3 else (x, s), (math.nan, 2.5, math.inf, 4.5, math.nan)
    ),
    "of integers": Case(lambda x, s: x.int() * 1_500_000_000 * (s - s + 1.0)),
    "a value that is asked for": Case(
        lambda x, s: x.int() * 1_500_000_000 * s if s == 2.5 else (x, s)
    ),
    "a length": Case(lambda x, s: x[: int(s)] * 2, (2.0, 3.0, 1.0, 2.0)),
    "a comparison in a kernel": Case(
        lambda x, s: (x * (s == 2.5), x * (s > 2.5), x * (s <= 2.5), x * (s != 2.5)),
        (2.5, 2.5 + 1e-15, 2.5 - 1e-15),
    ),
    "both in a kernel": Case(lambda x, s: x * (1 < s < 3) + (s < 1 or s > 3)),
}


def same(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    if isinstance(got, Tensor):
        torch.testing.assert_close(got, wanted, equal_nan=True)
        assert torch.equal(got.signbit(), wanted.signbit())
    elif isinstance(got, Pair):
        same((got.first, got.second), (wanted.first, wanted.second))
    elif isinstance(got, dict):
        same(list(got.items()), list(wanted.items()))
    elif isinstance(got, list | tuple):
        assert len(got) == len(wanted)
        for a, b in zip(got, wanted, strict=True):
            same(a, b)
    else:
        assert repr(got) == repr(wanted)


@pytest.mark.parametrize("name", CASES)
def test_a_float_is_that_of_the_call(name: str) -> None:
    case = CASES[name]
    compiled = fusec.compile(case.function)
    for value in case.values:
        same(compiled(X, value), case.function(X, value))
    for value in case.values:  # now that all are known
        same(compiled(X, value), case.function(X, value))


def test_a_returned_float_traces_nothing_again() -> None:
    runs: list[float] = []

    @fusec.fuse
    def scaled(x: Tensor, s: float) -> tuple[Tensor, float]:
        runs.append(s)
        return x * s, s * 0.5

    for k in range(5):
        assert scaled(X, k + 0.5)[1] == (k + 0.5) * 0.5
    assert (len(runs), len(scaled.variants)) == (1, 1)


def test_with_gradients_and_concatenations() -> None:
    def function(x: Tensor, s: float) -> tuple[Tensor, Tensor, float]:
        return torch.cat([x * s, x]), x.exp() * s, s * 0.5

    compiled = fusec.compile(function)
    for s in (2.5, 3.5):
        x, y = (X.clone().requires_grad_() for _ in range(2))
        got, wanted = compiled(x, s), function(y, s)
        same(got[2], wanted[2])
        for value in (got, wanted):
            (value[0].sum() + value[1].sum()).backward()
        torch.testing.assert_close(x.grad, y.grad)


def test_a_returned_number_that_cannot_be_computed_raises_as_python_does() -> None:
    compiled = fusec.compile(lambda x, s: (x * s, 1 / s))
    assert compiled(X, 4.0)[1] == 0.25
    with pytest.raises(ZeroDivisionError):
        compiled(X, 0.0)


@pytest.mark.parametrize("value", [2.5, 0.5, 0.0, -0.0, math.inf])
def test_a_bound_call_asks_about_its_own_float(value: float) -> None:
    def function(x: Tensor, s: float) -> Tensor:
        return x * s if s > 1 else x - s

    same(fusec.compile(function).bind(X, 2.5)(X, value), function(X, value))
    same(fusec.compile(function).bind(X, math.inf)(X, value), function(X, value))


def test_a_bound_call_with_another_integer() -> None:
    bound = fusec.compile(lambda x, k, s=2.0: x * k * s).bind(X, 2)
    same(bound(X, 3, 0.5), X * 1.5)
    same(bound(X + 1, 2, 0.5), X + 1)
    same(bound(), X * 4)
    with pytest.raises(UnknownNameError, match="2 arguments for 3 inputs"):
        bound(X, 3)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "rounded": (lambda x, s: x * round(s, 1), "no kernel computes the number round(s, 1)"),
    "an integer": (lambda x, s: x * round(s), "no kernel computes the number round(s)"),
    "of a length": (
        lambda x, s: x * round(s * x.shape[0]),
        "no kernel computes the number round(s*float(x.shape[0]))",
    ),
    "as text": (lambda x, s: (x * s, f"{s}"), "the function returns a number as text"),
    "a length as text": (lambda x, s: (x * s, str(x.shape)), "the function returns a number as"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_number_is_named_as_the_user_does(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(UnsupportedError, match=re.escape(message)) as found:
        fusec.compile(function)(X, 2.5)
    assert "zf" not in str(found.value)
