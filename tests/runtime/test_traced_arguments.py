"""What goes into a traced function and where its results go: arrays, and tensors of the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import fusec

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
