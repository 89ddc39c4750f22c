"""Kernel to C++ source: scalar loops over the helpers of ``fusec.h``, which the compiler turns into
vector code.

Rows are shared out over threads, long ones in parts; along a row 64 lanes run side by side,
whatever the machine's vectors, so a result does not depend on the processor. Where the rows are the
contiguous axis the lanes are rows. Prints, decides nothing.

May import ``fusec.ir`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusec.codegen.cpp_lanes import RowLanes
from fusec.codegen.cpp_statements import IN_TILE
from fusec.codegen.kernel import Comment, Form, Kernel, Let, Level, Load, Stmt, Store
from fusec.codegen.writer import Writer


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
class _Printer(RowLanes):
    def function(self) -> None:
        params = [f"{kind} {name}" for name, kind in parameters(self.kernel)]
        opening = f'extern "C" void {self.kernel.name}({", ".join(params)}) {{'
        if len(opening) > 100:
            self.writer.line(f'extern "C" void {self.kernel.name}(')
            for parameter in params[:-1]:
                self.writer.line(f"    {parameter},")
            opening = f"    {params[-1]}) {{"
        body = {Form.FLAT: self._flat, Form.TILE: self._tile, Form.ROWS: self.rows}[
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
            self._turned_tiles()
            return
        with self.threads() as share:
            self.writer.line(share)
            with self.loop("row", "rows"):
                self._row_of_tile("0", "cols")

    def _turned_tiles(self) -> None:
        """Tile by tile, so that each line of an operand that runs along the rows is read once."""
        with self.threads() as share:
            self.writer.line(share.replace(" for ", " for collapse(2) "))
            with (
                self.stretches("row_start", "rows", "fusec::TILE"),
                self.stretches("col_start", "cols", "fusec::WIDE"),
            ):
                self._turned_tile()

    def _turned_tile(self) -> None:
        for axis, side in (("row", "fusec::TILE"), ("col", "fusec::WIDE")):
            end = f"fusec::minimum({axis}_start + {side}, {axis}s)"
            self.writer.line(f"const int64_t {axis}_end = {end};")
        turned = [s for s in self.kernel.body if isinstance(s, Load) and s.tile]
        for load in turned:
            tile = f"{load.tile}[fusec::TILE * fusec::WIDE]"
            self.writer.line(f"alignas(64) {load.storage.cpp} {tile};")
        if turned:
            self._turn(turned)
        with (
            self.loop("row", "row_end", "row_start"),
            self.stretches("strip", "col_end", "fusec::TILE", "col_start"),
        ):
            self.writer.line(
                "const int64_t strip_end = fusec::minimum(strip + fusec::TILE, col_end);"
            )
            self._row_of_tile("strip", "strip_end")

    def _turn(self, loads: Sequence[Load]) -> None:
        """Copy tiles of operands that run along the rows, so that they run along the columns."""
        plain = [load for load in loads if self._is_plain(load)]
        for load in plain:
            start = self.at_start(load.access, "row_start", "col_start")
            stride = next(t.stride for t in load.access.terms if t.variable == "col")
            self.writer.line(f"fusec::turn(&{load.access.buffer}[{start}], {stride},")
            size = "row_end - row_start, col_end - col_start"
            self.writer.line(f"            {size}, {load.tile});")
        others = [load for load in loads if load not in plain]
        if not others:
            return
        with (
            self.stretches("strip", "col_end", "fusec::TILE", "col_start"),
            self.loop("col", "fusec::minimum(strip + fusec::TILE, col_end)", "strip"),
            self.loop("row", "row_end", "row_start"),
        ):
            self.variables(Level.COL)
            for load in others:
                element = f"{load.access.buffer}[{self.address(load.access)}]"
                self.writer.line(f"{load.tile}[{IN_TILE}] = {element};")

    def _is_plain(self, load: Load) -> bool:
        """Whether columns of an operand lie at equal distances, and its rows side by side."""
        steps = {term.variable: term.stride for term in load.access.terms}
        return set(steps) == {"row", "col"} and steps["row"] == 1

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
