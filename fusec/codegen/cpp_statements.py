"""Kernel statements to lines of C++, and the loops along the columns that hold them.

``codegen/cpp.py`` puts the loop nests of the forms around these. May import ``fusec.ir`` and the
modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

from fusec.codegen.cpp_dialect import Cpp
from fusec.codegen.expr import position_text
from fusec.codegen.kernel import (
    Access,
    Accumulate,
    Accumulator,
    AddColumns,
    Apply,
    Comment,
    Expr,
    Keep,
    Kernel,
    Let,
    Level,
    Literal,
    Load,
    Pieces,
    Recall,
    Ref,
    Stmt,
    Store,
    Sweep,
    Term,
    Variable,
)
from fusec.codegen.uses import reads
from fusec.codegen.writer import Writer
from fusec.ir.dtypes import DType
from fusec.ir.ops import OPS, Infix

SIMD = "#pragma omp simd"


def parallel(team: str) -> str:
    """What shares the loop below it out over so many threads."""
    return f"#pragma omp parallel for num_threads({team}) schedule(static)"


PARALLEL = parallel("threads")
# Where a tile holds an element: in strips of 64 columns, one behind the other.
IN_TILE = "(row - row_start + strip - col_start) * fusec::TILE + col - strip"


@dataclass(slots=True)
class Statements:
    """What is printed, and where to."""

    kernel: Kernel
    writer: Writer
    dialect: Cpp = field(default_factory=Cpp)

    def sweep(self, sweep: Sweep) -> None:
        """A loop over the row."""
        raise NotImplementedError

    def pieces(self, pieces: Pieces) -> None:
        """A loop over the pieces of a row."""
        raise NotImplementedError

    def at_start(self, access: Access, row: str, start: str = "start") -> str:
        """The address of the stretch at hand, or of another, in this row or another."""
        terms = {"row": row, "col": start, "i": start}
        places = ((terms.get(t.variable, t.variable), t.stride) for t in access.terms)
        return self.address(Access(access.buffer, tuple(Term(*place) for place in places)))

    @contextmanager
    def threads(self) -> Iterator[str]:
        """The threads, each with its buffers if there are any; yields what shares a loop out."""
        if not (self.kernel.kept or self.kernel.columns or self.kernel.blocks):
            yield PARALLEL
            return
        if self.kernel.blocks:
            self.writer.line(f"constexpr int64_t BLOCK = {self.kernel.config.stream};")
        self.writer.line("#pragma omp parallel num_threads(threads)")
        with self.writer.block("{", "}"):
            self.declare_kept()
            self.declare_blocks()
            yield "#pragma omp for schedule(static)"

    def declare_kept(self) -> None:
        """The buffers as long as a row: what waits for a later sweep, and sums over rows."""
        sums = ((s.lanes, s.dtype) for s in self.kernel.columns)
        for name, dtype in (*self.kernel.kept, *sums):
            self.writer.line(f"const fusec::Row<{dtype.cpp}> {name}(cols);")

    def declare_blocks(self) -> None:
        """The buffers of a thread for results on their way past the caches."""
        for name, dtype in self.kernel.blocks:
            self.writer.line(f"fusec::Block<{dtype.cpp}, BLOCK> {name};")

    def columns(
        self,
        statements: Sequence[Stmt],
        variable: str,
        end: str,
        start: str = "0",
        next_row: Sequence[Access] = (),
    ) -> None:
        """A vector loop along the columns; results that pass by the caches go block by block, with
        what to fetch of a row further on.
        """
        if not any(isinstance(s, Store) and s.block for s in statements):
            inner = self.innermost(Level.COL)
            if inner is not None:
                self._runs_of_columns(statements, inner, end, start)
                return
            self.writer.line(SIMD)
            with self.loop(variable, end, start):
                self.variables(Level.COL)
                self.statements(statements)
            return
        with self.stretches("start", end, "BLOCK", start):
            self.writer.line(f"const int64_t count = fusec::minimum({end} - start, BLOCK);")
            for access in self.kernel.ahead:
                place = self.at_start(access, "row", "start + fusec::AHEAD")
                self.writer.line(f"fusec::prefetch<BLOCK>(&{access.buffer}[{place}]);")
            for access in next_row:
                place = self.at_start(access, "(row + ahead)")
                self.writer.line(f"fusec::prefetch<BLOCK>(&{access.buffer}[{place}]);")
            self.writer.line(SIMD)
            with self.loop("lane", "count"):
                self.writer.line(f"const int64_t {variable} = start + lane;")
                self.variables(Level.COL)
                self.statements(statements)
            self.write_blocks(statements)

    def _runs_of_columns(
        self, statements: Sequence[Stmt], inner: Variable, end: str, start: str
    ) -> None:
        """The same along several axes: a vector loop along the innermost, the others around it."""
        opening = f"for (int64_t start = {start}, stop; start < {end}; start = stop) {{"
        with self.writer.block(opening, "}"):
            self.writer.line(f"stop = fusec::run_end(start, {end}, {inner.modulus});")
            self.places(Level.COL, "start")
            self.writer.line(SIMD)
            with self.loop("lane", "stop - start"):
                self.place_of_lane(Level.COL, "start", statements)
                self.statements(statements)

    def write_blocks(self, statements: Sequence[Stmt]) -> None:
        for store in statements:
            if isinstance(store, Store) and store.block:
                place = f"&{store.access.buffer}[{self.at_start(store.access, 'row')}]"
                self.writer.line(f"{store.block}.write({place}, count);")

    def loop(self, variable: str, bound: str, start: str = "0") -> AbstractContextManager[None]:
        return self.writer.block(
            f"for (int64_t {variable} = {start}; {variable} < {bound}; ++{variable}) {{", "}"
        )

    def stretches(
        self, start: str, bound: str, step: str, first: str = "0"
    ) -> AbstractContextManager[None]:
        return self.writer.block(
            f"for (int64_t {start} = {first}; {start} < {bound}; {start} += {step}) {{", "}"
        )

    def innermost(self, level: Level) -> Variable | None:
        """The place along the innermost of several axes; None where there is one axis."""
        found = (v for v in self.kernel.variables if v.level is level and not v.divisors)
        return next((v for v in found if v.modulus), None)

    def places(self, level: Level, start: str) -> None:
        """Where lanes begin on several axes; they differ along the innermost only."""
        inner = self.innermost(level)
        for variable in self.kernel.variables:
            if variable.level is level:
                text = position_text(replace(variable, base=start), "/")
                name = f"{variable.name}_{start}" if variable is inner else variable.name
                self.writer.line(f"const int64_t {name} = {text};")

    def place_of_lane(self, level: Level, start: str, statements: Sequence[Stmt]) -> None:
        """Where a lane is that runs ``statements``: :meth:`places` said the rest of the axes."""
        side, inner = "row" if level is Level.ROW else "col", self.innermost(level)
        derived = inner is None and any(v.level is level for v in self.kernel.variables)
        if derived or level is Level.COL or side in reads(statements):
            self.writer.line(f"const int64_t {side} = {start} + lane;")
        if inner is None:
            self.variables(level)
        else:
            self.writer.line(f"const int64_t {inner.name} = {inner.name}_{start} + lane;")

    def variables(self, level: Level) -> None:
        for variable in self.kernel.variables:
            if variable.level is not level:
                continue
            text = position_text(variable, "/")
            self.writer.line(f"const int64_t {variable.name} = {text};")

    def statements(self, statements: Iterable[Stmt]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, statement: Stmt) -> None:
        if isinstance(statement, Comment):
            self.writer.line(f"// {statement.text}")
        elif isinstance(statement, Let):
            self.define(statement.name, statement.value.dtype, self.dialect.text(statement.value))
        elif isinstance(statement, Load):
            self.load(statement)
        elif isinstance(statement, Store):
            self.store(statement)
        elif isinstance(statement, (Accumulate, AddColumns)):
            self.accumulate(statement)
        elif isinstance(statement, Keep):
            value = self.dialect.text(statement.value)
            self.writer.line(f"{_kept(statement)} = {value};")
        elif isinstance(statement, Recall):
            self.define(statement.name, statement.dtype, _kept(statement))
        elif isinstance(statement, Sweep):
            self.sweep(statement)
        elif isinstance(statement, Pieces):
            self.pieces(statement)
        else:
            raise AssertionError(f"C++ kernels loop over their rows: {statement}")

    def define(self, name: str, dtype: DType, text: str) -> None:
        self.writer.assign(f"const {dtype.cpp} {name}", f"{text};")

    def address(self, access: Access) -> str:
        parts = [
            t.variable if t.stride == 1 else f"{t.variable} * {t.stride}" for t in access.terms
        ]
        return " + ".join(parts) or "0"

    def load(self, load: Load) -> None:
        element = f"{load.access.buffer}[{self.address(load.access)}]"
        if load.tile:
            element = f"{load.tile}[{IN_TILE}]"
        text = f"fusec::load({element})" if load.storage is not load.dtype else element
        if load.guards:
            other = self.dialect.literal(Literal(load.other, load.dtype), strict=True)
            inside = " && ".join(self.dialect.text(guard) for guard in load.guards)
            text = f"{inside} ? {text} : {other}"
        self.define(load.name, load.dtype, text)

    def store(self, store: Store) -> None:
        """An assignment; a result that goes past the caches is rounded on its way from there."""
        if store.block:
            self.writer.assign(f"{store.block}.data[lane]", f"{self.dialect.text(store.value)};")
            return
        element = f"{store.access.buffer}[{self.address(store.access)}]"
        self.writer.assign(element, f"{self.stored(store.value, store.storage)};")

    def stored(self, value: Expr, storage: DType) -> str:
        text = self.dialect.text(value)
        narrow = storage.is_float and storage.bits < 32
        return f"fusec::store<{storage.cpp}>({text})" if narrow else text

    def accumulate(self, statement: Accumulate | AddColumns) -> None:
        if isinstance(statement, AddColumns):
            added = self.dialect.text(statement.value)
            self.writer.line(f"{statement.sums.lanes}.data[col] += {added};")
            return
        accumulator = statement.accumulator
        place = self.running(accumulator)
        self.combine(accumulator, place, accumulator.accumulate, statement.value)

    def running(self, accumulator: Accumulator) -> str:
        """What the statements of a sweep call a running value."""
        return f"{accumulator.lanes}[lane]"

    def combine(self, accumulator: Accumulator, place: str, kind: DType, value: Expr) -> None:
        """Take ``value`` into the running value at ``place``."""
        assert accumulator.op.combine is not None
        running = Ref(place, kind, Level.TILE)
        if isinstance(value, Literal):
            value = Literal(value.value, kind)
        joined = Apply(OPS[accumulator.op.combine], (running, value), kind, kind, Level.TILE)
        form = joined.op.cpp.pick(joined.operand, joined.fast)
        if isinstance(form, Infix):
            self.writer.line(f"{place} {form.symbol}= {self.dialect.text(value)};")
        else:
            self.writer.assign(place, f"{self.dialect.text(joined)};")


def _kept(statement: Keep | Recall) -> str:
    """Where a buffer holds the element at hand."""
    place = f"col - {statement.start}" if statement.start else "col"
    return f"{statement.buffer}.data[{place}]"
