"""The sweeps of a kernel that reduces rows: which values each computes, keeps, reduces and stores.

May import ``fusec.ir``, ``fusec.passes.fuse`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fusec.codegen.body import Body, Fetches, cached, packed, side_by_side, title
from fusec.codegen.job import CPP, CUDA
from fusec.codegen.kernel import (
    Accumulate,
    Accumulator,
    AddColumns,
    ColumnSums,
    Combine,
    Convert,
    Fetch,
    Forget,
    Keep,
    Level,
    Literal,
    Masked,
    Recall,
    Reduce,
    Ref,
    Stmt,
    Store,
    Sweep,
)
from fusec.codegen.online import LaneOnline, Online
from fusec.codegen.pairs import Pair, pairs, stages
from fusec.codegen.parameters import accumulated
from fusec.codegen.pieces import PieceOnline, in_pieces
from fusec.codegen.prefetch import read_soon, written_soon
from fusec.codegen.read_back import read_back
from fusec.codegen.reread import costly
from fusec.codegen.running import as_result, identity, running_types
from fusec.codegen.uses import is_arithmetic
from fusec.codegen.values import Values
from fusec.ir.node import Node
from fusec.ir.ops import OPS, Kind
from fusec.passes.fuse import Root


@dataclass(slots=True)
class Sweeps:
    """The body of a kernel that reduces rows."""

    values: Values
    kept: dict[Node, str] = field(default_factory=dict)
    divided: bool = False
    columns: list[ColumnSums] = field(default_factory=list)
    _stage: dict[Node, int] = field(default_factory=dict)
    _pairs: dict[Node, Pair] = field(default_factory=dict)  # by their second reduction
    _again: set[Node] = field(default_factory=set)  # read in more than one sweep
    _reread: set[Node] = field(default_factory=set)  # what the last sweep has to read or make anew
    _fetches: Fetches = field(init=False)
    _done: set[Node] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._fetches = Fetches(self.values.job.config)

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
        if values.job.region.columns:
            stores.setdefault(last + 1, [])
        needed = self._plan_sweeps(reductions, stores, last)
        outside = [n for n in values.nodes if not values.varies(n)]
        body = Body()
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

    def part(self) -> list[Stmt]:
        """One kernel of several, for rows that many programs share.

        It combines what earlier kernels left, and either leaves its own parts of the reductions of
        its sweep, or comes last and stores the results: those that no earlier kernel could.
        """
        values, part = self.values, self.values.job.part
        self._find_stages()
        reductions = [n for n in values.nodes if self._is_reduction(n)]
        mine = [n for n in reductions if self._stage[n] == part]
        last = max(self._stage[n] for n in reductions)
        early = [r for r in values.job.region.roots if values.varies(r.node)]
        early = [r for r in early if self._stage[r.node] < last]
        roots = [r for r in values.job.region.roots if r not in early]
        roots = [r for r in early if self._stage[r.node] + 1 == part] if mine else roots
        targets = [self._reduced(n) for n in mine] + [r.node for r in roots]
        read_back(values, [r for r in early if self._stage[r.node] + 1 < part], targets)
        wanted = self._wanted(targets)
        outside = [n for n in values.nodes if n in wanted and not values.varies(n)]
        body = Body()
        for stage in range(part):
            known = [n for n in reductions if n in wanted and self._stage[n] == stage]
            body.add("combine the parts", self._combine(known))
            self._emit_rows([n for n in outside if self._stage[n] <= stage], body)
        tiles = [r for r in roots if values.varies(r.node)]
        self.divided = bool(mine or tiles)
        if self.divided:
            needed = [n for n in values.nodes if n in wanted and values.varies(n)]
            self._sweep(needed, mine, tiles, body)
        body.add("store the parts", [self._store_part(n) for n in mine])
        body.add("store", self._emit_rows([], body, [r for r in roots if r not in tiles]))
        return body.statements

    def _wanted(self, targets: list[Node]) -> set[Node]:
        """The nodes that ``targets`` need; reductions of earlier kernels are at hand."""
        found: set[Node] = set()
        stack = list(targets)
        while stack:
            node = stack.pop()
            if node in found:
                continue
            found.add(node)
            if not self._is_reduction(node) and node not in self.values.reads:
                stack.extend(node.args)
        return found

    def _combine(self, nodes: list[Node]) -> list[Stmt]:
        """The reductions of whole rows from what programs that share them have left."""
        values = self.values
        out: list[Stmt] = []
        for node in nodes:
            pair = self._pair_of.get(node)
            if pair is not None:
                if node not in values.at_hand:
                    self._online(pair, raw=False).combine(out)
                continue
            name, kind, level = values.name(node), accumulated(node), values.levels[node]
            values.at_hand[node] = as_result(node, Ref(name, kind, level))
            access = values.part(node, written=False)
            # A part of a mean is divided by the length of the row already, so that it is finite.
            op = OPS["sum"] if node.op.name == "mean" else node.op
            out.append(Combine(name, op, access, kind, values.mask(level)))
        return out

    def _online(self, pair: Pair, raw: bool) -> Online:
        """How the target runs a pair; ``raw``: its running values are what the kernel stores."""
        values = self.values
        if values.job.target is CPP:
            return PieceOnline(values, pair)
        if values.job.target is not CUDA:
            return Online(values, pair)
        name = values.name(pair.second)
        return LaneOnline(values, pair, name if raw else values.names.user(f"{name}_total"))

    def _store_part(self, node: Node) -> Store:
        values, level = self.values, self.values.levels[node]
        kind = accumulated(node)
        value = Ref(values.name(node), kind, level)
        return Store(values.part(node, written=True), value, kind, level, values.mask(level))

    def _is_reduction(self, node: Node) -> bool:
        return node.op.kind is Kind.REDUCTION and node not in self.values.reads

    def _find_stages(self) -> None:
        """How many sweeps have to be over before each value is known."""
        values = self.values
        self._stage = stages(values.nodes, values.reads, values.job.online)
        self._pairs = pairs(values.nodes, values.reads, values.job.online)

    @property
    def _pair_of(self) -> dict[Node, Pair]:
        return {node: pair for pair in self._pairs.values() for node in pair.members}

    def _reduced(self, node: Node) -> Node:
        """What a sweep has to know of each element to compute the reduction ``node``."""
        pair = self._pair_of.get(node)
        return node.args[0] if pair is None else pair.value

    def _emit_rows(self, nodes: list[Node], body: Body, roots: Sequence[Root] = ()) -> list[Stmt]:
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
        config = self.values.job.config
        dear = set[Node]()
        if config.keep or config.reread:
            dear = costly(self.values.nodes, self.values.reads, self.values.varies)
        computed: set[Node] = set()
        needed: dict[int, list[Node]] = {}
        for sweep in range(1, last + 2):
            roots = [self._reduced(n) for n in reductions if self._stage[n] == sweep]
            roots += [r.node for r in stores.get(sweep, [])]
            if sweep == last + 1:
                roots += [node for _, node in self.values.job.region.columns]
            rereads = config.reread and sweep == last + 1
            held = computed & dear if config.keep or rereads else set()
            found, recalled = self._columns(roots, held)
            for node in self.values.nodes:
                if config.keep and node in recalled and node not in self.kept:
                    stem = self.values.job.graph.side.names.get(node, node.op.name)
                    self.kept[node] = self.values.names.user(f"{stem}_row")
            self._again |= found & computed
            if rereads:
                again = found & computed - recalled
                self._reread = {n for n in again if self.values.levels[n] is Level.TILE}
            computed |= found
            needed[sweep] = [n for n in self.values.nodes if n in found]
        if self.values.job.config.early and last:
            first = set(needed[1]) | {n for n in computed if self._is_shared(n)}
            needed[1] = [n for n in self.values.nodes if n in first]
        return needed

    def _is_shared(self, node: Node) -> bool:
        """Whether a value is loaded and the same for all rows, as the weights of a norm are."""
        loaded = node in self.values.reads or node.op.name == "input"
        return loaded and self.values.levels[node] is Level.COL

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
        self, needed: list[Node], reductions: list[Node], stores: list[Root], body: Body
    ) -> list[Stmt]:
        """One pass over the row:

        Straight code when it is resident (the stores are returned), else a loop.
        """
        values = self.values
        resident = values.job.config.resident and values.job.target.tiles
        for node in () if reductions else self._reread:
            values.at_hand.pop(node, None)
        outside = dict(values.at_hand)
        fresh = self._elements(needed)
        stored_raw = bool(values.job.part)
        online = [self._online(self._pairs[n], stored_raw) for n in reductions if n in self._pairs]
        for pair in online:
            pair.update(fresh)
        alone = [n for n in reductions if not any(n in p.pair.members for p in online)]
        running = [self._reduce(node, fresh) for node in alone]
        stored: list[Stmt] = []
        values.store(stores, fresh, stored)
        stored += self._add_columns(reductions)
        if values.job.config.caching:
            again = bool(reductions and self._reread)
            fresh = cached(fresh, values.job.config.caching, again)
        if resident:
            fresh = side_by_side(fresh) if values.job.region.columns else fresh
            body.straight(title(values.name, reductions, []) or "compute", fresh)
            return stored
        for node in needed:
            if node not in outside:
                values.at_hand.pop(node, None)
        joint = [a for p in online if isinstance(p, LaneOnline) for a in p.accumulators()]
        accumulators = (*joint, *(a for a in running if a is not None))
        next_row: tuple[Fetch, ...] = ()
        if values.job.target is CUDA:
            fresh, next_row = self._fetched(needed, fresh, body)
        ahead, along = read_soon(values, self._stage, reductions, fresh)
        target = written_soon(values, self._stage, reductions) if ahead and not along else ()
        backwards = values.job.target.masks and not reductions
        several = values.job.config.lanes_along_rows and is_arithmetic(fresh)
        loop = Sweep(
            (*fresh, *stored), accumulators, ahead, along, target, next_row, backwards, several
        )
        loops = in_pieces(values, loop, online) if values.job.config.pieces else loop
        starts = [start for pair in online for start in pair.starts()]
        ends: list[Stmt] = []
        for pair in online if not values.job.part else []:
            pair.finish(ends)
        body.add(title(values.name, reductions, stores), [*starts, loops, *ends])
        return []

    def _add_columns(self, reductions: list[Node]) -> list[Stmt]:
        """What this row adds to the sums over rows, in the sweep that stores: the last one."""
        if reductions:
            return []
        found: list[Stmt] = []
        for buffer, node in self.values.job.region.columns:
            kind = accumulated(node)
            lanes = self.values.names.user(f"{buffer}_lanes")
            sums = ColumnSums(lanes, kind, self.values.column_access(buffer, node))
            self.columns.append(sums)
            found.append(AddColumns(sums, self.values.at_hand[node]))
        return found

    def _elements(self, needed: list[Node]) -> list[Stmt]:
        """The values along the columns, computed, or remembered from an earlier sweep."""
        values = self.values
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
        return fresh

    def _fetched(
        self, needed: list[Node], statements: list[Stmt], body: Body
    ) -> tuple[list[Stmt], tuple[Fetch, ...]]:
        """The statements of a sweep with its loads ahead of the arithmetic; and what of the next
        row comes ahead of that.
        """
        values = self.values
        again = {values.name(n) for n in needed if n in self._again}
        fetches, rest = self._fetches.apart(statements, again, values.names)
        if values.job.config.whole or values.job.config.edges:  # no vector is partly inside
            rest = packed(rest)
        if not values.job.config.resident:
            return [*fetches, *rest], ()
        body.add("load", [s for s in fetches if isinstance(s, Fetch)])
        body.statements.extend(s for s in fetches if isinstance(s, Forget))
        return rest, tuple(s for s in fetches if isinstance(s, Fetch) and s.ahead)

    def _is_identity_outside(self, node: Node, least: Literal) -> bool:
        """Whether lanes outside the row hold the identity already, as their load left it."""
        if not self.values.job.config.bare or least.value != 0:
            return False
        loaded = node in self.values.reads or node.op.name == "input"
        return loaded and self.values.levels[node] is Level.TILE

    def _reduce(self, node: Node, out: list[Stmt]) -> Accumulator | None:
        """Combine the argument of ``node`` along the row, or begin to."""
        values, config = self.values, self.values.job.config
        argument = values.at_hand[node.args[0]]
        kind = accumulated(node)
        running, carry = running_types(values, node, kind)
        if argument.dtype is not running:
            argument = Convert(argument, running, argument.level)
        least = Literal(identity(node, running), running)
        masks = values.job.target.masks and not (config.resident and config.even)
        if masks and not self._is_identity_outside(node.args[0], least):
            argument = Masked(argument, least, running, argument.level)
        name, level = values.name(node), values.levels[node]
        values.at_hand[node] = as_result(node, Ref(name, kind, level))
        if config.resident and values.job.target.tiles:
            out.append(Reduce(name, node.op, argument, kind))
            return None
        lanes = f"{name}_part" if values.job.target is CUDA else f"{name}_lanes"
        accumulator = Accumulator(name, lanes, node.op, kind, running, least, carry)
        out.append(Accumulate(accumulator, argument))
        return accumulator
