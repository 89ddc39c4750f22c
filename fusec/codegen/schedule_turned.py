"""How Triton reduces operands of which some run along the rows and some along the columns, as the
softmax of a transposed matrix does, or a gradient that comes back transposed with its sums.

One row at a time would be loads and stores of single elements for some of them. A tile of several
rows is loaded as each operand lies, and turned in shared memory. May import ``codegen.kernel``,
``codegen.layout``, ``codegen.operand_facts`` and ``codegen.schedule_columns``.
"""

from __future__ import annotations

from fusec.codegen.kernel import Config
from fusec.codegen.layout import Arrangement, Operand
from fusec.codegen.operand_facts import cover, splits_of, widest
from fusec.codegen.schedule_columns import joined

TURNED_BYTES = 64 * 1024  # of a tile in shared memory, which any GPU has
MOST_ROWS, LEAST_ROWS = 32, 4  # of a tile that holds whole rows
ELEMENTS_PER_WARP = 2048
SHORT_SUM = 1024  # elements of a row that is only summed, up to which it is held
SUMMED_TILE, SWEPT_TILE, LOOP_WARPS = (64, 128), (16, 256), 8
BUSY, LEAST_TILES = 2, 2  # programs that share rows, and tiles for each


def turned(
    accesses: tuple[Operand, ...], arrangement: Arrangement, wide: bool, single: bool
) -> Config:
    """Several whole rows in registers while they fit, else a loop over tiles of several rows.

    ``single``: no reduction waits for another, so that programs may share rows.
    """
    columns = cover(arrangement.cols)
    rows = min(MOST_ROWS, TURNED_BYTES // max(4, widest(accesses)) // columns)
    if rows >= LEAST_ROWS and (columns <= SHORT_SUM or not single):
        warps = max(1, rows * columns // ELEMENTS_PER_WARP)
        even = columns == arrangement.cols
        return Config(rows, columns, warps, even=even, wide_index=wide)
    if not single:
        return Config(*SWEPT_TILE, LOOP_WARPS, resident=False, wide_index=wide)
    rows, columns = SUMMED_TILE
    programs = BUSY * -(-arrangement.rows // rows)
    splits = splits_of(programs, arrangement.cols, LEAST_TILES * columns)
    return Config(
        rows,
        columns,
        LOOP_WARPS,
        resident=False,
        wide_index=wide,
        splits=splits,
        combine=joined(rows, splits),
        lanes_along_rows=True,
    )
