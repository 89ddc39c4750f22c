"""Where a program of a Triton kernel stands: its rows, its part of their columns, what bounds them.

May import ``fusec.ir`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusec.codegen.expr import position_text
from fusec.codegen.kernel import Access, Combine, Form, Kernel, Level, Load, Stmt, Sweep
from fusec.codegen.uses import reads
from fusec.codegen.writer import Writer


@dataclass(frozen=True, slots=True)
class Place:
    """The names of indices, masks and constants of a kernel, and the lines that make them."""

    kernel: Kernel

    @property
    def flat_rows(self) -> bool:
        """Whether a program works on one row, so that row values are scalars."""
        return self.kernel.form is Form.ROWS and self.kernel.config.block_rows == 1

    @property
    def one_row(self) -> bool:
        """Whether an elementwise program works on a piece of one row."""
        return self.kernel.form is Form.TILE and self.kernel.config.apart

    @property
    def is_line(self) -> bool:
        """Whether the elements of a program have one index, not one for each side of a tile."""
        return self.kernel.form is Form.FLAT or self.flat_rows or self.one_row

    @property
    def col_mask(self) -> str:
        """Which elements along the columns there are."""
        return "mask" if self.is_line else "col_mask"

    @property
    def block(self) -> str:
        """How many columns a program takes at a time."""
        return "BLOCK" if self.is_line else "BLOCK_COLS"

    @property
    def lanes(self) -> str:
        """Those, counted."""
        text = f"tl.arange(0, {self.block})"
        return text if self.flat_rows else f"{text}[None, :]"

    @property
    def folds(self) -> bool:
        """Whether a program takes several neighbours along the columns as one stretch of memory."""
        return self.kernel.divided and self.kernel.config.fold > 1

    @property
    def length(self) -> str:
        """How many columns a loop counts."""
        return "stretches" if self.folds else "cols"

    @property
    def reads_parts(self) -> bool:
        """Whether a program combines what those that shared a row have left."""
        return any(isinstance(s, Combine) or _reads_parts(s) for s in self.kernel.body)

    @property
    def knows_splits(self) -> bool:
        """Whether the number of parts is a constant: one that only says which part a program has
        is not, so that rows of other lengths need no build.
        """
        config = self.kernel.config
        return config.parts > 1 and (self.reads_parts or config.spread)

    def constants(self) -> dict[str, int]:
        """The compile-time constants and their values."""
        config = self.kernel.config
        found = {"BLOCK": config.block_cols}
        if self.block != "BLOCK":
            found = {"BLOCK_ROWS": config.block_rows, "BLOCK_COLS": config.block_cols}
        found |= {"FOLD": config.fold} if self.folds else {}
        splits = config.parts if self.reads_parts else config.splits
        return found | ({"SPLITS": splits} if self.knows_splits else {})

    def parameters(self) -> list[str]:
        """What the kernel is called with, in order."""
        kernel = self.kernel
        found = [p.name for p in kernel.pointers] + [n.name for n in kernel.numbers]
        found += [s.name for s in kernel.sizes]
        return found + [f"{c}: tl.constexpr" for c in self.constants()]

    def indices(self, writer: Writer) -> None:
        """The lines that say which elements a program has, but for those that a loop counts."""
        form, wide = self.kernel.form, ".to(tl.int64)" if self.kernel.config.wide_index else ""
        if self.one_row:
            self._piece(f"tl.program_id(0){wide}", writer)
            return
        if form is Form.FLAT and (self.kernel.config.apart or self.kernel.config.two_rows):
            writer.line(f"start = tl.program_id(0){wide} * BLOCK")
            writer.line("i = start + tl.arange(0, BLOCK)")
            if not self.kernel.config.apart:
                writer.line("mask = i < n")
        elif form is Form.FLAT:
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
            self._rows(f"tl.program_id(0){wide}", writer)
        if form is Form.ROWS and self.kernel.config.resident:
            writer.line(f"col = {self.lanes}")
            if not self.kernel.config.even:
                writer.line(f"{self.col_mask} = col < cols")
        levels = Level.ROW if form is Form.ROWS and not self.kernel.config.resident else Level.TILE
        self.variables(levels, writer)

    def _piece(self, program: str, writer: Writer) -> None:
        """The row of a program, and its piece of that, the first of which begins at a vector."""
        vector, begin = self.kernel.config.lanes, self.kernel.start
        length = "cols" if begin is None else f"cols + {vector - 1}"
        writer.line(f"pieces = tl.cdiv({length}, BLOCK)")
        writer.line(f"program = {program}")
        writer.line("row = program // pieces")
        self.variables(Level.ROW, writer)
        if begin is None:
            writer.line("start = program % pieces * BLOCK")
            writer.line("col = start + tl.arange(0, BLOCK)")
            return
        writer.line(f"row_start = {terms_text(begin)}")
        writer.line(
            f"start = row_start // {vector} * {vector} + program % pieces * BLOCK  # at a vector"
        )
        writer.line("first = start - row_start")
        writer.line("i = start + tl.arange(0, BLOCK)")
        writer.line("col = first + tl.arange(0, BLOCK)")

    @property
    def is_inside(self) -> str:
        """Whether all elements of a piece are in its row."""
        if self.kernel.start is None:
            return "start + BLOCK <= cols"
        return "(first >= 0) & (first + BLOCK <= cols)"

    @property
    def inside(self) -> str:
        """Which are."""
        return "col < cols" if self.kernel.start is None else "(col >= 0) & (col < cols)"

    def _rows(self, program: str, writer: Writer) -> None:
        """The row or rows of a program, and where several share them its part of the columns."""
        kernel = self.kernel
        if kernel.divided and any(isinstance(s, Sweep) and s.backwards for s in kernel.body):
            program = f"tl.num_programs(0) - 1 - {program}"
        splits = "SPLITS" if self.knows_splits else "splits"
        rows = "stretch" if self.folds else "rows"
        if kernel.divided:
            writer.line(f"program = {program}")
            if self.folds:
                writer.line("stretch = rows * FOLD  # FOLD columns, one behind the other in memory")
                writer.line("stretches = cols // FOLD")
            if not self.knows_splits and not kernel.config.rows_near:
                blocks = "rows" if self.flat_rows else f"tl.cdiv({rows}, BLOCK_ROWS)"
                writer.line(f"splits = tl.num_programs(0) // {blocks}")
            program = "program % rows" if kernel.config.rows_near else f"program // {splits}"
        if kernel.columns:
            writer.line(f"program = {program}")
        elif self.flat_rows:
            writer.line(f"row = {program}")
        else:
            writer.line(f"row = {program} * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]")
            writer.line(f"row_mask = row < {rows}")
        if kernel.divided:
            split = "program // rows" if kernel.config.rows_near else f"program % {splits}"
            writer.line(f"split = {split}")
            if kernel.config.spread:
                writer.line(f"first = split * {self.block}")
            else:
                writer.line("first = split * chunk")
                writer.line(f"last = tl.minimum(first + chunk, {self.length})")
        if self.reads_parts:
            whole = "tl.arange(0, SPLITS)"
            writer.line(f"part = {whole if self.flat_rows else f'{whole}[None, :]'}")

    def of_two_rows(self, load: Load) -> bool:
        """Whether a load is of a value for each of the two rows of a program."""
        terms = load.access.terms
        alone = len(terms) == 1 and terms[0].variable == "row" and not load.guards
        return self.kernel.config.two_rows and alone

    def _two_rows(self, writer: Writer) -> None:
        """The first row of a program, and which of its elements are of the second."""
        writer.line("first = start // cols")
        writer.line("border = (first + 1) * cols")
        writer.line("beyond = i >= border")
        others = [s for s in self.kernel.body if not (isinstance(s, Load) and self.of_two_rows(s))]
        used = reads(others)
        if "row" in used:
            writer.line("row = first + beyond.to(border.dtype)")
        if "col" in used:
            writer.line("col = i - tl.where(beyond, border, border - cols)")

    def variables(self, levels: Level, writer: Writer) -> None:
        """Split flattened indices into the positions along their axes."""
        if self.kernel.config.two_rows:
            self._two_rows(writer)
            return
        for variable in self.kernel.variables:
            if variable.level in levels:
                writer.line(f"{variable.name} = {position_text(variable, '//')}")

    def tiles(self, sweep: Sweep) -> str:
        """What a loop over the tiles of a row counts, and through which values."""
        config, step = self.kernel.config, self.block
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


def terms_text(access: Access) -> str:
    """An address without its buffer."""
    parts = (t.variable if t.stride == 1 else f"{t.variable} * {t.stride}" for t in access.terms)
    return " + ".join(parts)


def _reads_parts(statement: Stmt) -> bool:
    """Whether a statement loads what programs that share a row have left."""
    return isinstance(statement, Load) and any(
        term.variable == "part" for term in statement.access.terms
    )
