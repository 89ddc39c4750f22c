"""What a lowering starts from: the Region, how its operands lie, the Config, the backend.

May import ``fusec.ir``, ``fusec.passes.fuse``, ``codegen.kernel`` and ``codegen.layout``.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusec.codegen.kernel import Config, Form
from fusec.codegen.layout import Layout, Operand
from fusec.ir.graph import Graph
from fusec.passes.fuse import Region


@dataclass(frozen=True, slots=True)
class Target:
    """What lowering has to know of a backend."""

    name: str
    masks: bool  # tiles overhang the data
    wide_sums: bool  # float32 sums accumulate in float64
    wide_index: bool  # index variables are int64 whatever the sizes
    online: tuple[str, ...]  # reductions that a loop may run together with one that needs them
    narrow_fast: bool  # the fast forms of functions are for 16-bit results and nothing else
    tiles: bool  # a value along the columns is a whole tile, so a resident row needs no loop


TRITON = Target(
    "triton",
    masks=True,
    wide_sums=False,
    wide_index=False,
    online=("max", "mean"),
    narrow_fast=False,
    tiles=True,
)
CPP = Target(
    "cpp",
    masks=False,
    wide_sums=True,
    wide_index=True,
    online=("max", "mean", "entropy"),
    narrow_fast=True,
    tiles=False,
)
CUDA = Target(
    "cuda",
    masks=True,
    wide_sums=False,
    wide_index=False,
    online=("max", "entropy"),
    narrow_fast=False,
    tiles=False,
)


@dataclass(frozen=True, slots=True)
class Job:
    """All that determines a kernel."""

    graph: Graph
    region: Region
    accesses: tuple[Operand, ...]
    layout: Layout
    config: Config
    target: Target
    numerics: str = "torch"
    part: int = 0  # where programs share a row, a kernel for each sweep: 1, 2, ...; 0 is all in one

    @property
    def online(self) -> tuple[str, ...]:
        """The reductions that run in one sweep together with one that needs them."""
        joins = self.config.pieces if self.target is CPP else not self.config.resident
        return self.target.online if joins else ()

    @property
    def form(self) -> Form:
        """Flat when one axis is left, tile for more, rows when some are reduced."""
        if self.region.axes:
            return Form.ROWS
        return Form.TILE if self.layout.rows else Form.FLAT

    @property
    def one_row(self) -> bool:
        """Whether an elementwise program takes a piece of one row, whose values are scalars."""
        return self.form is Form.TILE and self.config.apart
