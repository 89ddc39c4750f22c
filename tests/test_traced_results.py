"""What a traced function may return: containers made anew in each call, and constants; the rest is
refused at its return.
"""

from __future__ import annotations

import enum
import types
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy
import pytest
import torch

import fusec
from fusec.errors import UnsupportedError

Tensor = torch.Tensor
X = torch.tensor([[1.0, 2.0, 4.0]])


@dataclass
class Pair:
    first: Any
    second: Any = 3


@dataclass(frozen=True)
class Frozen:
    first: Any
    names: tuple[str, ...] = ("a", "b")


@dataclass(slots=True)
class Slots:
    first: Any
    made: Any = field(init=False, default=None)


@dataclass
class Further(Pair):
    third: Any = None


class Colour(enum.Enum):
    RED = 1


Point = namedtuple("Point", "x y")

RETURNED: dict[str, Callable[[Tensor], Any]] = {
    "dataclass": lambda x: Pair(x * 2, [x + 1, Pair(x, None)]),
    "frozen": lambda x: Frozen(x * 2),
    "slots": lambda x: Slots(x * 2),
    "derived": lambda x: Further(x * 2, x.sum(-1), x),
    "inside of containers": lambda x: {"a": [Pair(x * 2)], "b": (x, Pair(x.t()))},
    "named tuple": lambda x: Point(x * 2, x),
    "ordered": lambda x: OrderedDict(a=x * 2),
    "largest": lambda x: x.max(-1),
    "without a tensor that is computed": lambda x: Pair(x, x.t()),
    "constants": lambda x: (x * 2, None, 1, 2.5, True, "name", b"bytes", 1j, Colour.RED, ...),
    "of torch": lambda x: (x * 2, x.dtype, x.device, torch.contiguous_format, torch.strided),
    "lengths": lambda x: (x * 2, x.shape[1], x.numel() / 2, x.shape[1] > 2, x.shape),
    "lengths alone": lambda x: (x, x.shape, x.t().shape),
}


def same(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    if isinstance(got, Tensor):
        torch.testing.assert_close(got, wanted)
    elif hasattr(got, "__dataclass_fields__"):
        for name in got.__dataclass_fields__:
            same(getattr(got, name), getattr(wanted, name))
    elif isinstance(got, dict):
        assert got.keys() == wanted.keys()
        same(list(got.values()), list(wanted.values()))
    elif isinstance(got, list | tuple):
        assert len(got) == len(wanted)
        for a, b in zip(got, wanted, strict=True):
            same(a, b)
    else:
        assert got == wanted


@pytest.mark.parametrize("name", RETURNED)
def test_what_is_returned_has_its_types_in_each_call(name: str) -> None:
    function = RETURNED[name]
    compiled = fusec.compile(function)
    for x in (X, torch.randn(4, 5), X, torch.randn(1, 2)):
        same(compiled(x), function(x))


def test_a_dataclass_is_new_in_each_call() -> None:
    compiled = fusec.compile(lambda x: Pair(x * 2, []))
    first, second = compiled(X), compiled(X)
    assert first is not second
    assert first.second is not second.second
    assert first.first.data_ptr() != second.first.data_ptr()


def test_a_dataclass_of_arrays_and_gradients() -> None:
    compiled = fusec.compile(lambda x: Pair(x * x, x.sum()))
    for array in (numpy.ones((2, 3)), numpy.ones((0, 3))):
        result = compiled(array)
        assert isinstance(result.first, numpy.ndarray)
        numpy.testing.assert_array_equal(result.first, array)
    x = X.clone().requires_grad_()
    (grad,) = torch.autograd.grad(compiled(x).first.sum(), x)
    torch.testing.assert_close(grad, 2 * X)


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass
class Computes:
    first: Any

    def __post_init__(self) -> None:
        self.second = self.first * 2


def yields(x: Tensor) -> Iterator[Tensor]:
    yield x * 2


def one_of_two(x: Tensor) -> Any:
    if x.shape[0] > 8:
        return x
    return {x * 2}


def in_the_middle(x: Tensor) -> Any:
    y = x * 2
    return Holder(y)


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str, int]] = {
    "object": (in_the_middle, "a value of type Holder", 2),
    "object in a tuple": (lambda x: (x, Holder(x)), "a value of type Holder", 0),
    "namespace": (lambda x: types.SimpleNamespace(a=x), "a value of type SimpleNamespace", 0),
    "set": (lambda x: {x * 2}, "a value of type set", 0),
    "set, at one of two returns": (one_of_two, "a value of type set", 0),
    "generator": (yields, "a value of type generator", 1),
    "generator expression": (lambda x: (y for y in [x]), "a value of type generator", 0),
    "function": (lambda x: (x, lambda: x), "a value of type function", 0),
    "array": (lambda x: (x, numpy.ones(2)), "a value of type ndarray", 0),
    "what a dataclass computes": (lambda x: Computes(x), "a value of type Computes", 0),
    "text": (lambda x: str(x), "returns a tensor as text", 0),
    "formatted text": (lambda x: (x * 2, f"x = {x * 2}"), "returns a tensor as text", 0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_rest_is_refused_at_its_return(name: str) -> None:
    function, words, line = REFUSED[name]
    with pytest.raises(UnsupportedError, match=words) as caught:
        fusec.compile(function)(X)
    text = str(caught.value)
    assert text.startswith(f"{__file__}:{function.__code__.co_firstlineno + line}:"), text
