"""How Triton takes elementwise kernels of long rows that end or begin between vectors.

May import ``codegen.kernel``, ``codegen.layout`` and ``codegen.operand_facts``.
"""

from __future__ import annotations

from dataclasses import replace

from fusec.codegen.kernel import Config
from fusec.codegen.layout import Arrangement, Operand
from fusec.codegen.operand_facts import is_alike, is_of_rows, is_tile, vector_of

LONG_ODD_COLUMNS = 8192  # of rows that are worth programs of their own
PIECE, VECTORS = 1024, 2  # elements of a row that a program takes, and vectors to a thread


def are_long_and_odd(accesses: tuple[Operand, ...], arrangement: Arrangement) -> bool:
    """Whether a program had better take a piece of one row: rows are long, memory runs along them,
    and they begin or end between vectors. What a row has for itself is loaded once then, and all
    pieces inside it are moved without masks, as whole vectors.

    A flat index has as few masks where all rows lie one behind the other, and is quicker if rows
    have no more than one value for themselves, or share an operand: both load that by elements.
    """
    layout, operands = arrangement.layout, range(len(accesses))
    if not layout.rows or len(layout.cols) != 1 or arrangement.cols < LONG_ODD_COLUMNS:
        return False
    if any(layout.strides[k][-1] != 1 for k in operands if is_tile(k, arrangement)):
        return False
    begins = _begins(accesses, arrangement)
    if () in begins:
        return arrangement.cols % vector_of(accesses, arrangement) != 0
    own = sum(is_of_rows(k, arrangement) for k in operands)
    return len(begins) > 1 or (own > 1 and not any(is_alike(k, arrangement) for k in operands))


def _begins(
    accesses: tuple[Operand, ...], arrangement: Arrangement
) -> dict[tuple[int, ...], list[int]]:
    """The operands by the strides of their rows, and by none if those begin at vectors."""
    vector, rows = vector_of(accesses, arrangement), len(arrangement.layout.rows)
    found: dict[tuple[int, ...], list[int]] = {}
    for k, operand in enumerate(accesses):
        if operand.kind != "gather" and is_tile(k, arrangement):
            strides = arrangement.strides[k][:rows]
            between = any(stride % vector for stride in strides)
            found.setdefault(strides if between else (), []).append(k)
    return found


def of_one_row(accesses: tuple[Operand, ...], arrangement: Arrangement, wide: bool) -> Config:
    """A piece of one row to a program. Where the rows of what moves most bytes begin between
    vectors, the first piece begins at the vector that the row begins in. Writing comes first.
    """
    lanes, begins = vector_of(accesses, arrangement), _begins(accesses, arrangement)

    def moved(strides: tuple[int, ...]) -> tuple[int, int]:
        sizes = [(accesses[k].kind == "root", accesses[k].node.dtype) for k in begins[strides]]
        written = sum(dtype.itemsize for is_root, dtype in sizes if is_root)
        return written, sum(dtype.itemsize for _, dtype in sizes)

    strides = max(begins, key=moved)
    warps = max(1, PIECE // (32 * VECTORS * lanes))
    config = Config(1, PIECE, warps=warps, wide_index=wide, apart=True)
    if not strides:
        return config
    others = tuple(k for k in range(len(accesses)) if k not in begins[strides])
    return replace(
        config, lanes=lanes, lead=begins[strides][-1], narrow=others
    )  # results come last
