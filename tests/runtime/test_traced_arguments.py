"""What goes into a traced function and where its results go: arrays, and tensors of the caller."""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

import fusec
from fusec.errors import DTypeError

Tensor = torch.Tensor


def packed() -> Any:
    """A column of records of odd size: strides that no tensor has."""
    records = numpy.zeros(6, dtype=[("a", "u1"), ("b", "f4")])
    records["b"] = numpy.arange(6)
    return records["b"].reshape(2, 3)


def read_only() -> Any:
    array = numpy.arange(6.0).reshape(2, 3)
    array.setflags(write=False)
    return array


ARRAYS: dict[str, Callable[[], Any]] = {
    "backwards": lambda: numpy.arange(6.0).reshape(2, 3)[::-1, ::-1],
    "every second backwards": lambda: numpy.arange(24.0).reshape(4, 6)[::-2, ::-2],
    "other byte order": lambda: numpy.arange(6).reshape(2, 3).astype(">f8"),
    "other byte order, integers": lambda: numpy.arange(6).reshape(2, 3).astype(">i4"),
    "records": packed,
    "read-only": read_only,
    "by columns": lambda: numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)),
    "one element for all": lambda: numpy.broadcast_to(numpy.float64(3), (2, 3)),
    "without elements": lambda: numpy.zeros((0, 3)),
    "without columns": lambda: numpy.zeros((2, 0)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_are_no_tensors(name: str) -> None:
    array = ARRAYS[name]()
    native = array.astype(array.dtype.newbyteorder("="))
    twice = fusec.compile(lambda x: x * 2)(array)
    total, turned = fusec.compile(lambda x: (x.t().sum(0), [x.t()]))(array)
    for got, want in ((twice, native * 2), (total, native.sum(1)), (turned[0], native.T)):
        assert isinstance(got, numpy.ndarray)
        numpy.testing.assert_array_equal(got, want)


def test_a_masked_array_is_refused() -> None:
    array = numpy.ma.array([1.0, 2.0], mask=[False, True])
    for function in (fusec.compile("x * 2"), fusec.compile(lambda x: x[:1] * 2)):
        with pytest.raises(fusec.DTypeError, match="is a masked array"):
            function(array)


def test_results_that_are_views_of_arguments_go_where_out_says() -> None:
    x, y = torch.arange(3.0), torch.arange(3.0) + 10
    first, second = x.clone(), y.clone()
    fusec.compile(lambda a, b: (b, a))(x, y, out=(x, y))
    torch.testing.assert_close((x, y), (second, first))
    fusec.compile(lambda a, b: (a + 1, a[:2], b))(x, y, out=(x, torch.empty(2), y))
    torch.testing.assert_close((x, y), (second + 1, first))
    kept = torch.empty(3)
    fusec.compile(lambda a: (a + 1, a))(x, out=(x, kept))
    torch.testing.assert_close((x, kept), (second + 2, second + 1))
    square = torch.arange(9.0).reshape(3, 3)
    wanted = square.t().clone()
    fusec.compile(lambda a: a.t())(square, out=square)
    torch.testing.assert_close(square, wanted)


def test_out_takes_the_result_of_an_array() -> None:
    out = torch.empty(3, 2, dtype=torch.float64)
    array = numpy.arange(6.0).reshape(2, 3)
    assert fusec.compile(lambda x: x.t() * 2)(array, out=out) is out
    numpy.testing.assert_array_equal(out.numpy(), array.T * 2)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ((torch.empty(3),), "out has 1 tensors, the function has 2 results"),
        ((torch.empty(3), torch.empty(4)), r"out is \[4\], the result is \[3\]"),
        ((torch.empty(3), torch.empty(3).double()), "out is torch.float64, the result is"),
        ((torch.empty(3), None), "out is a NoneType"),
    ],
)
def test_out_that_does_not_fit(out: Any, message: str) -> None:
    function = fusec.compile(lambda a: (a * 1, a))
    with pytest.raises((fusec.ShapeError, fusec.DTypeError), match=message):
        function(torch.arange(3.0), out=out)
    with pytest.raises(fusec.DTypeError, match="the result is a int"):
        fusec.compile(lambda a: (a[:2], 2))(torch.arange(3.0), out=(torch.empty(2),) * 2)


