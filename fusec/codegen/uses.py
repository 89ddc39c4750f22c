"""Which names the statements of a Kernel read, and how.

May import ``fusec.ir`` and ``codegen.kernel``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusec.codegen.kernel import (
    Access,
    Accumulate,
    AddColumns,
    Apply,
    Convert,
    Expr,
    Fetch,
    Keep,
    Let,
    Load,
    Masked,
    Pieces,
    Ref,
    Rescale,
    Stmt,
    Store,
    Sweep,
    Term,
)
from fusec.ir.dtypes import DType
from fusec.ir.ops import OPS, Infix, Prefix


def dtype_of(statement: Let | Load) -> DType:
    """The type of the value that the statement names."""
    return statement.value.dtype if isinstance(statement, Let) else statement.dtype


def expressions(statement: Stmt) -> list[Expr]:
    """The expressions that a statement computes."""
    if isinstance(statement, (Let, Store, Accumulate, AddColumns, Rescale, Keep)):
        return [statement.value]
    if isinstance(statement, Load):
        return list(statement.guards)
    return []


def reads(statements: Iterable[Stmt]) -> set[str]:
    """The values and index variables that statements read, those inside sweeps included."""
    used: set[str] = set()
    for statement in statements:
        if isinstance(statement, Sweep):
            used |= reads(statement.body)
        elif isinstance(statement, Pieces):
            used |= reads(statement.first.body) | reads(statement.second.body)
        elif isinstance(statement, (Load, Store, Fetch)):
            used |= {t.variable for t in statement.access.terms}
        used |= {name for e in expressions(statement) for name in names_of(e)}
    return used


def names_of(expression: Expr) -> set[str]:
    """The values an expression reads."""
    if isinstance(expression, Ref):
        return {expression.name}
    if isinstance(expression, (Convert, Masked)):
        return names_of(expression.arg)
    if isinstance(expression, Apply):
        return {name for a in expression.args for name in names_of(a)}
    return set()


def is_arithmetic(statements: Iterable[Stmt]) -> bool:
    """Whether all that is computed, running values included, is written with operators in C++."""
    combined = [
        OPS[s.accumulator.op.combine or ""] for s in statements if isinstance(s, Accumulate)
    ]
    values = [e for s in statements for e in expressions(s)]
    return all(isinstance(op.cpp.usual, Infix) for op in combined) and all(map(_operates, values))


def _operates(expression: Expr) -> bool:
    """Whether an expression has operators and no functions."""
    if isinstance(expression, (Convert, Masked)):
        return _operates(expression.arg)
    if not isinstance(expression, Apply):
        return True
    form = expression.op.cpp.pick(expression.operand, expression.fast)
    return isinstance(form, (Infix, Prefix)) and all(map(_operates, expression.args))


def asks_where(statements: Sequence[Stmt]) -> bool:
    """Whether the statements of a vector ask where it is."""
    moves = any(isinstance(s, (Load, Store, Fetch)) for s in statements)
    return moves or bool(mentioned(statements) & {"col", "i", "inside"})


def mentioned(statements: Sequence[Stmt]) -> set[str]:
    """Which of ``col``, ``i`` and ``inside`` the statements of a lane need."""
    used = reads(s for s in statements if not (isinstance(s, (Load, Store, Fetch)) and s.wide))
    for statement in statements:
        guarded = isinstance(statement, (Load, Store, Fetch)) and not statement.wide
        masked = isinstance(statement, (Accumulate, Rescale)) and isinstance(
            statement.value, Masked
        )
        if guarded or masked:
            used.add("inside")
    return used


def runs_along_row(access: Access) -> bool:
    """Whether an address runs along a row of memory, one row behind the other."""
    variables = {term.variable for term in access.terms}
    return variables == {"row", "col"} and Term("col", 1) in access.terms
