"""Copies of matrices beside products over odd lengths: with zeros behind their rows, and without.

Their rows begin between wide loads in one of two tensors, which PyTorch copies element by element.
May import the standard library only; torch inside functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Copy: TypeAlias = "Callable[[Any, Any], object]"  # of a tensor into another of its shape


def copy_by_torch(source: Any, target: Any) -> None:
    """Copy a tensor into another."""
    target.copy_(source)


def with_margin(copy: Copy) -> Callable[..., Any]:
    """``constant_pad_nd`` of a matrix, which writes its zeros where no element goes only.

    The function takes the matrix and ``[0, columns, 0, rows]``; its result is contiguous.
    """

    def with_margin(matrix: Any, pads: Any, *_: Any) -> Any:
        rows, columns = matrix.shape
        made = matrix.new_empty((rows + pads[3], columns + pads[1]))
        copy(matrix, made[:rows, :columns])
        if pads[1]:
            made[:, columns:].zero_()
        if pads[3]:
            made[rows:].zero_()
        return made

    return with_margin


def laid_out(copy: Copy) -> Callable[[Any], Any]:
    """The elements of a matrix one behind the other."""

    def laid_out(matrix: Any) -> Any:
        made = matrix.new_empty(matrix.shape)
        copy(matrix, made)
        return made

    return laid_out
