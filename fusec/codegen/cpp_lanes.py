"""Kernels of rows as C++ where memory runs along the rows: up to 2048 of them side by side.

May import ``fusec.ir`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from fusec.codegen.cpp_pieces import RowPieces
from fusec.codegen.cpp_rows import INLINE, ONCE, Rows
from fusec.codegen.cpp_statements import PARALLEL, SIMD, parallel
from fusec.codegen.kernel import Accumulator, Comment, Let, Level, Load, Stmt, Sweep
from fusec.codegen.uses import dtype_of, reads
from fusec.ir.dtypes import DType


@dataclass(slots=True)
class RowLanes(RowPieces):
    """Rows as lanes:

    Each statement outside a sweep is a loop over them that remembers its values.
    """

    row_values: dict[str, DType] = field(default_factory=dict)  # what each lane remembers
    held: tuple[Accumulator, ...] = ()  # running values that a lane has at hand

    def rows(self) -> None:
        """The body of the kernel."""
        if not self.kernel.config.lanes_along_rows:
            Rows.rows(self)
            return
        line, inner = self.writer.line, self.innermost(Level.ROW)
        if inner is not None:
            line(f"const fusec::Runs runs(rows, {inner.modulus}, threads);")
        if self.kernel.config.shared:
            line("const fusec::Parts parts(cols, fusec::COLUMN_PART);")
            arguments = "int64_t first, int64_t count, int32_t team"
            each = "each_stretch(rows" if inner is None else "each_run(runs"
            opening = f"parts.{each}, threads, [&]({arguments}) {ONCE} {{"
            with self.writer.block(opening, "});"):
                self._stretch()
            return
        if inner is None:
            line("const int64_t step = fusec::rows_abreast(rows, threads);")
            line(PARALLEL)
            with self.stretches("first", "rows", "step"):
                line("const int64_t count = fusec::minimum(rows - first, step);")
                self._stretch()
            return
        line(PARALLEL)
        with self.loop("run", "runs.count"):
            line("const int64_t first = runs.begin(run), count = runs.length(run);")
            self._stretch()

    def width(self) -> str:
        """How many lanes run side by side at most."""
        return "fusec::ABREAST" if self.kernel.config.lanes_along_rows else "fusec::LANES"

    def _stretch(self) -> None:
        """All statements, for the rows that run side by side."""
        if self.innermost(Level.ROW) is not None:
            self.places(Level.ROW, "first")
        pending: list[Stmt] = []
        for position, statement in enumerate(self.kernel.body):
            if not isinstance(statement, Sweep):
                pending.append(statement)
                continue
            title = pending.pop() if pending and isinstance(pending[-1], Comment) else None
            self._between_sweeps(pending, self.kernel.body[position:])
            pending = []
            self.statements([title] if title else [])
            self._sweep_down(statement)
        self._between_sweeps(pending, ())

    def _between_sweeps(self, statements: list[Stmt], later: Sequence[Stmt]) -> None:
        """A loop over the rows of the block;

        What is read again later is remembered for each lane.
        """
        if not statements:
            return
        used = reads(later)
        made = {
            s.name: dtype_of(s) for s in statements if isinstance(s, (Let, Load)) and s.name in used
        }
        for name, dtype in made.items():
            self.writer.line(f"{dtype.cpp} {name}_lanes[{self.width()}];")
        with self._row_lanes(statements):
            self.statements(statements)
            for name in made:
                self.writer.line(f"{name}_lanes[lane] = {name};")
        self.row_values.update(made)

    def _sweep_down(self, sweep: Sweep) -> None:
        if not self.kernel.config.shared:
            for accumulator in sweep.accumulators:
                self.declare(accumulator)
            self._down(sweep, "0", "cols")
        else:
            self._shared_down(sweep)
        self.row_values.update({a.name: a.dtype for a in sweep.accumulators})

    def _shared_down(self, sweep: Sweep) -> None:
        """The same by parts; the running values of all rows of a part lie side by side."""
        line = self.writer.line
        for accumulator in sweep.accumulators:
            name, kind = f"{accumulator.name}_parts", accumulator.carry.cpp
            line(f"const fusec::Row<{kind}> {name}(parts.count * count);")
        with self.each_part(parallel("team")):
            for accumulator in sweep.accumulators:
                lanes, running = accumulator.lanes, accumulator.carry
                begin = f"&{accumulator.name}_parts.data[part * count]"
                line(f"{running.cpp}* const {lanes} = {begin};")
                least = self.identity(accumulator, running)
                line(f"fusec::fill<{running.cpp}>({lanes}, count, {least});")
            self._down(sweep, "col_start", "col_end")
        for accumulator in sweep.accumulators:
            self.join(accumulator, f"{accumulator.name}_parts.data[part * count + lane]", "count")

    def _down(self, sweep: Sweep, start: str, end: str) -> None:
        """A loop down the columns, a few at a time where little is computed with each."""
        line = self.writer.line
        if not (sweep.accumulators and sweep.several):
            with self.loop("col", end, start):
                self.variables(Level.COL)
                with self._row_lanes(sweep.body):
                    self.statements(sweep.body)
            return
        opening = f"fusec::down({start}, {end}, [&](int64_t start, auto several) {INLINE} {{"
        with self.writer.block(opening, "});"), self._row_lanes(sweep.body):
            for accumulator in sweep.accumulators:
                running = f"{accumulator.carry.cpp} {accumulator.name}"
                line(f"{running} = {accumulator.lanes}[lane];")
            self.held = sweep.accumulators
            with self.loop("step", "several"):
                line("const int64_t col = start + step;")
                self.variables(Level.COL)
                self.statements(sweep.body)
            self.held = ()
            for accumulator in sweep.accumulators:
                line(f"{accumulator.lanes}[lane] = {accumulator.name};")

    def running(self, accumulator: Accumulator) -> str:
        """What the statements of a sweep call a running value."""
        if accumulator in self.held:
            return accumulator.name
        return Rows.running(self, accumulator)

    @contextmanager
    def _row_lanes(self, statements: Sequence[Stmt]) -> Iterator[None]:
        """A loop over the rows of the block, in which the remembered values that are read get their
        names back.
        """
        self.writer.line(SIMD)
        with self.loop("lane", "count"):
            self._recall_rows(statements)
            yield

    def _recall_rows(self, statements: Sequence[Stmt]) -> None:
        used = reads(statements)
        self.place_of_lane(Level.ROW, "first", statements)
        for name, dtype in self.row_values.items():
            if name in used:
                self.define(name, dtype, self._remembered(name, dtype))

    def _remembered(self, name: str, dtype: DType) -> str:
        """What a lane knows of its row;

        A running value may be wider than the result, or still lack its division.
        """
        text = f"{name}_lanes[lane]"
        sweeps = [s for s in self.kernel.body if isinstance(s, Sweep)]
        made = next((a for s in sweeps for a in s.accumulators if a.name == name), None)
        if made is None:
            return text
        if made.op.name == "mean":
            text = f"{text} / static_cast<{made.accumulate.cpp}>(cols)"
        return self.narrow(text, made)
