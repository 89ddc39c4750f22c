"""Lengths of a model's tensors, which may be symbols, and how its results lie in memory.

May import ``trace_views``; torch and sympy inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fusec.frontend.trace_views import Length


@dataclass(frozen=True, slots=True)
class Layout:
    """What PyTorch expects of a result: lengths and strides in elements, and torch's type."""

    shape: tuple[Length, ...]
    strides: tuple[Length, ...]
    dtype: Any


def place_of(tensor: Any) -> tuple[Any, ...]:
    """Where in its memory a tensor lies, and as what."""
    length = lengths_of(tensor)
    return layout_of(tensor, length), length(tensor.storage_offset())


def layout_of(tensor: Any, length: Callable[[Any], Length]) -> Layout:
    """How a tensor lies in its memory."""
    shape, strides = tuple(map(length, tensor.shape)), tuple(map(length, tensor.stride()))
    return Layout(shape, strides, tensor.dtype)


def all_known(lengths: Iterable[Length], symbols: Sequence[Sequence[Length]]) -> bool:
    """Whether lengths can be computed from those of the inputs."""
    import sympy

    one: Any = sympy.Dummy("n", integer=True, positive=True)
    known = {s: one for own in symbols for s in own if not isinstance(s, int)}
    open_ones = [e.xreplace(known) for e in lengths if hasattr(e, "free_symbols")]
    return not any(e.free_symbols - {one} for e in open_ones)


def lengths_of(tensor: Any) -> Any:
    """The function that gives a length its one form: an integer, or an expression."""
    environment = tensor.fake_mode.shape_env

    def length(size: Any) -> Length:
        node = getattr(size, "node", None)
        expression = node.expr if node is not None else size
        if isinstance(expression, int | float):
            return expression
        expression = environment.replace(expression) if environment is not None else expression
        return int(expression) if expression.is_Integer else expression

    return length
