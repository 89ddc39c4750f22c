"""How what a traced function returns was put together, so that each call puts it together anew.

Containers are PyTorch's pytrees, and dataclasses whose fields are all there is to them. May import
``fusec.errors`` and, of the frontend, ``trace_place``; torch inside functions.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from inspect import unwrap
from numbers import Number
from typing import Any

from fusec.errors import FusecError, UnsupportedError
from fusec.frontend.trace_place import where_in

_CONSTANTS = (str, bytes, Number, Enum, type(None), type(Ellipsis), type)
_OF_TORCH = ("dtype", "device", "memory_format", "layout")
_OF_TRACES = ("SymInt", "SymFloat", "SymBool")


@dataclass(frozen=True, slots=True)
class Record:
    """A dataclass in the place of a leaf: its type, and its fields as one structure of a tuple; or
    a ``torch.Size`` and its lengths, which have no names.
    """

    kind: type
    names: tuple[str, ...] | None
    inside: Structure

    def made(self, leaves: Iterator[Any]) -> Any:
        """A new one, as it is copied: no code of its own runs."""
        values = self.inside.made(leaves)
        if self.names is None:
            return self.kind(values)
        made: Any = object.__new__(self.kind)
        for name, value in zip(self.names, values, strict=True):
            object.__setattr__(made, name, value)
        return made


@dataclass(frozen=True, slots=True)
class Structure:
    """PyTorch's description of the containers, and what stands in the place of their leaves."""

    spec: Any
    places: tuple[Record | None, ...]

    def is_leaf(self) -> bool:
        """Whether there is a single value without a container."""
        return self.places == (None,) and self.spec.num_nodes == 1

    def made(self, leaves: Iterator[Any]) -> Any:
        """The containers with the next of these values in them."""
        from torch.utils._pytree import tree_unflatten

        filled = [next(leaves) if p is None else p.made(leaves) for p in self.places]
        return tree_unflatten(filled, self.spec)

    def filled(self, leaves: Sequence[Any]) -> Any:
        """The containers with these values in them."""
        return self.made(iter(leaves))


def taken_apart(value: Any) -> tuple[list[Any], Structure]:
    """The values in ``value``, and how they were put together."""
    import torch
    from torch.utils._pytree import tree_flatten

    found, spec = tree_flatten(value, is_leaf=lambda v: isinstance(v, torch.Size))
    leaves: list[Any] = []
    places: list[Record | None] = []
    for leaf in found:
        names, values = None, None
        if isinstance(leaf, torch.Size):
            values = tuple(leaf)
        elif _is_record(leaf):
            names = tuple(f.name for f in fields(leaf))
            values = tuple(getattr(leaf, name) for name in names)
        if values is None:
            leaves.append(leaf)
            places.append(None)
            continue
        inner, inside = taken_apart(values)
        leaves += inner
        places.append(Record(type(leaf), names, inside))
    return leaves, Structure(spec, tuple(places))


def _is_record(value: Any) -> bool:
    """Whether a value is a dataclass that has its fields and nothing else."""
    if not is_dataclass(value) or isinstance(value, type):
        return False
    named = {f.name for f in fields(value)}
    bases = {base for base in type(value).__mro__ if not is_dataclass(base)}
    plain = bases == {object} and all(hasattr(value, name) for name in named)
    return plain and vars(value).keys() <= named if hasattr(value, "__dict__") else plain


def refuse_unknown(value: Any, function: Callable[..., Any], symbols: Iterable[str]) -> None:
    """UnsupportedError for what is returned, if it is neither a tensor nor a constant.

    ``symbols`` are the names of lengths and floats in the trace: a text that has one told a number.
    """
    import torch

    written = isinstance(value, str) and re.findall(r"\w+", value)
    as_text = bool(written) and not set(symbols).isdisjoint(written or ())
    if isinstance(value, torch.Tensor) or (is_constant(value) and not as_text):
        return
    message = f"the function returns a value of type {type(value).__name__}, which is no tensor"
    if as_text:
        message = "the function returns a number as text, and a traced function has a symbol for it"
    elif isinstance(value, str):
        message = "the function returns a tensor as text, and a traced function has no values"
    raise _at_the_return(
        function,
        message,
        "return tensors and numbers, in tuples, lists, dicts, and dataclasses with fields alone",
    )


def _at_the_return(function: Callable[..., Any], message: str, hint: str) -> FusecError:
    """UnsupportedError at the one return of a function, or where it has more at its head."""
    code = getattr(unwrap(function), "__code__", None)
    if code is None:
        return UnsupportedError(message, hint=hint)
    lines, line, found = dict(dis.findlinestarts(code)), code.co_firstlineno, set()
    for instruction in dis.get_instructions(code):
        line = lines.get(instruction.offset) or line
        if instruction.opname == "RETURN_VALUE":
            found.add(line)
    line = found.pop() if len(found) == 1 else code.co_firstlineno
    return where_in(code, line).error(UnsupportedError, message, hint)


def is_constant(value: Any) -> bool:
    """Whether a value can be given back as it is in every call, or is a number of the trace."""
    kind = type(value)
    if kind.__module__.partition(".")[0] == "torch" and kind.__name__ in (*_OF_TORCH, *_OF_TRACES):
        return True
    told = isinstance(value, str) and "FakeTensor(" in value  # a stand-in that was printed
    return isinstance(value, _CONSTANTS) and not told
