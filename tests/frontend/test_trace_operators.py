# Operators stand in one string, as a list of words: a hundred of them are read best so.
# ruff: noqa: SIM905
"""Every operator that a trace understands, against PyTorch run eagerly: values, types and shapes.

The reference backend runs them, so that what is tested is the translation; kernels have tests of
their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.errors import UnsupportedError
from fusec.frontend import trace_record
from fusec.frontend.trace_rows import EXPRESSIONS, REDUCTIONS, SAME_NAMES
from fusec.frontend.trace_special import SPECIAL
from fusec.ir.ops import OPS

Function = Callable[..., Any]
FLOATS = (torch.float32, torch.bfloat16)
TOLERANCES = {torch.float32: 2e-6, torch.float64: 1e-13, torch.bfloat16: 2**-7}
INTEGERS_TOO = frozenset(
    "add sub rsub mul div neg pow abs eq ne lt le gt ge maximum minimum remainder floor_divide fmod"
    " sign where logical_and logical_or logical_xor logical_not clamp sum amax"
    " amin any all argmax argmin count_nonzero relu exp sqrt sigmoid".split()
)
INTEGERS_ONLY = frozenset("bitwise_and bitwise_or bitwise_xor bitwise_not".split())

# Operators of two tensors; all others are of one unless a row below says how they are called.
TWO = frozenset(
    "atan2 bitwise_and bitwise_or bitwise_xor copysign eq floor_divide fmod ge gt heaviside hypot"
    " le logaddexp lt maximum minimum mul ne remainder xlogy logical_and logical_or"
    " logical_xor".split()
)
CALLS: dict[str, Function] = {
    "add": lambda x, y: torch.add(x, y, alpha=2) + (x + 1),
    "sub": lambda x, y: torch.sub(x, y, alpha=2) - (x - 1),
    "rsub": lambda x, y: 3 - x,
    "div": lambda x, y: x / (y * y + 1),
    "pow": lambda x, y: (x.pow(2), (x * x + 1).pow(y), 2**x),
    "floor_divide": lambda x, y: torch.floor_divide(x, y * y + 1),
    "remainder": lambda x, y: (x % (y * y + 1), 5 % (y * y + 1)),
    "fmod": lambda x, y: torch.fmod(x, y * y + 1),
    "where": lambda x, y: (torch.where(x > 0, x, y), torch.where(x > y, x, 2)),
    "threshold": lambda x, y: F.threshold(x, 0.5, 2.0),
    "hardtanh": lambda x, y: F.hardtanh(x, -0.5, 2.0),
    "elu": lambda x, y: (F.elu(x, 1.5), F.selu(x), F.celu(x, 2.0)),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=3.0),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y * y + 1, value=3.0),
    "lerp": lambda x, y: (torch.lerp(x, y, 0.3), torch.lerp(x, y, x * x)),
    "leaky_relu": lambda x, y: F.leaky_relu(x, 0.2),
    "softplus": lambda x, y: (F.softplus(x), F.softplus(x, 2.0, 3.0)),
    "special_entr": lambda x, y: torch.special.entr(x),
    "special_xlog1py": lambda x, y: torch.special.xlog1py(x, y * y),
    "frac": lambda x, y: torch.frac(x),
    "mul": lambda x, y: (x * y, 2 * x, x * 2.5),
    "mean": lambda x, y: (x.mean(), x.mean(-1), x.mean((0, 1), keepdim=True)),
    "sum": lambda x, y: (x.sum(), x.sum(0), x.sum((0, -1)), x.sum(-1, dtype=torch.float64)),
    "prod": lambda x, y: (x.prod(-1), x.prod(0, keepdim=True)),
    "any": lambda x, y: ((x > 1).any(), (x > 1).any(-1), x.any(0, keepdim=True)),
    "all": lambda x, y: ((x > -1).all(), (x > -1).all(-1), x.all(0, keepdim=True)),
    "logsumexp": lambda x, y: (x.logsumexp(-1), x.logsumexp((0, 1), keepdim=True)),
    "argmax": lambda x, y: (x.argmax(-1), x.argmax(0, keepdim=True)),
    "argmin": lambda x, y: (x.argmin(-1), x.argmin(0, keepdim=True)),
    "var": lambda x, y: (x.var(), x.var(-1, correction=0), x.var(0, keepdim=True)),
    "std": lambda x, y: (x.std(), x.std(-1, unbiased=False), x.std((0, 1))),
    "amax": lambda x, y: (x.amax(-1), x.amax((0, 1)), x.amax(0, keepdim=True)),
    "amin": lambda x, y: (x.amin(-1), x.amin((0, 1)), x.amin(0, keepdim=True)),
    "count_nonzero": lambda x, y: torch.count_nonzero(x > 0, -1),
}  # fmt: skip
SPECIAL_CALLS: dict[str, Function] = {
    "alias": lambda x, y: torch.ops.aten.alias(x) + 1,
    "detach": lambda x, y: x.detach() * 2,
    "clone": lambda x, y: x.clone(),
    "_to_copy": lambda x, y: (x.to(torch.float64), x.half(), x.int(), x.type_as(y), x > 0),
    "unsqueeze": lambda x, y: x.unsqueeze(0) + x.unsqueeze(-2) * x[:, None],
    "squeeze": lambda x, y: (x[:1] * 2).squeeze(0) + x.sum(0, keepdim=True).squeeze(),
    "permute": lambda x, y: x.permute(1, 0) * y.t(),
    "transpose": lambda x, y: ((x + y).transpose(0, 1) * 2, x.softmax(-1).transpose(-1, 0)),
    "t": lambda x, y: x.t() - y.t().mean(0),
    "expand": lambda x, y: ((x[:1] * 2).expand(3, 4, 6).sum(0), x[:, :1].expand_as(x) + 0),
    "slice.Tensor": lambda x, y: (x[1:, ::2] * y[:-1, 1::2], (x * 2)[-2:], x[:, -3:-1] + 1),
    "select.int": lambda x, y: (x[0] * y[-1], (x * y)[:, 2], x.softmax(-1)[1]),
    "split.Tensor": lambda x, y: [a * b for a, b in [(x * 2).chunk(2, -1), y.split(3, -1)]],
    "split_with_sizes": lambda x, y: [p * 2 for p in x.split([1, 2, 3], -1)],
    "unbind.int": lambda x, y: sum(x.unbind(0)) + 1,
    "view.default": lambda x, y: (
        x.view(2, 2, 6).sum(1), (x + y).view(-1), (x * y).view(2, 2, 6).sum(1)
    ),
    "_unsafe_view": lambda x, y: torch.ops.aten._unsafe_view(x, [24]) * 2,
    "scalar_tensor": lambda x, y: (x + torch.tensor(1.5), torch.where(x > 0, 1.0, 2.0) * y),
    "full": lambda x, y: torch.full((4, 6), 2.5) * x,
    "full_like": lambda x, y: torch.full_like(x, 3) - x,
    "new_full": lambda x, y: x.new_full((6,), 3) - x,
    "zeros": lambda x, y: torch.zeros(4, 6) + x,
    "zeros_like": lambda x, y: torch.zeros_like(x) + y,
    "new_zeros": lambda x, y: x.new_zeros(6) + y,
    "ones": lambda x, y: torch.ones(6, dtype=torch.int32) * x,
    "ones_like": lambda x, y: (torch.ones_like(x) + y, torch.ones_like(x)),
    "new_ones": lambda x, y: x.new_ones(6) + y,
    "arange": lambda x, y: x * torch.arange(x.shape[-1]),
    "arange.start": lambda x, y: x * torch.arange(2, x.shape[-1] + 2),
    "arange.start_step": lambda x, y: x * torch.arange(3, 3 + 2 * x.shape[-1], 2),
    "zero": lambda x, y: (x * 2).zero_() + y,
    "fill": lambda x, y: (torch.empty_like(x).fill_(2.5) * y, (x * 2).fill_(torch.tensor(3)) + y),
    "copy": lambda x, y: (torch.zeros_like(x).copy_(y[0]) * x, (x > 0).copy_(y), x.int().copy_(y)),
    "round.decimals": lambda x, y: (
        x.round(decimals=1), (y * 100).round(decimals=-1), y.round(decimals=0)
    ),
    "gelu": lambda x, y: (F.gelu(x), F.gelu(y, approximate="tanh")),
    "masked_fill": lambda x, y: (x.masked_fill(y > 0, 7), x.masked_fill(y > 0, x.sum())),
    "sign": lambda x, y: (torch.sign(x), torch.sign(x > y), x.long().sign()),
    "sgn": lambda x, y: torch.sgn(x),
    "clamp": lambda x, y: (x.clamp(-1, 0.5), x.clamp(max=0), x.clamp(y, y * y + 5)),
    "clamp_min": lambda x, y: (torch.clamp_min(x, 0), torch.clamp_min(x, y)),
    "clamp_max": lambda x, y: (torch.clamp_max(x, 0), torch.clamp_max(x, y)),
    "div.Tensor_mode": lambda x, y: [
        torch.div(x, y * y + 1, rounding_mode=mode) for mode in ("floor", "trunc", None)
    ],
    "logit": lambda x, y: (torch.logit(x.sigmoid()), torch.logit(x, eps=0.1)),
    "log_sigmoid_forward": lambda x, y: F.logsigmoid(x),
    "_softmax": lambda x, y: (x.softmax(-1), x.softmax(0), F.softmax(x, 1, dtype=torch.float64)),
    "_log_softmax": lambda x, y: (x.log_softmax(-1), F.log_softmax(x, 0)),
    "max.dim": lambda x, y: (*x.max(-1), *x.max(0, keepdim=True)),
    "min.dim": lambda x, y: (*x.min(-1), *x.min(0, keepdim=True)),
    "max.default": lambda x, y: x.max(),
    "min.default": lambda x, y: x.min(),
    "var_mean": lambda x, y: (*torch.var_mean(x, -1), *torch.var_mean(x, 0, correction=0)),
    "std_mean": lambda x, y: torch.std_mean(x, -1, keepdim=True),
    "linalg_vector_norm": lambda x, y: [
        torch.linalg.vector_norm(x, order, dim=-1)
        for order in (2, 1, float("inf"), -float("inf"), 0, 3, 0.5)
    ],
    "native_layer_norm": lambda x, y: (
        F.layer_norm(x, (6,), y[0], y[1], 1e-3), F.layer_norm(x, x.shape)
    ),
    "native_group_norm": lambda x, y: (
        F.group_norm(x, 3, y[0], y[1], 1e-3),
        F.group_norm(x, 2) * y + x,
        F.group_norm(x.view(2, 2, 6), 1, y[0, :2]).relu().mean(-1),
    ),
    "native_group_norm_backward": lambda x, y: torch.ops.aten.native_group_norm_backward(
        x, y, y[:, :3].contiguous(), y[:, 3:].exp(), x[0], 4, 6, 1, 3, [True, True, True]
    ),
    "native_batch_norm": lambda x, y: F.batch_norm(x, y[0], y[1] ** 2, y[2], y[3]),
    "gather": lambda x, y: x.gather(-1, x.argmax(-1, keepdim=True)) * y[:, :1],
    "diagonal": lambda x, y: (x.diagonal() + 1, (x * y).diagonal(-1), x.exp().diagonal(2, 1, 0)),
    "binary_cross_entropy": lambda x, y: [
        F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), x[0].exp(), reduction=reduction)
        for reduction in ("none", "mean", "sum")
    ],
    "index.Tensor": lambda x, y: x.log_softmax(-1)[torch.arange(x.shape[0]), y.argmax(-1)],
    "nll_loss_forward": lambda x, y: [
        F.cross_entropy(x, y.argmax(-1), reduction=reduction, ignore_index=2)
        for reduction in ("none", "mean", "sum")
    ],
    "nll_loss_backward": lambda x, y: [
        torch.ops.aten.nll_loss_backward(
            x.sum(-1) if reduction == 0 else x.sum(), x, y.argmax(-1), None, reduction, 2,
            (y.argmax(-1) != 2).to(x.dtype).sum(),
        )
        for reduction in (0, 1, 2)
    ],
    "nll_loss2d_forward": lambda x, y: [
        F.cross_entropy(
            x.view(2, 2, 3, 2), y.view(2, 2, 3, 2).argmax(1), x[0, :2].exp(), reduction=reduction
        )
        for reduction in ("none", "mean", "sum")
    ],
    "nll_loss2d_backward": lambda x, y: torch.ops.aten.nll_loss2d_backward(
        x.sum(), x.view(2, 2, 3, 2), y.view(2, 2, 3, 2).argmax(1), None, 1, -100, x.exp().sum()
    ),
}  # fmt: skip
# Where PyTorch's own functions of these names are something else before they reach a trace, or a
# decomposition gets there first, and where one name of a row stands for several.
ELSEWHERE = frozenset(
    "lift_fresh lift_fresh_copy contiguous positive reshape _reshape_alias empty empty_like"
    " new_empty div.Scalar_mode _safe_softmax _native_batch_norm_legit"
    " _native_batch_norm_legit_no_training cudnn_batch_norm _batch_norm_no_update".split()
)


TAKEN_APART = frozenset(("hardshrink", "softshrink"))  # by PyTorch's Python dispatcher


def is_composite(name: str) -> bool:
    """Whether PyTorch takes an operator apart before a trace can see it, or lacks it."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None or name in TAKEN_APART:
        return True
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    taken = [s for s in schemas if s.arguments and "Tensor" in str(s.arguments[0].type)]
    names = [f"{s.name}.{s.overload_name}".removesuffix(".") for s in taken]
    key = "CompositeImplicitAutograd"
    return all(torch._C._dispatch_has_kernel_for_dispatch_key(n, key) for n in names)


