"""Nodes of a model's graph over aten: what stands for their values, and new ones with theirs.

For passes over the graph before it is cut. May import ``model_alike``; torch inside functions.
"""

from __future__ import annotations

from typing import Any

from fusec.frontend.model_alike import is_tensor


def value_of(node: Any) -> Any:
    """What stands for the result of a node: a tensor without memory, or several."""
    return node.meta.get("val")


def name_of(node: Any) -> str:
    """The operator of aten without its overload: ``add``; nothing for what is none."""
    target = node.target
    return target._opname if getattr(target, "namespace", None) == "aten" else ""


def is_pointwise(target: Any) -> bool:
    """Whether an operator computes each element of others in the same place."""
    import torch

    return torch.Tag.pointwise in getattr(target, "tags", ())


def hint(length: Any) -> int:
    """A length in the example that the graph was made with."""
    node = getattr(length, "node", None)
    return int(length if node is None else node.hint)


def new_node(graph: Any, target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A call of an operator, with its value. Raises what the operator raises of such operands."""
    import torch
    from torch.fx.node import map_arg

    given = map_arg(args, value_of)
    mode = next(v for v in given if is_tensor(v)).fake_mode
    with mode, torch.no_grad():
        value = target(*given, **kwargs)
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = value
    return node
