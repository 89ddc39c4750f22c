"""What a model takes of memory on a CPU: blocks for products, and the height of a step. Imports
pytest, torch and fusec.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fusec.torch_backend  # registers the backend, which a checkout does not
from fusec import settings
from fusec.cli.suites.models import Network
from fusec.runtime import launcher
from fusec.runtime.build_cpp import find_compiler
from fusec.runtime.model_region import RegionFunction
from fusec.runtime.peak import peak_bytes

# Without a compiler there is no C++ backend, and nothing of it to test; .ci/run installs one.
pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")

WIDTH = 1024  # so that a float32 matrix is worth a block
HUGE_PAGE = 2 << 20


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def linear(depth: int = 1) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()) for _ in range(depth)]
    return torch.nn.Sequential(*(module for pair in layers for module in pair))


def results_of(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    result = model(x)
    result.backward(x)
    return [result.detach(), *(p.grad for p in model.parameters())]


def compiled(model: torch.nn.Module) -> Any:
    return torch.compile(copy.deepcopy(model), backend=fusec.torch_backend.fusec, dynamic=False)


def in_block(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a block's, as far as its address tells."""
    return tensor.data_ptr() % HUGE_PAGE == 0


def test_products_in_blocks_are_the_same() -> None:
    plain, x = linear(2), torch.randn(WIDTH, WIDTH)
    ours = compiled(plain)
    with settings.override(no_pool=True):
        apart = compiled(plain)
        wanted = results_of(apart, x)
    torch._dynamo.reset()
    for _ in range(3):
        got = results_of(ours, x)
        assert all(map(torch.equal, got, wanted))
    weights = [p.grad for p in ours.parameters() if p.dim() == 2]
    assert all(in_block(g) for g in weights)


# Only Linux counts the pages of a process, and there it has to.
@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted on Linux alone")
def test_the_height_of_a_step() -> None:
    """Products and activations of all layers, less the gradients of the step before, and the first
    new gradient: no other large tensor lives then. That is what ``torch.compile`` takes as well.
    """
    for depth in (2, 3):
        step = Network(depth, WIDTH, WIDTH, "f32", "cpu").step("fusec")
        for _ in range(4):
            step()
        peak = peak_bytes(step, "cpu")
        assert peak is not None
        assert peak <= (depth + 1) * 4 * WIDTH**2 + (1 << 20)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: torch.cat([a @ a, a]),
        lambda a: torch.cumsum(a @ a, 0),
        lambda a: torch.nn.functional.dropout(a @ a),
    ],
    ids=["cat", "scan", "random"],
)
def test_where_pytorch_makes_large_tensors_it_makes_the_products_too(
    function: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fusec.runtime import model_graph

    made = []
    monkeypatch.setattr(model_graph, "pool_products", made.append)
    a = torch.randn(WIDTH, WIDTH)
    with torch.no_grad():
        torch.compile(function, backend="fusec", dynamic=False)(a)
        assert made == []
        torch.compile(lambda a: (a @ a).exp().neg() @ a, backend="fusec", dynamic=False)(a)
        assert len(made) == 1


def test_lengths_that_change_are_pytorchs() -> None:
    ours = torch.compile(lambda a, b: a @ b, backend="fusec", dynamic=True)
    for rows in (WIDTH, WIDTH + 1):
        a, b = torch.randn(rows, WIDTH), torch.randn(WIDTH, WIDTH)
        assert torch.equal(ours(a, b), a @ b)


def test_modes_see_products_as_they_are() -> None:
    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    ours, a = (
        torch.compile(lambda a: a @ a, backend="fusec", dynamic=False),
        torch.ones(WIDTH, WIDTH),
    )
    ours(a)
    with Watch():
        assert torch.equal(ours(a), a @ a)
    assert "aten.mm.out" not in seen


@pytest.mark.parametrize("width", [16, WIDTH])
def test_repeated_steps_do_not_go_through_python(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regions that share kernels write over other operands each: calls stay known."""
    assert launcher.wait(120.0), launcher.reason()
    step = Network(3, width, width, "f32", "cpu").step("fusec")
    for _ in range(8):
        wanted = step()

    def refuse(*arguments: Any) -> Any:
        raise AssertionError("a call that was made before is not known")

    monkeypatch.setattr(RegionFunction, "_run", refuse)
    for _ in range(3):
        assert all(map(torch.equal, step(), wanted))
