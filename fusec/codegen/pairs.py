"""Reductions that can run in one sweep although one needs the other: which they are, and how many
sweeps that leaves.

May import ``fusec.ir``, ``fusec.passes.fuse`` and ``codegen.layout``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fusec.codegen.layout import region_nodes
from fusec.ir.node import Node
from fusec.ir.ops import Kind
from fusec.passes.fuse import Region


@dataclass(frozen=True, slots=True)
class Pair:
    """``second`` is the sum of ``exp(value - first)``, or of ``(value - first)^2``.

    ``guarded``: an infinite maximum counts as 0, as logsumexp has it. ``weighted``: the sum of
    ``exp(d) * d`` for the same ``d``, if it runs along.
    """

    first: Node
    second: Node
    value: Node
    guarded: bool = False
    weighted: Node | None = None

    @property
    def members(self) -> tuple[Node, ...]:
        """The reductions that run together."""
        both = (self.first, self.second)
        return both if self.weighted is None else (*both, self.weighted)

    @property
    def variance(self) -> bool:
        return self.first.op.name == "mean"


def pairs(
    nodes: Iterable[Node], known: Iterable[Node] = (), firsts: Sequence[str] = ("max", "mean")
) -> dict[Node, Pair]:
    """The pairs among ``nodes``, by their second reduction; ``known`` ones are only read, and the
    first of a pair is one of ``firsts``. With ``"entropy"`` among those a pair may have a third.
    """
    found: dict[Node, Pair] = {}
    taken = set(known)
    nodes = list(nodes)
    for node in nodes:
        pair = _pair(node) if node not in taken else None
        if pair is not None and pair.first not in taken and pair.first.op.name in firsts:
            if "entropy" in firsts and not pair.variance:
                pair = replace(pair, weighted=_weighted(pair, nodes, taken))
            found[node] = pair
            taken.update(pair.members)
    return found


def _weighted(pair: Pair, nodes: Iterable[Node], taken: set[Node]) -> Node | None:
    """The sum of the exponentials times their exponents."""
    power = pair.second.args[0]
    for node in nodes:
        if node.op.name != "sum" or node in taken or node.axes != pair.first.axes:
            continue
        product = node.args[0]
        if product.op.name == "mul" and set(product.args) == {power, power.args[0]}:
            return node
    return None


def _pair(node: Node) -> Pair | None:
    if node.op.name not in ("sum", "mean") or not node.dtype.is_float:
        return None
    argument = node.args[0]
    if argument.op.name == "exp" and node.op.name == "sum":
        return _checked(node, argument.args[0], "max")
    if argument.op.name == "mul" and argument.args[0] is argument.args[1]:
        return _checked(node, argument.args[0], "mean")
    return None


def _checked(node: Node, difference: Node, name: str) -> Pair | None:
    """The pair whose second reduction is ``node``, if ``difference`` is what it has to be."""
    if difference.op.name != "sub":
        return None
    value, base = difference.args
    first = base.args[2] if name == "max" and base.op.name == "where" else base
    fits = first.op.name == name and first.args[0] is value and first.axes == node.axes
    if not fits or (first is not base and not _is_guard(base, first)):
        return None
    return Pair(first, node, value, guarded=first is not base)


def _is_guard(base: Node, largest: Node) -> bool:
    """Whether ``base`` is ``where(isinf(largest), 0, largest)``."""
    condition, zero, _ = base.args
    if condition.op.name != "bit_or" or zero.op.name != "constant" or zero.value != 0:
        return False
    tests = [(t.op.name, t.args[0], t.args[1]) for t in condition.args if len(t.args) == 2]
    limits = {t[2].value for t in tests if t[2].op.name == "constant"}
    same = all(name == "eq" and node is largest for name, node, _ in tests)
    return len(tests) == 2 and same and limits == {math.inf, -math.inf}


def stages(nodes: Iterable[Node], known: Iterable[Node], online: Sequence[str]) -> dict[Node, int]:
    """How many sweeps have to be over before each node (arguments first) is known."""
    nodes, known = list(nodes), set(known)
    joined = pairs(nodes, known, online).values()
    firsts = {node: pair.first for pair in joined for node in pair.members[1:]}
    found: dict[Node, int] = {}
    for node in nodes:
        below = 0 if node in known else max((found[a] for a in node.args), default=0)
        reduces = node.op.kind is Kind.REDUCTION and node not in known
        found[node] = found[firsts[node]] if node in firsts else below + reduces
    return found


def reductions_of(region: Region) -> list[Node]:
    """The reductions a region computes, in program order."""
    stop = {node for _, node in region.reads}
    return [n for n in region_nodes(region) if n.op.kind is Kind.REDUCTION and n not in stop]


def sweeps_of(region: Region, online: Sequence[str]) -> int:
    """How many times a region's kernel has to go over its rows before every reduction is known."""
    return max(stages(region_nodes(region), [node for _, node in region.reads], online).values())


def runs_along(region: Region, online: Sequence[str]) -> bool:
    """Whether a loop needs one sweep for reductions of which some wait for others."""
    return sweeps_of(region, online) == 1 < sweeps_of(region, ())
