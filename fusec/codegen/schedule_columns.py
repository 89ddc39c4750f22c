"""How Triton reduces along a strided axis: the default choices, as rules in one place.

May import ``codegen.kernel``, ``codegen.layout`` and ``codegen.operand_facts``.
"""

from __future__ import annotations

from dataclasses import replace

from fusec.codegen.kernel import Config
from fusec.codegen.layout import Arrangement, Operand
from fusec.codegen.operand_facts import FULL_GRID, SMALLEST_BLOCK, cover, splits_of, widest

SHARE_STAGES = 3  # tiles of one operand that are only summed: how many are asked for ahead
MOST_STAGES = 5
SHORT_COLUMN = 512  # elements reduced along a strided axis that one program takes
SHORT_ACROSS = 16384  # so many of those side by side fill the GPU with narrow tiles
LONG_COLUMN = 4096  # of such, programs of 16 warps have enough to do without parts
JOINED_ACROSS = 1024  # sums of so few columns have many parts, which many programs join
READ_ONCE = ("", "evict_first", "")  # what caches are told of a row that is only summed


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
    accesses: tuple[Operand, ...], arrangement: Arrangement, wide: bool, computes: bool
) -> Config:
    """Reductions along a strided axis. Tiles are as long in memory as fills the GPU. ``computes``:
    sums of what is made of several operands, or written too, for which a thread takes fewer
    elements: their code is as long as they are many.
    """
    across, along = arrangement.rows, arrangement.cols  # contiguous, reduced
    narrow = max((o.node.dtype.itemsize for o in accesses), default=4) <= 2
    splits = 1
    if along <= SHORT_COLUMN:
        busy = max(16, cover(across, 16) * 2 // FULL_GRID)
        rows = 128 if along <= 32 else min(128, busy)
        cols = 8 if rows == 128 else min(cover(along, 8), 2048 // rows)
        warps = max(1, rows * cols // 512)
        if rows == 128:  # loads of one element want more threads
            warps = 4 if across % 8 else 1
    else:
        rows, cols, warps = (128, 16, 2) if narrow and across >= 32768 else (64, 64, 2)
        if across <= 64:  # a single program beside the splits: fewer of them, with more warps
            rows, cols, warps = 64, 64, 8
        elif across % 8:  # loads of one element
            rows, cols, warps = (64, 32, 8) if across >= 32768 else (64, 64, 4)
        elif across % 16:
            rows, cols, warps = 64, 32, 4
        elif computes:
            rows, cols, warps = 64, 32, 8
        busy = 4 if across <= 64 else 2
        splits = splits_of(busy * -(-across // rows), along, 4 * cols)
    return Config(
        rows, cols, warps, resident=False, wide_index=wide, splits=splits, lanes_along_rows=True
    )
