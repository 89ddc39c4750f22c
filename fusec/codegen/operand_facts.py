"""How the operands of a kernel lie, as the schedules ask for it.

May import ``codegen.layout``.
"""

from __future__ import annotations

from fusec.codegen.layout import Arrangement, Operand

SMALLEST_BLOCK = 64
VECTOR_BYTES = 16  # of a load or store at its widest
# From here on offsets are int64; blocks may overhang by less than 2**20.
WIDE_OFFSETS = 2**31 - 2**20
FULL_GRID = 2048  # programs that keep any present GPU busy
ELEMENTS_PER_PROGRAM = 2048  # of 16 bits; half as many of 32
SHORTEST_COLUMNS = 7  # of rows that a thread takes by itself


def is_tile(operand: int, arrangement: Arrangement) -> bool:
    """Whether an operand varies along both the rows and the columns, as a row of data does."""
    if arrangement.layout.flattened:
        return arrangement.layout.is_whole(operand)
    strides = arrangement.layout.strides[operand]
    rows = len(arrangement.layout.rows)
    return any(strides[rows:]) and (any(strides[:rows]) or not rows)


def is_alike(operand: int, arrangement: Arrangement) -> bool:
    """Whether an operand is a row that all rows share, as the weights of a norm are."""
    strides = arrangement.layout.strides[operand]
    rows = len(arrangement.layout.rows)
    return any(strides[rows:]) and not any(strides[:rows]) and rows > 0


def is_of_rows(operand: int, arrangement: Arrangement) -> bool:
    """Whether an operand has a value for each row."""
    strides, rows = arrangement.layout.strides[operand], len(arrangement.layout.rows)
    return any(strides[:rows]) and not any(strides[rows:])


def rows_contiguous(arrangement: Arrangement) -> bool:
    """Whether memory runs along the rows:

    Some operand steps by 1 there, and none that varies along both does along the columns.
    """
    rows, strides = len(arrangement.layout.rows), arrangement.layout.strides
    along_rows = rows > 0 and any(
        s[rows - 1] == 1 and any(c != 0 for c in s[rows:]) for s in strides
    )
    return along_rows and not _run_along_columns(arrangement)


def is_turned(arrangement: Arrangement) -> bool:
    """Whether operands that vary along every axis run along the rows, and others along the columns.

    One that does not is read from a cache, whichever way it runs.
    """
    rows, strides = len(arrangement.layout.rows), arrangement.layout.strides
    along_rows = rows > 0 and any(s[rows - 1] == 1 and all(s) for s in strides)
    return along_rows and _run_along_columns(arrangement)


def _run_along_columns(arrangement: Arrangement) -> bool:
    rows = len(arrangement.layout.rows)
    return any(s[-1] == 1 and any(s[:rows]) for s in arrangement.layout.strides)


def fill_no_vector(arrangement: Arrangement) -> bool:
    """Whether rows are so short, and of such a length, that a thread had better take whole ones,
    element by element, than lanes exchange what they have of one.
    """
    return arrangement.cols <= SHORTEST_COLUMNS and arrangement.cols != 4


def widest(accesses: tuple[Operand, ...]) -> int:
    """The bytes of an element of the widest operand."""
    return max((o.node.dtype.itemsize for o in accesses), default=4)


def elements_of(accesses: tuple[Operand, ...], arrangement: Arrangement) -> int:
    """How many elements a program takes at a time: what is read and written of each decides."""
    whole = [o.node.dtype.itemsize for k, o in enumerate(accesses) if is_tile(k, arrangement)]
    narrow = max(whole or [o.node.dtype.itemsize for o in accesses], default=4) <= 2
    return ELEMENTS_PER_PROGRAM if narrow else ELEMENTS_PER_PROGRAM // 2


def vector_of(accesses: tuple[Operand, ...], arrangement: Arrangement) -> int:
    """Elements of which a vector of any operand that varies along all is made."""
    full = (o.node.dtype.itemsize for k, o in enumerate(accesses) if is_tile(k, arrangement))
    return VECTOR_BYTES // min(full, default=4)


def cover(columns: int, least: int | None = None) -> int:
    """The smallest power of two that holds ``columns``, and ``least``: a block by itself."""
    return max(SMALLEST_BLOCK if least is None else least, 1 << max(0, columns - 1).bit_length())


def splits_of(programs: int, length: int, least: int) -> int:
    """How many programs share a reduction: enough to fill the GPU, of ``least`` elements each."""
    return power_of_two(min(FULL_GRID // programs, length // least))


def power_of_two(count: int) -> int:
    """The largest that is no more than ``count``, and 1 at least."""
    return 1 << max(0, count.bit_length() - 1)
