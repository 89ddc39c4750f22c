"""What a traced function is refused for, and what is said to do: types, indices, writes, names."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.errors import DTypeError, UnsupportedError

Tensor = torch.Tensor
X = torch.arange(12.0).reshape(3, 4)
INTEGERS = torch.tensor([[1, 0, 3], [3, 4, 0]])
BOOLS = INTEGERS > 1

FLOATS_ONLY: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "softplus": F.softplus,
    "mish": F.mish,
    "elu": F.elu,
    "celu": F.celu,
    "logsigmoid": F.logsigmoid,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "lerp": lambda x: torch.lerp(x, x, 0.5),
    "hypot": lambda x: torch.hypot(x, x),
    "frac": torch.frac,
}
NO_BOOLS: dict[str, Callable[[Tensor], Tensor]] = {
    **FLOATS_ONLY,
    "relu": torch.relu,
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
    "addcmul": lambda x: torch.addcmul(x, x, x),
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("name", NO_BOOLS)
def test_types_that_pytorch_refuses_are_refused(name: str, dtype: torch.dtype) -> None:
    function = NO_BOOLS[name]
    x = INTEGERS.to(dtype)
    compiled = fusec.compile(lambda x: function(x))
    if dtype is not torch.bool and name not in FLOATS_ONLY:
        torch.testing.assert_close(compiled(x), function(x))
        return
    with pytest.raises((RuntimeError, NotImplementedError)):
        function(x)
    with pytest.raises(fusec.FusecError):
        compiled(x)
    torch.testing.assert_close(compiled(x.float()), function(x.float()))


def test_the_words_for_a_type() -> None:
    with pytest.raises(DTypeError, match=r"PyTorch has no softmax of torch\.int64") as caught:
        fusec.compile(lambda x: x.softmax(-1))(INTEGERS)
    assert str(caught.value).endswith("hint: convert it first, as in x.float()")


@pytest.mark.parametrize("function", [torch.sign, torch.sgn])
def test_the_sign_of_a_bool(function: Callable[[Tensor], Tensor]) -> None:
    compiled = fusec.compile(lambda x: function(x))
    for x in (BOOLS, INTEGERS, X - 5):
        torch.testing.assert_close(compiled(x), function(x))


WRAPPED: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp": lambda x: x.clamp(-1, 4),
    "clamp, far below": lambda x: x.clamp(-255, 4),
    "clamp_min": lambda x: x.clamp_min(-2),
    "clamp_max": lambda x: x.clamp_max(-100),
    "masked_fill": lambda x: x.masked_fill(x > 2, -1),
    "masked_fill, in place": lambda x: (x + 0).masked_fill_(x > 2, -3),
    "within": lambda x: x.clamp(1, 200).masked_fill(x == 3, 255),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_negative_numbers_in_unsigned_types(name: str) -> None:
    function = WRAPPED[name]
    x = torch.tensor([0, 1, 3, 200, 255], dtype=torch.uint8)
    torch.testing.assert_close(fusec.compile(function)(x), function(x))
    for other in (x.to(torch.int8), x.to(torch.int32), x.float()):
        if name != "clamp, far below" and name != "within":
            torch.testing.assert_close(fusec.compile(function)(other), function(other))


@pytest.mark.parametrize("bounds", [(-256, 4), (0, 256)])
def test_numbers_that_fit_in_no_way(bounds: tuple[int, int]) -> None:
    x = torch.tensor([1], dtype=torch.uint8)
    with pytest.raises(RuntimeError):
        x.clamp(*bounds)
    with pytest.raises(DTypeError, match="does not fit u8"):
        fusec.compile(lambda x: x.clamp(*bounds))(x)


def test_rows_that_are_counted_by_a_number() -> None:
    def picked(x: Tensor, t: Tensor) -> Tensor:
        return x[torch.arange(3), t] * 2

    compiled, t = fusec.compile(picked), torch.tensor([3, 0, 1])
    for x in (X, torch.randn(3, 9), X):
        torch.testing.assert_close(compiled(x, t), picked(x, t))
    with pytest.raises(UnsupportedError, match=r"x\[arange\(n\), t\] where n is x.shape\[0\]"):
        compiled(torch.randn(5, 4), t)
    by_length = fusec.compile(lambda x, t: x[torch.arange(len(t)), t])
    torch.testing.assert_close(by_length(X, t), picked(X, t) / 2)
    with pytest.raises(UnsupportedError, match="where n is"):
        by_length(torch.randn(5, 4), t)


def sets(x: Tensor) -> Tensor:
    y = x * 2
    y[:, 0] = 0
    return y


def adds(x: Tensor) -> Tensor:
    y = x * 2
    y[..., ::2] += 1
    return y


def shifts(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[:, 1:] = x[:, :-1]
    return out


def masks(x: Tensor) -> Tensor:
    y = x * 2
    y[x > 3] = 0
    return y


def increments(x: Tensor) -> Tensor:
    x += 1
    return x


def underscore(x: Tensor) -> Tensor:
    y = x * 2
    y[0].add_(1)
    return y


POSITIONS = "make a new tensor, as torch.where(positions, a, b) does"
HINTS: dict[Callable[[Tensor], Tensor], str] = {
    sets: POSITIONS,
    adds: POSITIONS,
    shifts: POSITIONS,
    masks: "make a new tensor, as torch.where(condition, a, b) does",
    increments: "make a new tensor: a = a + b in the place of a += b, and return the result",
    underscore: "leave out the underscore",
}


@pytest.mark.parametrize("function", HINTS, ids=lambda f: f.__name__)
def test_what_to_write_in_the_place_of_a_write(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        fusec.compile(function)(X.clone())
    assert str(caught.value).splitlines()[-1] == f"hint: {HINTS[function]}"


@pytest.mark.parametrize("function", [torch.median, torch.special.log_ndtr, torch.digamma])
def test_an_operator_of_pytorch_is_no_slip_of_the_pen(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(UnsupportedError, match="is not an operator that fusec can fuse") as caught:
        fusec.compile(lambda x: function(x))(X)
    assert "did you mean" not in str(caught.value)


def _nested() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([X, X])


def _quantized() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(X, 0.1, 0, torch.quint8)


def _rows() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return X.to_sparse_csr()


NOT_PLAIN: dict[str, tuple[Callable[[], Tensor], str, str]] = {
    "quantized": (_quantized, "is quantized, as torch.quint8", "dequantize"),
    "nested": (_nested, "is a nested tensor", "to_padded_tensor"),
    "sparse": (X.to_sparse, "has the layout torch.sparse_coo", "to_dense"),
    "sparse rows": (_rows, "has the layout torch.sparse_csr", "to_dense"),
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_a_tensor_that_is_not_plain_is_refused(name: str) -> None:
    make, message, hint = NOT_PLAIN[name]
    for function, args in ((lambda y: y + 1, ()), (lambda x, y: x + y, (X,))):
        with pytest.raises(fusec.FusecError, match=f"input 'y' {message}") as found:
            fusec.compile(function)(*args, make())
        assert hint in str(found.value)


def test_a_formula_in_a_function_is_named_as_such() -> None:
    formula = fusec.compile("x * sigmoid(x)")
    with pytest.raises(UnsupportedError, match="a formula is called"):
        fusec.compile(lambda x: formula(x) + 1)(X)
