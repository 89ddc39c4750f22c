"""Sums over the rows of a reshaped tensor, as sums of the tensor: a region then has one shape.

A linear layer makes two axes of three, and its gradient adds up the first of two. May import
``fusec.frontend.model_calls``; torch inside functions.
"""

from __future__ import annotations

from typing import Any

from fusec.frontend.model_calls import RESHAPES


def sum_unshaped(graph: Any) -> None:
    """Let every sum over the first of two axes, of a view that made one axis of several, add up
    those of what the view is of. ``graph`` is over aten and has a value for each node.
    """
    import torch

    total = torch.ops.aten.sum.dim_IntList
    for node in list(graph.nodes):
        if node.target is not total or node.kwargs or list(node.args[1]) != [0]:
            continue
        view = node.args[0]
        if getattr(view.target, "_opname", "") not in RESHAPES:
            continue
        base = view.args[0]
        whole, flat = base.meta.get("val"), view.meta.get("val")
        if whole is None or flat is None or not _merges(whole, flat):
            continue
        with graph.inserting_before(node):
            axes = list(range(whole.dim() - 1))
            made = graph.call_function(total, (base, axes))
        _take_over(graph, node, made, len(node.args) > 2 and node.args[2])


def _merges(whole: Any, flat: Any) -> bool:
    """Whether ``flat`` has the last axis of ``whole``, and one axis for all others."""
    if whole.dim() < 3 or flat.dim() != 2:
        return False
    last = (whole.shape[-1], flat.shape[-1])
    return all(isinstance(n, int) for n in last) and last[0] == last[1]


def _take_over(graph: Any, node: Any, made: Any, keepdim: bool) -> None:
    """``made`` in the place of ``node``, which may have an axis of length 1 in front."""
    import torch

    value = node.meta["val"]
    if not keepdim:
        made.meta["val"] = value
        node.replace_all_uses_with(made)
        graph.erase_node(node)
        return
    with value.fake_mode, torch.no_grad():
        made.meta["val"] = value.squeeze(0).clone()
    for user in list(node.users):
        shape = getattr(user.meta.get("val"), "shape", None)
        if getattr(user.target, "_opname", "") in RESHAPES and shape == made.meta["val"].shape:
            user.replace_all_uses_with(made)
            graph.erase_node(user)
    if node.users:
        with graph.inserting_before(node):
            again = graph.call_function(torch.ops.aten.unsqueeze.default, (made, 0))
        again.meta["val"] = value
        node.replace_all_uses_with(again)
    graph.erase_node(node)
