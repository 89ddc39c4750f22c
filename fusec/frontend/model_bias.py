"""Convolutions without their biases, which regions add beside what else they do.

On a GPU PyTorch adds a bias to what a convolution has written, in a pass over memory of its own.
The gradient stays with PyTorch: a region that gives another would compute that once more to add it
up. May import ``model_alike``, ``model_calls``, ``model_nodes`` and ``trace_rows``; torch inside
functions.
"""

from __future__ import annotations

from typing import Any

from fusec.frontend.model_alike import is_tensor
from fusec.frontend.model_calls import VIEWS
from fusec.frontend.model_nodes import is_pointwise, name_of, new_node, value_of
from fusec.frontend.trace_rows import words

DEVICE = "cuda"
_NORMS = words(
    "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit"
    " _native_batch_norm_legit_functional _native_batch_norm_legit_no_training"
)
_BIAS = 2  # its place among the arguments


def split_biases(graph: Any) -> None:
    """Let the convolutions of a graph over aten, each node of which has a value, leave biases to
    what is computed of their results.
    """
    for node in list(graph.nodes):
        if name_of(node) != "convolution" or node.args[_BIAS] is None or not _is_there(node):
            continue
        if any(map(_computes, _readers(node))):
            _add(graph, node)


def _is_there(node: Any) -> bool:
    """Whether an operator computes on the device of which this is."""
    values = [value_of(n) for n in node.all_input_nodes]
    return any(is_tensor(v) and v.device.type == DEVICE for v in values)


def _computes(node: Any) -> bool:
    """Whether a kernel may read what an operator reads."""
    return is_pointwise(node.target) or name_of(node) in _NORMS


def _readers(node: Any) -> list[Any]:
    """Those who read a tensor, or views of it."""
    found = []
    for user in node.users:
        found += _readers(user) if name_of(user) in VIEWS else [user]
    return found


def _add(graph: Any, node: Any) -> None:
    """The convolution, and the bias added to it."""
    import torch

    aten = torch.ops.aten
    shape = [1, -1, *[1] * (value_of(node).dim() - 2)]
    with graph.inserting_before(node):
        alone = (*node.args[:_BIAS], None, *node.args[_BIAS + 1 :])
        product = new_node(graph, node.target, alone, {})
        bias = new_node(graph, aten.view.default, (node.args[_BIAS], shape), {})
        made = new_node(graph, aten.add.Tensor, (product, bias), {})
    made.meta["val"] = value_of(node)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
