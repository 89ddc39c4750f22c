"""Matrix products of a model in the same memory as the results of kernels, on a CPU.

PyTorch's own allocator would take fresh pages for them while blocks that kernels no longer need
wait (``runtime.memory``): more memory at the height of a step, and more time, since the first touch
of a page costs. May import ``runtime.memory`` and the modules that plan models, and torch inside
functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from fusec.frontend.model_calls import VIEW, Operation
from fusec.frontend.model_trace import Model
from fusec.runtime.memory import allocator, is_large, is_pooled
from fusec.runtime.model_plan import is_known

_Kind: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...], Any, Any]"  # as an allocator takes it

# Functions of torch that do nothing but call an operator, by its name; each takes ``out``.
_PRODUCTS = {
    "mm.default": "mm",
    "addmm.default": "addmm",
    "bmm.default": "bmm",
    "baddbmm.default": "baddbmm",
}


def is_all_pooled(model: Model) -> bool:
    """Whether what a graph makes of large tensors are results of regions and such products.

    Where PyTorch makes others, they cannot have the blocks that wait, and those would lie idle at
    the height.
    """
    inside = {node for region in model.regions for node in region.nodes}
    outside = (o for node, o in model.operations.by_node.items() if node not in inside)
    made = [o for o in outside if o.node.op == "call_function" and not _is_part(o)]
    return all(_is_small(o.node.meta.get("val")) or _product_of(o.node) for o in made)


def pool_products(graph: Any) -> None:
    """Let the large matrix products of a ``torch.fx`` graph over aten write to such memory."""
    for node in graph.nodes:
        found = _product_of(node)
        if found is not None:
            function, kind = found
            node.target = _into(function, allocator(*kind, lean=True))


def _is_part(operation: Operation) -> bool:
    return operation.kind == VIEW or operation.name == "getitem"


def _is_small(value: Any) -> bool:
    """Whether no tensor among the results of an operator is worth a block in any call."""
    tensors = [v for v in (value if isinstance(value, (tuple, list)) else (value,)) if _has_size(v)]
    return all(is_known(t) and not is_large(t.nbytes, t.device) for t in tensors)


def _has_size(value: Any) -> bool:
    return hasattr(value, "untyped_storage")


def _kind(tensor: Any) -> _Kind:
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device


def _product_of(node: Any) -> tuple[Any, _Kind] | None:
    """The function of torch for a large product, and what its result is like."""
    import torch

    if node.op != "call_function" or getattr(node.target, "namespace", None) != "aten":
        return None
    name = _PRODUCTS.get(f"{node.target._opname}.{node.target._overloadname}")
    value = node.meta.get("val")
    if name is None or not _has_size(value) or not is_known(value):
        return None
    kind = _kind(value)
    return (getattr(torch, name), kind) if is_pooled(*kind) else None


def _into(function: Any, make: Callable[[], Any]) -> Callable[..., Any]:
    """``function`` with a result in memory that ``make`` gives, but for calls that PyTorch looks
    at: it differentiates none that is given memory.
    """
    import torch

    levels: Any = torch.autograd.forward_ad
    watched, recording = torch._C._len_torch_dispatch_stack, torch.is_grad_enabled

    def run(*values: Any, **named: Any) -> Any:
        if watched() or recording() or levels._current_level >= 0:
            return function(*values, **named)
        return function(*values, out=make(), **named)

    run.__name__ = run.__qualname__ = function.__name__
    return run
