"""The default choices about the performance of a C++ kernel.

May import ``fusec.ir`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from fusec.codegen.kernel import Config, Form
from fusec.codegen.layout import Arrangement, Operand
from fusec.codegen.operand_facts import is_tile, rows_contiguous

PREFETCH_COLUMNS = 32768  # the next row has to fit the cache beside this one
STREAM_BYTES = 16 << 20  # a result of this size leaves a core's caches before it is read again
STREAM_STRETCH = 1024  # bytes; shorter ones would be half of lines
# Results that go past the caches at a time. Few let writing go on beside fetching and computing; a
# kernel that has fetched the next row while it reduced this one does nothing else, and many pay.
STREAM_BLOCK, STREAM_ROW_BLOCK = 128, 1024
# Columns of so few that it is the rows that fill a CPU's vectors, and bytes of a row of a result: a
# vector writes rows element by element. Of rows that are only read, or end between vectors, which
# computes what is left one by one, there may be more.
SHORT_ROW, SHORT_BYTES, LANE_ROW, VECTOR = 16, 64, 64, 16
CARRYING_BYTES = 32  # where sums over the rows could come along, which lanes do not take
# What is so long is reduced in parts by a CPU: elements below each other, and a row that a core's
# second cache may not hold from one sweep to the next, and not beside the next row. Reductions that
# wait for one another then take such a row in pieces that the first cache holds.
SHARED_COLUMN = 1024
SHARED_ROW = PREFETCH_COLUMNS + 1
KEPT_COLUMNS = 1 << 22  # a buffer that is longer is mapped anew for each row, which costs more
CPU_TILE = 64  # stands for the tile of an operand that a CPU turns


def choose_cpp(
    form: Form,
    accesses: tuple[Operand, ...],
    arrangement: Arrangement,
    sweeps: int,
    in_pieces: int,
    carries: bool = False,
) -> Config:
    """The Config of a C++ kernel: which axis the lanes run along, whether loops go in tiles,
    whether long reductions go in parts, those of long rows in pieces, and whether results pass by
    the caches. ``sweeps``: how many reduce, one after the other, and how many do ``in_pieces``;
    ``carries``: sums over the rows are to come along.
    """
    along = form is Form.ROWS and (
        _is_short(accesses, arrangement, carries) or rows_contiguous(arrangement)
    )
    long = arrangement.cols >= (SHARED_COLUMN if along else SHARED_ROW)
    side = CPU_TILE if form is Form.TILE and _turned(arrangement) else 1
    stream = not along and _is_large(accesses, arrangement)
    rows_near = not along and arrangement.cols <= PREFETCH_COLUMNS
    return Config(
        side,
        side,
        resident=False,
        wide_index=True,
        prefetch=rows_near if form is Form.ROWS else stream and side == 1,
        lanes_along_rows=along,
        shared=form is Form.ROWS and long,
        pieces=form is Form.ROWS and long and not along and in_pieces < sweeps,
        stream=stream_block(sweeps) if stream else 0,
        keep=form is Form.ROWS and not along and arrangement.cols <= KEPT_COLUMNS,
    )


def stream_block(sweeps: int) -> int:
    """How many results of a C++ kernel go past the caches at a time, if any do."""
    return STREAM_ROW_BLOCK if sweeps > 1 else STREAM_BLOCK


def _is_large(accesses: tuple[Operand, ...], arrangement: Arrangement) -> bool:
    """Whether the largest result fills STREAM_BYTES, in stretches worth writing past a cache."""
    results = [k for k, operand in enumerate(accesses) if operand.kind == "root"]
    full = [k for k in results if all(arrangement.layout.strides[k])]
    width = max((accesses[k].node.dtype.itemsize for k in full), default=0)
    stretch = arrangement.cols * width
    return stretch * arrangement.rows >= STREAM_BYTES and stretch >= STREAM_STRETCH


def _is_short(accesses: tuple[Operand, ...], arrangement: Arrangement, carries: bool) -> bool:
    """Whether rows are so short that they are lanes."""
    columns, written = arrangement.cols, _row_bytes(accesses, arrangement)
    if columns <= SHORT_ROW:
        return written <= (CARRYING_BYTES if carries else SHORT_BYTES)
    return not carries and columns < LANE_ROW and (not written or columns % VECTOR != 0)


def _row_bytes(accesses: tuple[Operand, ...], arrangement: Arrangement) -> int:
    """Bytes of a row of the widest result that has rows; 0 where no result has."""
    full = (o for k, o in enumerate(accesses) if o.kind == "root" and is_tile(k, arrangement))
    return arrangement.cols * max((o.node.dtype.itemsize for o in full), default=0)


def _turned(arrangement: Arrangement) -> bool:
    """Whether some operand's memory runs along the rows and not along the columns."""
    rows = len(arrangement.layout.rows)
    return any(1 in s[:rows] and s[-1] not in (0, 1) for s in arrangement.layout.strides)
