"""Biases of convolutions, added and added up beside what else is computed: the same numbers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn

import fusec
import fusec.torch_backend
from fusec.frontend import model_bias
from tests.models import check_same, results

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _anywhere(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """On a CPU as on a GPU."""
    if "left" not in request.node.name and request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(model_bias, "DEVICE", "cpu")
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "image": (nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.SiLU()), (2, 4, 6, 5)),
    "sound": (nn.Sequential(nn.Conv1d(4, 6, 3, stride=2), nn.GELU()), (2, 4, 11)),
    "volume": (nn.Sequential(nn.Conv3d(2, 4, 2), nn.Tanh()), (2, 2, 4, 3, 5)),
    "back": (nn.Sequential(nn.ConvTranspose2d(4, 6, 2, stride=2), nn.SiLU()), (2, 4, 3, 5)),
    "groups": (nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.GroupNorm(2, 8)), (2, 4, 6, 5)),
    "two": (nn.Sequential(nn.Conv2d(4, 4, 1), nn.SiLU(), nn.Conv2d(4, 3, 3)), (2, 4, 6, 5)),
    "none": (nn.Sequential(nn.Conv2d(4, 8, 3, bias=False), nn.SiLU()), (2, 4, 6, 5)),
    "one image": (nn.Sequential(nn.Conv2d(4, 8, 3), nn.SiLU()), (4, 6, 5)),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_as_eager_does(name: str, dynamic: bool, layout: Any) -> None:
    model, shape = MODELS[name]
    if len(shape) != 4:
        layout = torch.contiguous_format
    model, x = copy.deepcopy(model), torch.randn(shape).contiguous(memory_format=layout)
    compiled = torch.compile(model, backend="fusec", dynamic=dynamic)
    check_same(results(compiled, model, x), results(model, model, x))


def test_a_bias_is_added_where_something_is_computed() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.SiLU(), nn.Conv2d(8, 8, 3), nn.Flatten())
    torch.compile(model, backend="fusec")(torch.randn(2, 4, 8, 8)).sum().backward()
    forward, _ = fusec.last_report().graphs
    assert [r.operators for r in forward.regions] == [2]  # the last has nothing to be added to


def test_biases_of_a_cpu_are_left_to_it() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.SiLU())
    torch.compile(model, backend="fusec")(torch.randn(2, 4, 8, 8))
    assert [r.operators for r in fusec.last_report().graphs[0].regions] == [1]


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_on_a_gpu_as_eager_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fusec.torch_backend import fusec as backend

    model, shape = MODELS[name]
    model = copy.deepcopy(model).cuda()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    x = torch.randn(shape, device="cuda")
    own = results(torch.compile(model, backend=backend), model, x)
    expected = results(model, model, x)
    for place, value in expected.items():
        torch.testing.assert_close(own[place], value, atol=1e-4, rtol=1e-4)
