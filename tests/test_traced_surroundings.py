"""What a traced function asks besides its arguments: modes of torch decide in each call anew, and
what a stand-in cannot know is refused at the user's line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fusec
from fusec.errors import UnsupportedError

Tensor = torch.Tensor
X = torch.tensor([1.0, 2.0])


@contextlib.contextmanager
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def asks_for_gradients(x: Tensor) -> Tensor:
    return x * 2 if torch.is_grad_enabled() else x * 3


def asks_for_inference(x: Tensor) -> Tensor:
    return x * 2 if torch.is_inference_mode_enabled() else x * 3


def asks_for_a_type(x: Tensor) -> Tensor:
    return x.to(torch.get_default_dtype()) + torch.ones(2)


def asks_for_a_device(x: Tensor) -> Tensor:
    return x * 2 if torch.get_default_device().type == "meta" else x * 3


ASKED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[], Any]]] = {
    "gradients": (asks_for_gradients, torch.no_grad),
    "inference": (asks_for_inference, torch.inference_mode),
    "gradients, in inference": (asks_for_gradients, torch.inference_mode),
    "type": (asks_for_a_type, double),
    "what is made": (lambda x: x * torch.full((2,), 0.1), double),
    "device": (asks_for_a_device, lambda: torch.device("meta")),
}


@pytest.mark.parametrize("first", ["inside", "outside"])
@pytest.mark.parametrize("name", ASKED)
def test_what_stands_around_a_call_decides_in_each(name: str, first: str) -> None:
    function, around = ASKED[name]
    compiled = fusec.compile(function)
    inside = [True, False] if first == "inside" else [False, True]
    for within in inside * 2:
        with around() if within else contextlib.nullcontext():
            got, wanted = compiled(X), function(X)
        torch.testing.assert_close(got, wanted)


def test_what_asks_for_no_mode_has_one_kernel_for_all() -> None:
    compiled = fusec.compile(lambda x: x.exp() * 2)
    x = X.clone().requires_grad_()
    compiled(X)
    for around in (torch.no_grad, torch.inference_mode):
        with around():
            result = compiled(x)
        assert not result.requires_grad
        torch.testing.assert_close(result, X.exp() * 2)
    assert len(compiled.variants) == 1


def switches_off(x: Tensor) -> Tensor:
    with torch.no_grad():
        factor = x * 2
    return x * factor


def switches_on(x: Tensor) -> Tensor:
    with torch.enable_grad():  # here
        return x * 2


def test_gradients_that_are_switched_inside() -> None:
    x = X.clone().requires_grad_()
    for function in (switches_off, switches_on):
        compiled = fusec.compile(function)
        got, wanted = (torch.autograd.grad(f(x).sum(), x) for f in (compiled, function))
        torch.testing.assert_close(got, wanted)
    with torch.no_grad():
        torch.testing.assert_close(fusec.compile(switches_off)(x), switches_off(x))
        with pytest.raises(UnsupportedError, match="whose caller has switched them off"):
            compiled(x)


WEIGHT = torch.ones(2, requires_grad=True)


def hooked(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return y


def under_autocast(x: Tensor) -> Tensor:
    return x.relu() if torch.is_autocast_enabled("cpu") else x * 2


def by_a_helper(x: Tensor) -> Tensor:
    return x.relu() if helper() else x * 2


def helper() -> bool:
    return torch.get_autocast_dtype("cpu") == torch.bfloat16


GRADIENT = "is about the gradient of one tensor"
MEMORY = "asks how a tensor lies in memory"
REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "requires_grad": (lambda x: x * 2 if x.requires_grad else x * 3, GRADIENT),
    "requires_grad of a variable": (lambda x: x * 2 if WEIGHT.requires_grad else x, GRADIENT),
    "is_leaf": (lambda x: x * 2 if x.is_leaf else x * 3, GRADIENT),
    "grad_fn": (lambda x: x * 2 if x.grad_fn is None else x * 3, GRADIENT),
    "grad": (lambda x: x * 2 if x.grad is None else x * 3, GRADIENT),
    "hook": (hooked, "'register_hook' is about"),
    "hook of a variable": (lambda x: (WEIGHT.register_hook(print), x * WEIGHT)[1], GRADIENT),
    "retain_grad": (lambda x: ((x * 2).retain_grad(), x * 2)[1], GRADIENT),
    "requires_grad_": (lambda x: x.detach().requires_grad_() * 2, GRADIENT),
    "is_inference": (lambda x: x * 2 if x.is_inference() else x * 3, GRADIENT),
    "storage_offset": (lambda x: x * x.storage_offset(), MEMORY),
    "data_ptr": (lambda x: x * (x.data_ptr() % 7), MEMORY),
    "storage": (lambda x: x * x.untyped_storage().nbytes(), MEMORY),
    "version": (lambda x: x * x._version, MEMORY),
    "base": (lambda x: x * 2 if x[1:]._base is x else x * 3, MEMORY),
    "autocast": (under_autocast, "autocast is asked for"),
    "autocast in a helper": (by_a_helper, "autocast is asked for"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_stand_in_cannot_know_is_refused_at_the_line(name: str) -> None:
    function, words = REFUSED[name]
    compiled = fusec.compile(function)
    with pytest.raises(UnsupportedError, match=words) as caught:
        compiled(X.clone().requires_grad_())
    where = helper if "helper" in name else function
    name, line = str(caught.value).split(":")[:2]
    assert name == __file__
    assert 0 <= int(line) - where.__code__.co_firstlineno <= 2


STRIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "one": lambda x: x * x.stride(0),
    "last": lambda x: x * x.stride(-1),
    "all": lambda x: x * sum(x.stride()),
    "of a view": lambda x: x[1:] * x[1:].stride(0),
    "of a value": lambda x: x * (x * 2).stride(0),
}


@pytest.mark.parametrize("name", STRIDES)
def test_strides_are_those_of_the_argument_or_refused(name: str) -> None:
    function = STRIDES[name]
    x = torch.randn(4, 9)
    inputs = [x, x.t(), torch.randn(3, 4, 5), torch.randn(2, 1).expand(2, 3)]
    inputs += [x[:, :6], x[:, ::2], x[::2], x[:1, :5], x[:, :1], x.t()[1:]]
    answered = 0
    for argument in inputs:
        compiled = fusec.compile(function)
        with contextlib.suppress(UnsupportedError):
            torch.testing.assert_close(compiled(argument), function(argument))
            answered += 1
    assert answered >= 4
    with pytest.raises(UnsupportedError, match="'stride' asks how a tensor lies in memory"):
        fusec.compile(function)(x[:, :6])


def test_library_functions_may_ask() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, (2,)) + torch.nn.Softmax(-1)(x)

    torch.testing.assert_close(fusec.compile(function)(X), function(X))
