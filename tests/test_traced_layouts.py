"""How results of traced functions lie in memory: as PyTorch lays them out, gaps aside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F

import fusec

Tensor = torch.Tensor


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


INPUTS: dict[str, Tensor] = {
    "row by row": randn(2, 3, 4, 5),
    "channels last": randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "moved": randn(5, 3, 4, 2).permute(3, 1, 2, 0),
    "cut": randn(2, 3, 4, 10)[..., ::2],
    "cut, channels last": randn(2, 6, 4, 5).to(memory_format=torch.channels_last)[:, 1:4],
    "expanded": randn(3, 1, 5).expand(2, 3, 4, 5),
    "turned and expanded": randn(5, 3, 1).expand(2, 5, 3, 4).permute(0, 2, 3, 1),
}
B = randn(3)
FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "elementwise": lambda x: F.silu(x) * 2,
    "moved": lambda x: x.movedim(1, -1) + 1,
    "moved, and a bias": lambda x: x.movedim(1, -1) + B,
    "moved afterwards": lambda x: (x + 1).permute(0, 2, 3, 1),
    "a mask": lambda x: x > 0,
    "in another type": lambda x: x.double(),
    "both ways": lambda x: x + x.contiguous(),
    "the other way about": lambda x: x.contiguous() + x,
    "turned beside itself": lambda x: x.transpose(1, 2)[:, :3, :3] + x[:, :, :3],
    "where": lambda x: torch.where(x.permute(0, 2, 3, 1) > 0, 1.0, B),
    "softmax": lambda x: x.softmax(-1),
    "softmax, moved": lambda x: x.softmax(1).permute(0, 2, 3, 1),
    "layer norm": lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (3,), B, B),
    "contiguous": lambda x: (x.transpose(1, 3) * 2).contiguous(),
    "channels last": lambda x: (x * 2).contiguous(memory_format=torch.channels_last),
    "cloned": lambda x: x.transpose(0, 1).clone() + 1,
    "reshaped": lambda x: (x.transpose(1, 2) * 2).reshape(6, -1),
    "sum": lambda x: x.permute(1, 0, 2, 3).sum(2),
    "sum with its axis": lambda x: (x * 2).permute(1, 0, 2, 3).sum((0, 2), keepdim=True),
    "largest": lambda x: x.transpose(1, 2).max(-1),
    "several": lambda x: (
        x + 1,
        x.transpose(1, 2) + 1,
        (x + 1).transpose(1, 2),
        x.mean((0, 1)).t(),
    ),
}


def lies(tensor: Tensor) -> list[int]:
    """Strides along the axes where they matter."""
    return [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1]


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_lie_as_pytorch_lays_them_out(name: str, backend: str) -> None:
    function = FUNCTIONS[name]
    compiled = fusec.compile(function, backend=backend)
    for kind, x in INPUTS.items():
        leaves = torch.utils._pytree.tree_leaves
        for got, wanted in zip(leaves(compiled(x)), leaves(function(x)), strict=True):
            torch.testing.assert_close(got, wanted)
            assert lies(got) == lies(wanted), kind


def test_layouts_of_one_shape_are_told_apart() -> None:
    function = fusec.compile(lambda x: x * 2)
    x = randn(4, 4)
    for given in (x, x.t(), x, x.t(), x[:, :1].expand(4, 4), x.t()):
        got = function(given)
        assert got.stride() == (given * 2).stride()
        assert torch.equal(got, given * 2)


def test_a_layout_keeps_its_program_when_lengths_change() -> None:
    function = fusec.compile(lambda x, y: x.t() * y)
    for rows, columns in ((4, 5), (7, 3), (64, 32), (5, 4)):
        x, y = randn(rows, columns), randn(columns, rows)
        assert function(x, y).stride() == (1, columns)
    assert len(function._all()) == 1


def test_gradients_of_results_that_lie_across() -> None:
    for function in (lambda x: x.t() * 2, lambda x: x.softmax(-1).t(), lambda x: x.t().exp()):
        x = randn(4, 6).double().requires_grad_()
        y = randn(6, 4).t().double().requires_grad_()
        for leaf in (x, y):
            assert fusec.compile(function)(leaf).stride() == function(leaf).stride()
            assert torch.autograd.gradcheck(fusec.compile(function), (leaf,))
            assert torch.autograd.gradgradcheck(fusec.compile(function), (leaf,))


def test_numpy_arrays_keep_their_order() -> None:
    x = numpy.asfortranarray(randn(4, 6).numpy())
    got = fusec.compile(lambda x: x * 2)(x)
    assert got.flags.f_contiguous
    assert numpy.array_equal(got, x * 2)


def test_batch_norm_keeps_channels_last() -> None:
    function = fusec.compile(lambda x: F.batch_norm(x, B, B.exp()))
    for kind in ("row by row", "channels last"):
        assert function(INPUTS[kind]).stride() == INPUTS[kind].stride()


def test_group_norm_keeps_channels_last() -> None:
    function = fusec.compile(lambda x: F.silu(F.group_norm(x, 2)) + 1)
    x = randn(2, 4, 3, 5)
    for like in (x, x.to(memory_format=torch.channels_last)):
        expected = F.silu(F.group_norm(like, 2)) + 1
        got = function(like)
        assert got.stride() == expected.stride()
        torch.testing.assert_close(got, expected)


def test_a_view_that_pytorch_refuses_is_refused() -> None:
    with pytest.raises(fusec.FusecError, match="PyTorch refuses this: Cannot view a tensor"):
        fusec.compile(lambda x: (x * 2).view(-1))(randn(4, 6).t())


def test_a_result_can_be_viewed_as_pytorchs_can() -> None:
    function = fusec.compile(lambda x: (x.t() * 2).contiguous())
    assert function(randn(4, 6)).view(-1).shape == (24,)


GAPS: dict[str, Tensor] = {
    "cut at the end": randn(2, 6, 9)[..., :5],
    "cut in the middle": randn(2, 9, 5)[:, :6],
    "cut at the start": randn(4, 6, 5)[:2],
    "every second": randn(2, 6, 10)[..., 1::2],
    "every second of the middle": randn(2, 12, 5)[:, ::2],
    "cut, then turned": randn(5, 2, 8)[..., :6].permute(1, 2, 0),
    "turned, then cut": randn(2, 9, 6).transpose(1, 2)[..., :5],
    "cut twice": randn(3, 8, 9)[:2, 1:7, 2:7],
    "overlapping": randn(40).as_strided((2, 6, 5), (12, 2, 1)),
    "one element apart": randn(2, 6, 6)[..., :5],
    "spread": randn(2, 1, 9)[..., :5].expand(2, 6, 5),
    "one": randn(2, 1, 9)[..., :5],
}
RESHAPES: dict[str, Callable[[Tensor], Any]] = {
    "reshape": lambda x: x.reshape(x.shape[0], -1) * 2,
    "flatten": lambda x: x.flatten(1) * 2,
    "flatten all": lambda x: x.flatten() + 1,
    "flatten in front": lambda x: x.flatten(0, 1).exp(),
    "reshape_as": lambda x: x.reshape_as(x.reshape(-1, x.shape[0])) + 1,
    "of a part": lambda x: x[..., 1::2].flatten(1) * 2,
    "of a part of another axis": lambda x: x[:, ::2].flatten(1) * 2,
    "a sum behind it": lambda x: x.reshape(x.shape[0], -1).sum(1),
    "a softmax behind it": lambda x: x.flatten(1).softmax(-1),
    "in two": lambda x: x.reshape(*x.shape[:-1], 1, -1).sum(-1),
    "returned as it is": lambda x: (x.reshape(x.shape[0], -1), x.flatten(0, 1)),
    "contiguous first": lambda x: x.contiguous().view(x.shape[0], -1) * 2,
}


@pytest.mark.parametrize("name", RESHAPES)
def test_axes_are_joined_over_gaps_as_pytorch_joins_them(name: str) -> None:
    function = RESHAPES[name]
    compiled = fusec.compile(function)
    leaves = torch.utils._pytree.tree_leaves
    for kind, x in GAPS.items():
        for got, wanted in zip(leaves(compiled(x)), leaves(function(x)), strict=True):
            torch.testing.assert_close(got, wanted)
            assert lies(got) == lies(wanted), kind
        own, other = (x.detach().requires_grad_() for _ in range(2))
        sum(r.square().sum() for r in leaves(compiled(own))).backward()
        sum(r.square().sum() for r in leaves(function(other))).backward()
        torch.testing.assert_close(own.grad, other.grad, msg=kind)


def test_a_view_over_a_gap_is_refused_as_pytorch_refuses_it() -> None:
    compiled = fusec.compile(lambda x: x.view(2, -1) * 2)
    x = randn(2, 6, 5)
    torch.testing.assert_close(compiled(x), x.view(2, -1) * 2)
    torch.testing.assert_close(
        compiled(randn(2, 9, 5)[:, :6]), randn(2, 9, 5)[:, :6].view(2, -1) * 2
    )
    with pytest.raises(fusec.FusecError, match="PyTorch refuses this: Cannot view a tensor"):
        compiled(randn(2, 6, 9)[..., :5])
