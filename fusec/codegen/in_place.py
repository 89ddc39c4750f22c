"""Whether kernels may write a result over an operand that nothing else needs.

May import ``codegen.kernel``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from fusec.codegen.kernel import Kernel, Load, Pointer, Stmt, Store, Sweep

Moved = TypeVar("Moved", Load, Store)


def may_overwrite(kernels: Sequence[Kernel], written: str, read: str) -> bool:
    """Whether the result ``written`` may lie where the input ``read`` lies, element by element.

    So it is where one kernel has to do with either, and in it each element is loaded once, before
    the result at the same place is stored, by the same program. What ``kernels`` are in CUDA C++ or
    C++ is not asked for: their compilers are told that buffers are apart.
    """
    touching = [k for k in kernels if _pointer(k, written, True) or _pointer(k, read, False)]
    if len(touching) != 1:
        return False
    (kernel,) = touching
    result, operand = _pointer(kernel, written, True), _pointer(kernel, read, False)
    if result is None or operand is None or result.storage is not operand.storage:
        return False
    loads = list(_at(kernel.body, operand.name, Load))
    stores = list(_at(kernel.body, result.name, Store))
    if len(loads) != 1 or len(stores) != 1:
        return False
    (around, before, load), (same, after, store) = loads[0], stores[0]
    alike = load.access.terms == store.access.terms and load.mask == store.mask
    return around is same and before < after and alike and not load.guards


def _pointer(kernel: Kernel, buffer: str, written: bool) -> Pointer | None:
    """The parameter of a buffer that a kernel reads, or writes."""
    own = (p for p in kernel.pointers if p.buffer == buffer and p.written is written)
    return next(own, None)


def _at(
    statements: Sequence[Stmt], name: str, kind: type[Moved]
) -> Iterator[tuple[Sequence[Stmt], int, Moved]]:
    """Statements of a kind that go to a buffer: those around each, its place, and itself."""
    for place, statement in enumerate(statements):
        if isinstance(statement, Sweep):
            yield from _at(statement.body, name, kind)
        elif isinstance(statement, kind) and statement.access.buffer == name:
            yield statements, place, statement
