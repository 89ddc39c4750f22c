"""Kernel to Triton source: a complete Python file with one ``@triton.jit`` kernel. Prints, decides
nothing.

May import ``fusec.ir`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusec.codegen.body import is_along
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
from fusec.codegen.triton_place import Place, terms_text
from fusec.codegen.wrap import wrap
from fusec.codegen.writer import Writer
from fusec.ir.dtypes import F8E5M2, F64
from fusec.ir.ops import OPS, Infix, Op, Template


def print_triton(kernel: Kernel) -> str:
    """The source of ``kernel``: docstring with the formula, imports, helpers, the kernel."""
    body = _Printer(kernel, Place(kernel)).text()
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
    place: Place
    whole: bool = False  # all elements of a block are there

    def text(self) -> str:
        writer = Writer()
        writer.line("@triton.jit")
        parameters = self.place.parameters()
        one_line = f"def {self.kernel.name}({', '.join(parameters)}):"
        if len(one_line) <= 100:
            opening = one_line
        else:
            writer.line(f"def {self.kernel.name}(")
            for parameter in parameters:
                writer.line(f"    {parameter},")
            opening = "):"
        with writer.block(opening):
            self.place.indices(writer)
            if self.kernel.waits:
                writer.line("_await_earlier_kernel()")
            if self.kernel.followed:
                writer.line("_let_later_kernel_begin()")
            if self.kernel.columns:
                self._block_of_rows(writer)
            elif self.place.one_row:
                self._pieces_apart(writer)
            elif self.kernel.form is Form.FLAT and self.kernel.config.apart:
                self._blocks_apart(writer)
            else:
                self._statements(self.kernel.body, writer)
        return writer.text()

    @property
    def _dialect(self) -> Triton:
        return Triton(self.place.col_mask)

    def _blocks_apart(self, writer: Writer) -> None:
        """The same work of a whole block, whose loads and stores are then whole vectors, and of
        what is left over.
        """
        with writer.block("if start + BLOCK <= n:"):
            replace(self, whole=True)._statements(self.kernel.body, writer)
        with writer.block("else:  # the last block"):
            writer.line("mask = i < n")
            self._statements(self.kernel.body, writer)

    def _pieces_apart(self, writer: Writer) -> None:
        """What the row has for itself, then the same work of pieces inside it and at its ends."""
        body = self.kernel.body
        first = next(k for k, statement in enumerate(body) if is_along(statement)) - 1
        self._statements(body[:first], writer)
        with writer.block(f"if {self.place.is_inside}:"):
            replace(self, whole=True)._statements(body[first:], writer)
        ends = "the end" if self.kernel.start is None else "the ends"
        with writer.block(f"else:  # {ends} of the row"):
            writer.line(f"mask = {self.place.inside}")
            self._statements(body[first:], writer)

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
        mask = "" if self.kernel.config.even else f", mask={self.place.col_mask}"
        for sums in self.kernel.columns:
            _line(writer, f"tl.store({self._address(sums.access)}, {sums.lanes}{mask})")

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
        shape = "[]" if self.place.flat_rows else "[BLOCK_ROWS, 1]"
        value = statement.value
        return f"tl.full({shape}, {number_text(value)}, tl.{value.dtype.triton})"

    def _address(self, access: Access) -> str:
        terms = terms_text(access)
        return f"{access.buffer} + {terms}" if terms else access.buffer

    def _mask(self, mask: Level) -> list[str]:
        if self.whole:
            return []
        names = ["row_mask"] if Level.ROW in mask else []
        return names + ([self.place.col_mask] if Level.COL in mask else [])

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
        if self.place.of_two_rows(load):
            _line(writer, f"{load.name} = {self._of_two_rows(load)}{widen}")
            return
        _line(writer, f"{load.name} = tl.load({', '.join(arguments)}){widen}")

    def _of_two_rows(self, load: Load) -> str:
        """What each of the two rows of a program has."""
        (term,) = load.access.terms
        first, second = "first", "first + 1"
        if term.stride != 1:
            first, second = f"first * {term.stride}", f"(first + 1) * {term.stride}"
        loads = [f"{load.access.buffer} + {row}" for row in (first, second)]
        return f"tl.where(beyond, tl.load({loads[1]}, mask=border < n), tl.load({loads[0]}))"

    def _store(self, store: Store, writer: Writer) -> None:
        value = self._dialect.text(store.value)
        if store.storage is F8E5M2:
            value = f"_f8e5m2({value})"
        address = self._address(store.access)
        arguments = [address, value]
        if guards := self._mask(store.mask):
            arguments.append(f"mask={' & '.join(guards)}")
        _line(writer, f"tl.store({', '.join(arguments)})")

    def _combine(self, op: Op, value: str, count: str = "cols") -> str:
        """The lanes of a tile combined into one value for each row; a mean is that of ``count``."""
        form = op.triton.usual
        assert isinstance(form, Template)
        axis = "0" if self.place.flat_rows else "1, keep_dims=True"
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
        axis = "0" if self.place.flat_rows else "1, keep_dims=True"
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
        shape = f"[{self.place.block}]" if self.place.flat_rows else "[BLOCK_ROWS, BLOCK_COLS]"
        for accumulator in sweep.accumulators:
            if accumulator.op.name == "mean":
                steps = f"tl.cdiv(cols, {self.place.block})"
                wide = ".to(tl.float64)" if accumulator.accumulate is F64 else ""
                writer.line(f"{_scale(accumulator)} = _mean_scale({steps}){wide}")
            _line(writer, f"{accumulator.lanes} = {self._start(accumulator, shape)}")
        with writer.block(f"for {self.place.tiles(sweep)}:"):
            if sweep.backwards:
                first = "first + " if self.kernel.divided else ""
                writer.line(f"start = {first}tile * {self.place.block}")
            writer.line(f"col = start + {self.place.lanes}")
            writer.line(f"{self.place.col_mask} = col < {self.place.length}")
            self.place.variables(Level.COL, writer)
            self._statements(sweep.body, writer)
        if self.place.folds:
            self._left_over(sweep, writer)
        for accumulator in sweep.accumulators:
            count = f"cols * {_scale(accumulator)}" if accumulator.op.name == "mean" else "cols"
            value = self._combine(accumulator.op, accumulator.lanes, count)
            _line(writer, f"{accumulator.name} = {value}")

    def _left_over(self, sweep: Sweep, writer: Writer) -> None:
        """The columns that fill no stretch: those of the last program that shares a row."""
        with writer.block("if split == splits - 1:  # what fills no stretch"):
            writer.line(f"col = stretches + {self.place.lanes}")
            writer.line("col_mask = (col == stretches) & (row < cols % FOLD * rows)")
            self._statements(sweep.body, writer)

    def _start(self, accumulator: Accumulator, shape: str) -> str:
        kind = accumulator.accumulate
        return f"tl.full({shape}, {number_text(accumulator.identity)}, tl.{kind.triton})"


def _scale(accumulator: Accumulator) -> str:
    """The factor of the terms of a mean, which keeps its lanes in range wherever the mean is."""
    return f"{accumulator.name}_scale"


def _line(writer: Writer, statement: str) -> None:
    """A statement, wrapped as ``ruff format`` would wrap it."""
    for line in wrap(statement, writer.width):
        writer.line(line)
