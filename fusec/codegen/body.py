"""The statements of a kernel under comments that name their sections.

May import ``codegen.kernel``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fusec.codegen.kernel import Comment, Let, Load, Reduce, Stmt


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
    return loads, rest
