"""Kernel to CUDA C++ source: constants, the helpers it needs, one ``extern "C"`` kernel. Prints,
decides nothing.

Every kernel works in vectors of LANES elements, VECTORS of them to a thread at a time. A row
belongs to GROUP threads of each of CLUSTER blocks, and a block has ROWS of them; an elementwise
kernel is one long row, or has a row for each vector of a thread.

May import ``fusec.ir`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from fusec.codegen.cuda_helpers import HELPERS, needed
from fusec.codegen.cuda_place import constants, parameters
from fusec.codegen.cuda_turns import Turns, next_rows
from fusec.codegen.kernel import (
    Accumulate,
    Combine,
    Comment,
    Fetch,
    Forget,
    Form,
    Keep,
    Kernel,
    Let,
    Level,
    Literal,
    Load,
    Recall,
    Reduce,
    Rescale,
    Stmt,
    Store,
    Sweep,
)
from fusec.codegen.uses import asks_where, mentioned
from fusec.codegen.writer import Writer

_ROLES = {
    "THREADS": "threads of a block",
    "BLOCKS": "blocks that the registers of a multiprocessor have to hold",
    "WARPS": "warps of a block",
    "ROWS": "rows of a block",
    "GROUP": "threads of a block that share a row",
    "CLUSTER": "blocks that share a row",
    "LANES": "elements of a vector",
    "VECTORS": "vectors that a thread works on at a time",
    "FULL": "of those, how many are inside their row whatever the row",
    "TILE": "elements of a row that a block works on at a time",
    "SPLITS": "parts of a row, each the work of one group",
}


def print_cuda(kernel: Kernel) -> str:
    """The source of ``kernel``: the formula, constants, helpers and the kernel itself."""
    body = _Printer(kernel).text()
    helpers = [HELPERS[name] for name in needed(body)]
    used = "".join((body, *helpers))
    writer = Writer("  ")
    for line in kernel.header:
        writer.line(f"// {line}".rstrip().rstrip("\\"))
    writer.line()
    for name, value in constants(kernel).items():
        if name in used:
            writer.line(f"constexpr int {name} = {value};  // {_ROLES[name]}")
    return writer.text() + "".join(helpers) + "\n" + body


@dataclass(slots=True)
class _Printer(Turns):
    def text(self) -> str:
        kernel, writer = self.kernel, self.writer
        self.dialect.calls = kernel.calls
        bounds = "__launch_bounds__(THREADS)"
        if kernel.config.blocks > 1 or kernel.config.turns:
            bounds = "__launch_bounds__(THREADS, BLOCKS)"
        if kernel.config.cluster > 1:
            bounds += " __cluster_dims__(CLUSTER)"
        arguments = [f"{kind} {name}" for name, kind in parameters(kernel)]
        opening = f'extern "C" __global__ void {bounds} {kernel.name}('
        writer.line(opening)
        for argument in arguments[:-1]:
            writer.line(f"    {argument},")
        with writer.block(f"    {arguments[-1]}) {{", "}"):
            self._place()
            self._scales(kernel.body)
            if kernel.config.cluster > 1:
                self._meet()
            with self._rows_in_turn() if kernel.config.turns else nullcontext():
                self._declare_computed()
                self._statements(kernel.body)
        return writer.text()

    def _declare_computed(self) -> None:
        """What a thread keeps of a row that it has computed."""
        for name, dtype in self.kernel.kept:
            lanes = "[LANES]" if self._lanes else ""
            self.writer.line(f"{dtype.cuda} {name}[VECTORS]{lanes};")
            if self.kernel.config.edges:
                self.writer.line(f"{dtype.cuda} {name}_edge;")

    # -- statements -------------------------------------------------------------------------------

    def _statements(self, statements: Iterable[Stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, statement: Stmt) -> None:
        printers: dict[type, Callable[[Any], None]] = {
            Comment: self._comment,
            Let: lambda s: self._define(s.name, s.value.dtype, self.dialect.text(s.value)),
            Load: self._load,
            Fetch: self._fetch_one,
            Forget: self._forget,
            Store: self._store,
            Combine: self._combine,
            Accumulate: self._accumulate,
            Keep: self._keep,
            Recall: self._recall,
            Reduce: self._reduce_parts,
            Rescale: self._rescale,
            Sweep: self._sweep,
        }
        printers[type(statement)](statement)

    def _comment(self, comment: Comment) -> None:
        self.writer.gap()
        self.writer.line(f"// {comment.text}")

    def _forget(self, statement: Forget) -> None:
        with self._loop():
            self.writer.line(f"forget({statement.buffer}[vector]);")

    def _keep(self, statement: Keep) -> None:
        place = self._held_place(statement.buffer)
        self.writer.line(f"{place} = {self.dialect.text(statement.value)};")

    def _load(self, load: Load) -> None:
        """One element, or where vectors are at work and it is wide, its lane of one."""
        if any(term.variable == "part" for term in load.access.terms):
            self._of_parts.append(load)
            return
        if load.wide and self._in_lanes and not self._at_edge:
            text = self._element(f"{load.name}_vector", load.storage)
            self._define(load.name, load.dtype, self._widen(text, load.storage))
            return
        text = f"{load.access.buffer}[{self._address(load.access)}]"
        element = self._widen(self._kept_element(load) if load.staged else text, load.storage)
        guards = [self.dialect.text(guard) for guard in load.guards]
        if self._in_lanes and Level.COL in load.level:
            guards = guards if self.dialect.inside else ["inside", *guards]
        elif Level.ROW in load.level and self._several_rows:
            guards = ["row < rows", *guards]
        if guards:
            other = self.dialect.literal(Literal(load.other, load.dtype), strict=True)
            element = f"{' && '.join(guards)} ? {element} : {other}"
        self._define(load.name, load.dtype, element)

    def _recall(self, statement: Recall) -> None:
        if statement.storage is None:
            self._define(statement.name, statement.dtype, self._held_place(statement.buffer))
            return
        if statement.wide and not self._at_edge:
            text = self._element(f"{statement.buffer}[vector]", statement.storage)
        else:
            text = self._held_place(statement.buffer)
        self._define(statement.name, statement.dtype, self._widen(text, statement.storage))

    def _store(self, store: Store) -> None:
        if store.wide and self._in_lanes and not self._at_edge:
            value = self.dialect.text(store.value)
            self.writer.line(f"{self._stored_lanes(store)}[lane] = {value};")
            return
        element = f"{store.access.buffer}[{self._address(store.access)}]"
        text = f"{element} = {self.dialect.stored(store.value, store.storage)};"
        if self._in_lanes:
            guard = self._has_row if self._full else "inside"
        elif self.kernel.form is Form.TILE:
            guard = "member == 0 && row < rows"
        elif self.kernel.form is Form.FLAT:
            guard = ""
        else:
            guard = f"member == 0 && {self._has_row}" if self._has_row else "member == 0"
        self.writer.line(f"if ({guard}) {text}" if guard else text)

    # -- reductions -------------------------------------------------------------------------------

    # -- loops over the vectors of a thread -------------------------------------------------------

    def _sweep(self, sweep: Sweep) -> None:
        pairs = [s for s in sweep.body if isinstance(s, Rescale)]
        for accumulator in sweep.accumulators:
            self._declare(accumulator)
        if self.kernel.form is Form.ROWS and not self.kernel.config.resident:
            self._tiles(sweep)
        else:
            self._vectors(sweep.body)
        self._edge(sweep.body)
        self._begin_next(sweep.next_row)
        self._finish_all(sweep, pairs)

    def _finish_all(self, sweep: Sweep, pairs: Sequence[Rescale]) -> None:
        """What the threads of a row have, combined."""
        resident = self.kernel.config.resident
        joint = {a.name for pair in pairs for a in (pair.largest, pair.total)} if resident else {}
        for pair in pairs if resident else ():
            self._finish_online(pair)
        totals = {pair.total.name: pair for pair in pairs}
        for accumulator in sweep.accumulators:
            name = accumulator.name
            if name in joint:
                continue
            if name in totals:
                self._rescale_part(totals[name])
            self._finish(name, accumulator.op.name, accumulator.lanes, accumulator.dtype)

    def _tiles(self, sweep: Sweep) -> None:
        """A row that no registers hold, tile by tile."""
        begin, end = "0", self._length
        if self.kernel.config.edges:
            end = "end" if self.kernel.start is None else "(end - head)"
        elif self.kernel.start is not None:
            end = f"({end} + shift)"
        if self.kernel.divided:
            begin, end = "first_col", "last_col"
        steps = f"{self._index} tile = {begin}; tile < {end}; tile += TILE"
        if sweep.backwards:
            last = f"({end} - 1) / TILE * TILE"
            if self.kernel.divided:
                last = "first_col + (last_col - first_col - 1) / TILE * TILE"
            steps = f"{self._index} tile = {last}; tile >= {begin}; tile -= TILE"
        elif self.kernel.config.apart:
            self._tiles_apart(sweep, begin, end)
            return
        self._tile(f"for ({steps}) {{", sweep.body)

    def _tiles_apart(self, sweep: Sweep, begin: str, end: str) -> None:
        """The whole tiles of a row without masks, and then what is left of it. The vectors of the
        next tile are on their way while one is worked on.
        """
        body: Sequence[Stmt] = sweep.body
        with self._block("{"):
            self.writer.line(f"{self._index} tile = {begin};")
            fetches = [s for s in body if isinstance(s, Fetch)]
            if self._by_vector and all(fetch.wide for fetch in fetches):
                self._fetch(fetches)
                body = [s for s in body if s not in fetches]
                self._refilled = fetches
            self.dialect.inside = True
            self._tile(f"for (; tile + TILE <= {end}; tile += TILE) {{", body)
            self.dialect.inside, self._refilled = False, []
            self._limit = end
            self._tile(f"if (tile < {end}) {{", body)
            self._limit = ""

    def _tile(self, opening: str, statements: Sequence[Stmt]) -> None:
        """What is done with the tile at hand."""
        with self._block(opening):
            self._fetch([s for s in statements if isinstance(s, Fetch)])
            self._vectors([s for s in statements if not isinstance(s, Fetch)])

    def _fetch(self, fetches: Sequence[Fetch], edges: bool = False) -> None:
        for fetch in fetches:
            kind = f"Vector<{fetch.storage.cuda}>" if fetch.wide else fetch.storage.cuda
            lanes = "[LANES]" if self._lanes and not fetch.wide else ""
            self.writer.line(f"{kind} {fetch.buffer}[VECTORS]{lanes};")
            if edges:
                self.writer.line(f"{fetch.storage.cuda} {fetch.buffer}_edge{{}};")
        if not fetches:
            return
        scalar = [fetch for fetch in fetches if not fetch.wide]
        with self._loop():
            self._first()
            for fetch in fetches:
                if fetch.wide:
                    text = self._vector(fetch.access, self.kernel.config.cluster > 1)
                    self.writer.assign(f"{fetch.buffer}[vector]", f"{text};")
            if scalar:
                self._lane_loop(scalar)
        for fetch in fetches if edges else ():
            element = f"{fetch.access.buffer}[{self._address(fetch.access, 'edge')}]"
            self.writer.line(f"if (edge < {self._length}) {fetch.buffer}_edge = {element};")

    def _fetch_one(self, fetch: Fetch) -> None:
        if self._in_lanes:
            self._fetch_element(fetch)
        elif fetch.ahead:
            ahead = next_rows(self.kernel)
            if fetch is ahead[0]:
                self._take_row(ahead)
        else:
            self._fetch([fetch], edges=self.kernel.config.edges)

    def _fetch_element(self, fetch: Fetch) -> None:
        element = f"{fetch.access.buffer}[{self._address(fetch.access)}]"
        guard = "" if self.dialect.inside else "if (inside) "
        self.writer.line(f"{guard}{self._held_place(fetch.buffer)} = {element};")

    def _edge(self, statements: Sequence[Stmt]) -> None:
        """The same for the elements around the whole vectors of a row."""
        if not self.kernel.config.edges:
            return
        mine = "split == 0 && " if self.kernel.divided else ""
        length = self._length
        self._in_lanes = self._at_edge = self.dialect.inside = True
        self.writer.line("// the elements before the first whole vector and behind the last")
        with self._block(f"if ({mine}edge < {length}) {{"):
            self.writer.line(f"const {self._index} col = edge;")
            pairs = [s for s in statements if isinstance(s, Rescale)]
            self._before(pairs)
            self._phase = 1
            for statement in statements:
                if isinstance(statement, Fetch):
                    self.writer.line(f"{statement.storage.cuda} {statement.buffer}_edge{{}};")
                self._statement(statement)
            self._rebase(pairs)
            self._phase = 2
            self._statements(pairs)
            self._phase = 0
        self._in_lanes = self._at_edge = self.dialect.inside = False

    def _vectors(self, statements: Sequence[Stmt]) -> None:
        """What a sweep does, vector by vector and lane by lane."""
        before = [s for s in statements if isinstance(s, (Let, Load)) and self._outside(s)]
        inner = [s for s in statements if s not in before]
        stores = [s for s in inner if isinstance(s, Store) and s.wide]
        pairs = [s for s in inner if isinstance(s, Rescale) and s.packed]
        self._packed_maxima(pairs)
        with self._loop():
            self._leave()
            self._first(asks_where(inner) or bool(self._refilled))
            self._work(before, inner, stores)
            self._refill()
        self._add_tile(pairs)

    def _work(self, before: Sequence[Stmt], inner: Sequence[Stmt], stores: Sequence[Store]) -> None:
        """What a sweep does for one vector."""
        self._statements(before)
        for load in (s for s in inner if isinstance(s, Load) and s.wide):
            kind = f"const Vector<{load.storage.cuda}> {load.name}_vector"
            self.writer.assign(kind, f"{self._wide(load)};")
        for store in stores:
            kind = store.storage.compute.cuda
            self.writer.line(f"{kind} {self._stored_lanes(store)}[LANES];")
        self._lane_loops(inner)
        for store in stores:
            self._store_vector(store)

    def _outside(self, statement: Let | Load) -> bool:
        return self.kernel.form is Form.TILE and Level.COL not in statement.level

    def _lane_loops(self, statements: Sequence[Stmt]) -> None:
        """A loop over the lanes; a pair of reductions takes the maximum of the vector first."""
        pairs = [s for s in statements if isinstance(s, Rescale)]
        if all(pair.packed for pair in pairs):
            self._phase = 3 if pairs else 0
            self._lane_loop(statements)
            self._phase = 0
            return
        self._before(pairs)
        self._phase = 1
        self._lane_loop(statements)
        self._rebase(pairs)
        self._phase = 2
        rest = [s for s in statements if not isinstance(s, (Accumulate, Keep))]
        if self._lanes:
            self._lane_loop(rest)
        else:  # the values of the one lane are still in scope
            self._in_lanes = True
            self._statements(pairs)
            self._in_lanes = False
        self._phase = 0

    def _lane_loop(self, statements: Sequence[Stmt]) -> None:
        used = mentioned(statements)
        if self.dialect.inside:
            used.discard("inside")
        if self._by_vector and "inside" in used and self._phase != 2:
            sure = "vector < FULL || " if self.kernel.config.full else ""
            self.writer.line(f"const bool inside = {sure}first < {self._end};")
        self._in_lanes = True
        if self._lanes:
            self.writer.line("#pragma unroll")
            with self._block("for (int lane = 0; lane < LANES; ++lane) {"):
                self._columns(used)
                self._statements(statements)
        else:
            self._columns(used)
            self._statements(statements)
        self._in_lanes = False
