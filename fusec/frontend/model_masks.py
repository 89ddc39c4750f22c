"""Attention masks laid out as PyTorch's fast attention reads them.

Its kernels take a mask whose last axis lies in memory. One that was expanded along that axis, as a
mask of queries alone, makes ``scaled_dot_product_attention`` multiply, mask and normalise step by
step, in float32. Models of ``transformers`` make such masks whenever they are compiled, of all
elements true, where without a compiler they make none. May import torch inside functions.
"""

from __future__ import annotations

from typing import Any

DEVICE = "cuda"
_PLACE = 3  # of the mask, behind query, key and value


def lay_out_masks(module: Any) -> None:
    """Let the attentions of a ``torch.fx.GraphModule`` of Dynamo's, and of those inside it, read
    masks that lie in memory. Where a mask is the same along other axes it stays expanded there.
    """
    import torch.fx

    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule) and _lay_out(part.graph):
            part.recompile()


def _lay_out(graph: Any) -> bool:
    """Whether a graph had masks to lay out, which it has no more."""
    import torch.nn.functional as functional

    found = False
    for node in list(graph.nodes):
        if node.target is not functional.scaled_dot_product_attention:
            continue
        mask = node.kwargs.get("attn_mask", (*node.args, None, None, None, None)[_PLACE])
        if _is_spread(mask):
            with graph.inserting_before(node):
                node.replace_input_with(mask, _laid_out(graph, mask))
            found = True
    return found


def _is_spread(mask: Any) -> bool:
    """Whether a mask is known to repeat one element along its last axis."""
    value = _value(mask)
    if value is None or value.device.type != DEVICE or value.dim() < 1:
        return False
    length, step = value.shape[-1], value.stride(-1)
    return isinstance(step, int) and step == 0 and not (isinstance(length, int) and length == 1)


def _laid_out(graph: Any, mask: Any) -> Any:
    """The mask with its last axis in memory, and no more of the others than differs."""
    value, found = _value(mask), mask
    for axis, step in enumerate(value.stride()[:-1]):
        if isinstance(step, int) and step == 0:
            found = graph.call_method("narrow", (found, axis, 0, 1))
    dense = graph.call_method("contiguous", (found,))
    return graph.call_method("expand_as", (dense, mask))


def _value(node: Any) -> Any:
    """The example tensor of a node, None of anything else."""
    import torch

    value = getattr(node, "meta", {}).get("example_value")
    return value if isinstance(value, torch.Tensor) else None
