"""How Triton takes elementwise kernels of long rows that end or begin between vectors.

May import ``codegen.kernel``, ``codegen.layout`` and ``codegen.operand_facts``.
"""

from __future__ import annotations

from dataclasses import replace

from fusec.codegen.kernel import Config
from fusec.codegen.layout import Arrangement, Operand
from fusec.codegen.operand_facts import elements_of, is_tile, vector_of

LONG_ODD_COLUMNS = 8192  # of rows that are worth programs of their own
PIECE_WARPS = 4


def are_long_and_odd(accesses: tuple[Operand, ...], arrangement: Arrangement) -> bool:
    """Whether a program had better take a piece of one row: rows are long, memory runs along them,
    and they begin or end between vectors. What a row has for itself is loaded once then, and all
    pieces inside it are moved without masks, as whole vectors.
    """
    layout = arrangement.layout
    if not layout.rows or len(layout.cols) != 1 or arrangement.cols < LONG_ODD_COLUMNS:
        return False
    full = [k for k in range(len(accesses)) if is_tile(k, arrangement)]
    if any(layout.strides[k][-1] != 1 for k in full):
        return False
    ends_between = arrangement.cols % vector_of(accesses, arrangement) != 0
    return ends_between or bool(_vectors_of(accesses, arrangement)[0])


def _vectors_of(
    accesses: tuple[Operand, ...], arrangement: Arrangement
) -> tuple[tuple[int, ...], list[int]]:
    """Strides of rows that are moved as vectors, and the operands that have those: the rows of most
    bytes that are written, then of most that are read. No strides for rows that begin at vectors.
    """
    vector, rows = vector_of(accesses, arrangement), len(arrangement.layout.rows)
    alike: dict[tuple[int, ...], list[int]] = {}
    moved: dict[tuple[int, ...], list[int]] = {}
    for k, operand in enumerate(accesses):
        if operand.kind == "gather" or not is_tile(k, arrangement):
            continue
        strides = arrangement.strides[k][:rows]
        begins = strides if any(stride % vector for stride in strides) else ()
        total = moved.setdefault(begins, [0, 0])
        total[operand.kind != "root"] += operand.node.dtype.itemsize
        alike.setdefault(begins, []).append(k)
    found = max(moved, key=lambda begins: moved[begins])
    return found, alike[found]


def of_one_row(accesses: tuple[Operand, ...], arrangement: Arrangement, wide: bool) -> Config:
    """A piece of one row to a program, of which a thread has two vectors. Where rows begin between
    vectors, the first piece begins at the vector that the row begins in.
    """
    elements = elements_of(accesses, arrangement)
    config = Config(1, elements, warps=PIECE_WARPS, wide_index=wide, apart=True)
    strides, alike = _vectors_of(accesses, arrangement)
    if not strides:
        return config
    others = tuple(k for k in range(len(accesses)) if k not in alike)
    lanes = vector_of(accesses, arrangement)
    return replace(config, lanes=lanes, lead=alike[-1], narrow=others)  # results come last