SCALARS = [
    numpy.float64(2.5), numpy.float32(2.5), numpy.float16(2.5), numpy.int64(3), numpy.int8(3),
    numpy.uint8(3), numpy.bool_(True),
]  # fmt: skip


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.uint8])
def test_scalars_of_numpy_are_numbers(scalar: Any, dtype: torch.dtype) -> None:
    x = torch.arange(6).reshape(2, 3).to(dtype)
    for function in (lambda x, s: x * s, lambda x, s: (x + s, s), lambda x, s=scalar: x * s):
        compiled, numbers = fusec.compile(function), [scalar] * (function.__defaults__ is None)
        got, wanted = compiled(x, *numbers), function(x, scalar.item())
        torch.testing.assert_close(got, wanted)
        assert not isinstance(got, numpy.ndarray)


def test_a_scalar_of_numpy_traces_nothing_that_a_number_has_not() -> None:
    compiled = fusec.compile(lambda x, s: x * s)
    x = torch.ones(3)
    for s in (2.0, numpy.float64(3), numpy.float32(4), 5.0):
        torch.testing.assert_close(compiled(x, s), x * float(s))
    assert len(compiled._all()) == 1
    torch.testing.assert_close(compiled.bind(x, numpy.float64(6))(), x * 6)
    summed = fusec.compile(lambda x, axis: x.sum(axis))
    square = torch.arange(6.0).reshape(2, 3)
    for axis in (numpy.int64(0), numpy.int32(1), 1):
        torch.testing.assert_close(summed(square, axis), square.sum(int(axis)))


def test_members_of_enumerations_and_subclasses_of_numbers() -> None:
    class Way(enum.IntEnum):
        TWICE = 2
        THRICE = 3

    class Number(float):
        pass

    compiled = fusec.compile(lambda x, way: x * 2 if way is Way.TWICE else x * 3)
    x = torch.ones(3)
    for way in (Way.TWICE, Way.THRICE, Way.TWICE, 2):
        torch.testing.assert_close(compiled(x, way), x * (2 if way is Way.TWICE else 3))
    with pytest.raises(fusec.DTypeError, match="is called with a Number"):
        compiled(x, Number(2))


FACTOR = 2.0


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


CLAMP, TANH, OWN = partial(torch.clamp, min=2.0), torch.nn.Tanh(), SimpleNamespace(s=3.0)
DEFAULTS: dict[str, Callable[..., torch.Tensor]] = {
    "a function of PyTorch": lambda x, act=torch.nn.functional.gelu: act(x),
    "a function": lambda x, act=scaled: act(x),
    "by name alone": lambda x, *, act=torch.relu: act(x),
    "before a number": lambda x, act=torch.relu, s=2.0: act(x) * s,
    "partial": lambda x, act=CLAMP: act(x),
    "a module": lambda x, act=TANH: act(x),
    "an object": lambda x, own=OWN: x * own.s,
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_default_that_is_no_tensor_is_a_constant(name: str) -> None:
    x = torch.tensor([-1.0, 0.5, 3.0])
    compiled = fusec.compile(DEFAULTS[name])
    torch.testing.assert_close(compiled(x), DEFAULTS[name](x))
    torch.testing.assert_close(compiled.bind(x)(), DEFAULTS[name](x))


def test_a_function_that_is_passed_is_refused_unless_it_is_the_default() -> None:
    compiled = fusec.compile(lambda x, act=scaled: act(x))
    torch.testing.assert_close(compiled(torch.ones(2), scaled), scaled(torch.ones(2)))
    with pytest.raises(DTypeError, match="is called with a function"):
        compiled(torch.ones(2), lambda x: x)


def test_what_a_default_reads_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = fusec.compile(lambda x, act=scaled: act(x))
    compiled(torch.ones(2))
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 5.0))


def test_many_integers_are_warned_of_once() -> None:
    compiled = fusec.compile(lambda x, axis, step: x.sum(axis) / step)
    x = torch.ones(2, 3)
    for step in range(1, 16):
        compiled(x, 0, step)
    with pytest.warns(UserWarning, match="16 values of the integer step: pass a float or") as found:
        compiled(x, 0, 16)
    assert found[0].filename == __file__
    compiled(x, 0, 17)
    for step in range(1, 20):
        compiled(x, 1, float(step))
