"""The parameters of one kernel: buffers, sizes, strides, and the addresses made of them.

May import ``fusec.ir``, ``fusec.passes.fuse``, ``codegen.job``, ``codegen.kernel``,
``codegen.layout`` and ``codegen.names``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fusec.codegen.job import Job
from fusec.codegen.kernel import (
    Access,
    Form,
    Level,
    Number,
    Pointer,
    Size,
    Term,
    Variable,
)
from fusec.codegen.layout import WHOLE
from fusec.codegen.names import Names
from fusec.ir.dtypes import I32, DType
from fusec.ir.node import Node
from fusec.ir.ops import Kind
from fusec.passes.fuse import Region


def accumulated(node: Node) -> DType:
    """The type a reduction runs in: bools reduce as int32."""
    return I32 if node.dtype.is_bool else node.dtype.compute


def part_buffer(region: Region, position: int) -> str:
    """The launcher's name for the parts of a region's reduction; no input can be called so."""
    return f"{region.name} part {position}"


_FIXED = ("n", "rows", "cols", "chunk", "share", "chunks")  # sizes that keep their names


@dataclass(slots=True)
class Parameters:
    """What a lowering has asked for so far; each parameter is made at its first use."""

    job: Job
    names: Names = field(default_factory=Names)
    sizes: dict[tuple[str | int, ...], Size] = field(default_factory=dict)
    numbers: dict[tuple[str, DType], Number] = field(default_factory=dict)
    pointers: dict[tuple[str, bool], Pointer] = field(default_factory=dict)
    variables: dict[tuple[str, int], Variable] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    reads: dict[Node, str] = field(default_factory=dict)
    levels: dict[Node, Level] = field(default_factory=dict)
    touched: set[tuple[str, bool]] = field(default_factory=set)  # pointers that are used

    def name(self, node: Node) -> str:
        """The name of a value in the kernel."""
        raise NotImplementedError

    def size(self, name: str, *source: str | int) -> str:
        """The name of the size or stride parameter that ``source`` describes."""
        if source not in self.sizes:
            self.sizes[source] = Size(name if name in _FIXED else self.names.user(name), source)
        return self.sizes[source].name

    def variable(self, side: str, position: int) -> str:
        """The index variable of merged axis ``position`` on ``side`` ("row" or "col")."""
        groups = self.job.layout.rows if side == "row" else self.job.layout.cols
        flat = self.job.form is Form.FLAT
        if len(groups) == 1:
            return "i" if flat else side
        if (side, position) not in self.variables:
            # One index through two axes, or one of several axes on a side.
            names = ("row", "col") if flat and len(groups) == 2 else ()
            label = names[position] if names else f"{side}_{position}"
            size = {k: f"{names[k]}s" if names else f"{side}_size_{k}" for k in range(len(groups))}
            inner = range(position + 1, len(groups))
            divisors = tuple(self.size(size[k], side, k) for k in inner)
            modulus = self.size(size[position], side, position) if position else None
            level = Level.ROW if side == "row" else Level.COL
            base = "i" if flat else side
            name = label if names else self.names.user(label)
            made = Variable(name, base, divisors, modulus, level)
            self.variables[side, position] = made
        return self.variables[side, position].name

    def access(self, operand_position: int, name: str, written: bool) -> Access:
        """The address of an operand's element: a term for each merged axis it spans, or one alone
        where a program has an index that begins at a vector.
        """
        self.touched.add((name, written))
        shifted = self.job.one_row and self.wide(operand_position)
        terms = (Term("i", 1),) if shifted else self._terms(operand_position, name)
        return Access(self.pointers[name, written].name, terms)

    def _terms(self, operand_position: int, name: str) -> tuple[Term, ...]:
        layout = self.job.layout
        terms = []
        for axis, stride in enumerate(layout.strides[operand_position]):
            if stride == 0:
                continue
            if stride == WHOLE:
                terms.append(Term("i" if self.job.form is Form.FLAT else "col", 1))
                continue
            side = "row" if axis < len(layout.rows) else "col"
            position = axis if side == "row" else axis - len(layout.rows)
            alone = len(layout.rows if side == "row" else layout.cols) == 1
            variable = self.variable(side, position)
            if stride == "free":
                label = f"{name}_{side}_stride" if alone else f"{name}_{side}_stride_{position}"
                stride = self.size(label, "stride", operand_position, axis)
            elif isinstance(stride, str):
                stride = self._step(stride)
            terms.append(Term(variable, stride))
        return tuple(terms)

    def part(self, node: Node, written: bool) -> Access:
        """Where the programs that share a row leave their parts of a reduction."""
        reductions = [n for n in self.nodes if n.op.kind is Kind.REDUCTION and n not in self.reads]
        key = (part_buffer(self.job.region, reductions.index(node)), written)
        if key not in self.pointers:
            label = self.names.user(f"{self.name(node)}_parts_ptr")
            self.pointers[key] = Pointer(label, accumulated(node), written, key[0])
        self.touched.add(key)
        which = ("split", self._step("rows")) if written else ("part", self.size("rows", "rows"))
        terms = (Term(*which), Term("row", 1))
        return Access(self.pointers[key].name, terms)

    def _step(self, stride: str) -> str:
        """A stride that is a size, or the stretch that so many rows make."""
        name = self.size(stride, stride)
        return "stretch" if stride == "rows" and self.job.config.fold > 1 else name

    def column_access(self, buffer: str, node: Node) -> Access:
        """Where a program stores what it has added up over its rows."""
        key = (buffer, True)
        if key not in self.pointers:
            label = self.names.user(f"{buffer}_ptr")
            self.pointers[key] = Pointer(label, accumulated(node), True, buffer)
        self.touched.add(key)
        terms = (Term("program", self.size("cols", "cols")), Term("col", 1))
        return Access(self.pointers[key].name, terms)

    def wide(self, operand_position: int) -> bool:
        """Whether an operand is moved as whole vectors: they lie side by side along the columns."""
        layout, config = self.job.layout, self.job.config
        if config.lanes == 1 or operand_position in config.narrow or len(layout.cols) != 1:
            return operand_position in config.across
        return layout.strides[operand_position][-1] == 1

    def across(self, operand_position: int) -> bool:
        """Whether the vectors of an operand lie across those of memory."""
        return operand_position in self.job.config.across

    def row_start(self, operand_position: int) -> Access:
        """The address at which an operand's row begins."""
        operand = self.job.accesses[operand_position]
        access = self.access(operand_position, operand.name, operand.kind == "root")
        terms = self._terms(operand_position, operand.name)
        return Access(access.buffer, tuple(t for t in terms if t.variable != "col"))

    def mask(self, level: Level) -> Level:
        """The guards a load or store at ``level`` needs."""
        if not self.job.target.masks:
            return Level.UNIFORM
        config, form = self.job.config, self.job.form
        guards = Level.UNIFORM
        if form is not Form.ROWS or not config.even:
            guards |= Level.COL
        several = config.block_rows > 1 and not config.turns
        if several or (form is Form.TILE and not self.job.one_row):
            guards |= Level.ROW
        return level & guards
