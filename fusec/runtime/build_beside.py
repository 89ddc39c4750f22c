"""A helper process that builds Triton kernels beside this one.

Triton holds Python's lock while it compiles, so that threads of one process do not build side by
side, and nothing else runs meanwhile. Whoever expects kernels starts the helper, which imports
Triton while this process still finds out what to build. Whatever keeps it from building a kernel,
the kernel is built in this process, where errors are told. May import the standard library,
``forks``, ``settings`` and ``runtime.messages``.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from pathlib import Path
from typing import IO, Any, TypeVar

from fusec import forks, settings
from fusec.runtime.messages import receive, send

Item = TypeVar("Item")
Result = TypeVar("Result")

_THREADS = 8  # that wait for kernels at once
_PATIENCE = 1.0  # seconds from its start until the helper is ready, as long as an import may take
_LONGEST = 60.0  # seconds for a kernel
_CODE = (
    "import sys; sys.path.insert(0, sys.argv[1])\n"
    "from fusec.runtime.build_helper import main; main(*sys.argv[2:])"
)


class Helper:
    """The helper process, for any number of threads."""

    def __init__(self, root: Path, target: str) -> None:
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE, str(Path(__file__).parents[2]), str(root), target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what fails there is built and told of here
            bufsize=0,
            env=settings.child_environment(CUDA_VISIBLE_DEVICES=""),
            start_new_session=True,  # Ctrl-C in a terminal is for us
        )
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[bool]] = {}
        self._ready: Future[bool] = Future()
        self.ended = False
        threading.Thread(target=self._listen, name="fusec-helper", daemon=True).start()

    @property
    def process(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def failed(self) -> bool:
        """Whether it ended without ever being ready."""
        return self.ended and not self._ready.result()

    def build(self, request: dict[str, Any]) -> bool:
        """Whether the helper has put a kernel into the cache; waits for it."""
        answer: Future[bool] = Future()
        try:
            left = self._started + _PATIENCE - time.monotonic()
            if not self._ready.result(max(left, 0.0)):
                return False
            with self._lock:
                if self.ended:
                    return False
                number = next(self._numbers)
                self._waiting[number] = answer
                send(_binary(self._process.stdin), {**request, "number": number})
            return answer.result(_LONGEST)
        except (OSError, Late):  # it has ended, or is stuck
            return False

    def stop(self) -> None:
        """End the process; what it was to build is built here."""
        with self._lock:
            if self.ended:
                return
            self.ended = True
            self._process.kill()
            self._process.wait()
            self._close()
            waiting = [*self._waiting.values(), *([] if self._ready.done() else [self._ready])]
            for answer in waiting:
                answer.set_result(False)
            self._waiting.clear()

    def abandon(self) -> None:
        """Forget the process, which belongs to the parent of a fork; our ends of its pipes too."""
        self._process.returncode = 0  # it is not ours to wait for
        self.ended = True
        self._close()

    def _listen(self) -> None:
        """Hand out replies until there are no more."""
        with contextlib.suppress(OSError, ValueError):  # `stop` has closed the pipe
            while (message := receive(_binary(self._process.stdout))) is not None:
                with self._lock:
                    if self.ended:
                        return
                    if "ready" in message:
                        self._ready.set_result(True)
                    else:
                        self._waiting.pop(message["number"]).set_result(message["built"])
        self.stop()

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            _binary(stream).close()


def _binary(stream: IO[bytes] | None) -> Any:
    assert stream is not None  # each is a pipe
    return stream


def start(root: Path | None, target: str) -> None:
    """Start the helper for kernels in the cache at ``root``, the first of them for ``target``.

    Returns at once, and does nothing where a helper would be of no use, or there is one.
    """
    global _helper
    if root is None or not _is_of_use():
        return
    with _lock:
        if _helper is None or (_helper.ended and not _helper.failed):
            try:
                _helper = Helper(root, target)
            except OSError:  # no process to be had: kernels are built here
                return


def build(request: dict[str, Any]) -> bool:
    """Whether a helper has built what is asked for; False at once where there is none."""
    helper = _helper
    return helper is not None and not helper.ended and helper.build(request)


def side_by_side(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """``function`` of each item, which may build kernels; each in a thread of its own where there
    is a helper to wait for.
    """
    if len(items) < 2 or _helper is None or _helper.ended:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(len(items), _THREADS), "fusec-beside") as pool:
        return list(pool.map(function, items))


def stop() -> None:
    """End the helper, if there is one."""
    helper = _helper
    if helper is not None:
        helper.stop()


def _is_of_use() -> bool:
    """Whether there is a Python to start, with Triton, on a processor of its own.

    Somebody who has set variables of Triton's compiler may want to see what it prints.
    """
    python = bool(sys.executable) and not getattr(sys, "frozen", False) and hasattr(os, "fork")
    now = settings.get()
    if not python or _processors() < 2 or now.no_helper or now.compiler_environment():
        return False
    return importlib.util.find_spec("triton") is not None  # does not import it


def _processors() -> int:
    """How many of them this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _forget_after_fork() -> None:
    global _helper
    if _helper is not None and not _helper.ended:
        _helper.abandon()
    _helper = None


_lock = forks.lock()
_helper: Helper | None = None
atexit.register(stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
