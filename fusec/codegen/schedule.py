"""The default choices about performance, as rules that can be read in one place.

Sizes enter only as classes (a power of two that covers the row), so that a new shape of a known
class needs no build.

May import ``fusec.ir`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from dataclasses import replace

from fusec.codegen.kernel import Config, Form
from fusec.codegen.layout import Arrangement, Operand

RESIDENT_BYTES = 128 * 1024  # registers a program may fill with the tiles of one row
LOOP_BLOCK, LOOP_WARPS = 8192, 16  # columns a looping program takes at a time
BYTES_PER_WARP = 2048  # of the row in memory; more warps leave too little work for each
FULL_GRID = 1024  # programs that keep any present GPU busy
SMALLEST_BLOCK = 64
ELEMENTS_PER_PROGRAM = 2048
PREFETCH_COLUMNS = 32768  # the next row has to fit the cache beside this one
# From here on offsets are int64; blocks may overhang by less than 2**20.
WIDE_OFFSETS = 2**31 - 2**20


def choose_triton(form: Form, accesses: tuple[Operand, ...], arrangement: Arrangement) -> Config:
    """The Config of a Triton kernel for these operands."""
    wide = arrangement.span >= WIDE_OFFSETS or arrangement.rows * arrangement.cols >= WIDE_OFFSETS
    if form is Form.FLAT:
        narrow = max((o.node.dtype.itemsize for o in accesses), default=4) <= 2
        return Config(1, 2048 if narrow else 1024, warps=4, wide_index=wide)
    if form is Form.TILE:
        return _tile(arrangement, wide)
    if _rows_contiguous(arrangement):
        config = Config(64, 64, warps=4, resident=False, wide_index=wide, lanes_along_rows=True)
    else:
        config = _rows(accesses, arrangement, wide)
    return config if config.resident else replace(config, splits=_splits(config, arrangement))


def _splits(config: Config, arrangement: Arrangement) -> int:
    """How many programs share a row: enough to fill the GPU, each with a few tiles at least."""
    programs = -(-arrangement.rows // config.block_rows)
    room = arrangement.cols // (4 * config.block_cols)
    wanted = min(FULL_GRID // programs, room)
    return 1 if wanted < 2 else 1 << (wanted.bit_length() - 1)


def _tile(arrangement: Arrangement, wide: bool) -> Config:
    """Wide tiles where every operand runs along the columns, square ones where one does not."""
    if any(strides and strides[-1] not in (0, 1) for strides in arrangement.layout.strides):
        return Config(32, 64, warps=4, wide_index=wide)
    columns = min(_cover(arrangement.cols), ELEMENTS_PER_PROGRAM)
    return Config(max(1, ELEMENTS_PER_PROGRAM // columns), columns, warps=4, wide_index=wide)


def _rows(accesses: tuple[Operand, ...], arrangement: Arrangement, wide: bool) -> Config:
    """A row in registers while its tiles fit, else a loop; several short rows to a program."""
    block = _cover(arrangement.cols)
    full = [o for k, o in enumerate(accesses) if o.kind != "root" and _is_tile(k, arrangement)]
    if block * 4 * max(1, len(full)) > RESIDENT_BYTES:
        return Config(1, LOOP_BLOCK, LOOP_WARPS, resident=False, wide_index=wide)
    if block < 1024 and arrangement.layout.rows:
        return Config(ELEMENTS_PER_PROGRAM // block, block, warps=4, wide_index=wide)
    stored = max((o.node.dtype.itemsize for o in full), default=4)
    warps = min(16, max(2, block * stored // BYTES_PER_WARP)) if block < 32768 else 32
    even = block == arrangement.cols and block >= 1024
    return Config(1, block, warps, even=even, wide_index=wide)


def _is_tile(operand: int, arrangement: Arrangement) -> bool:
    """Whether an operand varies along both the rows and the columns, as a row of data does."""
    strides = arrangement.layout.strides[operand]
    rows = len(arrangement.layout.rows)
    return any(strides[rows:]) and (any(strides[:rows]) or not rows)


def _cover(columns: int) -> int:
    """The smallest power of two that holds ``columns``, at least SMALLEST_BLOCK."""
    return max(SMALLEST_BLOCK, 1 << max(0, columns - 1).bit_length())


def _rows_contiguous(arrangement: Arrangement) -> bool:
    """Whether memory runs along the rows:

    Some operand steps by 1 there, and none along the columns.
    """
    rows = len(arrangement.layout.rows)
    along_rows = any(
        s[rows - 1] == 1 and any(c != 0 for c in s[rows:])
        for s in arrangement.layout.strides
        if rows
    )
    along_cols = any(s[-1] == 1 for s in arrangement.layout.strides if len(s) > rows)
    return along_rows and not along_cols


def choose_cpp(arrangement: Arrangement, form: Form) -> Config:
    """The Config of a C++ kernel: loops need no block size, only which axis the lanes run along."""
    along = form is Form.ROWS and _rows_contiguous(arrangement)
    near = form is Form.ROWS and not along and arrangement.cols <= PREFETCH_COLUMNS
    return Config(resident=False, lanes_along_rows=along, wide_index=True, prefetch=near)
