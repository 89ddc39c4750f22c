"""How Triton reduces along a strided axis: the default choices, as rules in one place.

May import ``codegen.kernel``, ``codegen.layout`` and ``codegen.operand_facts``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from fusec.codegen.kernel import Config
from fusec.codegen.layout import Arrangement, Operand
from fusec.codegen.operand_facts import (
    FULL_GRID,
    SMALLEST_BLOCK,
    cover,
    is_tile,
    power_of_two,
    splits_of,
    widest,
)

SHARE_STAGES = 3  # tiles of one operand that are only summed: how many are asked for ahead
MOST_STAGES = 5
SHORT_COLUMN = 512  # elements reduced along a strided axis that one program takes
SHORT_ACROSS = 16384  # so many of those side by side fill the GPU with narrow tiles
LONG_COLUMN = 4096  # of such, programs of 16 warps have enough to do without parts
JOINED_ACROSS = 1024  # sums of so few columns have many parts, which many programs join
MOST_JOINED = 8192  # parts of columns that each program joins before it writes its results
READ_ONCE = ("", "evict_first", "")  # what caches are told of a row that is only summed
# Rows taken as one stretch of memory: how long that has to be and how many there have to be of
# them, and what a program takes of a long one, of which many fill the GPU, and of a short one.
LEAST_STRETCH, LEAST_STRETCHES, LONG_STRETCH, MOST_FOLD = 512, 128, 8192, 256
LONG_BYTES, LONG_UNROLL, LONG_PROGRAMS, LEAST_TURNS = 2048, 8, 1584, 16
STRETCH_TILE, STRETCH_WARPS, STRETCH_PROGRAMS = (1024, 8), 4, 264
STAGED_BYTES = 96 * 1024  # of tiles ahead, which the shared memory of any GPU that has them holds
MOST_PARTS, JOINED_TILE = 32768, 4096  # of a result, and that a program joins at a time


def folded_columns(accesses: tuple[Operand, ...], arrangement: Arrangement) -> Config | None:
    """Reductions along a strided axis of operands that lie without gaps, where their rows begin
    between wide loads or are short: several of them at a time are one stretch of memory. None where
    they are few, or long and even.
    """
    across, along = arrangement.rows, arrangement.cols
    if across % 16 == 0 and across >= SMALLEST_BLOCK:
        return None
    tiles = [o.node.dtype.itemsize for k, o in enumerate(accesses) if is_tile(k, arrangement)]
    fold, narrowest = 2, min(tiles)
    while fold < MOST_FOLD and (fold * across * narrowest % 16 or fold * across <= LEAST_STRETCH):
        fold *= 2
    stretch, stretches = fold * across, along // fold
    if stretches < LEAST_STRETCHES or along <= SHORT_COLUMN:
        return None
    chosen = _long_stretch if stretch > LONG_STRETCH else _short_stretch
    config = chosen(stretch, stretches, sum(tiles), MOST_PARTS // fold)
    joined = max(1, min(SMALLEST_BLOCK, JOINED_TILE // (config.splits * fold)))
    return replace(
        config,
        resident=False,
        fold=fold,
        combine=(joined, 4 if config.splits * fold <= JOINED_TILE else 32),
        bare=True,
        lanes_along_rows=True,
    )


def _long_stretch(stretch: int, stretches: int, width: int, most: int) -> Config:
    """One vector of a stretch after the other, by many programs. ``width``: bytes of an element in
    all operands together; ``most``: parts of a stretch.
    """
    rows = LONG_BYTES // power_of_two(width)
    wanted = min(most, LONG_PROGRAMS // -(-stretch // rows), stretches // LEAST_TURNS)
    return Config(rows, 1, STRETCH_WARPS, unroll=LONG_UNROLL, splits=power_of_two(wanted))


def _short_stretch(stretch: int, stretches: int, width: int, most: int) -> Config:
    """Tiles of several stretches, asked for ahead."""
    (rows, cols), warps = STRETCH_TILE, STRETCH_WARPS
    staged = SHARE_STAGES * rows * cols * width
    beside = STRETCH_PROGRAMS * (2 if width <= 2 else 1) // -(-stretch // rows)
    wanted = min(beside, STRETCH_PROGRAMS * rows // stretch)
    if wanted >= 2 * most:  # more parts than one program joins: fewer programs with more to do
        cols, warps = cols * (2 if 2 * staged <= STAGED_BYTES else 1), 2 * warps
    stages = max(1, min(SHARE_STAGES, STAGED_BYTES // (rows * cols * width)))
    splits = power_of_two(min(most, wanted, stretches // cols))
    return Config(rows, cols, warps, stages=stages, splits=splits)


def summed_columns(
    config: Config, accesses: tuple[Operand, ...], arrangement: Arrangement
) -> Config:
    """Sums along a strided axis of one operand as it lies. How many tiles are asked for ahead, in
    which order, and who joins the parts is as measured: no rule covers all of it. Without the
    selection of lanes inside, loads and additions mix, which is better for some tiles and far worse
    for others.
    """
    across, along = arrangement.rows, arrangement.cols  # contiguous, reduced
    even, narrow = across % 8 == 0, widest(accesses) <= 2
    if along <= SHORT_COLUMN:
        return _summed_short(config, across, along)
    if along >= LONG_COLUMN and SHORT_ACROSS <= across <= 2 * SHORT_ACROSS and even:
        config = replace(config, block_rows=64, warps=16, splits=1, bare=True)
        if narrow:
            return replace(config, block_cols=64, unroll=2, caching=READ_ONCE)
        return replace(config, block_cols=32, unroll=4)
    if across >= 2 * SHORT_ACROSS and narrow:
        if not even:
            return replace(config, bare=True)
        return replace(config, stages=SHARE_STAGES, spread=config.splits > 1, bare=True)
    if config.splits == 1 or not even or not SMALLEST_BLOCK <= across <= JOINED_ACROSS:
        return config
    if not narrow:
        return replace(config, spread=True, combine=(16, 4), bare=True)
    if across % 16:
        return config
    return replace(config, stages=SHARE_STAGES, spread=True, combine=(8, 4), bare=True)


def _summed_short(config: Config, across: int, along: int) -> Config:
    """The same of few rows."""
    even = across % 8 == 0
    if along < SMALLEST_BLOCK or across < SHORT_ACROSS:
        return config
    if not even:
        return replace(config, block_rows=64, block_cols=8, warps=8, bare=True, caching=READ_ONCE)
    if across > 4 * SHORT_ACROSS:
        return replace(config, stages=SHARE_STAGES, bare=True)
    return replace(config, block_rows=128, block_cols=16, warps=2, stages=MOST_STAGES, bare=True)


def columns(
    accesses: tuple[Operand, ...],
    arrangement: Arrangement,
    wide: bool,
    computes: bool,
    joins: bool = False,
) -> Config:
    """Reductions along a strided axis. Tiles are as long in memory as fills the GPU. ``computes``:
    sums of what is made of several operands, or written too, for which a thread takes fewer
    elements: their code is as long as they are many. ``joins``: reductions that wait for others,
    as a variance for a mean.
    """
    written = any(o.kind == "root" and is_tile(k, arrangement) for k, o in enumerate(accesses))
    waits = written and not computes  # what is written as well as added up waits for no sum
    across, along = arrangement.rows, arrangement.cols  # contiguous, reduced
    splits = 1
    if along <= SHORT_COLUMN:
        rows, cols, warps = _short_tile(across, along)
    else:
        narrow = widest(accesses) <= 2
        if across <= 64:
            rows, cols, warps = _narrow_tile(across, written, joins)
        elif len(arrangement.row_sizes) > 1:  # rows end inside a tile
            rows, cols, warps = 64, 32, 4
        elif waits and across <= JOINED_ACROSS:
            rows, cols, warps = (64, 128, 4) if across % 4 == 0 else (128, 64, 4)
            warps = 2 if across % 16 == 0 else warps
        else:
            rows, cols, warps = _wide_tile(across, narrow, computes)
        # Where results are written, each program joins all parts that others have left.
        busy = 4 if across <= 64 and (written or not joins) else 2
        splits = splits_of(busy * -(-across // rows), along, 4 * cols)
        if waits and across > 64:
            splits = min(splits, MOST_JOINED // rows)
    return Config(
        rows,
        cols,
        warps,
        resident=False,
        wide_index=wide,
        splits=splits,
        combine=joined(rows, splits),
        lanes_along_rows=True,
    )


def joined(rows: int, splits: int) -> tuple[int, int] | None:
    """Rows and warps of a program that joins parts, if those of the tile would be too many at a
    time.
    """
    return (max(1, 2 * JOINED_TILE // splits), 4) if rows * splits > 2 * JOINED_TILE else None


_Tile: TypeAlias = "tuple[int, int, int]"  # elements across and along the columns, warps


def _short_tile(across: int, along: int) -> _Tile:
    """Of short columns."""
    busy = max(16, cover(across, 16) * 2 // FULL_GRID)
    rows = 128 if along <= 32 else min(128, busy)
    cols = 8 if rows == 128 else min(cover(along, 8), 2048 // rows)
    if rows == 128:  # loads of one element want more threads
        return rows, cols, 4 if across % 8 else 1
    return rows, cols, max(1, rows * cols // 512)


def _narrow_tile(across: int, written: bool, joins: bool) -> _Tile:
    """Of few columns: a single program beside the splits, or two where a tile at a time is joined
    to what was seen.
    """
    if joins and not written:
        rows = min(32, cover(across, 1))
        return rows, 4096 // rows, 4
    rows = cover(across, 1)
    return rows, (16384 if written else 4096) // rows, 8


def _wide_tile(across: int, narrow: bool, computes: bool) -> _Tile:
    """Of many columns; loads of one element want more threads."""
    if across % 8:
        return (64, 32, 8) if across >= 32768 else (64, 64, 4)
    if across % 16:
        return 64, 32, 4
    if computes:
        return 64, 32, 8
    return (128, 16, 2) if narrow and across >= 32768 else (64, 64, 2)
