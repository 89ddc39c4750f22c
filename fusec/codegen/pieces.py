"""Two reductions of a long row in one sweep over memory on a CPU: the row goes piece by piece, and
each piece, while a core's cache holds it, is swept for the first and then for the second.

Around the first of its piece the second is as accurate as around that of the row; pieces are joined
in float64. Unlike a running maximum or mean for every element this takes no more arithmetic than a
sweep each.

May import ``fusec.ir`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fusec.codegen.kernel import (
    Accumulate,
    Accumulator,
    Apply,
    Convert,
    Expr,
    Joint,
    Keep,
    Let,
    Level,
    Literal,
    Load,
    Masked,
    Pieces,
    Recall,
    Ref,
    Stmt,
    Sweep,
    Term,
)
from fusec.codegen.online import Online
from fusec.codegen.running import identity, running_types
from fusec.codegen.uses import expressions, names_of, reads
from fusec.codegen.values import Values
from fusec.ir.dtypes import DType
from fusec.ir.node import Node

PIECE = "piece"  # the index at which the piece at hand begins


@dataclass(slots=True)
class PieceOnline(Online):
    """Writes the statements of one pair in both sweeps over a piece."""

    joint: Joint = field(init=False)
    element: Expr = field(init=False)  # what both sweeps have to know of an element

    def __post_init__(self) -> None:
        pair, fresh = self.pair, self.values.names.user
        self.joint = Joint(
            self._accumulator(pair.first),
            self._accumulator(pair.second),
            None if pair.weighted is None else self._accumulator(pair.weighted),
            fresh(f"{self.values.name(pair.first)}_piece"),
            tuple(self._raw(node) for node in pair.members),
        )

    def _raw(self, node: Node) -> str:
        """The name of a running value when pieces are joined; a sum is not yet what it has to be
        where the maximum is infinite.
        """
        name = self.values.name(node)
        unfinished = node is self.pair.second and not self.pair.variance
        return self.values.names.user(f"{name}_total") if unfinished else name

    def _accumulator(self, node: Node) -> Accumulator:
        running, carry = running_types(self.values, node, self._kind)
        least = Literal(identity(node, running), running)
        name = self.values.name(node)
        return Accumulator(name, f"{name}_lanes", node.op, self._kind, running, least, carry)

    @property
    def _second(self) -> Ref:
        return Ref(self.joint.results[1], self._kind, self._level)

    def starts(self) -> list[Stmt]:
        return []

    def update(self, out: list[Stmt]) -> None:
        """Take an element into the first reduction."""
        value = self.values.at_hand[self.pair.value]
        if _is_costly(value):
            value = self._bound(f"{self.joint.name}_term", value, out)
        out.append(_accumulate(self.joint.first, value))
        self.element = value

    def finish(self, out: list[Stmt]) -> None:
        """From what the joined pieces come to, to the results of the reductions."""
        if self.pair.variance:
            self._provide()
        else:
            Online.finish(self, out)

    def around(self, value: Expr) -> list[Stmt]:
        """Take an element into the reductions around the first."""
        out: list[Stmt] = []
        base = Ref(self.joint.base, self._kind, Level.ROW)
        if self.pair.variance:
            apart = self._bound("apart", self._apply("sub", value, base), out)
            return [*out, _accumulate(self.joint.second, self._apply("mul", apart, apart))]
        if self.joint.weighted is None:
            return [_accumulate(self.joint.second, self._exp(value, base))]
        below = self._bound("below", self._apply("sub", value, base), out)
        power = self._bound("power", self._exp(value, base), out)
        times = self._apply("mul", power, below)
        sums = (_accumulate(self.joint.second, power), _accumulate(self.joint.weighted, times))
        return [*out, *sums]


def in_pieces(values: Values, sweep: Sweep, online: Sequence[Online]) -> Sweep | Pieces:
    """``sweep``, which runs the first reductions of ``online``, and another for the others, over
    one piece of the row after the other. Without any of them it stays as it is.
    """
    pairs = [pair for pair in online if isinstance(pair, PieceOnline)]
    if not pairs:
        return sweep
    body, again = list(sweep.body), []
    kept: list[tuple[str, DType]] = []
    for pair in pairs:
        value = pair.element
        needed = _needed(sweep.body, value)
        if any(_is_costly(e) for e in (value, *(e for s in needed for e in expressions(s)))):
            buffer = values.names.user(f"{pair.joint.name}_terms")
            kept.append((buffer, value.dtype))
            body.append(Keep(buffer, value, PIECE))
            name = values.names.user(f"{pair.joint.name}_term")
            needed = [Recall(name, buffer, value.dtype, start=PIECE)]
            value = Ref(name, value.dtype, Level.TILE)
        again += [s for s in needed if s not in again] + pair.around(value)
    firsts = tuple(pair.joint.first for pair in pairs)
    sums = tuple(a for pair in pairs for a in pair.joint.around)
    first = Sweep(tuple(body), (*firsts, *sweep.accumulators))
    ahead = tuple(s.access for s in body if isinstance(s, Load) and _comes_in_order(s))
    return Pieces(
        first, Sweep(tuple(again), sums, ahead), tuple(p.joint for p in pairs), tuple(kept)
    )


def _accumulate(accumulator: Accumulator, value: Expr) -> Accumulate:
    kind = accumulator.accumulate
    wide = value if value.dtype is kind else Convert(value, kind, value.level)
    return Accumulate(accumulator, wide)


def _needed(statements: Iterable[Stmt], value: Expr) -> list[Stmt]:
    """The statements that make the names in ``value``, in order."""
    wanted = names_of(value)
    found: list[Stmt] = []
    for statement in reversed(list(statements)):
        if isinstance(statement, (Let, Load, Recall)) and statement.name in wanted:
            found.append(statement)
            wanted |= reads([statement])
    return found[::-1]


def _is_costly(expression: Expr) -> bool:
    """Whether it has a function that is worth keeping the value of."""
    if isinstance(expression, (Convert, Masked)):
        return _is_costly(expression.arg)
    if not isinstance(expression, Apply):
        return False
    return expression.op.costly or any(map(_is_costly, expression.args))


def _comes_in_order(load: Load) -> bool:
    """Whether what is loaded for a piece lies behind that for the piece before."""
    return Term("col", 1) in load.access.terms and not load.guards
