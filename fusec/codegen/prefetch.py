"""What a sweep of a C++ kernel asks for before it is needed.

May import ``fusec.ir``, ``fusec.passes.fuse`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusec.codegen.kernel import Access, Level, Load, Stmt
from fusec.codegen.uses import runs_along_row
from fusec.codegen.values import Values
from fusec.ir.node import Node
from fusec.ir.ops import Kind
from fusec.passes.fuse import Root


def read_soon(
    values: Values, stage: Mapping[Node, int], reductions: Sequence[Node], loads: Sequence[Stmt]
) -> tuple[tuple[Access, ...], bool]:
    """What to fetch of the next row: the first sweep waits for memory, a later one computes. Where
    none reduces, the one that writes past the caches has nothing to wait for. And where one is all
    there is, what follows in memory (True), so that the end of a short row is no pause.
    """
    config, last = values.job.config, _last(values, stage)
    alone = bool(reductions) and last == 1 and not _written(values)
    later = any(stage[n] > 1 for n in reductions)
    writes = bool(config.stream) and not reductions and last == 1
    if not (config.prefetch and (alone or later or writes)):
        return (), False
    found = (s for s in loads if isinstance(s, Load) and not s.guards)
    accesses = (s.access for s in found if s.level is Level.TILE)
    return tuple(a for a in accesses if runs_along_row(a)), alone


def written_soon(
    values: Values, stage: Mapping[Node, int], reductions: Sequence[Node]
) -> tuple[Access, ...]:
    """Where the next sweep writes, if this one is the last that reduces."""
    if values.job.config.stream or stage[reductions[0]] < _last(values, stage):
        return ()
    accesses = (values.root_access(root) for root in _written(values))
    return tuple(access for access in accesses if runs_along_row(access))


def _last(values: Values, stage: Mapping[Node, int]) -> int:
    """The last sweep that reduces."""
    nodes = (n for n in values.nodes if n.op.kind is Kind.REDUCTION and n not in values.reads)
    return max((stage[n] for n in nodes), default=0)


def _written(values: Values) -> list[Root]:
    """Results as large as the rows are."""
    return [r for r in values.job.region.roots if values.levels[r.node] is Level.TILE]
