"""Where a thread of a CUDA kernel stands: its block, its row, its vectors and their columns.

May import ``fusec.ir`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from fusec.codegen.cuda_dialect import Cuda
from fusec.codegen.expr import position_text
from fusec.codegen.kernel import Access, Form, Kernel, Level, Sweep
from fusec.codegen.writer import Writer
from fusec.ir.dtypes import I32, I64, DType


def parameters(kernel: Kernel) -> list[tuple[str, str]]:
    """Name and C type of each parameter, in the order of a launch."""
    index = index_type(kernel).cuda
    found = [
        (p.name, ("" if p.written else "const ") + f"{p.storage.cuda}* __restrict__")
        for p in kernel.pointers
    ]
    found += [(n.name, n.dtype.cuda) for n in kernel.numbers]
    return found + [(s.name, index) for s in kernel.sizes]


def index_type(kernel: Kernel) -> DType:
    """The type of positions, sizes and strides."""
    return I64 if kernel.config.wide_index else I32


def constants(kernel: Kernel) -> dict[str, int]:
    """The compile-time constants that the source may name."""
    config = kernel.config
    return {
        "THREADS": config.threads,
        "BLOCKS": config.blocks,
        "WARPS": config.warps,
        "ROWS": config.block_rows,
        "GROUP": group_of(kernel),
        "CLUSTER": config.cluster,
        "LANES": config.lanes,
        "VECTORS": config.vectors,
        "FULL": config.full,
        "TILE": config.block_cols,
        "SPLITS": config.splits,
    }


def group_of(kernel: Kernel) -> int:
    """Threads of a block that share a row; in the tile form their vectors lie below each other."""
    config = kernel.config
    if kernel.form is Form.TILE:
        return config.block_cols // config.lanes
    return config.threads // config.block_rows


@dataclass(slots=True)
class Place:
    """Prints index arithmetic; the base of the printer."""

    kernel: Kernel
    writer: Writer = field(default_factory=lambda: Writer("  "))
    dialect: Cuda = field(default_factory=Cuda)

    @property
    def _index(self) -> str:
        return index_type(self.kernel).cuda

    @property
    def _lanes(self) -> bool:
        return self.kernel.config.lanes > 1

    @property
    def _straight(self) -> bool:
        """Whether a thread holds vectors of a row that are equally far from each other."""
        return self.kernel.config.turns

    @property
    def _several_rows(self) -> bool:
        """Whether a thread's row may be beyond the last."""
        return self._many_rows and not self._full

    @property
    def _many_rows(self) -> bool:
        config = self.kernel.config
        return config.block_rows > 1 and not config.turns and self.kernel.form is not Form.FLAT

    @property
    def _has_row(self) -> str:
        """Whether a thread has a row that is not another's, where that is a question."""
        if not self._many_rows or self.dialect.inside:
            return ""
        return "wanted < rows" if self._full else "row < rows"

    @property
    def _length(self) -> str:
        """The name of the length of a row, 0 beyond the last."""
        if self.kernel.form is Form.FLAT:
            return "n"
        return "length" if self._several_rows else "cols"

    @property
    def _full(self) -> bool:
        """Whether every vector of every thread is inside its row."""
        return self.dialect.inside or (self.kernel.config.even and self.kernel.form is Form.ROWS)

    def _place(self) -> None:
        """The row of a thread, and which of the threads of that row it is."""
        form = self.kernel.form
        if self.kernel.config.turns:
            self._place_in_turns()
        elif form is Form.ROWS:
            self._place_in_rows()
        elif form is Form.TILE:
            self._tile_place()
        else:
            self._define_index("block", "blockIdx.x")

    def _tile_place(self) -> None:
        edge = " + LANES - 1" if self.kernel.start is not None else ""
        width = "GROUP * LANES" if self._lanes else "GROUP"
        line = self.writer.line
        self._define_index("col_blocks", f"(cols{edge} + {width} - 1) / ({width})")
        self._define_index("block", "blockIdx.x")
        self._define_index("first_row", "block / col_blocks * ROWS + threadIdx.x / GROUP")
        self._define_index("member", "block % col_blocks * GROUP + threadIdx.x % GROUP")
        line("")

    def _place_in_rows(self) -> None:
        config, kernel = self.kernel.config, self.kernel
        block = "blockIdx.x"
        if kernel.divided:
            self._define_index("block", self._share_of_grid())
            self.writer.line(f"const {self._index} split = block % SPLITS;")
            block = "block / SPLITS"
        if config.cluster > 1:
            block = f"{block} / CLUSTER"
        if config.lanes_along_rows:
            self._define_index("row", f"{block} * ROWS + threadIdx.x % ROWS")
            member = "threadIdx.x / ROWS"
        elif config.block_rows > 1:
            row = f"{block} * ROWS + threadIdx.x / GROUP"
            if self._full:  # no other mask is needed: threads beyond the last row read that
                self._define_index("wanted", row)
                row = "wanted < rows ? wanted : rows - 1"
            self._define_index("row", row)
            member = "threadIdx.x % GROUP"
        else:
            self._define_index("row", block)
            member = "threadIdx.x"
        if config.cluster > 1:
            member = f"blockIdx.x % CLUSTER * GROUP + {member}"
        self.writer.line(f"const int member = {member};")
        if self._several_rows:
            self.writer.line(f"const {self._index} length = row < rows ? cols : 0;")
        self._variables(Level.ROW)
        self._shift()
        if kernel.divided:
            whole = "cols + shift" if kernel.start is not None else self._length
            if kernel.config.edges:
                whole = "end - head" if kernel.start is not None else "end"
            self.writer.line(f"const {self._index} first_col = split * chunk;")
            self.writer.line(
                f"const {self._index} last_col = first_col + chunk < {whole}"
                f" ? first_col + chunk : {whole};"
            )

    def _place_in_turns(self) -> None:
        """Where a block that stays is in its cluster, and how far apart the rows of that are."""
        line = self.writer.line
        line("const int member = blockIdx.x % CLUSTER * GROUP + threadIdx.x % GROUP;")
        line(f"const {self._index} cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;")
        if self.kernel.start is None:
            line("const int apart = clusters;")
            return
        (step,) = (t.stride for t in self.kernel.start.terms if t.variable == "row")
        line(f"const int step = {step} % LANES;")
        line("const int apart = LANES / (step & -step);  // rows of which begin alike")
        line(f"const {self._index} each = (rows + apart - 1) / apart;  // such rows")
        line(f"const {self._index} stop = each * apart * (cluster + 1) / clusters;")

    def _share_of_grid(self) -> str:
        """The number of a block. In the last of several kernels the blocks run in reverse: what the
        kernel before it has read last is still in the cache.
        """
        backwards = any(isinstance(s, Sweep) and s.backwards for s in self.kernel.body)
        return "gridDim.x - 1 - blockIdx.x" if backwards else "blockIdx.x"

    def _define_index(self, name: str, text: str) -> None:
        if self.kernel.config.wide_index:
            text = text.replace("blockIdx.x", "static_cast<long long>(blockIdx.x)")
        self.writer.line(f"const {self._index} {name} = {text};")

    def _shift(self) -> None:
        """Vectors begin where whole vectors of memory do: up to LANES - 1 elements before a row."""
        start = self.kernel.start
        if self.kernel.config.edges:
            self._edges()
        elif start is not None:
            place = self._address(start)
            self.writer.line(f"const int shift = ({place}) % LANES;  // from a whole vector")
        if not self._straight:
            return
        text = "member * LANES"
        if start is not None:
            text = f"head + {text}" if self.kernel.config.edges else f"{text} - shift"
        self.writer.line(f"int start = {text};  // of the first vector of this thread")

    def _edges(self) -> None:
        """Where the whole vectors of a row are, and which of the elements around them is this
        thread's. Vectors that lie across those of memory read no further than the row.
        """
        line, index, start = self.writer.line, self._index, self.kernel.start
        if start is not None:
            ahead = f"(LANES - ({self._address(start)}) % LANES) % LANES"
            if self._several_rows:
                ahead = f"row < rows ? {ahead} : 0"
            line(f"const int head = {ahead};  // elements before the first whole vector")
            line(f"const {index} end = head + ({self._length} / LANES - (head > 0)) * LANES;")
            line(f"const {index} edge = member < head ? member : member + end - head;")
        else:
            line(f"const {index} end = {self._length} / LANES * LANES;  // of the whole vectors")
            line(f"const {index} edge = member + end;")

    @property
    def _by_vector(self) -> bool:
        """Whether a vector is inside its row, or beyond it, as a whole."""
        return self.kernel.config.whole or self.kernel.config.edges

    @property
    def _end(self) -> str:
        """The name of where the vectors of a row end."""
        return "end" if self.kernel.config.edges else self._length

    def _variables(self, level: Level) -> None:
        """Split flattened indices into the positions along their axes."""
        for variable in self.kernel.variables:
            if variable.level is not level:
                continue
            text = position_text(variable, "/")
            self.writer.line(f"const {self._index} {variable.name} = {text};")

    def _first(self, needed: bool = True) -> None:
        """Where the vector begins in its row (and in the tile form, which row that is)."""
        form, config = self.kernel.form, self.kernel.config
        if form is Form.TILE:
            self.writer.line(f"const {self._index} row = first_row + vector * (THREADS / GROUP);")
            if self._several_rows:
                self.writer.line(f"const {self._index} length = row < rows ? cols : 0;")
            self._variables(Level.ROW)
            self._shift()
            text = "member"
        elif form is Form.FLAT:
            text = "(block * VECTORS + vector) * THREADS + threadIdx.x"
        elif self._straight:
            step = "CLUSTER * GROUP" if config.cluster > 1 else "GROUP"
            if needed:
                self.writer.line(f"const {self._index} first = start + vector * ({step} * LANES);")
            return
        else:
            step = "CLUSTER * GROUP" if config.cluster > 1 else "GROUP"
            text = f"vector * {step} + member"
        if self._lanes:
            text = f"({text}) * LANES"
        if form is Form.ROWS and not config.resident:
            text = f"tile + {text}"
        if self.kernel.start is not None:
            text = f"head + {text}" if config.edges else f"{text} - shift"
        if needed:
            self.writer.line(f"const {self._index} first = {text};")

    def _columns(self, used: set[str]) -> None:
        """The position of a lane, and whether that is inside the row."""
        name = "i" if self.kernel.form is Form.FLAT else "col"
        variables = any(v.level is Level.COL for v in self.kernel.variables)
        ragged = "inside" in used and not self._by_vector
        if name in used or ragged or variables:
            self.writer.line(
                f"const {self._index} {name} = first{' + lane' if self._lanes else ''};"
            )
        if "inside" in used:
            low = f"{name} >= 0 && " if self.kernel.start is not None else ""
            if not self._by_vector:
                self.writer.line(f"const bool inside = {low}{name} < {self._length};")
        self._variables(Level.COL)

    def _address(self, access: Access, element: str = "", row: str = "row") -> str:
        """The offset of an access; ``element`` stands for the position along the row."""
        parts = []
        for term in access.terms:
            name = element if element and term.variable in ("col", "i") else term.variable
            name = row if name == "row" else name
            parts.append(name if term.stride == 1 else f"{name} * {term.stride}")
        return " + ".join(parts) or "0"

    def _define(self, name: str, dtype: DType, text: str) -> None:
        self.writer.assign(f"const {dtype.cuda} {name}", f"{text};")

    def _block(self, opening: str) -> AbstractContextManager[None]:
        return self.writer.block(opening, "}")

    def _loop(self) -> AbstractContextManager[None]:
        self.writer.line("#pragma unroll")
        return self._block("for (int vector = 0; vector < VECTORS; ++vector) {")
