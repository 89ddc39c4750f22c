"""The Kernel: one Region as a backend-neutral tile program. ``lower.py`` makes it, printers print
it.

A kernel walks ``rows`` by ``cols``. In the *flat* form there are only columns; in the *tile* form
both are elementwise; in the *rows* form the columns are reduced. A value's ``level`` says which of
the two it varies along.

May import ``fusec.ir``, ``codegen.config`` and ``codegen.signature``.

Statements are neither compared nor printed, which halves the cost of making these classes in every
process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from fusec.codegen.config import Config as Config
from fusec.codegen.signature import Level as Level
from fusec.codegen.signature import Number as Number
from fusec.codegen.signature import Pointer as Pointer
from fusec.codegen.signature import Size as Size
from fusec.codegen.signature import Variable as Variable
from fusec.ir.dtypes import DType
from fusec.ir.ops import Op


class Form(Enum):
    """The shape of the loop nest."""

    FLAT = "flat"
    TILE = "tile"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Ref:
    """A value by name."""

    name: str
    dtype: DType
    level: Level


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant in its compute type."""

    value: int | float | bool
    dtype: DType
    level: Level = Level.UNIFORM


@dataclass(frozen=True, slots=True)
class Apply:
    """An op of the table over expressions; ``operand`` picks its form, ``fast`` the quick one."""

    op: Op
    args: tuple[Expr, ...]
    dtype: DType
    operand: DType
    level: Level
    fast: bool = False


@dataclass(frozen=True, slots=True)
class Convert:
    """A value in another compute type;

    With ``through`` it is rounded to that storage type on the way.
    """

    arg: Expr
    dtype: DType
    level: Level
    through: DType | None = None


@dataclass(frozen=True, slots=True)
class Masked:
    """``arg`` where the lane is inside the row, else ``identity``."""

    arg: Expr
    identity: Literal
    dtype: DType
    level: Level


Expr: TypeAlias = "Ref | Literal | Apply | Convert | Masked"


@dataclass(frozen=True, slots=True)
class Term:
    """``variable * stride`` of an address;

    A stride is 1 or the name of a size or stride parameter.
    """

    variable: str
    stride: int | str


