"""Every composite against the PyTorch function it names, special values included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fusec.errors import DTypeError
from fusec.ir.derived import DERIVED, parse_signature, rows
from tests.formulas import run, same_bits

INF, NAN = float("inf"), float("nan")
SPECIAL = [NAN, INF, -INF, -0.0, 0.0, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 6.5, 19.0, 21.0, -21.0]
LARGE = [100.0, -100.0, 3e4, -3e4, 1e30, -1e30, 1e-30, -1e-30]

# PyTorch's vectorised loops and their scalar tails differ in the sign of these zeros.
SIGN_OF_ZERO_OPEN = {"relu6(x)", "softshrink(x)"}


def gelu(x: torch.Tensor) -> torch.Tensor:
    """PyTorch's gelu in float64: its float32 loop is off by 1e-4 at -3, and gives NaN at inf."""
    return torch.where(x > 1e4, x, F.gelu(x.double()).to(x.dtype))


UNARY: dict[str, Callable[[Any], Any]] = {
    "sigmoid(x)": torch.sigmoid,
    "silu(x)": F.silu,
    "swish(x)": F.silu,
    "gelu(x)": gelu,
    "gelu_tanh(x)": lambda x: F.gelu(x, approximate="tanh"),
    "relu(x)": torch.relu,
    "relu2(x)": lambda x: torch.relu(x) ** 2,
    "relu6(x)": F.relu6,
    "leaky_relu(x)": F.leaky_relu,
    "leaky_relu(x, 0.2)": lambda x: F.leaky_relu(x, 0.2),
    "leaky_relu(x, slope=0.2)": lambda x: F.leaky_relu(x, 0.2),
    "elu(x)": F.elu,
    "elu(x, 0.7)": lambda x: F.elu(x, 0.7),
    "selu(x)": F.selu,
    "celu(x, 0.5)": lambda x: F.celu(x, 0.5),
    "softplus(x)": F.softplus,
    "softplus(x, beta=2)": lambda x: F.softplus(x, 2.0),
    "softplus(x, beta=2, threshold=5)": lambda x: F.softplus(x, 2.0, 5.0),
    "mish(x)": F.mish,
    "hardtanh(x)": F.hardtanh,
    "hardtanh(x, -2, 0.5)": lambda x: F.hardtanh(x, -2, 0.5),
    "hardsigmoid(x)": F.hardsigmoid,
    "hardswish(x)": F.hardswish,
    "softsign(x)": F.softsign,
    "tanhshrink(x)": F.tanhshrink,
    "softshrink(x)": F.softshrink,
    "hardshrink(x, 0.6)": lambda x: F.hardshrink(x, 0.6),
    "logsigmoid(x)": F.logsigmoid,
    "logit(x)": torch.logit,
    "square(x)": torch.square,
    "reciprocal(x)": torch.reciprocal,
    "sign(x)": torch.sign,
    "isnan(x)": torch.isnan,
    "isinf(x)": torch.isinf,
    "isfinite(x)": torch.isfinite,
    "clamp(x, -1, 2)": lambda x: x.clamp(-1, 2),
    "clamp(x, 2, -1)": lambda x: x.clamp(2, -1),
    "clamp(x, nan, 1)": lambda x: x.clamp(NAN, 1),
    "clamp_min(x, 0.5)": lambda x: x.clamp_min(0.5),
    "clamp_max(x, 0.5)": lambda x: x.clamp_max(0.5),
    "sinc(x)": torch.sinc,
    "heaviside(x, 0.5)": lambda x: torch.heaviside(x, torch.tensor(0.5, dtype=x.dtype)),
    "swiglu(x, 2)": lambda x: F.silu(x) * 2,
    "geglu(x, 2)": lambda x: gelu(x) * 2,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "lerp(x, y, 0.3)": lambda x, y: torch.lerp(x, y, 0.3),
    "lerp(x, y, 0.8)": lambda x, y: torch.lerp(x, y, 0.8),
    "hypot(x, y)": torch.hypot,
    "xlogy(x, y)": torch.xlogy,
    "logaddexp(x, y)": torch.logaddexp,
    "heaviside(x, y)": torch.heaviside,
    "clamp(x, y, 1)": lambda x, y: x.clamp(y, torch.ones(())),
}
ROWS: dict[str, Callable[[Any], Any]] = {
    "mean(x)": lambda x: x.mean(-1),
    "var(x)": lambda x: x.var(-1),
    "var(x, correction=0)": lambda x: x.var(-1, correction=0),
    "var(x, unbiased=false)": lambda x: x.var(-1, unbiased=False),
    "std(x, unbiased=False)": lambda x: x.std(-1, unbiased=False),
    "std(x)": lambda x: x.std(-1),
    "any(x)": lambda x: x.any(-1),
    "all(x)": lambda x: x.all(-1),
    "argmax(x)": lambda x: x.argmax(-1),
    "argmin(x)": lambda x: x.argmin(-1),
    "logsumexp(x)": lambda x: x.logsumexp(-1),
    "norm(x)": lambda x: torch.linalg.vector_norm(x, 2, -1),
    "norm(x, p=1)": lambda x: torch.linalg.vector_norm(x, 1, -1),
    "norm(x, p=inf)": lambda x: torch.linalg.vector_norm(x, INF, -1),
    "rms(x)": lambda x: (x * x).mean(-1).sqrt(),
    "softmax(x)": lambda x: x.softmax(-1),
    "log_softmax(x)": lambda x: x.log_softmax(-1),
    "softmax(x, axis=0)": lambda x: x.softmax(0),
    "mean(x, axis=(0, 1))": lambda x: x.mean(),
    "mean(x, axis=all)": lambda x: x.mean(),
    "std(x, axis=0, keepdim=true)": lambda x: x.std(0, keepdim=True),
    "rms_norm(x)": lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6),
    "layer_norm(x)": lambda x: F.layer_norm(x, x.shape[-1:]),
    "normalize(x)": lambda x: F.normalize(x, dim=-1),
    "entropy(x)": lambda x: torch.special.entr(x.softmax(-1)).sum(-1),
}
DTYPES = [torch.float32, torch.float64]


