"""Calls of compiled formulas that PyTorch looks at: inside ``torch.compile`` and ``torch.export``,
under a transform of ``torch.func``, in a mode that makes tensors without memory.

Such a call goes through an operator, so that PyTorch sees what is computed. May import torch and
``runtime.operators``, inside functions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

from fusec.errors import UnsupportedError

Function = TypeVar("Function", bound=Callable[..., Any])


def seen_by_torch(values: Sequence[Any]) -> bool:
    """Whether a mode or a transform is active that wants to see operators, or a value has no
    memory because of one.
    """
    import torch

    if torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active():
        kinds: tuple[type, ...] = (torch.Tensor, bool, int, float)
        return all(isinstance(v, kinds) for v in values)
    return any(type(v).__name__ == "FakeTensor" for v in values)


def operators_are_watched() -> bool:
    """Whether a ``TorchDispatchMode`` or ``torch.jit.trace`` is to see every operator."""
    modes, tracing = _watchers()
    return bool(modes()) or tracing() is not None


@cache
def _watchers() -> tuple[Callable[[], int], Callable[[], object]]:
    """How many dispatch modes there are, and the trace; an import takes as long as both."""
    import torch

    return torch._C._len_torch_dispatch_stack, torch._C._get_tracing_state


def refuse_transforms(name: str) -> None:
    """UnsupportedError where a function would be traced under a transform of ``torch.func``."""
    import torch

    if torch._C._are_functorch_transforms_active():
        raise UnsupportedError(
            f"{name} is first called inside torch.func.vmap or its like, where none can be traced",
            hint="call it outside, or give fusec.compile a formula",
        )


def refuse_trace() -> None:
    """UnsupportedError inside ``torch.jit.trace``, which would take the result for a constant."""
    import torch

    if torch._C._get_tracing_state() is not None:
        raise UnsupportedError(
            "torch.jit.trace cannot record the call of a formula",
            hint="trace an operator, op = f.as_operator('mylib::name'), or use torch.export",
        )


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

    given = {*function.inputs[: len(args)], *named}
    if len(args) + len(named) != len(function.inputs) or given != {*function.inputs}:
        raise TypeError(f"the inputs of the formula are {', '.join(function.inputs)}")
    values: list[Any] = [*args, *(named[name] for name in function.inputs[len(args) :])]
    kinds = (torch.Tensor, bool, int, float)
    if out is not None or not all(isinstance(v, kinds) for v in values):
        raise TypeError("a graph takes tensors and numbers, and has no out=")
    return through_operator(function._written, values)


def replace_for_dynamo(method: Any, replacement: Any) -> None:
    """Let Dynamo read ``replacement`` where it meets a call of ``method``, and nothing where it is
    between two graphs: there the method runs as it is, with all that it calls.
    """
    vars(method)["_torchdynamo_inline"] = replacement
    _left_alone.append(method.__code__)


def constant_for_dynamo(function: Function) -> Function:
    """Decorator: Dynamo calls the function while it traces, and keeps what it returned. What
    ``torch.compiler.assume_constant_result`` does, without the second that its import takes.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function


def leave_alone() -> None:
    """Tell Dynamo, once torch is there, which code to leave alone."""
    if not _left_alone or "torch" not in sys.modules:
        return
    import torch

    frames: Any = torch._C._dynamo.eval_frame
    skip = getattr(frames, "_FrameAction", None)
    while _left_alone and skip is not None:  # torch 2.6 has no such thing
        strategy = frames._FrameExecStrategy(skip.SKIP, skip.SKIP)
        frames.set_code_exec_strategy(_left_alone.pop(), strategy)


_left_alone: list[Any] = []
