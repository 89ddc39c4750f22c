"""Concatenations in traced functions: each part is computed where it lies in the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.errors import FusecError, UnsupportedError
from tests.programs_oracle import unwritten_is_nan

Tensor = torch.Tensor
Function = Callable[..., Any]


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def rotate_half(x: Tensor) -> Tensor:
    x1, x2 = x.chunk(2, -1)
    return torch.cat((-x2, x1), dim=-1)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def rotate_pairs(x: Tensor) -> Tensor:
    x1, x2 = x[..., ::2], x[..., 1::2]
    return torch.stack((-x2, x1), -1).flatten(-2)


def rope_of_pairs(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return q * cos + rotate_pairs(q) * sin


def partly_rotated(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned, rest = q[..., : cos.shape[-1]], q[..., cos.shape[-1] :]
    return torch.cat((turned * cos + rotate_half(turned) * sin, rest), -1)


def by_views(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = q.unflatten(-1, (-1, 2)).unbind(-1)
    c, s = cos[..., ::2], sin[..., ::2]
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)


def from_positions(q: Tensor, places: Tensor, rates: Tensor) -> Tensor:
    angle = places[:, :, None] * rates
    both = torch.cat((angle, angle), -1).unsqueeze(1)
    return q * both.cos() + rotate_half(q) * both.sin()


def llama(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = cos.unsqueeze(0).unsqueeze(1), sin.unsqueeze(0).unsqueeze(1)
    half = q.shape[-1] // 2
    turned = torch.cat((-q[..., half:], q[..., :half]), dim=-1)
    return (q.float() * cos + turned.float() * sin).to(q.dtype)


def in_place(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a = x * 2
    both = torch.cat([a, y], -1)
    a.add_(1)  # of the part, not of the copy
    both.mul_(3).sub_(torch.cat([y, x], -1))
    return both, a, both.exp()


def in_place_of_a_part(x: Tensor, y: Tensor) -> Tensor:
    whole = torch.ones(x.shape[0], x.shape[1] + y.shape[1], dtype=x.dtype) * x[:, :1]
    whole += torch.cat([x, y], -1)
    return whole


ROPES: dict[str, tuple[Function, Callable[[], list[Tensor]]]] = {
    "rope": (rope, lambda: [randn(2, 3, 5, 8), randn(2, 2, 5, 8, seed=1), *angles(5, 8)]),
    "pairs": (rope_of_pairs, lambda: [randn(2, 3, 5, 8), *angles(5, 8)]),
    "partly": (partly_rotated, lambda: [randn(2, 3, 5, 8), *angles(5, 4)]),
    "by views": (by_views, lambda: [randn(2, 3, 5, 8), *angles(5, 8)]),
    "from positions": (
        from_positions, lambda: [randn(2, 3, 5, 8), randn(2, 5, seed=1), randn(4, seed=2)]
    ),
    "llama": (llama, lambda: [randn(2, 3, 5, 8), *angles(5, 8)]),
    "odd": (rope, lambda: [randn(2, 3, 5, 7), randn(2, 2, 5, 7, seed=1), *angles(5, 7)]),
    "transposed": (
        rope,
        lambda: [
            randn(2, 5, 3, 8).transpose(1, 2), randn(2, 5, 3, 8, seed=1).transpose(1, 2),
            *angles(5, 8),
        ],
    ),
}  # fmt: skip


def angles(*shape: int) -> list[Tensor]:
    return [randn(*shape, seed=2), randn(*shape, seed=3)]


# Of x [4, 6] and y [4, 6].
FUNCTIONS: dict[str, Function] = {
    "arguments": lambda x, y: torch.cat([x, y], -1),
    "first axis": lambda x, y: torch.cat([x, y]),
    "one": lambda x, y: torch.cat([x.t()], 0) * 2,
    "of itself": lambda x, y: torch.cat([x, x * y, x]),
    "unequal": lambda x, y: torch.cat([x[:, :2], x * y, y[:, 1:]], 1).exp(),
    "concat": lambda x, y: torch.concat((x, y), -2) + torch.concatenate([y, x], 0),
    "hstack": lambda x, y: torch.hstack([x, y]) * torch.column_stack([y, x]),
    "vstack": lambda x, y: torch.vstack([x, y]) - torch.dstack([x, y])[:1, :, 0],
    "stack first": lambda x, y: torch.stack([x * y, y]),
    "stack middle": lambda x, y: torch.stack([x.exp(), y], 1),
    "stack last": lambda x, y: torch.stack([x, -y], -1) * 2,
    "stack rows": lambda x, y: torch.stack([x.sum(-1), y.amax(-1)], -1),
    "flat rows": lambda x, y: torch.stack([x, y], 1).flatten(0, 1) * 3,
    "flat columns": lambda x, y: torch.stack([x, y], -2).flatten(-2) * 3,
    "alternating": lambda x, y: torch.stack([x, y], -1).flatten(-2) * torch.cat([x, y], -1),
    "both alternating": lambda x, y: (
        torch.stack([x, y], -1).flatten(-2) / torch.stack([y.exp(), x.exp()], -1).flatten(-2)
    ),
    "parts of alternating": lambda x, y: torch.stack([x, y], -1).flatten(-2)[:, 1::2] * x,
    "element of alternating": lambda x, y: torch.stack([x, y], -1).flatten(-2)[:, 5] * x[:, 0],
    "rows by columns": lambda x, y: torch.cat([torch.cat([x, y], -1), torch.cat([y, x], -1)]),
    "across": lambda x, y: torch.cat([x, y], -1) + torch.cat(
        [torch.cat([x, y], -1)[:2], torch.cat([y, x], -1)[2:]]
    ),
    "cat of cat": lambda x, y: torch.cat([torch.cat([x, y], -1) * 2, x], -1).tanh(),
    "other borders": lambda x, y: (
        torch.cat([x, y], -1) * torch.cat([y[:, :2], x, x[:, :4]], -1)
    ),
    "with a row": lambda x, y: torch.cat([x, y], -1) * x[:, :1] + y.sum(-1, keepdim=True),
    "with a column": lambda x, y: torch.cat([x, y], 0) * x[0] + y.mean(0),
    "with more axes": lambda x, y: torch.cat([x, y], -1) * x[:, :3].t()[:, :, None],
    "softmax of an operand": lambda x, y: torch.cat([x[:, :3], y[:, 3:]], -1) * x.softmax(-1),
    "split again": lambda x, y: torch.mul(*(torch.cat([x, y], -1) + 1).chunk(2, -1)),
    "split elsewhere": lambda x, y: torch.mul(*torch.cat([x, y], -1)[:, 1:9].split([4, 4], -1)),
    "split of a cut": lambda x, y: torch.cat([x, y], -1).split(3, -1)[3].chunk(3, -1)[1] + 1,
    "middle": lambda x, y: torch.cat([x, y], -1)[:, 2:9] * 2,
    "end": lambda x, y: torch.cat([x, y], -1)[:, -2:] * torch.cat([x, y], -1)[..., :2],
    "elements": lambda x, y: torch.cat([x, y], -1)[:, 7] - torch.cat([x.t(), y.t()], 0)[-9],
    "unbound": lambda x, y: sum(torch.stack([x, y, x * y]).unbind(0)),
    "two consumers": lambda x, y: (lambda c: (c.exp(), c.sin() * c))(torch.cat([x, y], -1)),
    "beside others": lambda x, y: (x + 1, torch.cat([x, y], -1), (x * y).sum(-1), y),
    "twice": lambda x, y: (lambda c: (c, c.t()))(torch.cat([x, y], -1) + 0.5),
    "permuted": lambda x, y: torch.stack([x, y]).permute(2, 0, 1) * 2,
    "transposed": lambda x, y: torch.cat([x.t(), y.t()]).t() + torch.cat([x, y], -1),
    "unsqueezed": lambda x, y: torch.cat([x, y], -1).unsqueeze(1).squeeze(1)[None] * 2,
    "expanded": lambda x, y: torch.cat([x, y], -1)[None].expand(3, -1, -1) * 2,
    "viewed": lambda x, y: torch.cat([x, y], -1).view(2, 2, 12) * 2,
    "viewed in heads": lambda x, y: torch.cat([x, y], -1).view(4, 4, 3) * 2,
    "viewed in halves": lambda x, y: torch.cat([x, y], -1).view(4, 2, 6).sum(-1),
    "viewed flat": lambda x, y: torch.cat([x, y], -1).view(-1)[None].clamp(-1, 1).neg() * 2,
    "heads merged": lambda x, y: torch.stack([x * y, y], 2).transpose(0, 1).flatten(1).exp(),
    "torn up twice": lambda x, y: torch.cat([x, y], -1).view(-1).view(3, 16).unsqueeze(1),
    "torn up and detached": lambda x, y: (
        torch.cat([x, y], -1).view(-1).detach(), torch.cat([x, y], -1)
    ),
    "unflattened": lambda x, y: torch.cat([x, y], -1).unflatten(-1, (2, 6)).unbind(-2)[1] * x,
    "sums of columns": lambda x, y: torch.cat([x, y], -1).sum(0),
    "norm of columns": lambda x, y: torch.cat([x, y], -1).norm(dim=0),
    "softmax of columns": lambda x, y: torch.cat([x, y], -1).softmax(0),
    "softmax of rows": lambda x, y: torch.cat([x, y], 0).log_softmax(-1),
    "layer norm of rows": lambda x, y: F.layer_norm(torch.cat([x, y], 0), (6,)),
    "largest of rows": lambda x, y: torch.cat([x, y], 0).max(-1).values,
    "spread of rows": lambda x, y: torch.var_mean(torch.stack([x, y], 1), -1),
    "sum along": lambda x, y: torch.cat([x, y], -1).sum(-1),
    "mean along": lambda x, y: torch.cat([x, y * 2, x], -1).mean(-1, keepdim=True),
    "mean of unequal": lambda x, y: torch.cat([x[:, :1], y], -1).mean(-1),
    "sum of all": lambda x, y: (torch.cat([x, y], -1) ** 2).sum(),
    "rms norm": lambda x, y: (lambda c: c * (c.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt())(
        torch.cat([x, y], -1)
    ),
    "condition": lambda x, y: torch.where(torch.cat([x, y], -1) > 0, torch.cat([y, x], -1), 0.0),
    "masked": lambda x, y: torch.cat([x, y], -1).masked_fill(torch.cat([y, x], -1) > 0, -1.0),
    "clamped": lambda x, y: F.gelu(torch.cat([x, y], -1).clamp(-1, 1)) + F.logsigmoid(
        torch.cat([x, y], -1)
    ),
    "zeros": lambda x, y: torch.cat([x, torch.zeros(4, 2, dtype=x.dtype), y * 2], -1),
    "zeros like it": lambda x, y: torch.zeros_like(torch.cat([x, y], -1)) + torch.cat([x, y], -1),
    "a row in all": lambda x, y: torch.cat([x, y[:1].expand(4, -1)], -1) * 2,
    "repeated row returned": lambda x, y: torch.cat([x, y[:1].expand(4, -1)], -1),
    "token": lambda x, y: torch.cat([(x[:1, :1] * 2).exp().expand(4, 3), y * x], -1),
    "pads": lambda x, y: torch.stack([torch.full((4, 6), 0.5, dtype=x.dtype), x.sin() * y], 1),
    "reshaped part": lambda x, y: torch.cat([x.softmax(-1).view(-1), y.view(-1)]),
    "detached": lambda x, y: torch.cat([x.detach() * y, y], -1) * torch.cat([x, y], -1).detach(),
    "nothing": lambda x, y: torch.cat([torch.empty(0, dtype=x.dtype), x, y[:, :0].t()[:0].t()], -1),
    "in place": in_place,
    "in place of another": in_place_of_a_part,
    "reduced parts": lambda x, y: torch.cat([x.sum(-1, keepdim=True), y, x.amax(-1, True)], -1),
    "normed parts": lambda x, y: torch.cat([x.softmax(-1), F.normalize(y, dim=-1)], -1) * 2,
    "qk norm": lambda x, y: (
        lambda n: n * y + rotate_half(n) * y
    )(x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()),
    "swiglu": lambda x, y: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    "overlapping": lambda x, y: x[:, 1:] * x[:, :-1] + y[:, :5],
    "every second": lambda x, y: x[:, ::2] * y[:, 1::2],
    "part of a part": lambda x, y: x[:2][:, :3] * x[2:, 3:] * y[:2, :3],
}  # fmt: skip


def results(found: Any) -> list[Tensor]:
    return list(found) if isinstance(found, tuple | list) else [found]


def squares(function: Function) -> Function:
    """The squares of what ``function`` returns, so that there is a second gradient."""
    return lambda *inputs: [r**2 for r in results(function(*inputs))]


def gradients(function: Function, inputs: Sequence[Tensor], order: int) -> list[Tensor | None]:
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    found: Sequence[Tensor | None] = results(function(*leaves))
    for k in range(order):
        parts = [t for t in found if t is not None and t.requires_grad]
        total = torch.stack([(t * randn(*t.shape, seed=7 + k)).sum() for t in parts]).sum()
        last = k + 1 == order
        found = torch.autograd.grad(total, leaves, create_graph=not last, allow_unused=True)
    return list(found)


def assert_same(function: Function, *inputs: Any, backend: str = "auto", **exact: float) -> Any:
    """The results of a traced function, twice, in memory full of NaN; returns the function."""
    wanted = results(function(*inputs))
    traced = fusec.compile(function, backend=backend)
    tolerance = exact or {"rtol": 1e-12, "atol": 1e-12}
    with unwritten_is_nan():
        for _ in range(3):
            got = results(traced(*inputs))
            assert len(got) == len(wanted)
            for one, other in zip(got, wanted, strict=True):
                torch.testing.assert_close(one, other, **tolerance)
                assert one.stride() == other.stride()
    return traced


def assert_same_gradients(
    function: Function, *inputs: Tensor, order: int = 1, exact: float = 1e-10
) -> None:
    function = function if order == 1 else squares(function)
    wanted = gradients(function, inputs, order)
    with unwritten_is_nan():
        got = gradients(fusec.compile(function), inputs, order)
    for one, other in zip(got, wanted, strict=True):
        if one is None:  # of what is cut off again, PyTorch has a gradient of 0
            assert other is None or not other.any()
            continue
        torch.testing.assert_close(one, other, rtol=exact, atol=exact)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    assert_same(FUNCTIONS[name], randn(4, 6), randn(4, 6, seed=1))


@pytest.mark.parametrize("name", ROPES)
def test_rotary_embeddings(name: str) -> None:
    function, inputs = ROPES[name]
    assert_same(function, *inputs(), **({"rtol": 1e-6, "atol": 1e-6} if name == "llama" else {}))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", ROPES)
def test_gradients_of_rotary_embeddings(name: str, order: int) -> None:
    function, inputs = ROPES[name]
    exact = 1e-5 if name == "llama" else 1e-10  # that one computes in float32
    assert_same_gradients(function, *inputs(), order=order, exact=exact)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name: str, order: int) -> None:
    function = FUNCTIONS[name]
    assert_same_gradients(function, randn(4, 6), randn(4, 6, seed=1), order=order)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_function_for_many_lengths(name: str) -> None:
    """Programs of one shape serve others, as far as they answer alike what decides the parts."""
    function = FUNCTIONS[name]
    traced = fusec.compile(function, backend="torch")
    agreed = 0
    for shape in ((4, 6), (4, 8), (6, 6), (8, 10), (4, 4), (12, 4), (4, 5)):
        inputs = randn(*shape), randn(*shape, seed=1)
        try:
            wanted, got = results(function(*inputs)), results(traced(*inputs))
        except (RuntimeError, IndexError, ValueError, FusecError):
            continue  # not every function is for every shape
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
        agreed += 1
    assert agreed


def test_halves_of_three_parts_that_meet_are_refused_in_words() -> None:
    """Whether the pieces between their borders are equally long depends on all three lengths."""

    def function(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        one, other = torch.cat((x, y, z), -1).chunk(2, -1)
        return one * other

    with pytest.raises(UnsupportedError, match="equal in this call, and may be others"):
        fusec.compile(function, backend="torch")(*(randn(3, 4, seed=k) for k in range(3)))
