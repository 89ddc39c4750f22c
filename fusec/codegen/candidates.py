"""Configs around a choice of ``schedule.py``: the nearest first, which the tuner tries, and those
that ask for fewer registers, for a kernel that spills.

May import ``fusec.errors``, ``codegen.kernel`` and ``codegen.schedule``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

from fusec.codegen.kernel import Config, Form
from fusec.codegen.schedule_cpp import STREAM_BLOCK, STREAM_ROW_BLOCK
from fusec.errors import BuildError

_FACTORS = (1.0, 0.5, 2.0, 0.25, 4.0)
_MOST_WARPS = 32
_LANES = 32
# Bytes a thread may have in local memory: functions of the mathematics library keep tables of 40
# bytes there, and 16 spilled words cost less beside a row than half of the blocks do (float32 layer
# norm over 50257 columns: 71 % of a copy, and 51 with two blocks on a multiprocessor).
SPILLS_ALLOWED = 64
_LEAST_PER_LANE, _MOST_PER_LANE = 2, 128  # elements of a tile


def around(config: Config, form: Form, backend: str, lone: bool = False) -> list[Config]:
    """Other Configs that the kernel may have, without repeats and without ``config`` itself.

    ``lone``: there is no axis of rows, and so no second row for a program.
    """
    found = _of_loops(config) if backend == "cpp" else _of_tiles(config, form, lone)
    return [other for other in dict.fromkeys(found) if other != config]


def _of_loops(config: Config) -> Iterator[Config]:
    """A C++ kernel has no blocks to choose: only what is fetched ahead and what is streamed."""
    tiled = config.lanes_along_rows or config.block_cols > 1
    streams = (0,) if tiled else (0, STREAM_BLOCK, STREAM_ROW_BLOCK)
    for prefetch, stream in product((False, True), streams):
        yield replace(config, prefetch=prefetch, stream=stream)


def _of_tiles(config: Config, form: Form, lone: bool) -> Iterator[Config]:
    """One step in one direction first, then in two at once."""
    steps = sorted(product(_FACTORS, repeat=3), key=_distance)
    for rows, cols, warps in steps:
        if _distance((rows, cols, warps)) > 3 or not _fits(config, form, rows, cols):
            continue
        if lone and rows != 1.0:
            continue
        other = replace(
            config,
            block_rows=int(config.block_rows * rows),
            block_cols=int(config.block_cols * cols),
            warps=int(config.warps * warps),
        )
        if not _is_sound(other):
            continue
        yield other
        for factor in (0.5, 2.0) if config.splits > 1 and rows == cols == 1.0 else ():
            yield replace(other, splits=int(config.splits * factor))


def _distance(factors: tuple[float, ...]) -> int:
    return sum({1.0: 0, 0.5: 1, 2.0: 1}.get(factor, 2) for factor in factors)


def _fits(config: Config, form: Form, rows: float, cols: float) -> bool:
    """Whether the tile may change so: a row that is held has to fill it, a flat index has none."""
    if form is Form.FLAT:
        return rows == 1.0 and (cols <= 1.0 or not config.two_rows)
    if form is Form.TILE and config.apart:  # a program has a piece of one row
        return rows == 1.0
    if form is Form.ROWS and config.resident:
        return cols == 1.0 and config.block_rows * rows >= 1
    if form is Form.ROWS and not config.lanes_along_rows:
        return rows == 1.0
    return config.block_rows * rows >= 1 and config.block_cols * cols >= 1


def _is_sound(config: Config) -> bool:
    lanes = config.warps * _LANES
    fills = _LEAST_PER_LANE * lanes <= config.block_rows * config.block_cols
    return (
        1 <= config.warps <= _MOST_WARPS
        and fills
        and (config.block_rows * config.block_cols <= _MOST_PER_LANE * lanes)
    )


# -- kernels that spill ---------------------------------------------------------------------------


def unspilled(
    config: Config, form: Form, backend: str, local_bytes: Callable[[Config], int]
) -> tuple[Config, str | None]:
    """The Config, or where its kernel spills the last of those after it that spill ever less; and
    in words why it is not the one that the rules chose.

    ``local_bytes``: what a thread of the kernel with a Config has in local memory. Where Triton
    itself fails over several rows (3.4 to 3.6 do, over four results that are one value a row), a
    program takes one. Raises BuildError where a compiler refuses that too.
    """
    try:
        best, first = config, local_bytes(config)
    except BuildError:
        if backend != "triton" or form is not Form.ROWS or not _has_other_rows(config):
            raise
        alone = replace(config, block_rows=1)
        local_bytes(alone)
        return alone, f"1 row a program instead of {config.block_rows}: Triton failed over those"
    least = first
    while least > SPILLS_ALLOWED:
        other = relaxed(best, form, backend)
        if other is None or (count := local_bytes(other)) >= least:
            break
        best, least = other, count
    if best == config:
        return config, None
    change = ", ".join(_changes(config, best))
    return best, f"{change}, since {first} bytes a thread spilled, and {least} do now"


def _has_other_rows(config: Config) -> bool:
    """Whether a program takes several rows, each of which it could take alone."""
    return config.block_rows > 1 and not config.lanes_along_rows


def relaxed(config: Config, form: Form, backend: str) -> Config | None:
    """The next Config, in which a thread has more registers or less to hold; None after the last.

    Programs share a row as before, so that what they leave for each other stays as it is.
    """
    if backend == "triton":
        if config.registers:
            return replace(config, registers=0)
        other = replace(config, warps=2 * config.warps)
        return other if _is_sound(other) else None
    if config.turns and config.block_rows > 1:  # a block's rows share the registers
        fewer, warps = config.block_rows - 1, config.warps // config.block_rows
        return replace(config, block_rows=fewer, warps=fewer * warps)
    if config.blocks > 1:  # that many share the registers of a multiprocessor
        return replace(config, blocks=max(1, config.blocks * 2 // 3))
    if form is Form.ROWS:
        return replace(config, keep=False) if config.keep else None
    if config.vectors == 1:
        return None
    half = config.vectors // 2
    if form is Form.FLAT:
        return replace(config, vectors=half, block_cols=config.block_cols // config.vectors * half)
    return replace(config, vectors=half, block_rows=config.block_rows // config.vectors * half)


def _changes(before: Config, after: Config) -> Iterator[str]:
    """What differs, in words."""
    words = {"blocks": "blocks on a multiprocessor", "registers": "registers at most"}
    if before.turns and after.block_rows != before.block_rows:
        yield f"{after.block_rows} rows of a block at a time instead of {before.block_rows}"
    for name in ("warps", "blocks", "registers", "vectors"):
        old, new = getattr(before, name), getattr(after, name)
        if old != new and not (before.turns and name == "warps"):
            yield f"{new} {words.get(name, name)} instead of {old}"
    if before.keep != after.keep:
        yield "values computed again instead of kept"
