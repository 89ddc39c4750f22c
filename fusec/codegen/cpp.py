"""Kernel to C++ source: scalar loops over the helpers of ``fusec.h``, which the compiler turns into
vector code.

Rows are shared out over threads; along a row 64 lanes run side by side, whatever the machine's
vectors, so a result does not depend on the processor. Where the rows are the contiguous axis the
lanes are 64 rows. Prints, decides nothing.

May import ``fusec.ir`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from fusec.codegen.cpp_dialect import Cpp
from fusec.codegen.kernel import (
    Access,
    Accumulate,
    Accumulator,
    Apply,
    Comment,
    Expr,
    Form,
    Keep,
    Kernel,
    Let,
    Level,
    Literal,
    Load,
    Recall,
    Ref,
    Stmt,
    Store,
    Sweep,
    Term,
)
from fusec.codegen.uses import dtype_of, reads
from fusec.codegen.writer import Writer
from fusec.ir.dtypes import DType
from fusec.ir.ops import OPS, Infix, Template

_PARALLEL = "#pragma omp parallel for num_threads(threads) schedule(static)"
_SIMD = "#pragma omp simd"


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
class _Printer:
    kernel: Kernel
    writer: Writer
    dialect: Cpp = field(default_factory=Cpp)
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
        self.writer.line("#pragma omp parallel for simd num_threads(threads) schedule(static)")
        with self._loop("i", "n"):
            self._statements(self.kernel.body)

    def _tile(self) -> None:
        outer = [s for s in self.kernel.body if not isinstance(s, Comment) and not self._varies(s)]
        self.writer.line(_PARALLEL)
        with self._loop("row", "rows"):
            self._variables(Level.ROW)
            self._statements(outer)
            self.writer.line(_SIMD)
            with self._loop("col", "cols"):
                self._variables(Level.COL)
                inner = [s for s in self.kernel.body if s not in outer]
                titled = zip(inner, [*inner[1:], Comment("")], strict=True)
                self._statements(
                    s
                    for s, after in titled
                    if not isinstance(s, Comment) or not isinstance(after, Comment)
                )

    def _varies(self, statement: Stmt) -> bool:
        return not isinstance(statement, (Let, Load, Store)) or Level.COL in statement.level

    # -- rows -------------------------------------------------------------------------------------

    def _rows(self) -> None:
        if self.kernel.config.lanes_along_rows:
            self._lanes_along_rows()
            return
        if not self.kernel.kept:
            self.writer.line(_PARALLEL)
            self._row_loop()
            return
        self.writer.line("#pragma omp parallel num_threads(threads)")
        with self.writer.block("{", "}"):
            for name, dtype in self.kernel.kept:
                self.writer.line(f"const fusec::Row<{dtype.cpp}> {name}(cols);")
            self.writer.line("#pragma omp for schedule(static)")
            self._row_loop()

    def _row_loop(self) -> None:
        with self._loop("row", "rows"):
            self._variables(Level.ROW)
            self._statements(self.kernel.body)

    def _sweep(self, sweep: Sweep) -> None:
        """A loop over the row; with running values it goes in stretches of 64 lanes."""
        if not sweep.accumulators:
            self.writer.line(_SIMD)
            with self._loop("col", "cols"):
                self._variables(Level.COL)
                self._statements(sweep.body)
            return
        for accumulator in sweep.accumulators:
            self._declare(accumulator)
        opening = (
            "fusec::sweep(cols, [&](int64_t start, int64_t count) __attribute__((always_inline)) {"
        )
        carried = [a for a in sweep.accumulators if a.carry is not a.accumulate]
        with self.writer.block(opening, "}, [&] {" if carried else "});"):
            for access in sweep.ahead:
                place = self._at_start(access, "(row + 1)")
                self.writer.line(f"fusec::prefetch(&{access.buffer}[{place}]);")
            for access in sweep.target:
                place = self._at_start(access, "row")
                self.writer.line(f"fusec::prefetch_to_write(&{access.buffer}[{place}]);")
            self.writer.line(_SIMD)
            with self._loop("lane", "count"):
                self.writer.line("const int64_t col = start + lane;")
                self._variables(Level.COL)
                self._statements(sweep.body)
        if carried:
            with self.writer.block("", "});"):
                for accumulator in carried:
                    self.writer.line(f"fusec::carry({accumulator.name}_wide, {accumulator.lanes});")
        for accumulator in sweep.accumulators:
            self._finish(accumulator)

    def _at_start(self, access: Access, row: str) -> str:
        """The address of the stretch at hand, in this row or another."""
        terms = {"row": row, "col": "start"}
        return self._address(
            Access(access.buffer, tuple(Term(terms[t.variable], t.stride) for t in access.terms))
        )

    def _declare(self, accumulator: Accumulator) -> None:
        kind = accumulator.accumulate
        identity = self.dialect.literal(Literal(accumulator.identity.value, kind), strict=True)
        self.writer.line(f"{kind.cpp} {accumulator.lanes}[fusec::LANES];")
        self.writer.line(f"fusec::fill<{kind.cpp}>({accumulator.lanes}, {identity});")
        if accumulator.carry is not kind:
            wide = f"{accumulator.name}_wide"
            self.writer.line(f"{accumulator.carry.cpp} {wide}[fusec::LANES];")
            self.writer.line(f"fusec::fill<{accumulator.carry.cpp}>({wide}, 0.0);")

    def _finish(self, accumulator: Accumulator) -> None:
        form = accumulator.op.cpp.usual
        assert isinstance(form, Template)
        carried = accumulator.carry is not accumulator.accumulate
        value = form.text.format(f"{accumulator.name}_wide" if carried else accumulator.lanes)
        self._define(accumulator.name, accumulator.dtype, self._narrow(value, accumulator))

    def _narrow(self, value: str, accumulator: Accumulator) -> str:
        if accumulator.dtype is accumulator.carry:
            return value
        return f"static_cast<{accumulator.dtype.cpp}>({value})"

    # -- rows as lanes ----------------------------------------------------------------------------

    def _lanes_along_rows(self) -> None:
        """64 rows side by side:

        Each statement outside a sweep is a loop over them that remembers its values.
        """
        self.writer.line(_PARALLEL)
        with self.writer.block(
            "for (int64_t first = 0; first < rows; first += fusec::LANES) {", "}"
        ):
            self.writer.line(
                "const int64_t count = rows - first < fusec::LANES ? rows - first : fusec::LANES;"
            )
            pending: list[Stmt] = []
            for position, statement in enumerate(self.kernel.body):
                if not isinstance(statement, Sweep):
                    pending.append(statement)
                    continue
                title = pending.pop() if pending and isinstance(pending[-1], Comment) else None
                self._row_lane_block(pending, self.kernel.body[position:])
                pending = []
                self._statements([title] if title else [])
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
            self.writer.line(f"{dtype.cpp} {name}_lanes[fusec::LANES];")
        with self._row_lanes(statements):
            self._statements(statements)
            for name in made:
                self.writer.line(f"{name}_lanes[lane] = {name};")
        self.row_values.update(made)

    def _row_lane_sweep(self, sweep: Sweep) -> None:
        for accumulator in sweep.accumulators:
            self._declare(accumulator)
        with self._loop("col", "cols"):
            self._variables(Level.COL)
            with self._row_lanes(sweep.body):
                self._statements(sweep.body)
        self.row_values.update({a.name: a.dtype for a in sweep.accumulators})

    @contextmanager
    def _row_lanes(self, statements: Sequence[Stmt]) -> Iterator[None]:
        """A loop over the rows of the block, in which the remembered values that are read get their
        names back.
        """
        self.writer.line(_SIMD)
        with self._loop("lane", "count"):
            self._recall_rows(statements)
            yield

    def _recall_rows(self, statements: Sequence[Stmt]) -> None:
        self.writer.line("const int64_t row = first + lane;")
        self._variables(Level.ROW)
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

    # -- pieces -----------------------------------------------------------------------------------

    def _loop(self, variable: str, bound: str) -> AbstractContextManager[None]:
        return self.writer.block(
            f"for (int64_t {variable} = 0; {variable} < {bound}; ++{variable}) {{", "}"
        )

    def _variables(self, level: Level) -> None:
        for variable in self.kernel.variables:
            if variable.level is not level:
                continue
            text = variable.base
            if len(variable.divisors) == 1:
                text = f"{text} / {variable.divisors[0]}"
            elif variable.divisors:
                text = f"{text} / ({' * '.join(variable.divisors)})"
            if variable.modulus:
                text = f"{text} % {variable.modulus}"
            self.writer.line(f"const int64_t {variable.name} = {text};")

    def _statements(self, statements: Iterable[Stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, statement: Stmt) -> None:
        if isinstance(statement, Comment):
            self.writer.line(f"// {statement.text}")
        elif isinstance(statement, Let):
            self._define(statement.name, statement.value.dtype, self.dialect.text(statement.value))
        elif isinstance(statement, Load):
            self._load(statement)
        elif isinstance(statement, Store):
            value = self._stored(statement.value, statement.storage)
            element = f"{statement.access.buffer}[{self._address(statement.access)}]"
            self.writer.assign(element, f"{value};")
        elif isinstance(statement, Accumulate):
            self._accumulate(statement)
        elif isinstance(statement, Keep):
            self.writer.line(
                f"{statement.buffer}.data[col] = {self.dialect.text(statement.value)};"
            )
        elif isinstance(statement, Recall):
            self._define(statement.name, statement.dtype, f"{statement.buffer}.data[col]")
        elif isinstance(statement, Sweep):
            self._sweep(statement)
        else:
            raise AssertionError(f"C++ kernels loop over their rows: {statement}")

    def _define(self, name: str, dtype: DType, text: str) -> None:
        self.writer.assign(f"const {dtype.cpp} {name}", f"{text};")

    def _address(self, access: Access) -> str:
        parts = [
            t.variable if t.stride == 1 else f"{t.variable} * {t.stride}" for t in access.terms
        ]
        return " + ".join(parts) or "0"

    def _load(self, load: Load) -> None:
        element = f"{load.access.buffer}[{self._address(load.access)}]"
        text = f"fusec::load({element})" if load.storage is not load.dtype else element
        if load.guards:
            other = self.dialect.literal(Literal(load.other, load.dtype), strict=True)
            inside = " && ".join(self.dialect.text(guard) for guard in load.guards)
            text = f"{inside} ? {text} : {other}"
        self._define(load.name, load.dtype, text)

    def _stored(self, value: Expr, storage: DType) -> str:
        text = self.dialect.text(value)
        narrow = storage.is_float and storage.bits < 32
        return f"fusec::store<{storage.cpp}>({text})" if narrow else text

    def _accumulate(self, statement: Accumulate) -> None:
        accumulator = statement.accumulator
        assert accumulator.op.combine is not None
        kind = accumulator.accumulate
        lanes = Ref(f"{accumulator.lanes}[lane]", kind, Level.TILE)
        value = statement.value
        if isinstance(value, Literal):
            value = Literal(value.value, kind)
        joined = Apply(OPS[accumulator.op.combine], (lanes, value), kind, kind, Level.TILE)
        form = joined.op.cpp.pick(joined.operand, joined.fast)
        if isinstance(form, Infix):
            self.writer.line(f"{lanes.name} {form.symbol}= {self.dialect.text(value)};")
        else:
            self.writer.line(f"{lanes.name} = {self.dialect.text(joined)};")
