"""Compilers and other tools as child processes, none of which outlives us. May import settings."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any

from fusec import settings


def run(command: Sequence[str], timeout: float) -> tuple[int, str]:
    """Exit code and output of a command, which is killed with its children when we leave early."""
    with (
        _LateInterrupts() as interrupts,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=settings.child_environment(LC_ALL="C"),
            start_new_session=True,  # a group of its own: the driver's cc1plus dies with it
        ) as process,
    ):
        try:
            interrupts.deliver()
            output, _ = process.communicate(timeout=timeout)
        except BaseException:  # a timeout or Ctrl-C: nothing may go on compiling behind our back
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    text = output.decode(errors="replace")
    if process.returncode < 0:
        text += f"\nkilled by signal {-process.returncode}"
    return process.returncode, text


class _LateInterrupts:
    """Ctrl-C while a process starts waits until there is somebody to end it."""

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._came: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> _LateInterrupts:
        # Other threads meet no interrupts, and may not say who does.
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                signal.signal(signal.SIGINT, self._note)
                self._handler = handler
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = number, frame

    def deliver(self) -> None:
        """From here on interrupts come when they come; one that waits comes now."""
        handler, self._handler = self._handler, None
        if handler is None:
            return
        signal.signal(signal.SIGINT, handler)
        if self._came is not None:
            handler(*self._came)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.deliver()
