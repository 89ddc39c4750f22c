"""Kernels of rows as C++: loops along each row, and parts of long rows that threads share.

May import ``fusec.ir`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fusec.codegen.cpp_statements import SIMD, Statements, parallel
from fusec.codegen.kernel import Accumulator, Level, Literal, Ref, Stmt, Store, Sweep
from fusec.codegen.uses import reads
from fusec.ir.dtypes import DType
from fusec.ir.ops import Template

INLINE = "FUSEC_BODY"
ONCE = "FUSEC_WORK"


@dataclass(slots=True)
class Rows(Statements):
    """Sweeps over rows one behind the other."""

    def rows(self) -> None:
        """The body of the kernel."""
        if self.kernel.config.shared:
            self._shared_rows()
            return
        sweeps = [s for s in self.kernel.body if isinstance(s, Sweep)]
        if any(sweep.ahead and not sweep.along for sweep in sweeps):
            self.writer.line("const int64_t ahead = fusec::rows_ahead(cols);")
        with self.threads() as share:
            self.writer.line(share)
            if self.kernel.columns:
                self._blocks_of_rows()
            else:
                self._row_loop()

    def _blocks_of_rows(self) -> None:
        """Blocks of rows, each with its sums over them; how many there are depends on the rows."""
        line, sums = self.writer.line, self.kernel.columns
        with self.loop("program", "chunks"):
            for each in sums:
                line(f"fusec::zero({each.lanes}, cols);")
            line("const int64_t row_end = fusec::minimum((program + 1) * share, rows);")
            with self.loop("row", "row_end", "program * share"):
                self.statements(self.kernel.body)
            line("// store the sums over the rows")
            with self.loop("col", "cols"):
                for each in sums:
                    place = f"{each.access.buffer}[{self.address(each.access)}]"
                    line(f"{place} = {each.lanes}.data[col];")

    def _row_loop(self) -> None:
        with self.loop("row", "rows"):
            self._row()

    def _row(self) -> None:
        self.variables(Level.ROW)
        self.statements(self.kernel.body)

    def sweep(self, sweep: Sweep) -> None:
        """A loop over the row; with running values it goes in stretches of 64 lanes."""
        if self.kernel.config.shared:
            self._shared_sweep(sweep)
            return
        if not sweep.accumulators:
            self.columns(sweep.body, "col", "cols", next_row=sweep.ahead)
            return
        self._reduce(sweep, self.sweep_call("0", "cols"))
        for accumulator in sweep.accumulators:
            self._finish(accumulator, self.emptied(accumulator))

    def _reduce(self, sweep: Sweep, call: str) -> None:
        """Running values over a row, or a part of one."""
        for accumulator in sweep.accumulators:
            self.declare(accumulator)
        self.stretch(sweep, call)

    def sweep_call(self, start: str, end: str) -> str:
        """The beginning of a call that goes over a row, or a part of one, stretch by stretch."""
        inner = self.innermost(Level.COL)
        if inner is not None:
            return f"fusec::sweep_runs({start}, {end}, {inner.modulus}"
        return f"fusec::sweep({end}" if start == "0" else f"fusec::sweep_part({start}, {end}"

    def stretch(self, sweep: Sweep, call: str, next_piece: str = "") -> None:
        """The loops of ``call`` over a stretch of the row; ``next_piece``: where what is fetched
        ahead begins, if not in the next row.
        """
        carried = [a for a in sweep.accumulators if a.carry is not a.accumulate]
        opening = f"{call}, [&](int64_t start, int64_t count) {INLINE} {{"
        with self.writer.block(opening, "}, [&] {" if carried else "});"):
            for access in sweep.ahead:
                place = self.at_start(access, "(row + ahead)")
                if next_piece or sweep.along:
                    place = self.at_start(access, "row", next_piece or "start + fusec::FAR")
                self.writer.line(f"fusec::prefetch(&{access.buffer}[{place}]);")
            for access in sweep.target:
                place = self.at_start(access, "row")
                self.writer.line(f"fusec::prefetch_to_write(&{access.buffer}[{place}]);")
            if self.innermost(Level.COL) is not None:
                self.places(Level.COL, "start")
            self.writer.line(SIMD)
            with self.loop("lane", "count"):
                self.place_of_lane(Level.COL, "start", sweep.body)
                self.statements(sweep.body)
            self.write_blocks(sweep.body)
        if carried:
            with self.writer.block("", "});"):
                for accumulator in carried:
                    self.writer.line(f"fusec::carry({accumulator.name}_wide, {accumulator.lanes});")

    def declare(self, accumulator: Accumulator) -> None:
        """The lanes of a running value, and the wider ones that they are emptied into."""
        kind = accumulator.accumulate
        self._lanes(accumulator, kind)
        if accumulator.carry is not kind:
            wide = f"{accumulator.name}_wide"
            self.writer.line(f"{accumulator.carry.cpp} {wide}[fusec::LANES];")
            self.writer.line(f"fusec::fill<{accumulator.carry.cpp}>({wide}, 0.0);")

    def _lanes(self, accumulator: Accumulator, kind: DType) -> None:
        self.writer.line(f"{kind.cpp} {accumulator.lanes}[{self.width()}];")
        self.writer.line(
            f"fusec::fill<{kind.cpp}>({accumulator.lanes}, {self.identity(accumulator, kind)});"
        )

    def width(self) -> str:
        """How many lanes run side by side at most."""
        return "fusec::LANES"

    def identity(self, accumulator: Accumulator, kind: DType) -> str:
        """What a running value begins with."""
        return self.dialect.literal(Literal(accumulator.identity.value, kind), strict=True)

    def emptied(self, accumulator: Accumulator) -> str:
        """The lanes that hold all that was reduced."""
        carried = accumulator.carry is not accumulator.accumulate
        return f"{accumulator.name}_wide" if carried else accumulator.lanes

    def _finish(self, accumulator: Accumulator, lanes: str) -> None:
        form = accumulator.op.cpp.usual
        assert isinstance(form, Template)
        value = self.narrow(form.text.format(lanes), accumulator)
        self.define(accumulator.name, accumulator.dtype, value)

    def narrow(self, value: str, accumulator: Accumulator) -> str:
        """A running value as the result it is."""
        if accumulator.dtype is accumulator.carry:
            return value
        return f"static_cast<{accumulator.dtype.cpp}>({value})"

    # -- long rows, in parts that threads may share -----------------------------------------------

    def _shared_rows(self) -> None:
        line = self.writer.line
        line("const fusec::Parts parts(cols, fusec::ROW_PART);")
        if self.kernel.blocks:
            line(f"constexpr int64_t BLOCK = {self.kernel.config.stream};")
        row = "int64_t row" if self.asks_for_row(self.kernel.body) else "int64_t"
        opening = f"parts.each_row(rows, threads, [&]({row}, int32_t team) {ONCE} {{"
        with self.writer.block(opening, "});"):
            self.declare_kept()
            self._row()

    def asks_for_row(self, statements: Sequence[Stmt]) -> bool:
        """Whether statements, or index variables, depend on the row."""
        derived = any(v.level is Level.ROW for v in self.kernel.variables)
        return derived or "row" in reads(statements)

    def _shared_sweep(self, sweep: Sweep) -> None:
        """A sweep by parts, whose running values are joined in the order of the parts."""
        self.declare_parts(sweep.accumulators)
        blocks = any(isinstance(s, Store) and s.block for s in sweep.body)
        with self.team_region(blocks) as share, self.each_part(share):
            if not sweep.accumulators:
                self.columns(sweep.body, "col", "col_end", "col_start")
                return
            self._reduce(sweep, self.sweep_call("col_start", "col_end"))
            self.leave_parts(sweep.accumulators)
        self.join_parts(sweep.accumulators)

    def declare_parts(self, accumulators: Sequence[Accumulator]) -> None:
        """Where the parts of a row leave their running values."""
        for accumulator in accumulators:
            kind = accumulator.carry.cpp
            self.writer.line(f"{kind} {accumulator.name}_parts[fusec::PARTS][fusec::LANES];")

    def leave_parts(self, accumulators: Sequence[Accumulator]) -> None:
        """What a part has come to, where :meth:`join_parts` finds it."""
        for accumulator in accumulators:
            lanes = self.emptied(accumulator)
            self.writer.line(f"fusec::copy({lanes}, {accumulator.name}_parts[part]);")

    def join_parts(self, accumulators: Sequence[Accumulator]) -> None:
        """What the whole row comes to."""
        for accumulator in accumulators:
            self.join(accumulator, f"{accumulator.name}_parts[part][lane]", "fusec::LANES")
            self._finish(accumulator, accumulator.lanes)

    @contextmanager
    def team_region(self, blocks: bool) -> Iterator[str]:
        """The threads of a team, each with its buffers if there are any; yields what shares a loop
        out.
        """
        if not blocks:
            yield parallel("team")
            return
        self.writer.line("#pragma omp parallel num_threads(team)")
        with self.writer.block("{", "}"):
            self.declare_blocks()
            yield "#pragma omp for schedule(static)"

    @contextmanager
    def each_part(self, share: str) -> Iterator[None]:
        """A loop over the parts of what is reduced."""
        self.writer.line(share)
        with self.loop("part", "parts.count"):
            self.writer.line("const int64_t col_start = parts.begin(part);")
            self.writer.line("const int64_t col_end = parts.end(part);")
            yield

    def join(self, accumulator: Accumulator, part: str, count: str) -> None:
        """The running values of all parts, one after the other, in lanes of the usual name."""
        kind = accumulator.carry
        self._lanes(accumulator, kind)
        with self.loop("part", "parts.count"):
            self.writer.line(SIMD)
            with self.loop("lane", count):
                value = Ref(part, kind, Level.TILE)
                self.combine(accumulator, f"{accumulator.lanes}[lane]", kind, value)
