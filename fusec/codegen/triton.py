"""Kernel to Triton source: a complete Python file with one ``@triton.jit`` kernel. Prints, decides
nothing.

May import ``fusec.ir`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusec.codegen.expr import position_text
from fusec.codegen.kernel import (
    Access,
    Accumulate,
    Accumulator,
    AddColumns,
    Apply,
    Combine,
    Comment,
    Form,
    Kernel,
    Let,
    Level,
    Literal,
    Load,
    Reduce,
    Ref,
    Start,
    Stmt,
    Store,
    SumBoth,
    Sweep,
)
from fusec.codegen.triton_dialect import Triton, number_text
from fusec.codegen.triton_helpers import HELPERS, needed
from fusec.codegen.wrap import wrap
from fusec.codegen.writer import Writer
from fusec.ir.dtypes import F8E5M2, F64
from fusec.ir.ops import OPS, Infix, Op, Template


def print_triton(kernel: Kernel) -> str:
    """The source of ``kernel``: docstring with the formula, imports, helpers, the kernel."""
    body = _Printer(kernel).text()
    helpers = needed(body)
    texts = [HELPERS[name] for name in helpers]
    writer = Writer()
    writer.line('"""' + kernel.header[0].replace("\\", "\\\\").replace('"""', "'''"))
    for line in kernel.header[1:]:
        writer.line(line.replace("\\", "\\\\").replace('"""', "'''"))
    writer.line('"""')
    writer.line()
    writer.line("import triton")
    writer.line("import triton.language as tl")
    if any("libdevice." in text for text in [body, *texts]):
        writer.line("from triton.language.extra import libdevice")
    return writer.text() + "".join("\n" + text for text in texts) + "\n\n" + body


