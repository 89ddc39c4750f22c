"""Regions of models as calls of the compiled launcher, against the Python it stands in for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from fusec.runtime import launcher, model_call
from tests.models import MLP, WIDTH, Attention, Block
from tests.runtime.test_launcher import needs_launcher, same

Tensor = torch.Tensor
CALLS = 6  # enough that the launcher knows all regions

pytestmark = needs_launcher


class Taken:
    """The calls that the launcher has, and how often each was made and answered."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.answered: list[int] = []
        self.refused = 0

    def watch(self, region: Callable[..., Any]) -> Callable[..., Any]:
        def make(*given: Any) -> Any:
            own = region(*given)
            if own is None:
                self.refused += 1
                return None
            number = len(self.made)
            self.made.append(0)
            self.answered.append(0)

            def call(*tensors: Any) -> Any:
                found = own(*tensors)
                self.made[number] += 1
                self.answered[number] += found is not NotImplemented
                return found

            return call

        return make


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[Taken]:
    assert launcher.wait(120.0), launcher.reason()
    found = Taken()
    monkeypatch.setattr(model_call.launcher, "region", found.watch(launcher.region))
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


class Rotary(nn.Module):
    """Heads that are turned, as those of a Llama, whose halves are put together again."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(32, 32)
        self.norm = nn.RMSNorm(32)
        angles = torch.arange(5)[:, None] / 10.0 ** (torch.arange(8) / 8)
        self.register_buffer("angles", torch.cat((angles, angles), -1))

    def forward(self, x: Tensor) -> Tensor:
        heads = self.inside(self.norm(x)).view(*x.shape[:-1], 2, 16).transpose(1, 2)
        first, second = heads.chunk(2, -1)
        turned = torch.cat((-second, first), -1)
        heads = heads * self.angles.cos() + turned * self.angles.sin()
        weights = (heads @ heads.mT).softmax(-1)
        return (weights @ heads).transpose(1, 2).reshape(x.shape) + x


def steps(model: nn.Module, call: Callable[..., Any], x: Tensor, count: int) -> list[list[Tensor]]:
    """The result and the gradients of several equal steps."""
    found = []
    for _ in range(count):
        model.zero_grad(set_to_none=True)
        own = x.clone().requires_grad_()
        result = call(own)
        weights = torch.linspace(-1, 1, result.numel(), device=result.device)
        (result * weights.view(result.shape)).sum().backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        assert own.grad is not None
        found.append([result.detach(), own.grad, *gradients])
    return found


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "network": (lambda: MLP(3), (24, WIDTH)),
    "network of three axes": (lambda: MLP(2), (2, 12, WIDTH)),
    "block": (lambda: Block(Attention(causal=True), norm=nn.RMSNorm), (2, 6, WIDTH)),
    "rotary": (Rotary, (3, 5, 32)),
    "norm of slices": (
        lambda: nn.Sequential(
            nn.Linear(8, 24), nn.GLU(), nn.LayerNorm(12), nn.Unflatten(1, (3, 4))
        ),
        (7, 8),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_step_has_the_bits_of_the_first(name: str, taken: Taken) -> None:
    make, shape = MODELS[name]
    model, x = make(), torch.randn(shape)
    (expected,) = steps(model, model, x, 1)
    first, *others = steps(model, torch.compile(model, backend="fusec"), x, CALLS)
    for left, right in zip(first, expected, strict=True):
        torch.testing.assert_close(left, right, atol=2e-6, rtol=2e-5)
    for found in others:
        assert all(map(same, found, first))
    assert taken.made
    assert not taken.refused
    assert taken.answered == taken.made
    assert min(taken.answered) >= 2


def test_what_is_kept_is_not_written_again(taken: Taken) -> None:
    """Results of one call stay as they are in the next."""
    model = torch.compile(Rotary().eval(), backend="fusec")
    with torch.no_grad():
        inputs = [torch.randn(3, 5, 32) for _ in range(CALLS)]
        found = [model(x) for x in inputs]
        kept = [y.clone() for y in found]
        again = [model(x) for x in inputs]
    for left, middle, right in zip(found, kept, again, strict=True):
        assert same(left, middle)
        assert same(left, right)
        assert left.data_ptr() != right.data_ptr()
    assert sum(taken.answered) > 0


def test_other_layouts_and_modes_go_through_python(taken: Taken) -> None:
    weight = torch.randn(6)

    def function(x: Tensor) -> Tensor:
        return F.silu(x.view(4, 6).t()[:, :2] * weight[:, None]).softmax(0)

    expected = {}
    compiled = torch.compile(function, backend="fusec", dynamic=False)
    with torch.no_grad():
        x = torch.randn(24)
        expected = function(x)
        for _ in range(CALLS):
            torch.testing.assert_close(compiled(x), expected)
        answered = sum(taken.answered)
        assert answered > 0
        # Eight bytes further the address has other low bits.
        shifted = torch.randn(26)[2:]
        torch.testing.assert_close(compiled(shifted), function(shifted))

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(
                self, op: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                return op(*args, **(kwargs or {}))

        with Mode():
            torch.testing.assert_close(compiled(x), expected)


def test_results_that_are_written_over_products_come_in_their_shape(taken: Taken) -> None:
    """A product that nothing else needs has two axes, the result that takes its memory three."""
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    function = torch.compile(lambda x: F.gelu(model(x)) * 2, backend="fusec")
    with torch.no_grad():
        x = torch.randn(2, 12, WIDTH)
        for _ in range(CALLS):
            found = function(x)
            assert found.shape == x.shape
            torch.testing.assert_close(found, F.gelu(model(x)) * 2)
    assert taken.answered == taken.made != []


def test_a_copy_of_a_model_has_regions_of_its_own(taken: Taken) -> None:
    model = MLP(2)
    for own in (model, copy.deepcopy(model)):
        with torch.no_grad():
            for parameter in own.parameters():
                parameter.mul_(1.5)
        x = torch.randn(24, WIDTH)
        compiled = torch.compile(own, backend="fusec")
        for _ in range(CALLS):
            torch.testing.assert_close(compiled(x), own(x))


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
def test_every_step_on_a_gpu_has_the_bits_of_the_first(name: str, taken: Taken) -> None:
    from fusec.torch_backend import fusec as backend

    make, shape = MODELS[name]
    model, x = make().cuda(), torch.randn(shape, device="cuda")

    call = torch.compile(model, backend=backend)
    first, *others = steps(model, call, x, CALLS)
    for found in others:
        for left, right in zip(found, first, strict=True):
            torch.testing.assert_close(left, right, atol=0, rtol=0)
    assert taken.made
    assert not taken.refused
    assert taken.answered == taken.made
