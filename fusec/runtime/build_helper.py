"""The helper process of build_beside.py: builds Triton kernels, each in a child of its own.

It imports Triton once and builds a kernel to get used to it, and then forks: a child has all that
at once, and children build side by side. It has one thread, as forks want it. What is built goes to
the cache; a reply only says whether. May import ``settings``, ``runtime.messages``,
``runtime.build_triton`` and ``runtime.cache``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

from fusec.runtime.build_triton import Target, TritonProgram, build_into, key_of
from fusec.runtime.cache import Store
from fusec.runtime.messages import receive, send

# The smallest kernel there is: most of what a first one takes is not for what it computes.
_SMALL = """
import triton
import triton.language as tl


@triton.jit
def small_kernel(x_ptr):
    tl.store(x_ptr, tl.load(x_ptr))
"""

IDLE = 60.0  # seconds without a request, after which the helper ends
_LOOK = 1.0  # seconds between looks at whether the parent is there


def program_of(data: dict[str, Any]) -> TritonProgram:
    """The program of a message."""
    pairs = {k: tuple(tuple(pair) for pair in data[k]) for k in ("signature", "constants")}
    sets = {k: frozenset(data[k]) for k in data if k.startswith("divisible_by_")}
    return TritonProgram(**{**data, **pairs, **sets})


def main(root: str, target: str) -> None:
    """Serve requests from standard input until it ends, the parent does, or none come."""
    parent = os.getppid()
    requests = os.fdopen(0, "rb", buffering=0)
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a compiler prints must not land among the replies
    gc.disable()  # a collection would write to pages that children share
    importlib.import_module("triton")  # before any fork: children have it
    send(replies, {"ready": True})
    if not _waits(requests, 0):
        with contextlib.suppress(Exception):  # whatever it is, the first kernel meets it again
            _warm_up(Store(Path(root)), Target.parse(target))
    Server(requests, replies, parent).serve()


def _warm_up(store: Store, target: Target) -> None:
    """Build a kernel that nobody needs."""
    program = TritonProgram(_SMALL, "small_kernel", (("x_ptr", "*fp32"),), num_warps=1)
    with store.scratch() as directory:
        build_into(Store(directory), key_of(program, target), program, target)


class Server:
    """Requests on their way to replies."""

    def __init__(self, requests: BinaryIO, replies: BinaryIO, parent: int) -> None:
        self._requests = requests
        self._replies = replies
        self._parent = parent
        self._children: dict[int, tuple[int, int]] = {}  # by the pipe that ends with each

    def serve(self) -> None:
        """Until there is nobody to serve."""
        asked = time.monotonic()
        while self._children or time.monotonic() - asked < IDLE:
            pipes = [self._requests.fileno(), *self._children]
            ready, _, _ = select.select(pipes, [], [], _LOOK)
            for pipe in set(ready) & self._children.keys():
                self._answer(pipe)
            if pipes[0] in ready:
                request = receive(self._requests)
                if request is None:
                    return
                self._begin(request)
                asked = time.monotonic()
            if os.getppid() != self._parent:
                return

    def _begin(self, request: dict[str, Any]) -> None:
        """Build in a child, at whose end a pipe ends."""
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            status = 1
            try:
                _build(request)
                status = 0
            finally:  # no error goes further: this is a copy of the helper
                os._exit(status)
        os.close(writing)
        self._children[reading] = (child, request["number"])

    def _answer(self, pipe: int) -> None:
        child, number = self._children.pop(pipe)
        os.close(pipe)
        _, status = os.waitpid(child, 0)
        send(self._replies, {"number": number, "built": status == 0})


def _waits(stream: BinaryIO, seconds: float) -> bool:
    return bool(select.select([stream], [], [], seconds)[0])


def _build(request: dict[str, Any]) -> None:
    """Put the kernel of a request into the cache; raises whatever its compiler raises."""
    program, target = program_of(request["program"]), Target(*request["target"])
    if key_of(program, target) != request["key"]:
        sys.exit("it would be another kernel than the parent's")
    build_into(Store(Path(request["root"])), request["key"], program, target)