def agree(got: torch.Tensor, want: torch.Tensor, signs: bool = True) -> None:
    assert got.dtype == want.dtype
    tolerance = 1e-13 if want.dtype is torch.float64 else 3e-6
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance / 10, equal_nan=True)
    if signs and want.dtype.is_floating_point:
        exact = (want == 0) & (got == 0)
        assert torch.equal(got.signbit()[exact], want.signbit()[exact])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", UNARY)
def test_unary_composites(text: str, dtype: torch.dtype) -> None:
    x = torch.tensor(SPECIAL + LARGE, dtype=dtype)
    agree(run(text, x=x), UNARY[text](x), signs=text not in SIGN_OF_ZERO_OPEN)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", BINARY)
def test_binary_composites(text: str, dtype: torch.dtype) -> None:
    values = torch.tensor([*SPECIAL, 1e30, 1e-30], dtype=dtype)
    x, y = torch.cartesian_prod(values, values).unbind(1)
    agree(run(text, x=x, y=y), BINARY[text](x, y.clone()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", ROWS)
def test_composites_of_rows(text: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 7, dtype=dtype)
    agree(run(text, x=x), ROWS[text](x))
    x[0], x[1, 2], x[2, 3], x[3] = -INF, INF, NAN, 0.0
    x[4] += 3
    if "norm(" in text or text.startswith("entropy"):
        x = x[3:]  # PyTorch's own layer_norm has its own way with infinities
    agree(run(text, x=x), ROWS[text](x))


def test_layers_with_weights() -> None:
    x, w, b = torch.randn(3, 5), torch.randn(5), torch.randn(5)
    agree(run("layer_norm(x, w)", x=x, w=w), F.layer_norm(x, (5,), w))
    agree(run("layer_norm(x, w, b)", x=x, w=w, b=b), F.layer_norm(x, (5,), w, b))
    agree(run("layer_norm(x, w, b, eps=0.1)", x=x, w=w, b=b), F.layer_norm(x, (5,), w, b, 0.1))
    agree(run("rms_norm(x, w, eps=0.1)", x=x, w=w), F.rms_norm(x, (5,), w, 0.1))


def test_cross_entropy() -> None:
    x, t = torch.randn(6, 9), torch.tensor([0, 8, 3, 3, 1, 2])
    agree(run("cross_entropy(x, t)", x=x, t=t), F.cross_entropy(x, t, reduction="none"))
    agree(run("cross_entropy(2 * x, t)", x=x, t=t), F.cross_entropy(2 * x, t, reduction="none"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_types_compute_in_float32_and_round_once(dtype: torch.dtype) -> None:
    x = torch.tensor([[300.0, -300.0, 299.0, 1.0]]).to(dtype)
    for text, reference in (
        ("var(x)", lambda v: v.var(-1)),
        ("x / rms(x)", lambda v: v / (v * v).mean(-1, keepdim=True).sqrt()),
        ("mean(x)", lambda v: v.mean(-1)),
        ("softmax(x)", lambda v: v.softmax(-1)),
        ("gelu(x)", F.gelu),
    ):
        assert same_bits(run(text, x=x), reference(x.float()).to(dtype))


def test_integers_are_refused_where_torch_refuses_and_kept_where_it_keeps() -> None:
    x = torch.tensor([[3, -2, 5]], dtype=torch.int16)
    for name in ("mean", "var", "std", "norm", "layer_norm"):
        with pytest.raises(DTypeError, match=f"{name} needs floats, and x is i16"):
            run(f"{name}(x)", x=x)
    for text, reference in (
        ("relu(x)", torch.relu),
        ("sign(x)", torch.sign),
        ("square(x)", torch.square),
        ("clamp(x, 0, 4)", lambda v: v.clamp(0, 4)),
        ("clamp(x, 0.5, 2.5)", lambda v: v.clamp(0.5, 2.5)),
        ("sigmoid(x)", torch.sigmoid),
        ("any(x)", lambda v: v.any(-1)),
        ("logsumexp(x)", lambda v: v.logsumexp(-1)),
        ("isfinite(x)", torch.isfinite),
    ):
        agree(run(text, x=x), reference(x))


def test_ties_give_the_first_and_nan_wins() -> None:
    x = torch.tensor([[1.0, 5.0, 5.0], [NAN, 2.0, NAN], [3.0, NAN, 9.0], [-INF, -INF, -INF]])
    assert run("argmax(x)", x=x).tolist() == [1, 0, 1, 0]
    assert run("argmin(x)", x=x).tolist() == [0, 0, 1, 0]


def test_every_row_is_tried() -> None:
    text = " ".join([*UNARY, *BINARY, *ROWS, "cross_entropy(", "norm_1( norm_2( norm_inf("])
    assert [row.name for row in rows() if f"{row.name}(" not in text] == []
    assert set(DERIVED) == {row.name for row in rows()}


def test_signatures() -> None:
    parameters = parse_signature("x, w, lo=-1, *, axis=-1, eps=1e-5")
    assert [p.name for p in parameters] == ["x", "w", "lo", "axis", "eps"]
    assert [p.default for p in parameters] == [None, None, -1, -1, 1e-5]
    assert [p.keyword_only for p in parameters] == [False, False, False, True, True]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bool], ids=str)
@pytest.mark.parametrize("name", [row.name for row in rows() if row.widens])
def test_integers_do_not_leave_their_range(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([[-128, -100, 0, 1, 3, 100, 127]]).to(dtype)
    count = sum(p.default is None and not p.keyword_only for p in DERIVED[name][0].parameters)
    names = ["a", "b", "c"][:count]
    given = dict(zip(names, (x, x.flip(-1), x.roll(1, -1)), strict=False))
    formula = f"{name}({', '.join(names)})"
    result = run(formula, **given)
    assert result.dtype == torch.float32
    expected = run(formula, **{k: v.float() for k, v in given.items()})
    torch.testing.assert_close(result, expected, equal_nan=True)
