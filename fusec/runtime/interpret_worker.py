"""The helper process of interpret.py: runs generated Triton in Triton's interpreter, over memory.

Started with TRITON_INTERPRET set. Requests and replies are messages; tensors lie in a file that
both processes map. May import numpy, triton, ``runtime.messages`` and the other interpret modules.
"""

from __future__ import annotations

import ctypes
import linecache
import mmap
import os
import sys
import threading
import time
import traceback
from typing import Any

from fusec.runtime.messages import receive, send

_PARENT_CHECK = 0.5  # seconds
_MODULES_KEPT = 256


def main() -> None:
    """Serve requests from standard input until it ends or the parent does."""
    threading.Thread(target=_follow_parent, args=(os.getppid(),), daemon=True).start()
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a kernel prints must not land among the replies
    sys.stdout = sys.stderr  # and is seen by the time the kernel has run: no buffer holds it
    try:
        interpreter = Interpreter()
    except Exception as error:  # whatever keeps Triton from loading: the parent reports it
        send(replies, {"failed": f"{type(error).__name__}: {error}"})
        return
    send(replies, {"ready": True})
    while (request := receive(sys.stdin.buffer)) is not None:
        try:
            interpreter.run(request)
        except Exception as error:  # generated code may raise anything; the parent reports it
            send(replies, {"error": _describe(error)})
        else:
            send(replies, {"done": True})


class Interpreter:
    """Loads generated modules and runs their kernels."""

    def __init__(self) -> None:
        import numpy as np
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        from fusec.runtime import interpret_patches, interpret_types
        from fusec.runtime.interpret_libdevice import Libdevice

        interpret_patches.install()
        interpret_types.install()
        np.seterr(all="ignore")  # a GPU does not warn of overflow either
        self._modules: dict[str, dict[str, Any]] = {}
        self._libdevice = Libdevice()
        self._handle = TensorHandle
        self._tl = tl
        self._np = np
        self._types = {
            "i1": (tl.int1, np.bool_),
            "i8": (tl.int8, np.int8),
            "u8": (tl.uint8, np.uint8),
            "i16": (tl.int16, np.int16),
            "i32": (tl.int32, np.int32),
            "i64": (tl.int64, np.int64),
            "fp16": (tl.float16, np.float16),
            "bf16": (tl.bfloat16, np.uint16),
            "fp32": (tl.float32, np.float32),
            "fp64": (tl.float64, np.float64),
            "fp8e4nv": (tl.float8e4nv, np.uint8),
            "fp8e5": (tl.float8e5, np.uint8),
        }

    def run(self, request: dict[str, Any]) -> None:
        """Run one kernel over the mapped file that the request names."""
        kernel = self._module(request["source"])[request["entry"]]
        grid = tuple(request["grid"])
        with open(request["arena"], "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            window = ctypes.c_char.from_buffer(memory)
            try:
                named = self._arguments(request, ctypes.addressof(window))
                kernel[grid](**named)
            finally:
                del window  # the mapping cannot be closed while this refers to it

    def _arguments(self, request: dict[str, Any], base: int) -> dict[str, Any]:
        named: dict[str, Any] = dict(request["constants"])
        values = iter(request["arguments"])
        for name, kind in request["signature"]:
            if kind == "constexpr":
                continue
            value = next(values)
            named[name] = self._tensor(base + value if kind.startswith("*") else value, kind)
        return named

    def _tensor(self, value: Any, kind: str) -> Any:
        if kind.startswith("*"):
            element, _ = self._types[kind[1:]]
            pointer = self._tl.pointer_type(element)
            data = self._np.array([value], dtype=self._np.uint64)
            return self._tl.tensor(self._handle(data, pointer), pointer)
        element, dtype = self._types[kind]
        data = self._np.array([value], dtype=dtype)  # raises where the value does not fit
        return self._tl.tensor(self._handle(data, element), element)

    def _module(self, source: str) -> dict[str, Any]:
        module = self._modules.get(source)
        if module is None:
            if len(self._modules) >= _MODULES_KEPT:
                self._modules.clear()
            name = f"<fusec kernel {len(self._modules)} of {time.time_ns()}>"
            # The interpreter asks `inspect` for the source of each function.
            linecache.cache[name] = (len(source), None, source.splitlines(True), name)
            module = {"__name__": name}
            exec(compile(source, name, "exec"), module)
            if "libdevice" in module:
                module["libdevice"] = self._libdevice
            self._modules[source] = module
        return module


def _describe(error: BaseException) -> str:
    """The innermost cause, and the line of the generated source that it came from."""
    place = ""
    cause: BaseException | None = error
    while cause is not None:
        error = cause
        for frame in traceback.extract_tb(cause.__traceback__):
            if frame.filename.startswith("<fusec kernel"):
                place = f"\nline {frame.lineno}: {frame.line}"
        cause = cause.__cause__
    return f"{type(error).__name__}: {error}{place}"


def _follow_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK)
    os._exit(0)
