"""Equal operators of a model's graph, merged: what computes the same of the same runs once.

May import ``model_alike`` and ``model_calls`` of the frontend; torch inside functions.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable
from typing import Any

from fusec.frontend.model_alike import form, has_hash
from fusec.frontend.model_calls import draws, writes

_PURE = ("aten", "prims")


def merge_equal(graph: Any) -> bool:
    """Merge the equal operators of a ``torch.fx`` graph over aten, in place.

    What shares memory with a result stays: results that are tensors of their own in eager stay
    so. False, and nothing is changed, for a graph with nodes that it takes more to compare:
    operators that write, or that are not PyTorch's own.
    """
    called = [n for n in graph.nodes if n.op == "call_function"]
    if not all(n.target is operator.getitem or _is_known(n) for n in called):
        return False
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    given = _storages(output.all_input_nodes)
    first: dict[Any, Any] = {}
    for node in called:
        if _is_new(node) or _storages([node]) & given:
            continue
        key = node.target, form(node.args, _nothing), form(node.kwargs, _nothing)
        same = first.setdefault(key, node) if has_hash(key) else node
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    return True


def _is_known(node: Any) -> bool:
    return getattr(node.target, "namespace", None) in _PURE and not writes(node)


def _is_new(node: Any) -> bool:
    """Whether a node gives something else each time: random numbers, memory nobody has written
    to, or a number that only running the graph tells.
    """
    name = getattr(node.target, "_opname", "")
    return draws(node) or "empty" in name or name in ("_local_scalar_dense", "item")


def _nothing(value: Any) -> None:
    """Nodes are themselves."""


def _storages(nodes: Iterable[Any]) -> set[int]:
    """The memory behind what nodes give."""
    from torch.utils._pytree import tree_leaves

    found = set()
    for value in tree_leaves([n.meta.get("val") for n in nodes]):
        if hasattr(value, "untyped_storage"):
            with contextlib.suppress(NotImplementedError):  # sparse, and the like
                found.add(value.untyped_storage()._cdata)
    return found
