"""Questions that a trace has no answer to: of a tensor's own gradient, of its memory, of autocast.

A stand-in would answer for itself, and what is computed would depend on it unseen; so they are
refused at the user's line. Torch is imported where it is used. May import ``fusec.errors`` and, of
the frontend, ``trace_place`` and ``trace_rows``.
"""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from types import CodeType, FrameType
from typing import Any

from fusec.errors import FusecError, UnsupportedError
from fusec.frontend.trace_place import Where, is_library, where_in, where_of
from fusec.frontend.trace_rows import words

_OF_GRADIENTS = words(
    "requires_grad is_leaf grad_fn grad requires_grad_ retain_grad retains_grad register_hook"
    " register_post_accumulate_grad_hook output_nr is_inference"
)
_OF_MEMORY = words(
    "data_ptr storage_offset storage untyped_storage _typed_storage is_shared share_memory_"
    " is_pinned pin_memory _version _base _is_view"
)
_OF_AUTOCAST = re.compile(r"_?is_\w*autocast\w*_enabled|get_autocast_\w+")


def unanswered(lies_as_given: Callable[..., bool]) -> Any:
    """The mode that refuses such questions.

    ``lies_as_given``: whether a tensor's strides, or that along an axis, are those of the argument.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    asked, grad = _table(), torch.is_grad_enabled()
    stride, set_grad = torch.Tensor.stride, vars(torch._C)["_set_grad_enabled"]

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            frame = _caller(func)
            if func in asked and not is_library(frame):
                raise asked[func](where_of(frame))
            if func is stride and not (is_library(frame) or lies_as_given(*args, **kwargs)):
                raise _of_memory("stride")(where_of(frame))
            if func is set_grad and args[0] and not grad:
                raise _switched_on(where_of(_outside(frame)))
            refuse_autocast(_outside(frame).f_code)
            return func(*args, **kwargs)

    made: Any = Mode
    return made()


def refuse_autocast(code: CodeType) -> None:
    """UnsupportedError where a function asks whether it runs under autocast."""
    line = _autocast_line(code)
    if line is not None:
        raise where_in(code, line).error(
            UnsupportedError,
            "autocast is asked for, and a traced function computes as if there were none",
            "ask outside, and pass the answer as an argument",
        )


@lru_cache(maxsize=1024)
def _autocast_line(code: CodeType) -> int | None:
    if not any(map(_OF_AUTOCAST.fullmatch, _names(code))):
        return None
    lines, line = dict(dis.findlinestarts(code)), code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = lines.get(instruction.offset) or line
        if _OF_AUTOCAST.fullmatch(str(instruction.argval)):
            return line
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return next((found for c in inner if (found := _autocast_line(c)) is not None), None)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


_ACCESS = ("__get__", "__set__")


@cache
def _table() -> dict[Any, Callable[[Where], FusecError]]:
    """What PyTorch calls when it is asked so, and the error."""
    import torch

    found: dict[Any, Callable[[Where], FusecError]] = {}
    for names, error in ((_OF_GRADIENTS, _of_gradients), (_OF_MEMORY, _of_memory)):
        for name in names:
            own = getattr(torch.Tensor, name, None)
            ways = (own,) if callable(own) else (getattr(own, w, None) for w in _ACCESS)
            found |= {way: error(name) for way in ways if way is not None}
    return found


def _of_gradients(name: str) -> Callable[[Where], FusecError]:
    return lambda where: where.error(
        UnsupportedError,
        f"'{name}' is about the gradient of one tensor, and a traced function has one as a whole",
        "ask outside and pass the answer as an argument; put hooks on what the function returns",
    )


def _of_memory(name: str) -> Callable[[Where], FusecError]:
    return lambda where: where.error(
        UnsupportedError,
        f"'{name}' asks how a tensor lies in memory, and a trace is for tensors that lie otherwise",
        "ask outside, and pass the answer as an argument",
    )


def _switched_on(where: Where) -> FusecError:
    return where.error(
        UnsupportedError,
        "gradients are switched on inside of a traced function whose caller has switched them off",
        "call it with gradients, or leave this out",
    )


def _caller(func: Any) -> FrameType:
    """The frame that calls a function of PyTorch's, seen through modes and the way to them."""
    from torch.overrides import handle_torch_function

    own = (getattr(func, "__code__", None), handle_torch_function.__code__)
    frame = sys._getframe(2)
    while frame.f_code.co_name == "__torch_function__" or frame.f_code in own:
        assert frame.f_back is not None
        frame = frame.f_back
    return frame


def _outside(frame: FrameType) -> FrameType:
    """The innermost frame of the user's from ``frame`` on."""
    while frame.f_back is not None and is_library(frame):
        frame = frame.f_back
    return frame
