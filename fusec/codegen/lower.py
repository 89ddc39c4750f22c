"""Region and Config to Kernel: where each value is computed. Printers decide nothing;
``schedule.py`` made the Config.

A row kernel runs in sweeps. Each reduction belongs to the first sweep in which everything it needs
is known: softmax takes its maximum in sweep 1, its sum in sweep 2 and writes in sweep 3. A resident
kernel holds the row, so its sweeps are stretches of straight code; a looped one reads the row again
in every sweep, and where the backend can it keeps the costly values of an earlier sweep in a
buffer.

May import ``fusec.ir``, ``fusec.passes.fuse``, ``codegen.kernel``, ``codegen.layout`` and
``codegen.values``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from textwrap import dedent

from fusec.codegen.job import CPP, TRITON, Job, Target
from fusec.codegen.kernel import (
    Accumulate,
    Accumulator,
    Apply,
    Comment,
    Convert,
    Expr,
    Form,
    Keep,
    Kernel,
    Let,
    Level,
    Literal,
    Load,
    Masked,
    Recall,
    Reduce,
    Ref,
    Size,
    Stmt,
    Sweep,
)
from fusec.codegen.values import Values
from fusec.ir.dtypes import BOOL, F32, F64, I32, DType
from fusec.ir.node import Node
from fusec.ir.ops import OPS, Kind
from fusec.passes.fuse import Root

__all__ = ["CPP", "TRITON", "Job", "Target", "lower"]


def lower(job: Job) -> Kernel:
    """The Kernel of ``job.region`` for operands laid out as ``job.layout``, with the choices of
    ``job.config``.
    """
    values = Values(job)
    rows = job.form is Form.ROWS
    sweeps = _Sweeps(values)
    body = sweeps.statements() if rows else _flat_body(values)
    return Kernel(
        name=values.names.user(job.region.name),
        form=job.form,
        config=job.config,
        pointers=tuple(values.pointers.values()),
        numbers=tuple(values.numbers.values()),
        sizes=_sizes(values),
        variables=tuple(values.variables.values()),
        body=tuple(body),
        kept=tuple((name, node.dtype.compute) for node, name in sweeps.kept.items()),
        header=_header(values),
        origin={"region": job.region.name, "kind": job.region.kind, "reason": job.region.reason},
    )


def _sizes(values: Values) -> tuple[Size, ...]:
    """The size parameters, the main ones first;

    A program that works on one row need not know how many there are.
    """
    job = values.job
    main = ("n",) if job.form is Form.FLAT else ("rows", "cols")
    if job.form is Form.ROWS and job.target.masks and job.config.block_rows == 1:
        main = ("cols",)
    for name in main:
        values.size(name, name)
    first = [values.sizes[(name,)] for name in main]
    return (*first, *(s for s in values.sizes.values() if s not in first))


def _header(values: Values) -> tuple[str, ...]:
    """The formula, and what the kernel reads and writes."""
    text = dedent(values.job.graph.source.text).strip()
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    reads, writes = [
        ", ".join(
            f"{name} {pointer.storage.name}"
            for (name, out), pointer in values.pointers.items()
            if out is written
        )
        for written in (False, True)
    ]
    facts = [f"reads {reads}"] if reads else []
    facts.append(f"writes {writes}")
    full = Level.COL if values.job.form is Form.FLAT else Level.TILE
    moved = {
        operand.name: values.pointers[operand.name, operand.kind == "root"].storage.itemsize
        for operand in values.job.accesses
        if operand.kind != "gather" and values.levels[operand.node] == full
    }
    if moved:
        total = sum(moved.values())
        facts.append(f"{total} byte{'s' if total > 1 else ''} per element")
    return (*lines, "", "; ".join(facts))


def _flat_body(values: Values) -> list[Stmt]:
    body = _Body()
    loads: list[Stmt] = []
    values.emit([n for n in values.nodes if n in values.reads or n.op.name == "input"], loads)
    body.add("load", loads)
    computes: list[Stmt] = []
    values.emit(values.nodes, computes)
    stores: list[Stmt] = []
    values.store(values.job.region.roots, computes, stores)
    body.add("compute", computes)
    body.add("store", stores)
    return body.statements


@dataclass(slots=True)
class _Body:
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


@dataclass(slots=True)
class _Sweeps:
    """The body of a kernel that reduces rows."""

    values: Values
    kept: dict[Node, str] = field(default_factory=dict)
    _stage: dict[Node, int] = field(default_factory=dict)
    _done: set[Node] = field(default_factory=set)

    def statements(self) -> list[Stmt]:
        """Everything the kernel does, sweep after sweep."""
        values = self.values
        self._find_stages()
        reductions = [n for n in values.nodes if self._is_reduction(n)]
        last = max((self._stage[n] for n in reductions), default=0)
        stores: dict[int, list[Root]] = {}
        for root in values.job.region.roots:
            if values.varies(root.node):
                stores.setdefault(self._stage[root.node] + 1, []).append(root)
        needed = self._plan_sweeps(reductions, stores, last)
        outside = [n for n in values.nodes if not values.varies(n)]
        body = _Body()
        held: list[Stmt] = []  # stores of a resident sweep wait until what follows from it is known
        for sweep in range(1, last + 2):
            self._emit_rows([n for n in outside if self._stage[n] < sweep], body)
            body.add("store", held)
            held = []
            mine = [n for n in reductions if self._stage[n] == sweep]
            if mine or sweep in stores:
                held = self._sweep(needed[sweep], mine, stores.get(sweep, []), body)
        of_rows = [r for r in values.job.region.roots if not values.varies(r.node)]
        body.add("store", held + self._emit_rows(outside, body, of_rows))
        return body.statements

    def _is_reduction(self, node: Node) -> bool:
        return node.op.kind is Kind.REDUCTION and node not in self.values.reads

    def _find_stages(self) -> None:
        """How many sweeps have to be over before each value is known."""
        for node in self.values.nodes:
            below = (
                0
                if node in self.values.reads
                else max((self._stage[a] for a in node.args), default=0)
            )
            self._stage[node] = below + self._is_reduction(node)

    def _emit_rows(self, nodes: list[Node], body: _Body, roots: Sequence[Root] = ()) -> list[Stmt]:
        """What is known once for each row; the stores of ``roots`` are for the caller to place."""
        work: list[Stmt] = []
        stores: list[Stmt] = []
        self.values.emit(nodes, work)
        self.values.store(roots, work, stores)
        body.straight("compute", work)
        return stores

    def _plan_sweeps(
        self, reductions: list[Node], stores: dict[int, list[Root]], last: int
    ) -> dict[int, list[Node]]:
        """The nodes along the columns that each sweep needs;

        Those worth keeping get their buffer.
        """
        keeps = self.values.job.target.keeps and not self.values.job.config.lanes_along_rows
        costly = self._costly() if keeps else set()
        computed: set[Node] = set()
        needed: dict[int, list[Node]] = {}
        for sweep in range(1, last + 2):
            roots = [n.args[0] for n in reductions if self._stage[n] == sweep]
            roots += [r.node for r in stores.get(sweep, [])]
            found, recalled = self._columns(roots, computed & costly)
            for node in self.values.nodes:
                if node in recalled and node not in self.kept:
                    stem = self.values.job.graph.side.names.get(node, node.op.name)
                    self.kept[node] = self.values.names.user(f"{stem}_row")
            computed |= found
            needed[sweep] = [n for n in self.values.nodes if n in found]
        return needed

    def _costly(self) -> set[Node]:
        """Values along the columns that took a special function to compute."""
        costly: set[Node] = set()
        for node in self.values.nodes:
            if not self.values.varies(node) or self.values.reads.get(node):
                continue
            if node.op.costly or any(a in costly for a in node.args):
                costly.add(node)
        return costly

    def _columns(self, roots: Iterable[Node], at_hand: set[Node]) -> tuple[set[Node], set[Node]]:
        """The nodes along the columns that ``roots`` need, and those among them that ``at_hand``
        offers.
        """
        found: set[Node] = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node in found or not self.values.varies(node):
                continue
            found.add(node)
            if node not in at_hand and node not in self.values.reads:
                stack.extend(node.args)
        return found, found & at_hand

    def _sweep(
        self, needed: list[Node], reductions: list[Node], stores: list[Root], body: _Body
    ) -> list[Stmt]:
        """One pass over the row:

        Straight code when it is resident (the stores are returned), else a loop.
        """
        values = self.values
        resident = values.job.config.resident
        outside = dict(values.at_hand)
        fresh: list[Stmt] = []
        for node in needed:
            if node in self.kept and node in self._done:
                name, kind = values.name(node), node.dtype.compute
                fresh.append(Recall(name, self.kept[node], kind))
                values.at_hand[node] = Ref(name, kind, values.levels[node])
        values.emit(needed, fresh)
        for node in needed:
            if node in self.kept and node not in self._done:
                fresh.append(Keep(self.kept[node], values.at_hand[node]))
        self._done.update(needed)
        running = [self._reduce(node, fresh) for node in reductions]
        stored: list[Stmt] = []
        values.store(stores, fresh, stored)
        if resident:
            body.straight(_title(values, reductions, []) or "compute", fresh)
            return stored
        for node in needed:
            if node not in outside:
                values.at_hand.pop(node, None)
        loop = Sweep((*fresh, *stored), tuple(a for a in running if a is not None))
        body.add(_title(values, reductions, stores), [loop])
        return []

    def _reduce(self, node: Node, out: list[Stmt]) -> Accumulator | None:
        """Combine the argument of ``node`` along the row, or begin to."""
        values, config = self.values, self.values.job.config
        argument = values.at_hand[node.args[0]]
        kind = I32 if node.dtype.is_bool else node.dtype.compute
        running = (
            F64
            if values.job.target.wide_sums
            and kind is F32
            and node.op.name in ("sum", "prod", "mean")
            else kind
        )
        if argument.dtype is not running:
            argument = Convert(argument, running, argument.level)
        identity = Literal(_identity(node, running), running)
        if values.job.target.masks and not (config.resident and config.even):
            argument = Masked(argument, identity, running, argument.level)
        name, level = values.name(node), values.levels[node]
        result: Expr = Ref(name, kind, level)
        if node.dtype is BOOL:
            result = Apply(OPS["ne"], (result, Literal(0, I32)), BOOL, I32, level)
        values.at_hand[node] = result
        if config.resident:
            out.append(Reduce(name, node.op, argument, kind))
            return None
        accumulator = Accumulator(name, f"{name}_lanes", node.op, kind, running, identity)
        out.append(Accumulate(accumulator, argument))
        return accumulator


def _identity(node: Node, kind: DType) -> int | float:
    assert node.op.identity is not None, node.op.name
    return node.op.identity(BOOL if node.dtype is BOOL else kind)


def _title(values: Values, reductions: list[Node], stores: list[Root]) -> str:
    """What a sweep is for, in words:

    The names it makes, with the reduction where the name does not say it.
    """
    parts = []
    if reductions:
        names = [(values.name(n), n.op.name) for n in reductions]
        parts.append(
            "reduce: " + ", ".join(n if op in n.split("_") else f"{n} ({op})" for n, op in names)
        )
    if stores:
        parts.append(
            "write " + ", ".join(r.name for r in stores) if reductions else "compute and store"
        )
    return "; ".join(parts)
