"""What makes two operators of a model alike, or two regions: forms that can be compared.

Equal layers have equal forms, and what is worked out for one of them holds for the others. Imports
the standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def form(value: Any, known: Callable[[Any], Any]) -> Any:
    """``value`` in a form that equals that of another only where the two mean the same.

    Containers are gone through. ``known`` gives the form of what means something to the caller, and
    None for all else. The form of what has no hash has none either: TypeError where it is hashed.
    """
    own = known(value)
    if own is not None:
        return own
    if isinstance(value, tuple | list):
        return list, tuple([form(v, known) for v in value])
    if isinstance(value, dict):
        return dict, tuple([(k, form(v, known)) for k, v in value.items()])
    if isinstance(value, slice):
        return slice, form((value.start, value.stop, value.step), known)
    node = getattr(value, "node", None)  # a length or a number that is a symbol to PyTorch
    if node is not None and hasattr(node, "expr"):
        return type(value), node.expr
    # 1 equals 1.0 and True, -0.0 equals 0.0, and nan is never itself.
    return type(value), repr(value) if isinstance(value, float | complex) else value


def tensor_form(tensor: Any) -> Any:
    """The type of a tensor, where it is, and how it lies in memory."""
    numbers = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    layout = tuple([n if type(n) is int else form(n, _nothing) for n in numbers])
    return tensor.dtype, tensor.device, tensor.dim(), layout


def _nothing(value: Any) -> None:
    """Nothing is known."""


def region_form(
    nodes: Sequence[Any], inputs: Sequence[Any], results: Sequence[Any], values: Mapping[Any, Any]
) -> Any:
    """The form of a region: what its nodes are and give, and what of it is wanted.

    ``values`` has the stand-ins for tensors and numbers. What cannot be compared is like nothing.
    """
    places = {node: k for k, node in enumerate((*inputs, *nodes))}

    def known(value: Any) -> Any:
        if is_tensor(value):
            return tensor_form(value)
        if not hasattr(value, "all_input_nodes"):
            return None
        return (places[value],) if value in places else form(values[value], known)

    found = (
        tuple([known(values[n]) for n in inputs]),
        tuple([(n.target, form((n.args, n.kwargs, values[n]), known)) for n in nodes]),
        tuple([places[n] for n in results]),
    )
    return found if has_hash(found) else object()


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor, with memory or without."""
    return hasattr(value, "untyped_storage")


def has_hash(key: Any) -> bool:
    """Whether a form can be looked up."""
    try:
        hash(key)
    except TypeError:
        return False
    return True
