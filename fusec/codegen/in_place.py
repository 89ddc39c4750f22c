"""Whether kernels may write a result over an operand that nothing else needs.

May import ``codegen.job``, ``codegen.kernel`` and ``codegen.uses``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from fusec.codegen.job import CPP, CUDA, Target
from fusec.codegen.kernel import (
    Form,
    Kernel,
    Let,
    Level,
    Load,
    Pieces,
    Pointer,
    Reduce,
    Stmt,
    Store,
    Sweep,
)
from fusec.codegen.uses import names_of

# Where a statement is: its number, behind those of the loops around it.
_Place: TypeAlias = "tuple[int, ...]"


def may_overwrite(kernels: Sequence[Kernel], written: str, read: str, target: Target) -> bool:
    """Whether the result ``written`` may lie where the input ``read`` lies, element by element.

    So it is where one kernel has to do with either, and in it each element is loaded before the
    result at the same place is stored, by the same program or thread, and not after. A kernel in
    CUDA C++ may not: its compiler is told that buffers are apart.
    """
    touching = [k for k in kernels if _pointer(k, written, True) or _pointer(k, read, False)]
    if len(touching) != 1 or target is CUDA:
        return False
    (kernel,) = touching
    result, operand = _pointer(kernel, written, True), _pointer(kernel, read, False)
    if result is None or operand is None or result.storage is not operand.storage:
        return False
    moves = list(_moves(kernel.body))
    loads = [(p, s) for p, s in moves if isinstance(s, Load) and s.access.buffer == operand.name]
    stores = [(p, s) for p, s in moves if isinstance(s, Store) and s.access.buffer == result.name]
    if len(stores) != 1 or not _is_each_once(kernel, *stores[0], [s for _, s in moves]):
        return False
    (place, store), places = stores[0], [p for p, _ in loads]
    if target is CPP:
        before = _loops_load_before(places, place)
    else:
        before = _tiles_load_before(places, place)
        before = before and (len(loads) == 1 or _needs_reductions(kernel.body, store))
    return before and all(_is_same_element(load, store) for _, load in loads)


def _pointer(kernel: Kernel, buffer: str, written: bool) -> Pointer | None:
    """The parameter of a buffer that a kernel reads, or writes."""
    own = (p for p in kernel.pointers if p.buffer == buffer and p.written is written)
    return next(own, None)


def _moves(
    statements: Sequence[Stmt], around: _Place = ()
) -> Iterator[tuple[_Place, Load | Store]]:
    """All loads and stores. For each element they run in the order of their places, since the loops
    along a row, and the two along a piece of it, run one behind the other.
    """
    for number, statement in enumerate(statements):
        place = (*around, number)
        if isinstance(statement, Sweep):
            yield from _moves(statement.body, place)
        elif isinstance(statement, Pieces):
            yield from _moves((statement.first, statement.second), place)
        elif isinstance(statement, (Load, Store)):
            yield place, statement


def _is_each_once(
    kernel: Kernel, place: _Place, store: Store, moves: Sequence[Load | Store]
) -> bool:
    """Whether a statement runs once for each element that it stores: it varies along all that the
    kernel walks, or along the rows, each of which is walked by one program, outside of any loop.
    """
    every = Level.UNIFORM
    for move in moves:
        every |= move.level
    of_rows = kernel.form is Form.ROWS and not kernel.divided and len(place) == 1
    return store.level == every or (of_rows and store.level == every & ~Level.COL)


def _tiles_load_before(loads: Sequence[_Place], store: _Place) -> bool:
    """Whether a program of tiles has one load of an operand, in the loop that stores, or several
    outside of any loop.
    """
    if len(loads) > 1 and any(len(place) > 1 for place in (*loads, store)):
        return False
    return bool(loads) and all(p[:-1] == store[:-1] and p < store for p in loads)


def _needs_reductions(body: Sequence[Stmt], store: Store) -> bool:
    """Whether what is stored waits for every reduction of a straight kernel, and so for every lane
    of what was loaded for one.
    """
    needed = names_of(store.value)
    for statement in reversed(body):
        if isinstance(statement, (Let, Reduce)) and statement.name in needed:
            needed |= names_of(statement.value)
    return all(s.name in needed for s in body if isinstance(s, Reduce))


def _loops_load_before(loads: Sequence[_Place], store: _Place) -> bool:
    """The same of loops over elements, which may load them in earlier loops as well. Results on
    their way past the caches are stored still later, block by block.
    """
    return bool(loads) and all(load < store for load in loads)


def _is_same_element(load: Load, store: Store) -> bool:
    """Whether what is loaded is what is overwritten, in every lane. A turned tile is more."""
    alike = load.access.terms == store.access.terms and load.level == store.level
    return alike and load.mask == store.mask and not (load.guards or load.tile)