@dataclass(frozen=True, slots=True)
class Access:
    """Where a load or store goes: a buffer and a sum of terms, in elements."""

    buffer: str
    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comment:
    """One line that names the section that follows."""

    text: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Let:
    """``name = value``."""

    name: str
    value: Expr
    level: Level


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Start:
    """``name``, one value for each row, before the first tile; a sweep gives it new values."""

    name: str
    value: Literal
    level: Level


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Load:
    """``name`` = the element at ``access``, widened from ``storage`` to ``dtype``.

    ``mask``: Level of the guards.
    """

    name: str
    access: Access
    storage: DType
    dtype: DType
    level: Level
    mask: Level = Level.UNIFORM
    guards: tuple[Expr, ...] = ()  # a gathered position has to be inside its row
    other: float | int = 0
    tile: str = ""  # the buffer that a tile of it is turned into, to be read along the columns
    wide: bool = False  # moved as whole vectors
    across: bool = False  # a wide one whose vectors lie across those of memory
    staged: str = ""  # where a block keeps it, if all rows share it
    caching: str = ""  # what the caches are told, "evict_last" or "evict_first"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Fetch:
    """All that a thread works on of a row, from memory into ``buffer``, as it is stored.

    ``ahead``: so many of its vectors came while the row before was worked on.
    """

    buffer: str
    access: Access
    storage: DType
    wide: bool
    ahead: int = 0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Store:
    """Write ``value``, rounded to ``storage``."""

    access: Access
    value: Expr
    storage: DType
    level: Level
    mask: Level = Level.UNIFORM
    block: str = ""  # the buffer that collects it on its way past the caches
    wide: bool = False  # moved as whole vectors


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Reduce:
    """``name`` = ``value`` combined along the columns of the tile at hand."""

    name: str
    op: Op
    value: Expr
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SumBoth:
    """Two sums along the columns of the tile at hand, in one exchange between its warps."""

    first: Reduce
    second: Reduce


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Combine:
    """``name`` = what the programs that share a row have stored at ``access``, combined."""

    name: str
    op: Op
    access: Access
    dtype: DType
    mask: Level = Level.UNIFORM


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Accumulator:
    """A running value of a sweep, one for each lane;

    ``name`` is what it is combined into after the sweep.
    """

    name: str
    lanes: str
    op: Op
    dtype: DType
    accumulate: DType
    identity: Literal
    carry: DType  # what the lanes are emptied into before they lose digits; ``accumulate`` if never


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Accumulate:
    """Combine ``value`` into an accumulator."""

    accumulator: Accumulator
    value: Expr


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Rescale:
    """Take ``value`` into a running maximum and a sum of exponentials below it, which is rescaled
    when the maximum grows; ``weighted`` sums those times their exponents.

    ``packed``: the fetched vectors that are ``value``, whose maximum is found as they are.
    """

    largest: Accumulator
    total: Accumulator
    value: Expr
    fast: bool
    weighted: Accumulator | None = None
    packed: Recall | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Keep:
    """Remember a value of this sweep for a later one, in a buffer as long as the row, or as the
    piece of it that begins at ``start``.
    """

    buffer: str
    value: Expr
    start: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Forget:
    """What was made of the fetched vectors in ``buffer`` is made again in the next sweep: carrying
    it along would take more registers than the vectors do.
    """

    buffer: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Recall:
    """``name`` = what :class:`Keep` stored, or what :class:`Fetch` brought, widened from
    ``storage``.
    """

    name: str
    buffer: str
    dtype: DType
    storage: DType | None = None
    wide: bool = False
    start: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AddColumns:
    """Add ``value`` to the running sums over the rows of a program, one sum for each column."""

    sums: ColumnSums
    value: Expr


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ColumnSums:
    """Sums over the rows of a program, which it stores at ``access`` when they are over."""

    lanes: str
    dtype: DType
    access: Access


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Sweep:
    """A loop over the tiles of a row, from the last to the first where ``backwards``: what an
    earlier sweep has read last is still in the cache.

    While it computes, ``ahead`` of the next row and ``target`` of this one come into the cache;
    where it reads in the order of memory ``along``, what follows there.
    """

    body: tuple[Stmt, ...]
    accumulators: tuple[Accumulator, ...]
    ahead: tuple[Access, ...] = ()  # read soon
    along: bool = False
    target: tuple[Access, ...] = ()  # written soon
    next_row: tuple[Fetch, ...] = ()  # begin to come before the threads of a row meet
    backwards: bool = False
    several: bool = False  # lanes that are rows take a few columns at a time


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Joint:
    """Reductions of a row of which ``second``, and ``weighted`` if there is one, are around
    ``first``: around its value in a piece, ``base``, until those of all pieces are joined.

    ``results``: the names of all of them, in this order, as they are then.
    """

    first: Accumulator
    second: Accumulator
    weighted: Accumulator | None
    base: str
    results: tuple[str, ...]

    @property
    def name(self) -> str:
        """What the names of all that is found of a piece begin with."""
        return self.second.name

    @property
    def around(self) -> tuple[Accumulator, ...]:
        """The sums that are around the first."""
        return (self.second,) if self.weighted is None else (self.second, self.weighted)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Pieces:
    """A loop over the pieces of a row: each is swept for ``first`` of the joints and what else the
    row is reduced to, and again, while a cache holds it, for what is around that.

    ``kept``: the buffers, as long as a piece, for what both sweeps need.
    """

    first: Sweep
    second: Sweep
    joints: tuple[Joint, ...]
    kept: tuple[tuple[str, DType], ...] = ()


Stmt: TypeAlias = (
    "Comment | Let | Start | Load | Fetch | Forget | Store | Reduce | SumBoth | Combine"
    " | Accumulate | AddColumns | Rescale | Keep | Recall | Sweep | Pieces"
)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel, ready to print.

    ``header`` is the comment at its top, ``origin`` the same facts as data.
    """

    name: str
    form: Form
    config: Config
    pointers: tuple[Pointer, ...]
    numbers: tuple[Number, ...]
    sizes: tuple[Size, ...]
    variables: tuple[Variable, ...]
    body: tuple[Stmt, ...]
    kept: tuple[tuple[str, DType], ...] = ()
    blocks: tuple[tuple[str, DType], ...] = ()  # results on their way past the caches
    ahead: tuple[Access, ...] = ()  # of which the next block is fetched while one is computed
    start: Access | None = None  # where a row begins, if that may be between vectors
    staged: tuple[Load, ...] = ()  # what blocks keep from row to row
    divided: bool = False  # a program works on one of ``config.splits`` parts of its rows
    waits: bool = False  # it was launched while an earlier kernel ran, and needs what that leaves
    followed: bool = False  # a later kernel may be launched as soon as all programs have begun
    columns: tuple[ColumnSums, ...] = ()  # sums over the rows of each program
    flushes: bool = False  # functions may take subnormal numbers for 0
    calls: bool = False  # functions of long code stand once, and are called for every element
    header: tuple[str, ...] = ()
    origin: dict[str, str] = field(default_factory=dict, hash=False, compare=False)
