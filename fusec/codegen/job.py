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
    keeps: bool  # a row's values can be buffered between sweeps
    wide_sums: bool  # float32 sums accumulate in float64
    wide_index: bool  # index variables are int64 whatever the sizes
    online: bool  # a loop may run two reductions of which the second needs the first
    narrow_fast: bool  # the fast forms of functions are for 16-bit results and nothing else


TRITON = Target(
    "triton",
    masks=True,
    keeps=False,
    wide_sums=False,
    wide_index=False,
    online=True,
    narrow_fast=False,
)
CPP = Target(
    "cpp",
    masks=False,
    keeps=True,
    wide_sums=True,
    wide_index=True,
    online=False,
    narrow_fast=True,
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
    def form(self) -> Form:
        """Flat when one axis is left, tile for more, rows when some are reduced."""
        if self.region.axes:
            return Form.ROWS
        return Form.TILE if self.layout.rows else Form.FLAT
