"""Where CUDA C++ is chosen over Triton: as an H200 measured it at 2^27 elements.

May import ``fusec.ir`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusec.codegen.kernel import Form
from fusec.codegen.layout import Arrangement, Operand
from fusec.codegen.operand_facts import VECTOR_BYTES, is_alike, is_tile, rows_contiguous
from fusec.codegen.schedule_cuda import CLUSTERS_SINCE, READ_COLUMNS, is_read_only

# Rows between these are looked at; above them Triton's loop is as quick as any.
PREFERRED_COLUMNS = 1024, 1 << 20
# From here on rows that begin between wide loads are, and those of 16 bits that are only read.
UNEVEN_COLUMNS, UNEVEN_READ_COLUMNS_16 = 17, 129
SHORT_ROW_BYTES = 128, 1024  # of rows that are only read
HELD_COLUMNS_16, HELD_COLUMNS_32 = 8192, 32768  # that Triton holds in registers at full speed
SUMMED_COLUMNS_16 = 32768  # where it does so with two rows that are read and added up
# Beyond these, rows that are only read take Triton's single sweep.
ONCE_16, ONCE_32 = 131072, 65536
LOOPED = "a loop over a long row of 16 bits whose threads have several vectors on their way"


def prefer_cuda(
    form: Form,
    accesses: Sequence[Operand],
    arrangement: Arrangement,
    capability: int,
    running: bool = False,
    alone: bool = True,
    reductions: int = 1,
) -> str | None:
    """Why ``backend="auto"`` takes CUDA C++ for a region, in words, or None where it takes Triton.

    ``running`` and ``reductions`` as in :func:`choose_cuda`; ``alone``: no sums over the rows come
    along.

    Measured on an H200 at 2^27 elements (``docs/performance.md``); without clusters, and without
    NVRTC or nvcc, it is Triton everywhere.
    """
    full = [o for k, o in enumerate(accesses) if is_tile(k, arrangement)]
    width, columns = max((o.node.dtype.itemsize for o in full), default=4), arrangement.cols
    if capability < CLUSTERS_SINCE or not _measured(form, accesses, full, arrangement):
        return None
    read, even = is_read_only(accesses, arrangement), columns * width % VECTOR_BYTES == 0
    if alone and read and even and SHORT_ROW_BYTES[0] <= columns * width <= SHORT_ROW_BYTES[1]:
        return "threads that take several vectors of a short row exchange less"
    if alone and read and running and columns > READ_COLUMNS:
        return "a row that is read once needs few instructions"
    if alone and read and even and reductions > 2 and columns * width > SHORT_ROW_BYTES[1]:
        return "threads that exchange little reduce a row several times"
    if columns > PREFERRED_COLUMNS[1] and alone and even and width <= 2 and not read:
        return None if _rows_share(accesses, arrangement) else LOOPED
    wide = columns % 4 == 0 and _rows_share(accesses, arrangement)
    least = _least_uneven(read, width, alone and not wide)
    # Reductions that wait for others read a row of 32 bits twice, and Triton's join as they go.
    twice = width > 2 and reductions > 1 and not running
    if not even and least <= columns and not (twice and columns > PREFERRED_COLUMNS[1]):
        return "rows of odd length begin between wide loads, which Triton then does not use"
    if not even or not PREFERRED_COLUMNS[0] < columns <= PREFERRED_COLUMNS[1]:
        return None
    if _triton_holds(columns, width, 0 if read else sum(o.kind != "root" for o in full)):
        return None
    once = ONCE_16 if width <= 2 else ONCE_32
    if columns > once and read:
        return None  # one sweep reads the row, and nothing needs it again
    return "registers of several blocks hold a long row, which Triton would read twice"


def _least_uneven(read: bool, width: int, alone: bool) -> int:
    """How many columns rows have at least that are too many for single elements. ``alone``: neither
    sums over rows come along, which Triton takes, nor weights that lie across the vectors of rows
    where Triton's threads load four elements of each.
    """
    if not alone:
        return PREFERRED_COLUMNS[0] + 1
    return UNEVEN_READ_COLUMNS_16 if read and width <= 2 else UNEVEN_COLUMNS


def _measured(
    form: Form, accesses: Sequence[Operand], full: Sequence[Operand], arrangement: Arrangement
) -> bool:
    """Whether it is known which of the two is quicker: of floats that lie side by side in rows, all
    of which begin alike.
    """
    floats = all(operand.node.dtype.is_float for operand in full)
    strides = [s for k, s in enumerate(arrangement.layout.strides) if is_tile(k, arrangement)]
    rows = len(arrangement.layout.cols) == 1 and all(s[-1] == 1 for s in strides)
    in_rows = form is Form.ROWS and floats and rows and not rows_contiguous(arrangement)
    return in_rows and _begin_alike(accesses, arrangement)


def _begin_alike(accesses: Sequence[Operand], arrangement: Arrangement) -> bool:
    """Whether rows of all operands begin at the same places between wide loads, which those with
    gaps behind them and those without do not: some would be moved element by element.
    """
    rows = len(arrangement.layout.rows)
    found = set()
    for k, operand in enumerate(accesses):
        if operand.kind != "gather" and is_tile(k, arrangement):
            lanes = VECTOR_BYTES // min(operand.node.dtype.itemsize, VECTOR_BYTES)
            found.add(any(stride % lanes for stride in arrangement.strides[k][:rows]))
    return len(found) < 2


def _rows_share(accesses: Sequence[Operand], arrangement: Arrangement) -> bool:
    """Whether rows share an operand, which Triton's programs of neighbouring rows fetch once."""
    read = [k for k, operand in enumerate(accesses) if operand.kind != "root"]
    return any(is_alike(k, arrangement) for k in read)


def _triton_holds(columns: int, width: int, rows_read: int) -> bool:
    """Whether Triton holds a row as well, of elements of ``width`` bytes; ``rows_read``: how many
    are read for a row that is written.
    """
    if width > 2:
        return columns <= HELD_COLUMNS_32
    return columns <= (SUMMED_COLUMNS_16 if rows_read == 2 else HELD_COLUMNS_16)
