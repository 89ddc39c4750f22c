"""Calls of traced functions with concatenations: types, lengths, backends, memory, refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fusec
from fusec.errors import FusecError, ShapeError, UnsupportedError
from tests.frontend.test_trace_cat import (
    angles,
    assert_same,
    randn,
    rope,
    rope_of_pairs,
    rotate_half,
)
from tests.programs_oracle import unwritten_is_nan

Tensor = torch.Tensor
BACKENDS = ("cpp", "triton", "cuda", "torch")


def kernels(traced: Any, *inputs: Tensor) -> int:
    """How many kernels a call launches."""
    plan: str = traced.show("plan", *inputs)
    return len(re.findall(r"^\w+: ", plan, re.MULTILINE))


# -- backends -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [rope, rope_of_pairs])
def test_backends(backend: str, function: Callable[..., Any]) -> None:
    count = 2 if function is rope else 1
    inputs = [randn(2, 3, 4, 8, seed=k, dtype=torch.float32) for k in range(count)]
    turns = [a.float() for a in angles(4, 8)]
    assert_same(function, *inputs, *turns, backend=backend, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_on_every_backend(backend: str) -> None:
    q, k = (randn(2, 3, 4, 8, seed=s, dtype=torch.float32).requires_grad_() for s in range(2))
    cos, sin = (a.float().requires_grad_() for a in angles(4, 8))
    leaves = q, k, cos, sin
    weights = [randn(2, 3, 4, 8, seed=9 + s, dtype=torch.float32) for s in range(2)]
    wanted = torch.autograd.grad(rope(*leaves), leaves, weights)
    with unwritten_is_nan():
        found = torch.autograd.grad(fusec.compile(rope, backend=backend)(*leaves), leaves, weights)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["cpp", "triton", "cuda"])
def test_one_kernel_for_parts_of_one_shape(backend: str) -> None:
    def one(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x * cos + rotate_half(x) * sin

    inputs = [randn(3, 4, 8, dtype=torch.float32), *(a.float() for a in angles(4, 8))]
    traced = fusec.compile(one, backend=backend)
    traced(*inputs)
    assert kernels(traced, *inputs) == 1
    assert len(traced.variants) == 1


def test_kernels_of_queries_and_keys() -> None:
    inputs = [randn(2, 3, 4, 8), randn(2, 3, 4, 8, seed=1), *angles(4, 8)]
    assert kernels(fusec.compile(rope), *inputs) == 2  # there may be fewer keys than queries


# -- memory ---------------------------------------------------------------------------------------


def test_nothing_is_copied_together() -> None:
    """Forward and backward allocate what they return, and PyTorch copies nothing."""
    q, k = (randn(2, 3, 64, 32, seed=s).requires_grad_() for s in range(2))
    cos, sin = angles(64, 32)
    traced = fusec.compile(rope)
    weights = [torch.ones(2, 3, 64, 32, dtype=torch.float64) for _ in range(2)]
    for _ in range(2):
        torch.autograd.grad(traced(q, k, cos, sin), (q, k), weights)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        found = traced(q, k, cos, sin)
        torch.autograd.grad(found, (q, k), weights)
    called = {event.key for event in profile.key_averages()}
    copying = {"aten::copy_", "aten::cat", "aten::zeros", "aten::zero_", "aten::add", "aten::add_"}
    assert not called & copying
    assert "aten::slice" in called  # so that the profile is one of these calls


def test_gradients_of_the_pieces_of_an_argument_are_one_tensor() -> None:
    x = randn(4, 6).requires_grad_()
    weight = randn(4, 3, seed=1)
    traced = fusec.compile(lambda x: x[:, :3].exp() * x[:, 3:])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        (found,) = torch.autograd.grad(traced(x), x, weight)
    (wanted,) = torch.autograd.grad(x[:, :3].exp() * x[:, 3:], x, weight)
    torch.testing.assert_close(found, wanted)
    called = {event.key for event in profile.key_averages()}
    assert "aten::slice_backward" not in called
    assert "aten::slice" in called


def test_pieces_that_leave_something_out() -> None:
    def function(x: Tensor) -> Tensor:
        return x[:, :2] * x[:, 3:5]

    x = randn(4, 6).requires_grad_()
    with unwritten_is_nan():
        (found,) = torch.autograd.grad(fusec.compile(function)(x).sum(), x)
    (wanted,) = torch.autograd.grad(function(x).sum(), x)
    torch.testing.assert_close(found, wanted)
    assert not found[:, [2, 5]].any()


def test_a_piece_without_a_gradient() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cat([x[:, :3].detach(), x[:, 3:]], -1) * 2

    x = randn(4, 6).requires_grad_()
    with unwritten_is_nan():
        (found,) = torch.autograd.grad(fusec.compile(function)(x).sum(), x)
    assert found.tolist() == [[0.0] * 3 + [2.0] * 3] * 4


def test_a_result_that_is_written_to_has_no_old_gradient() -> None:
    x = randn(4, 6).requires_grad_()
    found = fusec.compile(lambda x: torch.cat([x.exp(), x.exp() * 2], -1))(x)
    with torch.no_grad():
        found.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()


def test_an_argument_that_is_written_to_has_no_old_gradient() -> None:
    x = randn(4, 6)
    leaf = x.clone().requires_grad_()
    moved = leaf * 1
    found = fusec.compile(lambda x: torch.cat([x[:, :3] ** 2, x[:, 3:] ** 2], -1))(moved)
    moved.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()


def test_results_are_apart() -> None:
    traced = fusec.compile(lambda x: (torch.cat([x, x + 1]), torch.cat([x, x + 1])))
    first, second = traced(randn(3, 4))
    third, _ = traced(randn(3, 4))
    first.zero_()
    assert second.any()
    assert third.any()


# -- types, layouts, lengths ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "types",
    [
        (torch.float32, torch.float64),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float16),
        (torch.int32, torch.float32),
        (torch.int64, torch.int8),
        (torch.bool, torch.uint8),
        (torch.bool, torch.bool),
    ],
)
def test_the_common_type(types: tuple[torch.dtype, torch.dtype]) -> None:
    x, y = (torch.tensor([[1, 0, 3], [2, 5, 1]]).to(t) for t in types)
    traced = assert_same(lambda x, y: torch.cat([x, y], -1), x, y)
    assert traced(x, y).dtype is torch.promote_types(*types)
    assert_same(lambda x, y: torch.stack([x, y], 1).sum(0), x, y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half(dtype: torch.dtype) -> None:
    inputs = [randn(2, 3, 4, 16, seed=k, dtype=dtype) for k in range(2)]
    turns = [a.to(dtype) for a in angles(4, 16)]
    whole = rope(*(v.double() for v in (*inputs, *turns)))
    found = fusec.compile(rope)(*inputs, *turns)
    for one, other in zip(found, whole, strict=True):
        assert one.dtype is dtype
        torch.testing.assert_close(one.double(), other, rtol=2**-7, atol=2**-7)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
    "spaced": lambda x: torch.stack([x, x], -1)[..., 0],
    "offset": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
    "expanded": lambda x: x[:1].expand(x.shape),
    "conjugated": lambda x: torch.complex(x, x).conj().imag,  # has the negative bit
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str) -> None:
    x, y = (LAYOUTS[name](randn(4, 3, 8, seed=k)) for k in range(2))
    for function in (rotate_half, lambda x: torch.stack([x, x * 2], 1)):
        assert_same(function, x)
        leaf = x.detach().requires_grad_()
        weight = randn(*function(x).shape, seed=5)
        with unwritten_is_nan():
            (found,) = torch.autograd.grad(fusec.compile(function)(leaf), leaf, weight)
        (wanted,) = torch.autograd.grad(function(leaf), leaf, weight)
        torch.testing.assert_close(found, wanted)
    assert_same(lambda x, y: torch.cat([x, y], 1) * 2, x, y)


def test_channels_last() -> None:
    x, y = (randn(2, 3, 4, 5, seed=k).to(memory_format=torch.channels_last) for k in range(2))
    traced = assert_same(lambda x, y: torch.cat([x, y], 1).relu(), x, y)
    assert traced(x, y).is_contiguous(memory_format=torch.channels_last)


def test_a_new_length_traces_nothing_again() -> None:
    traced = fusec.compile(rope)
    for rows, columns in ((5, 8), (6, 8), (7, 12), (1024, 64)):
        q, k = randn(2, 3, rows, columns), randn(2, 1, rows, columns, seed=1)
        turns = angles(rows, columns)
        for one, other in zip(traced(q, k, *turns), rope(q, k, *turns), strict=True):
            torch.testing.assert_close(one, other)
        if rows == 5:
            built = len(traced.variants)
    assert len(traced._all()) == 1  # kernels of one length serve the others
    assert len(traced.variants) >= built


def test_what_grows_by_one_traces_nothing_again() -> None:
    traced = fusec.compile(lambda kept, new: torch.cat([kept, new], 2))
    kept = randn(2, 3, 2, 8)
    for step in range(6):
        new = randn(2, 3, 1, 8, seed=step)
        grown = traced(kept, new)
        torch.testing.assert_close(grown, torch.cat([kept, new], 2), rtol=0, atol=0)
        kept = grown
    assert len(traced._all()) == 1


def test_lengths_that_are_equal_have_a_program_of_their_own() -> None:
    traced = fusec.compile(lambda x, y: torch.cat([x, y], -1) * 2)
    for widths in ((3, 3), (4, 4), (3, 5), (6, 2)):
        x, y = (randn(4, width) for width in widths)
        torch.testing.assert_close(traced(x, y), torch.cat([x, y], -1) * 2)
    assert len(traced._all()) == 2


def test_axes_of_length_0() -> None:
    traced = fusec.compile(rope)
    q = randn(2, 0, 5, 8)
    assert [t.shape for t in traced(q, q, *angles(5, 8))] == [q.shape, q.shape]
    both = fusec.compile(lambda x, y: torch.cat([x, y], -1) * 2)
    assert both(randn(3, 0), randn(3, 2)).shape == (3, 2)
    kept = assert_same(lambda x: torch.cat([x[:, 4:], x[:, :2]], -1) * 2, randn(3, 6))
    torch.testing.assert_close(kept(randn(3, 4)), randn(3, 4)[:, :2] * 2)  # no part is left of one


def test_numbers_that_change() -> None:
    traced = fusec.compile(lambda x, scale: torch.cat([x * scale, x], -1))
    x = randn(3, 4)
    for scale in (1.5, 2.5):
        torch.testing.assert_close(traced(x, scale), torch.cat([x * scale, x], -1))
        leaf = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(traced(leaf, scale).sum(), leaf)
        torch.testing.assert_close(found, torch.full_like(x, scale + 1))
    assert len(traced._all()) == 1


WEIGHT = randn(3, 4, seed=4).requires_grad_()


def test_a_variable_that_requires_grad() -> None:
    traced = fusec.compile(lambda x: torch.cat([x * WEIGHT[:, :2], WEIGHT[:, 2:]], -1))
    x = randn(3, 2)
    (found,) = torch.autograd.grad(traced(x).sum(), WEIGHT)
    torch.testing.assert_close(found, torch.cat([x, torch.ones_like(x)], -1))


def test_no_grad_inside() -> None:
    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            still = torch.cat([x, x * 2], -1)
            part = still[:, 1:3]
        return torch.cat([x, x], -1) * still + part.sum()

    x = randn(3, 4).requires_grad_()
    (found,) = torch.autograd.grad(fusec.compile(function)(x).sum(), x)
    (wanted,) = torch.autograd.grad(function(x).sum(), x)
    torch.testing.assert_close(found, wanted)


def test_out_and_arrays() -> None:
    x, y = randn(3, 4), randn(3, 4, seed=1)
    traced = fusec.compile(lambda x, y: torch.cat([x, y], -1) * 2)
    out = torch.empty(3, 8, dtype=torch.float64)
    assert traced(x, y, out=out) is out
    torch.testing.assert_close(out, torch.cat([x, y], -1) * 2)
    with pytest.raises(ShapeError):
        traced(x, y, out=torch.empty(3, 4, dtype=torch.float64))
    found = traced(x.numpy(), y.numpy())
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, out.numpy())


def test_bound_calls() -> None:
    x, y = randn(3, 4), randn(3, 4, seed=1)
    bound = fusec.compile(lambda x, y: torch.cat([x, y], -1) * 2).bind(x, y)
    torch.testing.assert_close(bound(), torch.cat([x, y], -1) * 2)
    torch.testing.assert_close(bound(y, x), torch.cat([y, x], -1) * 2)


def test_inside_of_other_traces() -> None:
    traced = fusec.compile(rotate_half)
    x = randn(3, 4)
    graph = torch.fx.experimental.proxy_tensor.make_fx(traced)(x)
    torch.testing.assert_close(graph(x), rotate_half(x))


# -- refusals -------------------------------------------------------------------------------------

WHOLE = "takes a concatenation as a whole"
REFUSED: dict[str, tuple[Callable[..., Any], type[FusecError], str]] = {
    "softmax": (
        lambda x: torch.cat([x, x], -1).softmax(-1),
        UnsupportedError,
        "aten._softmax.default " + WHOLE + ", whose axis it runs along",
    ),
    "largest": (
        lambda x: torch.cat([x, x], -1).amax(-1),
        UnsupportedError,
        "aten.amax.default " + WHOLE,
    ),
    "variance": (
        lambda x: torch.cat([x, x], -1).var(-1),
        UnsupportedError,
        "aten.var.correction " + WHOLE,
    ),
    "layer norm": (
        lambda x: torch.nn.functional.layer_norm(torch.cat([x, x], -1), (8,)),
        UnsupportedError,
        WHOLE,
    ),
    "gather": (
        lambda x: torch.cat([x, x], -1).gather(-1, (x > 0).long()),
        UnsupportedError,
        "aten.gather.default " + WHOLE,
    ),
    "view": (
        lambda x: torch.cat([x, x * 2], -1).view(-1).softmax(-1),
        UnsupportedError,
        "aten._softmax.default " + WHOLE + ", and a view has torn up its parts",
    ),
    "view beside another": (
        lambda x: torch.cat([x, x], -1).view(-1) * x.sum(),
        UnsupportedError,
        "aten.mul.Tensor " + WHOLE + ", and a view has torn up its parts",
    ),
    "cat of a view": (
        lambda x: torch.cat([torch.cat([x, x], -1).view(-1), x[0]]),
        UnsupportedError,
        "and a view has torn up its parts",
    ),
    "written view of it": (
        lambda x: torch.cat([x, x], -1).view(-1).mul_(2),
        UnsupportedError,
        "that has views",
    ),
    "steps": (
        lambda x: torch.cat([x, x], -1)[:, ::3] * 2,
        UnsupportedError,
        "this slice is none of its parts",
    ),
    "many": (
        lambda x: torch.cat([x] * 33) * 2,
        UnsupportedError,
        "puts 33 tensors together, and fusec at most 32",
    ),
    "written view": (
        lambda x: torch.cat([x, x])[0].add_(1),
        UnsupportedError,
        "changes a tensor that has views",
    ),
    "written": (lambda x: torch.cat([x, x], out=x), UnsupportedError, "writes to a tensor"),
    "lengths": (lambda x: torch.cat([x, x[:1]], -1), ShapeError, "Sizes of tensors must match"),
    "dim": (lambda x: torch.cat([x, x], 3), ShapeError, "Dimension out of range"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_show_the_line(name: str) -> None:
    function, kind, words = REFUSED[name]
    with pytest.raises(kind) as caught:
        fusec.compile(function)(randn(3, 4))
    assert words in str(caught.value)
    assert str(caught.value).startswith(__file__)


def test_the_plain_words_of_a_refusal() -> None:
    with pytest.raises(UnsupportedError) as caught:
        fusec.compile(REFUSED["softmax"][0])(randn(3, 4))
    assert caught.value.diagnostic.hint is not None
    assert "before the concatenation" in caught.value.diagnostic.hint
