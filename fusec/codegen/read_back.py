"""Results that an earlier kernel has stored, read instead of computed anew where that is less.

A later kernel of shared rows needs ``h = x + r`` again: ``h`` is one tensor where ``x`` and ``r``
are two. May import ``fusec.ir``, ``fusec.passes.fuse`` and the modules of ``codegen`` above it in
the tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusec.codegen.kernel import Level
from fusec.codegen.values import Values
from fusec.ir.node import Node
from fusec.ir.ops import Kind
from fusec.passes.fuse import Root


def read_back(values: Values, stored: Sequence[Root], targets: Sequence[Node]) -> None:
    """Let ``values`` load those of ``stored`` that make what ``targets`` need fewer tensors. A
    result that was rounded to be stored is not what it was computed as, and stays out.
    """
    for root in stored:
        exact = values.pointers[root.name, True].storage is root.node.dtype.compute
        leaf = frozenset((root.node,))
        needed = _tensors(values, targets, frozenset())
        if exact and root.node not in needed and len(_tensors(values, targets, leaf)) < len(needed):
            values.read_back(root)


def _tensors(values: Values, targets: Sequence[Node], leaves: frozenset[Node]) -> set[Node]:
    """What varies along rows and columns and is loaded for ``targets``, ``leaves`` among it."""
    found: set[Node] = set()
    seen: set[Node] = set()
    stack = list(targets)
    while stack:
        node = stack.pop()
        if node in seen or node.op.kind is Kind.REDUCTION:
            continue
        seen.add(node)
        if node in leaves or node in values.reads or node.op.name in ("input", "gather"):
            found |= {node} if values.levels[node] is Level.TILE else set()
            continue
        stack.extend(node.args)
    return found
