"""How Triton takes elementwise kernels of long rows that end or begin between vectors.

May import ``codegen.kernel``, ``codegen.layout`` and ``codegen.operand_facts``.
"""

from __future__ import annotations

from fusec.codegen.kernel import Config
from fusec.codegen.layout import Arrangement, Operand
from fusec.codegen.operand_facts import elements_of, is_of_rows, is_tile, vector_of

LONG_ODD_COLUMNS = 8192  # of rows that are worth programs of their own
PIECE_WARPS = 4


def are_long_and_odd(accesses: tuple[Operand, ...], arrangement: Arrangement) -> bool:
    """Whether a program had better take a piece of one row: rows are long, memory runs along them,
    and they end between vectors. What a row has for itself is loaded once then, and all pieces but
    the last are moved without masks, as whole vectors where rows begin at those.
    """
    layout = arrangement.layout
    if not layout.rows or len(layout.cols) != 1 or arrangement.cols < LONG_ODD_COLUMNS:
        return False
    full = [k for k in range(len(accesses)) if is_tile(k, arrangement)]
    if any(layout.strides[k][-1] != 1 for k in full):
        return False
    ends_between = arrangement.cols % vector_of(accesses, arrangement) != 0
    return ends_between and not _row_strides(accesses, arrangement)


def _row_strides(accesses: tuple[Operand, ...], arrangement: Arrangement) -> tuple[int, ...]:
    """How the rows that are to be moved as vectors follow each other: those of most bytes that are
    written, then of most that are read. Empty for rows that begin at vectors.
    """
    vector, rows = vector_of(accesses, arrangement), len(arrangement.layout.rows)
    moved: dict[tuple[int, ...], list[int]] = {}
    for k, operand in enumerate(accesses):
        if operand.kind == "gather" or not is_tile(k, arrangement):
            continue
        strides = arrangement.strides[k][:rows]
        begins = strides if any(stride % vector for stride in strides) else ()
        total = moved.setdefault(begins, [0, 0])
        total[operand.kind != "root"] += operand.node.dtype.itemsize
    return max(moved, key=lambda begins: moved[begins])


def of_one_row(accesses: tuple[Operand, ...], arrangement: Arrangement, wide: bool) -> Config:
    """A piece of one row to a program, a longer one where several values of the row come first."""
    elements = elements_of(accesses, arrangement)
    if sum(is_of_rows(k, arrangement) for k in range(len(accesses))) > 1:
        elements *= 2
    return Config(1, elements, warps=PIECE_WARPS, wide_index=wide, apart=True)