@dataclass(slots=True)
class _Printer:
    kernel: Kernel

    def text(self) -> str:
        writer = Writer()
        writer.line("@triton.jit")
        parameters = self._parameters()
        one_line = f"def {self.kernel.name}({', '.join(parameters)}):"
        if len(one_line) <= 100:
            opening = one_line
        else:
            writer.line(f"def {self.kernel.name}(")
            for parameter in parameters:
                writer.line(f"    {parameter},")
            opening = "):"
        with writer.block(opening):
            self._indices(writer)
            if self.kernel.waits:
                writer.line("_await_earlier_kernel()")
            if self.kernel.followed:
                writer.line("_let_later_kernel_begin()")
            if self.kernel.columns:
                self._block_of_rows(writer)
            else:
                self._statements(self.kernel.body, writer)
        return writer.text()

    @property
    def _flat_rows(self) -> bool:
        """Whether a program works on one row, so that row values are scalars."""
        return self.kernel.form is Form.ROWS and self.kernel.config.block_rows == 1

    @property
    def _col_mask(self) -> str:
        return "mask" if self.kernel.form is Form.FLAT or self._flat_rows else "col_mask"

    @property
    def _dialect(self) -> Triton:
        return Triton(self._col_mask)

    def _block(self) -> str:
        return "BLOCK" if self.kernel.form is Form.FLAT or self._flat_rows else "BLOCK_COLS"

    def _parameters(self) -> list[str]:
        kernel = self.kernel
        names = [p.name for p in kernel.pointers] + [n.name for n in kernel.numbers]
        return (
            names
            + [s.name for s in kernel.sizes]
            + [f"{c}: tl.constexpr" for c in self.constants()]
        )

    def constants(self) -> dict[str, int]:
        """The compile-time constants and their values."""
        config = self.kernel.config
        found = {"BLOCK": config.block_cols}
        if self._block() != "BLOCK":
            found = {"BLOCK_ROWS": config.block_rows, "BLOCK_COLS": config.block_cols}
        found |= {"FOLD": config.fold} if self._folds else {}
        splits = config.parts if self._reads_parts else config.splits
        return found | ({"SPLITS": splits} if self._knows_splits else {})

    def _indices(self, writer: Writer) -> None:
        form, wide = self.kernel.form, ".to(tl.int64)" if self.kernel.config.wide_index else ""
        if form is Form.FLAT:
            writer.line(f"i = tl.program_id(0){wide} * BLOCK + tl.arange(0, BLOCK)")
            writer.line("mask = i < n")
        elif form is Form.TILE:
            writer.line("col_blocks = tl.cdiv(cols, BLOCK_COLS)")
            writer.line(f"program = tl.program_id(0){wide}")
            writer.line(
                "row = program // col_blocks * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]"
            )
            writer.line(
                "col = program % col_blocks * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]"
            )
            writer.line("row_mask = row < rows")
            writer.line("col_mask = col < cols")
        else:
            self._row_index(f"tl.program_id(0){wide}", writer)
        if form is Form.ROWS and self.kernel.config.resident:
            writer.line(f"col = {self._lanes()}")
            if not self.kernel.config.even:
                writer.line(f"{self._col_mask} = col < cols")
        levels = Level.ROW if form is Form.ROWS and not self.kernel.config.resident else Level.TILE
        self._variables(levels, writer)

    def _block_of_rows(self, writer: Writer) -> None:
        """The rows of a program one after the other, and the sums over them."""
        body = self.kernel.body
        alike = [s for s in body if isinstance(s, Load) and s.level is Level.COL and not s.guards]
        self._statements(tuple(alike), writer)
        for sums in self.kernel.columns:
            _line(writer, f"{sums.lanes} = tl.zeros([BLOCK], tl.{sums.dtype.triton})")
        every = f"program, rows, tl.num_programs(0), num_stages={self.kernel.config.stages}"
        with writer.block(f"for row in tl.range({every}):"):
            self._statements(tuple(s for s in body if s not in alike), writer)
        writer.line("# store the sums over the rows")
        mask = "" if self.kernel.config.even else f", mask={self._col_mask}"
        for sums in self.kernel.columns:
            _line(writer, f"tl.store({self._address(sums.access)}, {sums.lanes}{mask})")

    def _row_index(self, program: str, writer: Writer) -> None:
        """The row or rows of a program, and where several share them its part of the columns."""
        kernel = self.kernel
        if kernel.divided and any(isinstance(s, Sweep) and s.backwards for s in kernel.body):
            program = f"tl.num_programs(0) - 1 - {program}"
        splits = "SPLITS" if self._knows_splits else "splits"
        rows = "stretch" if self._folds else "rows"
        if self._folds:  # the stretch goes first, since it says how many programs share one
            writer.line("stretch = rows * FOLD  # FOLD columns, one behind the other in memory")
            writer.line("stretches = cols // FOLD")
        if kernel.divided:
            writer.line(f"program = {program}")
            if not self._knows_splits and not kernel.config.rows_near:
                blocks = "rows" if self._flat_rows else f"tl.cdiv({rows}, BLOCK_ROWS)"
                writer.line(f"splits = tl.num_programs(0) // {blocks}")
            program = "program % rows" if kernel.config.rows_near else f"program // {splits}"
        if kernel.columns:
            writer.line(f"program = {program}")
        elif self._flat_rows:
            writer.line(f"row = {program}")
        else:
            writer.line(f"row = {program} * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]")
            writer.line(f"row_mask = row < {rows}")
        if kernel.divided:
            split = "program // rows" if kernel.config.rows_near else f"program % {splits}"
            writer.line(f"split = {split}")
            if kernel.config.spread:
                writer.line(f"first = split * {self._block()}")
            else:
                writer.line("first = split * chunk")
                writer.line(f"last = tl.minimum(first + chunk, {self._length})")
        if self._reads_parts:
            whole = "tl.arange(0, SPLITS)"
            writer.line(f"part = {whole if self._flat_rows else f'{whole}[None, :]'}")

    @property
    def _reads_parts(self) -> bool:
        """Whether a program combines what those that shared a row have left."""
        return any(isinstance(s, Combine) or _reads_parts(s) for s in self.kernel.body)

    @property
    def _folds(self) -> bool:
        """Whether a program takes several neighbours along the columns as one stretch of memory."""
        return self.kernel.divided and self.kernel.config.fold > 1

    @property
    def _length(self) -> str:
        """How many columns there are for a loop."""
        return "stretches" if self._folds else "cols"

    @property
    def _knows_splits(self) -> bool:
        """Whether the number of parts is a constant: one that only says which part a program has
        is not, so that rows of other lengths need no build.
        """
        config = self.kernel.config
        return config.parts > 1 and (self._reads_parts or config.spread)

    def _lanes(self) -> str:
        text = f"tl.arange(0, {self._block()})"
        return text if self._flat_rows else f"{text}[None, :]"

    def _variables(self, levels: Level, writer: Writer) -> None:
        """Split flattened indices into the positions along their axes."""
        for variable in self.kernel.variables:
            if variable.level not in levels:
                continue
            text = position_text(variable, "//")
            writer.line(f"{variable.name} = {text}")

    # -- statements -------------------------------------------------------------------------------

    def _statements(self, statements: tuple[Stmt, ...], writer: Writer) -> None:
        for statement in statements:
            if isinstance(statement, Comment):
                writer.line(f"# {statement.text}")
            elif isinstance(statement, (Let, Start)):
                _line(writer, f"{statement.name} = {self._value(statement)}")
            elif isinstance(statement, Load):
                self._load(statement, writer)
            elif isinstance(statement, Store):
                self._store(statement, writer)
            elif isinstance(statement, (Reduce, SumBoth)):
                _line(writer, self._reduction(statement))
            elif isinstance(statement, Combine):
                mask = ", mask=row_mask, other=0" if Level.ROW in statement.mask else ""
                parts = f"tl.load({self._address(statement.access)}{mask})"
                _line(writer, f"{statement.name} = {self._combine(statement.op, parts)}")
            elif isinstance(statement, (Accumulate, AddColumns)):
                self._accumulate(statement, writer)
            elif isinstance(statement, Sweep):
                self._sweep(statement, writer)
            else:
                raise AssertionError(f"Triton kernels keep no rows: {statement}")

    def _value(self, statement: Let | Start) -> str:
        if isinstance(statement, Let):
            return self._dialect.text(statement.value)
        shape = "[]" if self._flat_rows else "[BLOCK_ROWS, 1]"
        value = statement.value
        return f"tl.full({shape}, {number_text(value)}, tl.{value.dtype.triton})"

    def _address(self, access: Access) -> str:
        parts = [access.buffer]
        for term in access.terms:
            parts.append(term.variable if term.stride == 1 else f"{term.variable} * {term.stride}")
        return " + ".join(parts)

    def _mask(self, mask: Level) -> list[str]:
        names = ["row_mask"] if Level.ROW in mask else []
        return names + ([self._col_mask] if Level.COL in mask else [])

    def _load(self, load: Load, writer: Writer) -> None:
        guards = self._mask(load.mask)
        arguments = [self._address(load.access)]
        guards += [f"({self._dialect.text(guard)})" for guard in load.guards]
        if guards:
            other = self._dialect.text(Literal(load.other, load.storage.compute), strict=False)
            arguments += [f"mask={' & '.join(guards)}", f"other={other}"]
        if load.caching:
            arguments.append(f'eviction_policy="{load.caching}"')
        widen = "" if load.storage is load.dtype else f".to(tl.{load.dtype.triton})"
        _line(writer, f"{load.name} = tl.load({', '.join(arguments)}){widen}")

    def _store(self, store: Store, writer: Writer) -> None:
        value = self._dialect.text(store.value)
        if store.storage is F8E5M2:
            value = f"_f8e5m2({value})"
        address = self._address(store.access)
        arguments = [address, value]
        if store.mask:
            arguments.append(f"mask={' & '.join(self._mask(store.mask))}")
        _line(writer, f"tl.store({', '.join(arguments)})")

    def _combine(self, op: Op, value: str, count: str = "cols") -> str:
        """The lanes of a tile combined into one value for each row; a mean is that of ``count``."""
        form = op.triton.usual
        assert isinstance(form, Template)
        axis = "0" if self._flat_rows else "1, keep_dims=True"
        if op.name == "mean" and self._is_whole:  # as many as the tile has: nothing to divide by
            return f"_mean_of_tile({value}, axis={axis})"
        return form.text.format(value, axis=axis, count=count)

    @property
    def _is_whole(self) -> bool:
        return self.kernel.config.resident and self.kernel.config.even

    def _reduction(self, statement: Reduce | SumBoth) -> str:
        if isinstance(statement, Reduce):
            value = self._dialect.text(statement.value)
            return f"{statement.name} = {self._combine(statement.op, value)}"
        first, second = statement.first, statement.second
        values = f"{self._dialect.text(first.value)}, {self._dialect.text(second.value)}"
        axis = "0" if self._flat_rows else "1, keep_dims=True"
        names = f"{first.name}, {second.name}"
        return f"{names} = tl.reduce(({values}), axis={axis}, combine_fn=_add_both)"

    def _accumulate(self, statement: Accumulate | AddColumns, writer: Writer) -> None:
        if isinstance(statement, AddColumns):
            _line(writer, f"{statement.sums.lanes} += {self._dialect.text(statement.value)}")
            return
        accumulator = statement.accumulator
        assert accumulator.op.combine is not None
        kind = accumulator.accumulate
        lanes = Ref(accumulator.lanes, kind, Level.TILE)
        joined = Apply(
            OPS[accumulator.op.combine], (lanes, statement.value), kind, kind, Level.TILE
        )
        form = joined.op.triton.pick(joined.operand, joined.fast)
        if isinstance(form, Infix):
            term = statement.value
            if accumulator.op.name == "mean":
                factor = Ref(_scale(accumulator), kind, Level.UNIFORM)
                term = Apply(OPS["mul"], (term, factor), kind, kind, Level.TILE)
            value = self._dialect.text(term)
            _line(writer, f"{accumulator.lanes} {form.symbol}= {value}")
        else:
            _line(writer, f"{accumulator.lanes} = {self._dialect.text(joined)}")

    def _sweep(self, sweep: Sweep, writer: Writer) -> None:
        shape = f"[{self._block()}]" if self._flat_rows else "[BLOCK_ROWS, BLOCK_COLS]"
        for accumulator in sweep.accumulators:
            if accumulator.op.name == "mean":
                steps = f"tl.cdiv(cols, {self._block()})"
                wide = ".to(tl.float64)" if accumulator.accumulate is F64 else ""
                writer.line(f"{_scale(accumulator)} = _mean_scale({steps}){wide}")
            _line(writer, f"{accumulator.lanes} = {self._start(accumulator, shape)}")
        with writer.block(f"for {self._tiles(sweep)}:"):
            if sweep.backwards:
                first = "first + " if self.kernel.divided else ""
                writer.line(f"start = {first}tile * {self._block()}")
            writer.line(f"col = start + {self._lanes()}")
            writer.line(f"{self._col_mask} = col < {self._length}")
            self._variables(Level.COL, writer)
            self._statements(sweep.body, writer)
        if self._folds:
            self._left_over(sweep, writer)
        for accumulator in sweep.accumulators:
            count = f"cols * {_scale(accumulator)}" if accumulator.op.name == "mean" else "cols"
            value = self._combine(accumulator.op, accumulator.lanes, count)
            _line(writer, f"{accumulator.name} = {value}")

    def _left_over(self, sweep: Sweep, writer: Writer) -> None:
        """The columns that fill no stretch: those of the last program that shares a row."""
        with writer.block("if split == splits - 1:  # what fills no stretch"):
            writer.line(f"col = stretches + {self._lanes()}")
            writer.line("col_mask = (col == stretches) & (row < cols % FOLD * rows)")
            self._statements(sweep.body, writer)

    def _tiles(self, sweep: Sweep) -> str:
        """What a loop over the tiles of a row counts, and through which values."""
        config, step = self.kernel.config, self._block()
        if sweep.backwards:
            length = "last - first" if self.kernel.divided else "cols"
            return f"tile in range(tl.cdiv({length}, {step}) - 1, -1, -1)"
        first, last = ("first", "last") if self.kernel.divided else ("0", "cols")
        if self.kernel.divided and config.spread:
            last, step = "cols", f"SPLITS * {step}"
        options = [f"num_stages={config.stages}"] if config.stages > 1 else []
        options += [f"loop_unroll_factor={config.unroll}"] if config.unroll > 1 else []
        if not options:
            return f"start in range({first}, {last}, {step})"
        return f"start in tl.range({first}, {last}, {step}, {', '.join(options)})"

    def _start(self, accumulator: Accumulator, shape: str) -> str:
        kind = accumulator.accumulate
        return f"tl.full({shape}, {number_text(accumulator.identity)}, tl.{kind.triton})"


def _scale(accumulator: Accumulator) -> str:
    """The factor of the terms of a mean, which keeps its lanes in range wherever the mean is."""
    return f"{accumulator.name}_scale"


def _reads_parts(statement: Stmt) -> bool:
    """Whether a statement loads what programs that share a row have left."""
    return isinstance(statement, Load) and any(
        term.variable == "part" for term in statement.access.terms
    )


def _line(writer: Writer, statement: str) -> None:
    """A statement, wrapped as ``ruff format`` would wrap it."""
    for line in wrap(statement, writer.width):
        writer.line(line)


def constants(kernel: Kernel) -> dict[str, int]:
    """The compile-time constants of the printed kernel."""
    return _Printer(kernel).constants()