def plain(name: str) -> Function:
    """The function of this name, of one tensor or of two."""
    function = next(
        getattr(home, name) for home in (torch, F, torch.special) if hasattr(home, name)
    )
    return function if name in TWO else lambda x, y: function(x)


POINTWISE = sorted(
    name
    for name in {*SAME_NAMES, *EXPRESSIONS, *REDUCTIONS} - {*SPECIAL}
    if "." in name or not is_composite(name)
)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The operators that traces met, by name and with their overload."""
    found: set[str] = set()
    keep = trace_record.Recorder._keep

    def spy(self: trace_record.Recorder, call: trace_record.Call) -> None:
        found.update((call.name, call.overload))
        keep(self, call)

    monkeypatch.setattr(trace_record.Recorder, "_keep", spy)
    return found


def operands(name: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    low, high = OPS[SAME_NAMES.get(name, "")].domain if SAME_NAMES.get(name) in OPS else (-3.0, 3.0)
    shape = (24,) if name in {*SAME_NAMES, *EXPRESSIONS} else (4, 6)
    if not dtype.is_floating_point:
        lowest = max(int(low), 0 if dtype is torch.uint8 else -3)
        x, y = torch.randint(lowest, 4, (2, *shape), generator=generator)
        return x.to(dtype), y.to(dtype)
    x, y = (torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return ((x * (high - low) + low).to(dtype), (y * (high - low) + low).to(dtype))


def check(function: Function, *args: torch.Tensor, tolerance: float | None = None) -> None:
    """What a traced function gives, against the function itself.

    In 16 bits PyTorch rounds after every operation: there the values are compared with those of
    float32, and the types with PyTorch's.
    """
    actual = fusec.compile(function, backend="torch")(*args)
    eager = function(*args)
    wide = [a.float() if a.dtype is torch.bfloat16 else a for a in args]
    exact = function(*wide)
    leaves = torch.utils._pytree.tree_leaves
    assert len(leaves(actual)) == len(leaves(eager))
    for got, like, want in zip(leaves(actual), leaves(eager), leaves(exact), strict=True):
        assert (got.dtype, got.shape) == (like.dtype, like.shape)
        close = tolerance or TOLERANCES.get(got.dtype, 2e-6)
        torch.testing.assert_close(
            got.double(), want.double(), rtol=close, atol=close, equal_nan=True
        )


@pytest.mark.parametrize("name", POINTWISE)
def test_operator(name: str, seen: set[str]) -> None:
    function = CALLS.get(name) or plain(name)
    dtypes = FLOATS if name not in INTEGERS_ONLY else ()
    if name in CALLS:
        dtypes = (*dtypes, torch.float64)
    if name in INTEGERS_TOO or name in INTEGERS_ONLY:
        dtypes = (*dtypes, torch.int64, torch.uint8)
    pairs = [operands(name, dtype) for dtype in dtypes]
    flat = [t for pair in pairs for t in pair]

    def every(*tensors: torch.Tensor) -> list[Any]:
        return [function(*tensors[i : i + 2]) for i in range(0, len(tensors), 2)]

    check(every, *flat)
    assert name in seen


@pytest.mark.parametrize("name", SPECIAL_CALLS)
def test_special_operator(name: str, seen: set[str]) -> None:
    x, y = operands("", torch.float32)
    check(SPECIAL_CALLS[name], x, y)
    assert name in seen or name == "native_batch_norm"


def test_every_row_is_tested() -> None:
    assert set(SPECIAL) - set(SPECIAL_CALLS) <= ELSEWHERE
    assert set(SPECIAL_CALLS) <= set(SPECIAL)
    assert set(CALLS) <= set(POINTWISE)


@pytest.mark.parametrize("start", [-9, -7, -6, -5, -1, 0, 2, 6, 9, None])
@pytest.mark.parametrize("end", [-9, -6, -2, 0, 3, 6, 9, None])
def test_slices_that_begin_or_end_outside(start: int | None, end: int | None) -> None:
    x, y = operands("", torch.float32)
    check(lambda x, y: [(x[:, start:end:step] * 2, x[start:end, :1] + 1) for step in (1, 2)], x, y)


GATHERS: dict[str, Function] = {
    "along the first axis": lambda x, t: x.gather(0, (t % 4)[:1, None]),
    "along the first axis, of a computed value": lambda x, t: x.softmax(0).gather(0, t[None] % 4),
    "in the middle": lambda x, t: x.view(2, 2, 6).gather(1, t.view(2, 2, 1) % 2) * 2,
    "many of each row": lambda x, t: x.exp().gather(1, t.expand(4, 4)),
    "many of each column": lambda x, t: x.gather(0, (t[:, None] % 4).expand(4, 5)) + x[:, :5],
    "less its column's sum": lambda x, t: (x - x.sum(0)).gather(1, t[:, None]),
    "many, less its column's sum": lambda x, t: (x - x.sum(0)).gather(1, t.expand(4, 4)),
    "of bools": lambda x, t: ((x > 0) & x.any(0)).gather(1, t[:, None]),
    "of integers": lambda x, t: (x.int() - x.int().amax(0)).gather(1, t[:, None]),
    "of equal elements": lambda x, t: x[:, :1].expand(4, 6).gather(1, t.expand(4, 4)) + 1,
    "of a vector": lambda x, t: x[0].gather(0, t),
    "of a number": lambda x, t: (x.sum().gather(0, t[0] * 0), x.sum().gather(0, t[:1] * 0)),
    "take_along_dim": lambda x, t: torch.take_along_dim(x, t[:, None], 1),
    "take_along_dim that broadcasts": lambda x, t: x.take_along_dim(t[None], dim=-1) + 1,
    "take_along_dim of the argsort": lambda x, t: torch.take_along_dim(
        x.softmax(-1), t[None].expand(4, 4), 1
    ),
    "take_along_dim of all": lambda x, t: torch.take_along_dim(x, t),
    "positions that are an argument": lambda x, t: x.gather(1, t[:, None]).squeeze(1),
    "a loss": lambda x, t: -x.log_softmax(-1).gather(-1, t.unsqueeze(-1)).mean(),
    "a loss by logsumexp": lambda x, t: x.logsumexp(1) - x.gather(1, t[:, None])[:, 0],
    "and all of them": lambda x, t: x.gather(1, t[:, None]) * x,
    "of a computed value": lambda x, t: (x.softmax(-1) * 2).gather(1, t[:, None]),
    "for the first rows": lambda x, t: x.gather(1, t[:2, None]),
    "for the first row": lambda x, t: (x * 2).gather(1, t[:1, None]),
    "three axes": lambda x, t: x.view(2, 2, 6).gather(2, t.view(2, 2, 1)),
    "from one column": lambda x, t: x[:, :1].gather(1, t[:, None] * 0) * 2,
    "from a row of maxima": lambda x, t: x.gather(
        1, x.amax(1, keepdim=True).argmax(1, keepdim=True)
    ),
}


@pytest.mark.parametrize("name", GATHERS)
def test_gather(name: str) -> None:
    check(GATHERS[name], operands("", torch.float32)[0], torch.tensor([3, 0, 5, 1]))


@pytest.mark.parametrize("name", GATHERS)
def test_gather_as_kernels(name: str) -> None:
    x, t = operands("", torch.float32)[0], torch.tensor([3, 0, 5, 1])
    function = GATHERS[name]
    torch.testing.assert_close(fusec.compile(function)(x, t), function(x, t))


def test_take_along_dim_of_other_ranks_is_refused_with_the_line() -> None:
    x, t = operands("", torch.float32)[0], torch.tensor([3, 0, 5, 1])
    with pytest.raises(UnsupportedError) as caught:
        fusec.compile(lambda x, t: torch.take_along_dim(x, t, 1))(x, t)
    assert "take_along_dim takes indices of as many axes as the input has: 2, not 1" in str(caught)
    assert str(caught.value).startswith(f"{__file__}:")


NUMBERS: dict[str, Function] = {
    "kron": lambda x, y: (torch.kron(x, y[:2, :2]), x.kron(y[0])),
    "matrix_norm": lambda x, y: [
        torch.linalg.matrix_norm(x.view(2, 2, 6), order, keepdim=keepdim)
        for order in ("fro", 1, -1, float("inf"), -float("inf"))
        for keepdim in (False, True)
    ],
    "norm": lambda x, y: (
        torch.linalg.norm(x), torch.linalg.norm(x, 1), torch.linalg.norm(x, "fro"),
        torch.linalg.norm(x, 2, dim=-1), torch.linalg.norm(x, dim=(0, 1), keepdim=True),
        torch.linalg.norm(x[0], 1), torch.linalg.norm(x, float("inf"), (1, 0)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_functions_that_ask_for_lengths_as_numbers(name: str) -> None:
    check(NUMBERS[name], *operands("", torch.float32))


def test_one_function_gathers_for_all_rows_and_for_some() -> None:
    function = fusec.compile(lambda x, t: x.gather(1, t))
    x = torch.randn(4, 6)
    for rows in (4, 3, 1, 2, 4):
        t = torch.randint(6, (rows, 1))
        torch.testing.assert_close(function(x, t), x.gather(1, t))


@pytest.mark.parametrize("name", ["argmax", "argmin", "max", "min", "all", "any", "prod"])
def test_reductions_of_an_axis_of_length_one(name: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[Any]:
        operator = getattr(torch, name)
        return [
            operator(x[:, :1], 1), operator(y.sum(1, keepdim=True), 1), operator(x[:1] * y[:1], 0)
        ]  # fmt: skip

    check(function, *operands("", torch.float32))
