"""What a Python function reads besides its arguments, so that a change of it is noticed.

May import the standard library, and torch where it is used.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

_MISSING = object()


class Variables:
    """What a function reads besides its arguments: closures and globals, its helpers' as well.

    A call compares identities, so a variable that names something else is seen.
    """

    def __init__(self, function: Any) -> None:
        self.cells: list[tuple[Any, Any]] = []
        self.globals: list[tuple[dict[str, Any], str, Any]] = []
        self.tensors: list[tuple[str, Any]] = []
        self.code: list[CodeType] = []  # of the function and its helpers
        seen: set[int] = set()
        stack = [function]
        while stack:
            own = inspect.unwrap(stack.pop())
            if not isinstance(own, FunctionType) or id(own) in seen or _is_torch(own):
                continue
            seen.add(id(own))
            self.code.append(own.__code__)
            stack += list(self._read(own))

    def _read(self, function: FunctionType) -> Iterator[Any]:
        import torch

        found = []
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            value = _content(cell)
            self.cells.append((cell, value))
            found.append((name, value))
        for name in _global_names(function.__code__):
            value = function.__globals__.get(name, _MISSING)
            if not isinstance(value, ModuleType):
                self.globals.append((function.__globals__, name, value))
                found.append((name, value))
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        yield from (value for value in defaults if isinstance(value, FunctionType))
        for name, value in found:
            if isinstance(value, torch.Tensor):
                self.tensors.append((name, value))
            elif isinstance(value, FunctionType):
                yield value

    def unchanged(self) -> bool:
        """Whether every variable still names what it named."""
        for cell, value in self.cells:
            if _content(cell) is not value:
                return False
        return all(own.get(name, _MISSING) is value for own, name, value in self.globals)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _MISSING


def _global_names(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _is_torch(function: FunctionType) -> bool:
    return (function.__module__ or "").partition(".")[0] in ("torch", "fusec")
