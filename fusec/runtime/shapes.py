"""Shapes and strides in numbers. May import ``fusec.ir``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusec.ir.node import Dim, Shape


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements. Lengths may be symbols of PyTorch."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1) if isinstance(length, int) else _at_least_one(length)
    return tuple(reversed(strides))


def _at_least_one(length: Any) -> Any:
    """The larger of a symbol and 1, without asking which it is."""
    import torch

    larger: Any = torch.sym_max
    return larger(length, 1)


def concrete(shape: Shape, sizes: Mapping[Dim, int]) -> tuple[int, ...]:
    """A shape in numbers."""
    return tuple(sizes[e] if isinstance(e, Dim) else e for e in shape)
