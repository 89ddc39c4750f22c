"""What a Kernel is called with, and the index variables that come of it.

May import ``fusec.ir``.

None of these is compared or printed, which halves the cost of making the classes in every process.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag

from fusec.ir.dtypes import DType


class Level(Flag):
    """Which of the two axes of a tile a value varies along."""

    UNIFORM = 0
    ROW = 1
    COL = 2
    TILE = 3


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Pointer:
    """A buffer parameter; ``name`` is legal everywhere, ``buffer`` is the launcher's name."""

    name: str
    storage: DType
    written: bool = False
    buffer: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Number:
    """A run-time scalar parameter of the program."""

    name: str
    dtype: DType
    input: str  # the input it comes from


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Size:
    """A size or stride parameter: an integer of the index type. ``source`` tells the launcher what
    to pass: ("n",), ("rows",), ("cols",); ("row", k), ("col", k) the size of a merged axis;
    ("stride", operand, axis); ("gather", operand) and ("length", operand) of a gather; ("dim",
    name)."""

    name: str
    source: tuple[str | int, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Variable:
    """An index variable beyond ``row`` and ``col``:

    One axis of a flattened index. ``name = base // divisor % size``.
    """

    name: str
    base: str
    divisors: tuple[str, ...]
    modulus: str | None
    level: Level
