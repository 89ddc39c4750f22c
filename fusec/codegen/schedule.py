"""The default choices about performance, as rules that can be read in one place.

Sizes enter only as classes (a power of two that covers the row), so that a new shape of a known
class needs no build.

May import ``fusec.ir`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import prod

from fusec.codegen.kernel import Config, Form
from fusec.codegen.layout import Arrangement, Operand, regroup
from fusec.codegen.operand_facts import (
    ELEMENTS_PER_PROGRAM,
    FULL_GRID,
    SMALLEST_BLOCK,
    WIDE_OFFSETS,
    cover,
    elements_of,
    fill_no_vector,
    is_alike,
    is_of_rows,
    is_tile,
    is_turned,
    rows_contiguous,
    splits_of,
    vector_of,
    widest,
)
from fusec.codegen.schedule_columns import (
    MOST_STAGES,
    READ_ONCE,
    SHARE_STAGES,
    STAGED_BYTES,
    columns,
    folded_columns,
    summed_columns,
)
from fusec.codegen.schedule_odd_rows import are_long_and_odd, of_one_row
from fusec.codegen.schedule_turned import turned

RESIDENT_BYTES = 128 * 1024  # registers a program may fill with the tiles of one row
# Columns a looping program takes at a time: by itself, and where programs share a row.
LOOP_BLOCK, LOOP_WARPS = 8192, 16
SHARE_BLOCK, LONG_SHARE_BLOCK = 4096, 8192
LONG_SHARE_COLUMNS = 1 << 20
# Times as many parts of such rows; of those that share weights, which neighbours fetch together.
FAR_SHARES, NEAR_SHARES = 2, 4
LONE_BYTES, LONE_WARPS = 16 * 1024, 32  # of a row that is only summed, by a program of its own
# Of the row in memory. More warps leave too little work for each; rows that are long, or only
# read and short, want fewer still. Short rows share a warp.
BYTES_PER_WARP, LONG_BYTES_PER_WARP = 2048, 4096
LONG_ROW_BYTES = 32 * 1024
FLOAT_ROW_BYTES, FLOAT_WARPS = 16 * 1024, 16  # of float32 that is written, 8 elements to a thread
# Of rows that are read again: how long they have to be, what a thread loads of one, the threads of
# a multiprocessor, how much of its first-level cache their rows may take with what rows share, and
# what it is told.
REREAD_ROW_BYTES, REREAD_THREAD_BYTES = 4096, 32
RESIDENT_THREADS, CACHED_BYTES = 2048, 192 * 1024
KEEP_ROWS = ("evict_last", "evict_first", "evict_last")
WARP_LOAD_BYTES = 512  # a shorter row alone would go to threads otherwise than among others
OVERLAP_SINCE = 90  # compute capability, times ten, whose kernels may begin before another ends
BUSY_ROWS = 512  # rows that do so by themselves
ANY_ROWS = 1 << 14  # what stands for any number of rows where that number must not matter
LEAST_SHARE = 8  # rows to a program that also sums over them
CPP_CHUNKS = 32  # such programs: each leaves a row of sums for another kernel
# On a GPU, one for each multiprocessor of an H100 or H200 where rows are long, up to three where
# they are short. Together they fetch as many bytes ahead as hide the way to memory. They take rows
# in turns, so that at any time rows that lie side by side are on their way: 88 to 95 % of a copy.
MULTIPROCESSORS, MOST_BESIDE = 132, 3
ROWS_BESIDE_BYTES, FETCHED_BYTES = 16 * 1024, 64 * 1024  # of a multiprocessor
# One wide load of each operand to a thread, or two where more than 8 warps would be needed.
FETCHING_WARPS, BYTES_PER_FETCHING_WARP = 8, 512
SHORTEST_BLOCK = 2  # that a row fills, of which a program has many then
SHORTEST_TILE = (512, 8)  # sums of the shortest rows: how many rows to a program, warps
SQUARE = 64  # elements along each side of a tile of which an operand is transposed
# Of rows that are made to begin at vectors: how many there are at least, how long they had better
# be, and what a program takes of them.
LEAST_REGROUPED, LONG_REGROUPED, REGROUPED_TILE = 16, 1024, (8, 256)
MANY_TENSORS = 5  # of an elementwise kernel, as the gradient of a gate has


def choose_triton(
    form: Form,
    accesses: tuple[Operand, ...],
    arrangement: Arrangement,
    invariant: bool = False,
    single: bool = False,
    again: Collection[str] = (),
    placed: bool = False,
) -> Config:
    """The Config of a Triton kernel for these operands.

    ``invariant``: the same for any number of rows, so that a row's result has the same bits in any
    batch; ``single``: no reduction waits for another, so that one sweep finds them all; ``again``:
    the operands that results need once reductions of them are known; ``placed``: a value depends
    on where an element is.
    """
    wide = arrangement.span >= WIDE_OFFSETS or arrangement.rows * arrangement.cols >= WIDE_OFFSETS
    if invariant and form is Form.ROWS:
        many = replace(arrangement, row_sizes=(ANY_ROWS,))
        config = _of_rows(accesses, many, wide, single, again, alone=False)
        return replace(config, block_rows=1) if config.resident else config
    if form is Form.FLAT:
        return _flat(accesses, arrangement, wide)
    if form is Form.TILE:
        return _tile(accesses, arrangement, wide)
    alone = not arrangement.layout.rows
    if single and not wide and not placed and _lie_without_gaps(accesses, arrangement):
        folded = folded_columns(accesses, arrangement)
        if folded is not None:
            return folded
    return _of_rows(accesses, arrangement, wide, single, again, alone)


def _of_rows(
    accesses: tuple[Operand, ...],
    arrangement: Arrangement,
    wide: bool,
    single: bool,
    again: Collection[str],
    alone: bool,
) -> Config:
    """A kernel that reduces. ``alone``: it is for one row, which need not have the bits that it
    would have among others.
    """
    if is_turned(arrangement):
        return turned(accesses, arrangement, wide, single)
    if rows_contiguous(arrangement):
        one = _of_one(accesses, arrangement)
        config = columns(accesses, arrangement, wide, single and not one, not single)
        return summed_columns(config, accesses, arrangement) if single and one else config
    if single and _of_one(accesses, arrangement) and fill_no_vector(arrangement):
        rows, warps = SHORTEST_TILE if arrangement.layout.rows else (1, 1)
        return Config(rows, 1, warps, resident=False, wide_index=wide)
    config = _rows(accesses, arrangement, wide, alone)
    if config.resident:
        return _read_again(config, accesses, arrangement, again)
    return _shared(config, accesses, arrangement, single)


def _read_again(
    config: Config, accesses: tuple[Operand, ...], arrangement: Arrangement, again: Collection[str]
) -> Config:
    """A row that is held or, if its results need it as it was read, is read twice: the second time
    from the first-level cache, which was told to keep it. Then few registers are taken, so that
    many rows are on their way. Where rows are few nothing else is, and they stay in registers.
    """
    read = [k for k, o in enumerate(accesses) if o.kind != "root"]
    rows = [k for k in read if is_tile(k, arrangement)]
    alike = [k for k in read if is_alike(k, arrangement)]
    twice = any(accesses[k].name in again for k in rows)
    size = arrangement.cols * sum(accesses[k].node.dtype.itemsize for k in rows)
    if not (twice and config.even and config.block_rows == 1) or size < REREAD_ROW_BYTES:
        return config
    wanted = min(32, max(1, size // (32 * REREAD_THREAD_BYTES)))
    warps = 1 << wanted.bit_length() - 1  # three operands, or of two types, make no power of two
    shared = arrangement.cols * sum(accesses[k].node.dtype.itemsize for k in alike)
    if size * (RESIDENT_THREADS // (32 * warps)) + shared > CACHED_BYTES:
        return config
    if len(alike) > 1 and widest(accesses) <= 2:
        warps = max(1, warps // 2)
    if arrangement.rows <= FULL_GRID:
        return replace(config, warps=warps)
    return replace(config, warps=warps, reread=True, caching=KEEP_ROWS)


def _shared(
    config: Config, accesses: tuple[Operand, ...], arrangement: Arrangement, single: bool
) -> Config:
    """A looping kernel, or where rows are few one whose programs share them."""
    near = any(is_alike(k, arrangement) for k, o in enumerate(accesses) if o.kind != "root")
    long = arrangement.cols >= LONG_SHARE_COLUMNS
    block = LONG_SHARE_BLOCK if long and not near else SHARE_BLOCK
    more = (NEAR_SHARES if near else FAR_SHARES) if long else 1
    splits = splits_of(-(-arrangement.rows // more), arrangement.cols, block)
    if arrangement.rows > BUSY_ROWS or splits == 1:
        return config
    width = widest(accesses)
    alone = _of_one(accesses, arrangement) and arrangement.cols * width % 16 == 0
    if alone and single and arrangement.rows >= MULTIPROCESSORS:
        return _summed_rows(config, arrangement.rows, width)
    warps = block // (1024 if width <= 2 or block == LONG_SHARE_BLOCK else 512)
    config = replace(config, block_cols=block, warps=warps, splits=splits, rows_near=near)
    ahead = alone and SHARE_STAGES * block * width <= STAGED_BYTES
    return replace(config, stages=SHARE_STAGES, bare=True) if ahead else config


def _summed_rows(config: Config, rows: int, width: int) -> Config:
    """Sums of rows, one for each multiprocessor or some: none is shared, since a program has so
    many threads, or asks for so many tiles ahead, that memory is never waited for.
    """
    if rows <= 2 * MULTIPROCESSORS:
        return replace(
            config, block_cols=LONE_BYTES // width, warps=LONE_WARPS, bare=True, caching=READ_ONCE
        )
    return replace(
        config, block_cols=SHARE_BLOCK, warps=SHARE_BLOCK // 1024, stages=SHARE_STAGES, bare=True
    )


def _lie_without_gaps(accesses: tuple[Operand, ...], arrangement: Arrangement) -> bool:
    """Whether memory is nothing but the elements, one row after the other, of all that is reduced
    along a strided axis, and that is one operand or two, and nothing of rows or columns alone.
    """
    layout = arrangement.layout
    if len(layout.rows) != 1 or len(layout.cols) != 1:
        return False
    kinds = [(o.kind, layout.strides[k]) for k, o in enumerate(accesses)]
    read = [strides for kind, strides in kinds if kind != "root" and any(strides)]
    stored = [strides for kind, strides in kinds if kind == "root"]
    plain = all(kind != "gather" for kind, _ in kinds) and all(s[-1] == 0 for s in stored)
    return plain and len(read) in (1, 2) and all(s == (1, "rows") for s in read)


def _of_one(accesses: tuple[Operand, ...], arrangement: Arrangement) -> bool:
    """Whether there are reductions of a single operand and nothing else."""
    tiles = [o.kind for k, o in enumerate(accesses) if is_tile(k, arrangement)]
    reads = sum(o.kind != "root" for o in accesses)
    return reads == 1 and len(tiles) == 1 and "root" not in tiles


def regrouped(accesses: tuple[Operand, ...], arrangement: Arrangement, placed: bool) -> Arrangement:
    """What an elementwise kernel of rows that begin between vectors takes as its rows, so that they
    begin at vectors: fewer axes, or several rows at a time, or nothing, which is a flat index.

    Positions cost a division of 32 bits, and what does not vary along all is loaded for each
    element or, where it is the same for all rows, for those of a tile. So several rows are one only
    where they share much of 16 bits and have no values of their own. ``placed``: as in
    :func:`choose_triton`.
    """
    sizes, even = (*arrangement.row_sizes, *arrangement.col_sizes), vector_of(accesses, arrangement)
    if arrangement.cols % even == 0 or arrangement.span >= WIDE_OFFSETS:
        return arrangement
    if are_long_and_odd(accesses, arrangement):  # a program has a piece of one
        return arrangement
    for rows in range(len(sizes) - 2, 0, -1):
        if prod(sizes[rows:]) % even == 0 and prod(sizes[:rows]) >= LEAST_REGROUPED:
            return regroup(arrangement, accesses, rows) or arrangement
    if len(sizes) > 2:
        return arrangement
    operands = range(len(accesses))
    alike = sum(is_alike(k, arrangement) for k in operands)
    own = any(is_of_rows(k, arrangement) for k in operands)
    if alike > 1 and widest(accesses) <= 2 and not own and not placed:
        factor = _factor(sizes[0], sizes[1], even)
        if factor > 1:
            return regroup(arrangement, accesses, 1, factor) or arrangement
    return regroup(arrangement, accesses, 0) or arrangement


def _factor(rows: int, cols: int, even: int) -> int:
    """How many rows at a time are one that begins at a vector and wastes little of its last tile;
    1 if no number of them is.
    """
    factor = 1
    while (factor * cols % even or factor * cols < LONG_REGROUPED) and rows % 2 == 0:
        factor, rows = 2 * factor, rows // 2
    suits = factor * cols % even == 0 and 2 * factor * cols >= LONG_REGROUPED
    return factor if suits and rows >= LEAST_REGROUPED else 1


def _flat(accesses: tuple[Operand, ...], arrangement: Arrangement, wide: bool) -> Config:
    """Elements in a row. Threads that move many tensors, or load what belongs to a row or a column
    element by element, take a short piece of each. All programs but the last go without masks where
    those would end between vectors.
    """
    elements = elements_of(accesses, arrangement)
    apart = arrangement.cols % vector_of(accesses, arrangement) != 0
    if arrangement.layout.flattened:
        elements //= 2
    two_rows = _has_two_rows(accesses, arrangement, elements)
    warps = 4
    many = sum(is_tile(k, arrangement) for k in range(len(accesses))) >= MANY_TENSORS
    if many and elements == ELEMENTS_PER_PROGRAM:
        elements, warps = elements // 2, 8
    return Config(1, elements, warps=warps, wide_index=wide, apart=apart, two_rows=two_rows)


def _has_two_rows(accesses: tuple[Operand, ...], arrangement: Arrangement, elements: int) -> bool:
    """Whether a program of a flat index meets two rows at most, so that it loads the values that
    rows have for themselves once, instead of for each element.
    """
    sizes = arrangement.col_sizes
    if not arrangement.layout.flattened or len(sizes) != 2 or arrangement.row_sizes:
        return False
    fits = prod(sizes) + sizes[1] < WIDE_OFFSETS and cover(sizes[1]) >= 2 * elements
    strides = [own for k, own in enumerate(arrangement.strides) if not is_tile(k, arrangement)]
    return fits and any(own[0] and not own[1] for own in strides)


def _tile(accesses: tuple[Operand, ...], arrangement: Arrangement, wide: bool) -> Config:
    """Wide tiles where every operand runs along the columns, square ones where one does not; wider
    ones where several values of a row have to be fetched first, as for the gradient of a
    cross-entropy. One, as a bias, does not pay for them.
    """
    if arrangement.layout.flattened:
        return Config(*REGROUPED_TILE, warps=4, wide_index=wide)
    if are_long_and_odd(accesses, arrangement):
        return of_one_row(accesses, arrangement, wide)
    if any(strides and strides[-1] not in (0, 1) for strides in arrangement.layout.strides):
        rows = min(SQUARE, cover(arrangement.rows, 1))
        columns = min(SQUARE * SQUARE // rows, cover(arrangement.cols, 1))
        rows = SQUARE * SQUARE // columns if columns < SQUARE else rows
        return Config(rows, columns, warps=4, wide_index=wide)
    elements = elements_of(accesses, arrangement)
    if sum(is_of_rows(k, arrangement) for k in range(len(accesses))) > 1:
        elements *= 2
    columns = min(cover(arrangement.cols, SHORTEST_BLOCK), elements)
    return Config(max(1, elements // columns), columns, warps=4, wide_index=wide)


def _rows(
    accesses: tuple[Operand, ...], arrangement: Arrangement, wide: bool, alone: bool
) -> Config:
    """A row in registers while its tiles fit, else a loop; several short rows to a program, unless
    there are so few that each is on its way alone. Operands that all rows share come first then:
    nothing else happens while they do. Neither changes a bit of a result.
    """
    block = cover(arrangement.cols, SHORTEST_BLOCK)
    full = [o for k, o in enumerate(accesses) if is_tile(k, arrangement)]
    read = [o for o in full if o.kind != "root"]
    stored = max((o.node.dtype.itemsize for o in full), default=4)
    if block * 4 * -(-max(1, len(read)) // 2) > RESIDENT_BYTES:  # two are mostly joined at once
        return Config(1, LOOP_BLOCK, LOOP_WARPS, resident=False, wide_index=wide)
    even = block == arrangement.cols
    share = LONG_BYTES_PER_WARP if block * stored >= LONG_ROW_BYTES else BYTES_PER_WARP
    few = arrangement.rows <= FULL_GRID
    if len(full) == len(read):
        one = alone or (few and block * stored >= WARP_LOAD_BYTES)
        rows = 1 if one else max(1, LONG_BYTES_PER_WARP // (block * stored))
        warps = 1 if block * stored <= LONG_BYTES_PER_WARP else min(32, block * stored // share)
        return Config(rows, block, warps, even=even, early=few, wide_index=wide)
    rows = 1 if alone else max(1, BYTES_PER_WARP // (block * stored))
    warps = block * stored // share if block < 32768 else 32
    least = 2 if (block * stored >= BYTES_PER_WARP and even) or alone else 1
    if stored == 4 and block * stored >= FLOAT_ROW_BYTES:
        least = FLOAT_WARPS
    if stored <= 2 and block < SMALLEST_BLOCK:
        least = 2  # a warp by itself would have more elements than its registers
    warps = min(max(least, warps), 32)
    return Config(rows, block, warps, even=even, early=few, wide_index=wide)


def carrying(
    config: Config, accesses: tuple[Operand, ...], arrangement: Arrangement, backend: str
) -> Config:
    """The Config of a kernel of rows that takes sums over them along.

    How many blocks the rows go in depends on the rows alone, so the sums do not change from one
    machine to the next.
    """
    most = arrangement.rows // LEAST_SHARE
    if backend == "cpp":
        return replace(config, chunks=min(most, CPP_CHUNKS), shared=False, pieces=False, keep=True)
    full = [k for k, o in enumerate(accesses) if o.kind != "root" and is_tile(k, arrangement)]
    sizes = [accesses[k].node.dtype.itemsize for k in full] or [4]
    row = config.block_cols * sum(sizes)
    beside = max(1, min(MOST_BESIDE, ROWS_BESIDE_BYTES // row))
    wanted = config.block_cols * max(sizes) // BYTES_PER_FETCHING_WARP
    warps = min(wanted, max(FETCHING_WARPS, wanted // 2))
    return replace(
        config,
        early=False,
        reread=False,
        caching=(),
        chunks=min(most, MULTIPROCESSORS * beside),
        stages=max(2, min(MOST_STAGES, 1 + FETCHED_BYTES // (row * beside))),
        warps=max(2, min(2 * FETCHING_WARPS, warps)),
    )


def takes_columns(config: Config, arrangement: Arrangement, columns: int, backend: str) -> bool:
    """Whether a kernel of rows can take ``columns`` sums over its rows along: it sees whole rows,
    one by one, and there are registers for the sums beside those for a row.
    """
    layout = arrangement.layout
    if len(layout.rows) != 1 or len(layout.cols) != 1 or config.lanes_along_rows:
        return False
    if backend == "cuda":  # its kernels take no sums over rows along
        return False
    if arrangement.rows // LEAST_SHARE < 2:
        return False
    if backend == "cpp":
        return True
    held = config.block_cols * 4 * (2 + columns)
    return config.resident and config.block_rows == 1 and held <= RESIDENT_BYTES
