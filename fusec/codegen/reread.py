"""Which rows a kernel reads again: those that a result needs once a reduction of them is known.

May import ``fusec.ir``, ``fusec.passes.fuse``, ``codegen.layout`` and ``codegen.pairs``.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Set
from functools import partial

from fusec.codegen.layout import region_nodes
from fusec.codegen.pairs import reductions_of, stages
from fusec.ir.node import Node
from fusec.passes.fuse import Region


def costly(
    nodes: Iterable[Node], loaded: Container[Node], varies: Callable[[Node], bool]
) -> set[Node]:
    """Those of ``nodes`` (arguments first) along the columns, which ``varies`` tells, that took a
    special function to compute: a later sweep rather keeps them than computes them again.
    """
    found: set[Node] = set()
    for node in nodes:
        if not varies(node) or node in loaded:
            continue
        if node.op.costly or any(a in found for a in node.args):
            found.add(node)
    return found


def read_again(region: Region) -> frozenset[str]:
    """The names of the operands that reductions need, and results that wait for reductions too
    (costly values between the two are kept instead).
    """
    nodes, loaded = region_nodes(region), {node for _, node in region.reads}
    reductions = reductions_of(region)
    stage = stages(nodes, loaded, ())
    varies = partial(_varies, region)
    late = [root.node for root in region.roots if stage[root.node] and varies(root.node)]
    early = _needed([a for n in reductions for a in n.args], loaded, frozenset())
    stop = frozenset(reductions) | (costly(nodes, loaded, varies) & early)
    again = early & _needed(late, loaded, stop)
    read = {name for name, node in region.reads if node in again}
    return frozenset(read | {node.name for node in again if node.op.name == "input"})


def _needed(targets: Iterable[Node], loaded: Set[Node], stop: Set[Node]) -> set[Node]:
    """What has to be loaded or computed for ``targets``, up to the nodes in ``stop``."""
    found: set[Node] = set()
    stack = list(targets)
    while stack:
        node = stack.pop()
        if node in found or node in stop:
            continue
        found.add(node)
        if node not in loaded:  # what is gathered from is no row that is read
            stack.extend(node.args[1:] if node.op.name == "gather" else node.args)
    return found


def _varies(region: Region, node: Node) -> bool:
    """Whether a value differs along the axes that a region reduces."""
    rank = len(node.shape)
    return any(extent != 1 and k - rank in region.axes for k, extent in enumerate(node.shape))
