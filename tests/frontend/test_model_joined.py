"""Elementwise operators over concatenations in models: each part is computed where it lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F

import fusec
import fusec.torch_backend
from fusec.errors import BuildError
from fusec.frontend.model_joined import join
from fusec.runtime.model_region import RegionFunction
from tests.programs_oracle import unwritten_is_nan

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    one, other = x.chunk(2, -1)
    return torch.cat((-other, one), dim=-1)


def rotary(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def layers(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """As in an attention: heads come to the front, and go back behind a product."""
    q, k = (t.view(*t.shape[:2], -1, cos.shape[-1]).transpose(1, 2) for t in (q, k))
    q, k = rotary(q, k, cos, sin)
    return (q @ k.transpose(-1, -2)).softmax(-1) @ k


def angles(q: Any, freqs: Any) -> Any:
    """Both halves are turned by the same angles, which come in two copies."""
    both = torch.cat((freqs, freqs), -1)
    cos, sin = both.cos(), both.sin()
    return q * cos + rotate_half(q) * sin, cos


def partly(q: Any, cos: Any, sin: Any) -> Any:
    """Some of each row is turned, the rest stays."""
    turned, rest = q[..., : cos.shape[-1]], q[..., cos.shape[-1] :]
    return torch.cat((turned * cos + rotate_half(turned) * sin, rest), -1) * 2


def longer(q: Any, cos: Any, sin: Any) -> Any:
    """The same, put together by nothing but the concatenation, before a product."""
    heads = q.view(*q.shape[:2], 2, -1).transpose(1, 2)
    turned, rest = heads[..., : cos.shape[-1]], heads[..., cos.shape[-1] :]
    heads = torch.cat((turned * cos + rotate_half(turned) * sin, rest), -1)
    return heads @ heads.transpose(-1, -2)


def nested(x: Any, y: Any) -> Any:
    """Concatenations of concatenations, with a tensor in front, behind, and read elsewhere."""
    inner = torch.cat((x, -y), 1).exp()
    outer = torch.cat((y, inner, x), 1)
    other = torch.cat((x, y), 1).sin()
    return outer.cumsum(1), torch.cat((other, y), 1).cumsum(0), other.cumsum(0)


def normed(x: Any) -> Any:
    """The gradient of parts is put together by PyTorch where kernels lay it out by themselves."""
    h = x.cumsum(-1)
    n = F.layer_norm(h, h.shape[-1:])
    r = torch.cat((n[..., :8] * 2, n[..., 8:].neg()), -1)
    return torch.cat((r, h), -1).cumsum(-1), r


def uneven(x: Any, y: Any) -> Any:
    return F.silu(torch.cat((x * 2, y + 1, x.exp()), 1)) * 3


def slices(x: Any) -> Any:
    """Whose gradient is zeros with a tensor among them, four times."""
    return x[:, :2].sin() + x[:, 1:3] * x[:, 2:4] - x[:, -2:].exp()


def beside(x: Any, y: Any) -> Any:
    """What lies in the gradient of x is the gradient of y as well."""
    return (x[:, :2] + y).sin() * 2, x[:, 2:].exp()


def first(x: Any) -> Any:
    return (x[:, :1] * 3).sin()


def both(x: Any, y: Any) -> Any:
    """The whole is read, and so are its parts."""
    z = torch.cat((x, -y), 0).tanh()
    return z.cumsum(0) + z * 2, z


def numbers(x: Any) -> Any:
    return torch.cat((x, x * 2), -1).add(1).to(torch.float32).clone().mul(0.5)


def spread(x: Any, y: Any) -> Any:
    """An operand is the same all along the axis, and one has a row more."""
    return torch.cat((x, y), -1) * x[..., :1] + torch.cat((y, x), -1)[0]


def rows_of(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


CASES: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "rotary": (rotary, [rows_of(2, 3, 5, 8), rows_of(2, 3, 5, 8), rows_of(5, 8), rows_of(5, 8)]),
    "one-key": (rotary, [rows_of(2, 4, 5, 8), rows_of(2, 1, 5, 8), rows_of(5, 8), rows_of(5, 8)]),
    "layers": (layers, [rows_of(2, 5, 24), rows_of(2, 5, 24), rows_of(5, 8), rows_of(5, 8)]),
    "angles": (angles, [rows_of(2, 3, 5, 8), rows_of(5, 4)]),
    "partly": (partly, [rows_of(2, 5, 11), rows_of(5, 4), rows_of(5, 4)]),
    "longer": (longer, [rows_of(2, 5, 22), rows_of(5, 4), rows_of(5, 4)]),
    "nested": (nested, [rows_of(3, 4), rows_of(3, 2)]),
    "normed": (normed, [rows_of(3, 4, 24)]),
    "uneven": (uneven, [rows_of(3, 4), rows_of(3, 7)]),
    "slices": (slices, [rows_of(3, 4)]),
    "beside": (beside, [rows_of(3, 4), rows_of(3, 2)]),
    "first": (first, [rows_of(3, 4)]),
    "both": (both, [rows_of(3, 4), rows_of(2, 4)]),
    "numbers": (numbers, [rows_of(3, 4)]),
    "spread": (spread, [rows_of(2, 3, 4), rows_of(2, 3, 5)]),
}  # fmt: skip


def outcome(function: Function, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Results and gradients."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    results = function(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    total = sum((r.double() * torch.arange(1, r.numel() + 1).view_as(r)).sum() for r in results)
    assert isinstance(total, torch.Tensor)
    return [*results, *torch.autograd.grad(total, leaves)]


def check(function: Function, inputs: list[torch.Tensor], **options: Any) -> None:
    compiled = torch.compile(function, backend="fusec", **options)
    expected = outcome(function, inputs)
    for _ in range(3):  # the third call goes the short way
        with unwritten_is_nan():
            actual = outcome(compiled, inputs)
        for own, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-10)
            assert own.stride() == other.stride()


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_eager(name: str) -> None:
    check(*CASES[name])


@pytest.mark.parametrize("name", ["rotary", "layers", "uneven"])
def test_lengths_may_be_symbols(name: str) -> None:
    check(*CASES[name], dynamic=True)


def test_a_rotary_embedding_is_one_kernel_each_way() -> None:
    function, (q, k, cos, sin) = CASES["rotary"]
    outcome(torch.compile(lambda q, k: function(q, k, cos, sin), backend="fusec"), [q, k])
    report = fusec.last_report()
    assert report.kernels == 2, report
    assert "cat" not in str(report)
    assert "slice_backward" not in str(report)


def test_parts_lie_in_the_whole_and_nothing_is_copied() -> None:
    function, inputs = CASES["rotary"]
    compiled = torch.compile(function, backend="fusec")
    with torch.no_grad():
        for _ in range(3):
            compiled(*inputs)
        with torch.profiler.profile() as profile:
            q, k = compiled(*inputs)
    names = {event.key for event in profile.key_averages()}
    assert not names & {"aten::cat", "aten::copy_", "aten::mul", "aten::add", "aten::neg"}, names
    assert q.untyped_storage().nbytes() == q.nbytes
    assert k.untyped_storage().nbytes() == k.nbytes


def test_what_cannot_be_built_is_put_together_of_what_pytorch_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    function, inputs = CASES["rotary"]

    def fails(*_: Any) -> Any:
        raise BuildError("no compiler today")

    monkeypatch.setattr(RegionFunction, "_run", fails)
    compiled = torch.compile(function, backend="fusec")
    with torch.no_grad():
        for own, other in zip(compiled(*inputs), function(*inputs), strict=True):
            torch.testing.assert_close(own, other)


def test_zeros_that_may_meet_infinity_are_multiplied() -> None:
    """0 * inf is no number, so what is beside a slice is computed where that may be."""

    def function(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x[:, :2] * 2 + (x * s)[:, 2:]

    x, s = rows_of(3, 4), torch.full((4,), float("inf"), dtype=torch.float64)
    check_nan = torch.compile(function, backend="fusec")
    (expected,), (actual,) = (
        torch.autograd.grad(f(leaf, s).sum(), leaf)
        for f in (function, check_nan)
        for leaf in [x.clone().requires_grad_()]
    )
    torch.testing.assert_close(actual, expected, equal_nan=True)


def test_types_are_promoted_by_the_concatenation() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat((x, y), 0) * 2

    x, y = torch.randn(3, 4), torch.randn(2, 4, dtype=torch.float64)
    result = torch.compile(function, backend="fusec")(x, y)
    assert result.dtype is torch.float64
    torch.testing.assert_close(result, function(x, y))


def test_an_empty_tensor_of_one_axis_is_left_out() -> None:
    """As a cache begins."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cat((torch.empty(0, dtype=x.dtype), x), 1).tanh() * 2

    check(function, [rows_of(3, 4)])


@pytest.mark.parametrize("strides", [(4, 1), (1, 5), (8, 1)])
def test_join_lays_out_as_it_is_told(strides: tuple[int, int]) -> None:
    one, other = torch.randn(2, 4), torch.randn(3, 4)
    made = join((one, other), 0, strides)
    assert made.stride() == strides
    assert torch.equal(made, torch.cat((one, other)))


def test_what_is_turned_and_what_is_left_are_written_by_one_region() -> None:
    """The heads of a GPT-NeoX, of which some numbers are turned."""
    inputs = [t.float() for t in CASES["longer"][1]]
    torch.testing.assert_close(torch.compile(longer, backend="fusec")(*inputs), longer(*inputs))
    (graph,) = fusec.last_report().graphs
    assert len(graph.regions) == 1
    assert "cat" not in {name for name, _ in graph.left}
