"""Kernel to C++ source: scalar loops over the helpers of ``fusec.h``, which the compiler turns into
vector code.

Rows are shared out over threads; along a row 64 lanes run side by side, whatever the machine's
vectors, so a result does not depend on the processor. Where the rows are the contiguous axis the
lanes are rows, as many as their number and the threads allow. Prints, decides nothing.

May import ``fusec.ir`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from fusec.codegen.cpp_statements import IN_TILE, PARALLEL, SIMD, Statements
from fusec.codegen.kernel import (
    Accumulator,
    Comment,
    Form,
    Kernel,
    Let,
    Level,
    Literal,
    Load,
    Stmt,
    Store,
    Sweep,
)
from fusec.codegen.uses import dtype_of, reads
from fusec.codegen.writer import Writer
from fusec.ir.dtypes import DType
from fusec.ir.ops import Template


def print_cpp(kernel: Kernel) -> str:
    """The source of ``kernel``:

    One ``extern "C"`` function that runs the whole kernel on ``threads`` threads.
    """
    writer = Writer("  ")
    for line in kernel.header:
        writer.line(f"// {line}".rstrip().rstrip("\\"))
    writer.line('#include "fusec.h"')
    writer.line()
    _Printer(kernel, writer).function()
    return writer.text()


def parameters(kernel: Kernel) -> list[tuple[str, str]]:
    """Name and C type of each parameter, in the order of a call."""
    found = [
        (p.name, ("" if p.written else "const ") + f"{p.storage.cpp}*") for p in kernel.pointers
    ]
    found += [(n.name, n.dtype.cpp) for n in kernel.numbers]
    found += [(s.name, "int64_t") for s in kernel.sizes]
    return [*found, ("threads", "int32_t")]


def packed_entry(kernel: Kernel) -> str:
    """A second way into a C++ kernel, for the compiled launcher: every argument in eight bytes.

    It is built with the kernel and no part of what is shown.
    """
    found = parameters(kernel)
    fields = "".join(f"    alignas(8) {kind} p{k};\n" for k, (_, kind) in enumerate(found))
    passed = ", ".join(f"a->p{k}" for k in range(len(found)))
    return (
        f"\nstruct {kernel.name}_arguments {{\n{fields}}};\n"
        f'extern "C" void {kernel.name}_packed(const {kernel.name}_arguments *a) {{\n'
        f"    {kernel.name}({passed});\n}}\n"
    )


@dataclass(slots=True)
class _Printer(Statements):
    row_values: dict[str, DType] = field(
        default_factory=dict
    )  # lanes along rows: what each lane remembers

    def function(self) -> None:
        params = [f"{kind} {name}" for name, kind in parameters(self.kernel)]
        opening = f'extern "C" void {self.kernel.name}({", ".join(params)}) {{'
        if len(opening) > 100:
            self.writer.line(f'extern "C" void {self.kernel.name}(')
            for parameter in params[:-1]:
                self.writer.line(f"    {parameter},")
            opening = f"    {params[-1]}) {{"
        body = {Form.FLAT: self._flat, Form.TILE: self._tile, Form.ROWS: self._rows}[
            self.kernel.form
        ]
        with self.writer.block(opening, "}"):
            body()

    # -- elementwise ------------------------------------------------------------------------------

    def _flat(self) -> None:
        if not self.kernel.blocks:
            self.writer.line("#pragma omp parallel for simd num_threads(threads) schedule(static)")
            with self.loop("i", "n"):
                self.statements(self.kernel.body)
            return
        with self.threads() as share:
            self.writer.line(share)
            self.columns(self.kernel.body, "i", "n")

    def _tile(self) -> None:
        if self.kernel.config.block_rows > 1:
            self._square_tiles()
            return
        with self.threads() as share:
            self.writer.line(share)
            with self.loop("row", "rows"):
                self._row_of_tile("0", "cols")

    def _square_tiles(self) -> None:
        """Tile by tile, so that each line of an operand that runs along the rows is read once."""
        step = "fusec::TILE"
        self.writer.line(
            "#pragma omp parallel for collapse(2) num_threads(threads) schedule(static)"
        )
        with (
            self.stretches("row_start", "rows", step),
            self.stretches("col_start", "cols", step),
        ):
            for side in ("row", "col"):
                end = f"fusec::minimum({side}_start + {step}, {side}s)"
                self.writer.line(f"const int64_t {side}_end = {end};")
            turned = [s for s in self.kernel.body if isinstance(s, Load) and s.tile]
            for load in turned:
                self.writer.line(f"{load.storage.cpp} {load.tile}[{step} * {step}];")
            if turned:
                self._turn(turned)
            with self.loop("row", "row_end", "row_start"):
                self._row_of_tile("col_start", "col_end")

    def _turn(self, loads: Sequence[Load]) -> None:
        """Copy tiles of operands that run along the rows, so that they run along the columns."""
        with self.loop("col", "col_end", "col_start"):
            for load in loads:
                place = self.at_start(load.access, "row_start", "(col + fusec::TILE)")
                self.writer.line(f"fusec::prefetch<fusec::TILE>(&{load.access.buffer}[{place}]);")
            with self.loop("row", "row_end", "row_start"):
                self.variables(Level.COL)
                for load in loads:
                    element = f"{load.access.buffer}[{self.address(load.access)}]"
                    self.writer.line(f"{load.tile}[{IN_TILE}] = {element};")

    def _row_of_tile(self, start: str, end: str) -> None:
        outer = [s for s in self.kernel.body if not isinstance(s, Comment) and not self._varies(s)]
        self.variables(Level.ROW)
        self.statements(outer)
        inner = [s for s in self.kernel.body if s not in outer]
        titled = zip(inner, [*inner[1:], Comment("")], strict=True)
        body = [
            s for s, after in titled if not isinstance(s, Comment) or not isinstance(after, Comment)
        ]
        self.columns(body, "col", end, start)

    def _varies(self, statement: Stmt) -> bool:
        return not isinstance(statement, (Let, Load, Store)) or Level.COL in statement.level

    # -- rows -------------------------------------------------------------------------------------

    def _rows(self) -> None:
        if self.kernel.config.lanes_along_rows:
            self._lanes_along_rows()
            return
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
            self.variables(Level.ROW)
            self.statements(self.kernel.body)

    def sweep(self, sweep: Sweep) -> None:
        """A loop over the row; with running values it goes in stretches of 64 lanes."""
        if not sweep.accumulators:
            self.columns(sweep.body, "col", "cols", next_row=sweep.ahead)
            return
        for accumulator in sweep.accumulators:
            self._declare(accumulator)
        opening = (
            "fusec::sweep(cols, [&](int64_t start, int64_t count) __attribute__((always_inline)) {"
        )
        carried = [a for a in sweep.accumulators if a.carry is not a.accumulate]
        with self.writer.block(opening, "}, [&] {" if carried else "});"):
            for access in sweep.ahead:
                place = self.at_start(access, "(row + 1)")
                self.writer.line(f"fusec::prefetch(&{access.buffer}[{place}]);")
            for access in sweep.target:
                place = self.at_start(access, "row")
                self.writer.line(f"fusec::prefetch_to_write(&{access.buffer}[{place}]);")
            self.writer.line(SIMD)
            with self.loop("lane", "count"):
                self.writer.line("const int64_t col = start + lane;")
                self.variables(Level.COL)
                self.statements(sweep.body)
            self.write_blocks(sweep.body)
        if carried:
            with self.writer.block("", "});"):
                for accumulator in carried:
                    self.writer.line(f"fusec::carry({accumulator.name}_wide, {accumulator.lanes});")
        for accumulator in sweep.accumulators:
            self._finish(accumulator)

    def _declare(self, accumulator: Accumulator) -> None:
        kind = accumulator.accumulate
        identity = self.dialect.literal(Literal(accumulator.identity.value, kind), strict=True)
        self.writer.line(f"{kind.cpp} {accumulator.lanes}[{self._width()}];")
        self.writer.line(f"fusec::fill<{kind.cpp}>({accumulator.lanes}, {identity});")
        if accumulator.carry is not kind:
            wide = f"{accumulator.name}_wide"
            self.writer.line(f"{accumulator.carry.cpp} {wide}[fusec::LANES];")
            self.writer.line(f"fusec::fill<{accumulator.carry.cpp}>({wide}, 0.0);")

    def _width(self) -> str:
        """How many lanes run side by side at most."""
        return "fusec::ABREAST" if self.kernel.config.lanes_along_rows else "fusec::LANES"

    def _finish(self, accumulator: Accumulator) -> None:
        form = accumulator.op.cpp.usual
        assert isinstance(form, Template)
        carried = accumulator.carry is not accumulator.accumulate
        value = form.text.format(f"{accumulator.name}_wide" if carried else accumulator.lanes)
        self.define(accumulator.name, accumulator.dtype, self._narrow(value, accumulator))

    def _narrow(self, value: str, accumulator: Accumulator) -> str:
        if accumulator.dtype is accumulator.carry:
            return value
        return f"static_cast<{accumulator.dtype.cpp}>({value})"

    # -- rows as lanes ----------------------------------------------------------------------------

    def _lanes_along_rows(self) -> None:
        """Up to 512 rows side by side:

        Each statement outside a sweep is a loop over them that remembers its values.
        """
        self.writer.line("const int64_t step = fusec::rows_abreast(rows, threads);")
        self.writer.line(PARALLEL)
        with self.stretches("first", "rows", "step"):
            self.writer.line("const int64_t count = fusec::minimum(rows - first, step);")
            pending: list[Stmt] = []
            for position, statement in enumerate(self.kernel.body):
                if not isinstance(statement, Sweep):
                    pending.append(statement)
                    continue
                title = pending.pop() if pending and isinstance(pending[-1], Comment) else None
                self._row_lane_block(pending, self.kernel.body[position:])
                pending = []
                self.statements([title] if title else [])
                self._row_lane_sweep(statement)
            self._row_lane_block(pending, ())

    def _row_lane_block(self, statements: list[Stmt], later: Sequence[Stmt]) -> None:
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
            self.writer.line(f"{dtype.cpp} {name}_lanes[{self._width()}];")
        with self._row_lanes(statements):
            self.statements(statements)
            for name in made:
                self.writer.line(f"{name}_lanes[lane] = {name};")
        self.row_values.update(made)

    def _row_lane_sweep(self, sweep: Sweep) -> None:
        for accumulator in sweep.accumulators:
            self._declare(accumulator)
        with self.loop("col", "cols"):
            self.variables(Level.COL)
            with self._row_lanes(sweep.body):
                self.statements(sweep.body)
        self.row_values.update({a.name: a.dtype for a in sweep.accumulators})

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
        self.writer.line("const int64_t row = first + lane;")
        self.variables(Level.ROW)
        used = reads(statements)
        for name, dtype in self.row_values.items():
            if name in used:
                self.writer.line(f"const {dtype.cpp} {name} = {self._remembered(name, dtype)};")

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
        return self._narrow(text, made)
