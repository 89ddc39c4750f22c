"""Statements in order, under comments that name their sections, and loads ahead of arithmetic.

May import ``fusec.ir``, ``fusec.passes.fuse``, ``codegen.kernel`` and ``codegen.names``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from fusec.codegen.kernel import (
    Comment,
    Config,
    Fetch,
    Forget,
    Let,
    Level,
    Load,
    Masked,
    Recall,
    Reduce,
    Ref,
    Rescale,
    Stmt,
    Store,
    SumBoth,
)
from fusec.codegen.names import Names
from fusec.ir.dtypes import BF16, F16
from fusec.ir.node import Node
from fusec.passes.fuse import Root


@dataclass(slots=True)
class Body:
    """Statements under comments that name their sections."""

    statements: list[Stmt] = field(default_factory=list)
    _title: str = ""

    def add(self, title: str, statements: list[Stmt]) -> None:
        """More statements under ``title``;

        Arithmetic that follows a reduction needs no heading of its own.
        """
        if not statements:
            return
        continues = title == "compute" and self._title.startswith("reduce")
        if title != self._title and not continues:
            self.statements.append(Comment(title))
            self._title = title
        self.statements.extend(statements)

    def straight(self, title: str, statements: list[Stmt]) -> None:
        """Straight code: the loads that can go first, then the rest."""
        loads, rest = _split_loads(statements)
        self.add("load", loads)
        self.add(title, rest)


def _split_loads(statements: list[Stmt]) -> tuple[list[Stmt], list[Stmt]]:
    """The loads that wait for nothing but each other, and the rest."""
    loads: list[Stmt] = []
    rest: list[Stmt] = []
    computed: set[str] = set()
    for statement in statements:
        if isinstance(statement, Load) and all(
            t.variable not in computed for t in statement.access.terms
        ):
            loads.append(statement)
            continue
        rest.append(statement)
        if isinstance(statement, (Let, Load, Reduce)):
            computed.add(statement.name)
        elif isinstance(statement, SumBoth):
            computed |= {statement.first.name, statement.second.name}
    return loads, rest


def title(name: Callable[[Node], str], reductions: Iterable[Node], stores: Iterable[Root]) -> str:
    """What a sweep is for, in words: the names it makes, with the reduction where the name does not
    say it.
    """
    parts = []
    names = [(name(n), n.op.name) for n in reductions]
    results = ", ".join(root.name for root in stores)
    if names:
        said = (n if op in n.split("_") else f"{n} ({op})" for n, op in names)
        parts.append(f"reduce: {', '.join(said)}")
    if results:
        parts.append(f"write {results}" if names else "compute and store")
    return "; ".join(parts)


def side_by_side(statements: list[Stmt]) -> list[Stmt]:
    """Statements with two sums of a type as one where one follows the other."""
    found: list[Stmt] = []
    for statement in statements:
        before = found[-1] if found else None
        if not (isinstance(statement, Reduce) and isinstance(before, Reduce)):
            found.append(statement)
        elif before.op.name == statement.op.name == "sum" and before.dtype is statement.dtype:
            found[-1] = SumBoth(before, statement)
        else:
            found.append(statement)
    return found


def cached(statements: list[Stmt], caching: Sequence[str], again: bool) -> list[Stmt]:
    """``statements`` with what the caches are told (``Config.caching``); ``again``: a later sweep
    reads the row once more.
    """
    kept, last, alike = caching
    found: list[Stmt] = []
    for statement in statements:
        if isinstance(statement, Load) and statement.level is Level.TILE:
            statement = replace(statement, caching=kept if again else last)
        elif isinstance(statement, Load) and statement.level is Level.COL:
            statement = replace(statement, caching=alike)
        found.append(statement)
    return found


def is_along(statement: Stmt) -> bool:
    """Whether a statement is of values that vary along the columns."""
    return isinstance(statement, (Let, Load, Store)) and Level.COL in statement.level


def may_fetch(load: Load, full: Level, resident: bool) -> bool:
    """Whether a load can go ahead of the arithmetic: it varies with the element, its address does
    not hang on a value, and it is worth the registers.
    """
    if load.guards:
        return False
    return load.level is full or (load.wide and not load.across and not resident)


def fetch(load: Load, buffer: str, ahead: int = 0) -> Fetch:
    """All vectors of a load at once, but for those that came ``ahead``."""
    return Fetch(buffer, load.access, load.storage, load.wide, ahead if load.wide else 0)


def recall(load: Load, buffer: str) -> Recall:
    """What the load would have given, from the vectors that were fetched."""
    return Recall(load.name, buffer, load.dtype, load.storage, load.wide)


def packed(statements: list[Stmt]) -> list[Stmt]:
    """``statements`` with the maxima of 16-bit vectors taken of those as they are, if all can."""
    recalls = {s.name: s for s in statements if isinstance(s, Recall)}
    found: dict[Stmt, Stmt] = {}
    for statement in statements:
        if not isinstance(statement, Rescale):
            continue
        value = statement.value
        value = value.arg if isinstance(value, Masked) else value
        recall = recalls.get(value.name) if isinstance(value, Ref) else None
        if recall is None or not recall.wide or recall.storage not in (BF16, F16):
            return statements
        found[statement] = replace(statement, packed=recall)
    return [found.get(s, s) for s in statements]


@dataclass(slots=True)
class Fetches:
    """Which loads of a kernel that reduces rows go ahead of the arithmetic.

    A resident row is fetched before the first sweep, and in a later one what more than one needs;
    a looped row tile by tile.
    """

    config: Config
    _held: dict[str, str] = field(default_factory=dict)  # the vectors of a row that a thread has

    def apart(
        self, statements: list[Stmt], again: set[str], names: Names
    ) -> tuple[list[Stmt], list[Stmt]]:
        """What to fetch (and what to forget) before a sweep, and the statements of the sweep.

        ``again``: the loads that more than one sweep has.
        """
        resident, first = self.config.resident, not self._held
        fetches: list[Stmt] = []
        rest: list[Stmt] = []
        for statement in statements:
            if not isinstance(statement, Load) or not may_fetch(statement, Level.TILE, resident):
                rest.append(statement)
                continue
            held = self._held.get(statement.name)
            if held is None and resident and not first and statement.name not in again:
                rest.append(statement)
                continue
            if held is None:
                held = self._held[statement.name] = names.user(f"{statement.name}_vectors")
                fetches.append(fetch(statement, held, self.config.ahead if first else 0))
            elif not resident:
                fetches.append(fetch(statement, held))
            elif statement.wide and not self.config.keep:
                fetches.append(Forget(held))
            rest.append(recall(statement, held))
        return fetches, rest
