"""Spares Triton's interpreter the work that has the same outcome each time.

Part of the helper process that interprets Triton; may import numpy and triton. An operation on a
block of numbers takes microseconds, and what Triton does around it for their types many times that:
a type is made anew for every tensor, with its shape wrapped and unwrapped. Here each is made once.
No value passes through this module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

_Semantic = type(interpreter.interpreter_semantic)
_block_type_new: Callable[..., None] = tl.block_type.__init__
_tensor_new: Callable[..., None] = tl.tensor.__init__
_tuple_equal: Callable[..., Any] = tl.tuple.__eq__
_array_type: Callable[[Any], Any] = interpreter._get_np_dtype
_broadcast: Callable[..., Any] = _Semantic.broadcast_impl_value
_cast: Callable[..., Any] = _Semantic.cast
# The element type stands in a value as well: while it lives, its id is no other's.
_block_types: dict[tuple[int, ...], dict[str, Any]] = {}
_array_types: dict[str, Any] = {}


def install() -> None:
    """Change the interpreter of this process, once."""
    tl.block_type.__init__ = make_block_type
    tl.tensor.__init__ = make_tensor
    tl.tuple.__eq__ = tuples_equal
    interpreter._get_np_dtype = array_type
    _Semantic.cast = cast
    _Semantic.broadcast_impl_value = broadcast
    # A sum of integers is computed again in int64 for an assertion, which is then not made: those
    # need `debug` as well.
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def make_block_type(self: Any, element_ty: Any, shape: Any) -> None:
    """A block type with the attributes of an equal one that was made before."""
    lengths = tuple(shape)
    if not all(type(length) is int for length in lengths):
        _block_type_new(self, element_ty, shape)
        return
    key = (id(element_ty), *lengths)
    known = _block_types.get(key)
    if known is not None:
        self.__dict__.update(known)
        return
    _block_type_new(self, element_ty, shape)
    self.of_tensors = {}  # shared by all equal types
    _block_types[key] = dict(self.__dict__)


def make_tensor(self: Any, handle: Any, type: Any) -> None:
    """A tensor with the attributes of another of the same type, and its own handle."""
    known = type.__dict__.get("of_tensors")
    if known:
        self.__dict__.update(known)
        self.handle = handle
        return
    _tensor_new(self, handle, type)
    if known is not None:
        known.update((k, v) for k, v in self.__dict__.items() if k != "handle")


def tuples_equal(self: Any, other: Any) -> Any:
    """Two tuples of Triton; plain integers, as in shapes, need no unwrapping."""
    values = other.values if isinstance(other, tl.tuple) else other
    if type(values) is list and all(type(value) is int for value in (*self.values, *values)):
        return tl.constexpr(self.values == values)
    return _tuple_equal(self, other)


def broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
    """Two blocks of as many axes in the shape that they have in common; others as in Triton."""
    if not (lhs.type.is_block() and rhs.type.is_block()):
        return _broadcast(self, lhs, rhs)
    left, right = list(lhs.type.shape), list(rhs.type.shape)
    if left == right:
        return lhs, rhs
    shape = [b if a == 1 else a for a, b in zip(left, right, strict=False)]
    if len(left) != len(right) or any(b not in (1, n) for b, n in zip(right, shape, strict=True)):
        return _broadcast(self, lhs, rhs)
    return _widened(self, lhs, left, shape), _widened(self, rhs, right, shape)


def _widened(self: Any, operand: Any, before: list[int], shape: list[int]) -> Any:
    if before == shape:
        return operand
    kind = tl.block_type(operand.type.scalar, shape)
    return self.tensor(self.builder.create_broadcast(operand.handle, shape), kind)


def array_type(kind: Any) -> Any:
    """The type of numpy that holds elements of a type of Triton."""
    name = kind.scalar.name
    found = _array_types.get(name)
    if found is None:
        found = _array_types[name] = _array_type(kind)
    return found


def cast(self: Any, input: Any, dst_ty: Any, *rest: Any, **keywords: Any) -> Any:
    """A cast, of which most are to the type that the operand has."""
    if input.dtype is dst_ty:
        return input
    return _cast(self, input, dst_ty, *rest, **keywords)
