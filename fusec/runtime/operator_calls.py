"""Calls of compiled formulas that PyTorch looks at: inside ``torch.compile`` and ``torch.export``,
under a transform of ``torch.func``, in a mode that makes tensors without memory.

Such a call goes through an operator, so that PyTorch sees what is computed. May import
``fusec.errors``, and torch and ``runtime.operators`` inside functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusec.errors import UnsupportedError


def seen_by_torch(values: Sequence[Any]) -> bool:
    """Whether a mode or a transform is active that wants to see operators, or a value has no
    memory because of one.
    """
    import torch

    if torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active():
        kinds: tuple[type, ...] = (torch.Tensor, bool, int, float)
        return all(isinstance(v, kinds) for v in values)
    return any(type(v).__name__ == "FakeTensor" for v in values)


def through_operator(written: str, values: Sequence[Any]) -> Any:
    """The result of the formula ``written`` (see ``Formula.written``), a tensor or a tuple."""
    import torch

    from fusec.runtime import operators  # defines fusec::call
    from fusec.runtime.operator_steps import split

    assert operators.LIBRARY is not None
    tensors, numbers, places = split(values)
    results = torch.ops.fusec.call(written, places, tensors, numbers)
    return results[0] if len(results) == 1 else tuple(results)


def while_tracing(function: Any, /, *args: Any, out: Any = None, **named: Any) -> Any:
    """What Dynamo reads in place of ``CompiledFunction.__call__``, which no graph can hold. If it
    raises, the graph ends before the call.
    """
    import torch

    values = function._by_name(args, named)
    kinds = (torch.Tensor, bool, int, float)
    if out is not None or not all(isinstance(v, kinds) for v in values):
        raise UnsupportedError("out= and arrays are for calls outside of a graph")
    return through_operator(function._written, values)
