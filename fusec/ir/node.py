"""Nodes of the graph: frozen, slotted and hash-consed, so equal means identical.

Constants intern by type and bit pattern: -0.0 is not 0.0, True is not 1, and every NaN meets
itself. No function here recurses over arguments.

May import ``fusec.forks``, ``ir.dtypes`` and ``ir.ops``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakValueDictionary

from fusec import forks
from fusec.ir.dtypes import DType
from fusec.ir.ops import OPS, Op


@dataclass(frozen=True, slots=True)
class Dim:
    """A named length, known at a call;

    ``name`` is unique in a graph (``x.0`` is axis 0 of input x).
    """

    name: str

    def __repr__(self) -> str:
        return self.name


Extent: TypeAlias = "Dim | int"
Shape: TypeAlias = "tuple[Extent, ...]"
Attribute: TypeAlias = "int | float | str | bool | tuple[int, ...] | None"
Attributes: TypeAlias = "tuple[tuple[str, Attribute], ...]"


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape; the only literal extent is 1 (a broadcast axis)."""

    dtype: DType
    shape: Shape

    def __repr__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, eq=False)
class Node:
    """One value. Make it with :func:`make`, compare it with ``is``."""

    __slots__ = ("__weakref__", "args", "attributes", "op", "type")

    op: Op
    args: tuple[Node, ...]
    attributes: Attributes
    type: TensorType

    def attribute(self, key: str) -> Attribute:
        """The attribute called ``key``; KeyError if the node has none."""
        for name, value in self.attributes:
            if name == key:
                return value
        raise KeyError(key)

    def integer(self, key: str) -> int:
        """An attribute that is an integer."""
        value = self.attribute(key)
        assert isinstance(value, int), (key, value)
        return value

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def axes(self) -> tuple[int, ...]:
        """The negative axes a reduction runs over."""
        axes = self.attribute("axes")
        assert isinstance(axes, tuple)
        return axes

    @property
    def name(self) -> str:
        """The name of an input."""
        name = self.attribute("name")
        assert isinstance(name, str)
        return name

    @property
    def value(self) -> int | float | bool:
        """The value of a constant."""
        return decode(str(self.attribute("bits")), self.dtype)

    def __repr__(self) -> str:
        return f"<{self.op.name} {self.type}>"


_INTERNED: WeakValueDictionary[tuple[object, ...], Node] = WeakValueDictionary()
_LOCK = forks.lock()


def make(op: Op | str, args: Iterable[Node], type: TensorType, **attributes: Attribute) -> Node:
    """The one node with this operator, these arguments, attributes and type."""
    record = OPS[op] if isinstance(op, str) else op
    arguments = tuple(args)
    pairs = tuple(sorted(attributes.items()))
    key = (record.name, tuple(map(id, arguments)), pairs, type)
    with _LOCK:
        found = _INTERNED.get(key)
        if found is None:
            found = Node(record, arguments, pairs, type)
            _INTERNED[key] = found
        return found


def encode(value: float | bool, dtype: DType) -> str:
    """The text that identifies a constant: hexadecimal bits for floats, digits for integers."""
    if dtype.is_float:
        return struct.pack(">d", float(value)).hex()
    return str(int(value))


def decode(bits: str, dtype: DType) -> int | float | bool:
    """The inverse of :func:`encode`."""
    if dtype.is_float:
        number: float = struct.unpack(">d", bytes.fromhex(bits))[0]
        return number
    return bool(int(bits)) if dtype.is_bool else int(bits)


def round_to_compute(value: float, dtype: DType) -> float:
    """``value`` as the compute type of ``dtype`` holds it (float32 rounds, float64 keeps)."""
    if dtype.compute.bits == 64 or value != value:
        return value
    try:
        rounded: float = struct.unpack(">f", struct.pack(">f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return rounded


def constant(value: float | bool, dtype: DType) -> Node:
    """A constant of type ``dtype``; integers wrap, floats round to the compute type."""
    if dtype.is_float:
        stored: float | int | bool = round_to_compute(float(value), dtype)
    elif dtype.is_bool:
        stored = bool(value)
    else:
        span = 1 << dtype.bits
        stored = (int(value) - int(dtype.minimum)) % span + int(dtype.minimum)
    return make("constant", (), TensorType(dtype, ()), bits=encode(stored, dtype))


def toposort(outputs: Iterable[Node]) -> list[Node]:
    """Every node that ``outputs`` need, arguments before users, in a deterministic order.

    Iterative.
    """
    order: list[Node] = []
    seen: set[int] = set()
    stack: list[tuple[Node, Iterator[Node]]] = []
    for root in outputs:
        if id(root) in seen:
            continue
        seen.add(id(root))
        stack.append((root, iter(root.args)))
        while stack:
            node, pending = stack[-1]
            child = next((a for a in pending if id(a) not in seen), None)
            if child is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(id(child))
                stack.append((child, iter(child.args)))
    return order


def broadcast(shapes: Iterable[Shape]) -> Shape:
    """The common shape under right-aligned broadcasting; ValueError if two named extents differ."""
    shapes = list(shapes)
    rank = max((len(s) for s in shapes), default=0)
    result: list[Extent] = [1] * rank
    for shape in shapes:
        for axis, extent in enumerate(shape, rank - len(shape)):
            if extent == 1:
                continue
            if result[axis] != 1 and result[axis] != extent:
                raise ValueError(f"{result[axis]} against {extent}")
            result[axis] = extent
    return tuple(result)
