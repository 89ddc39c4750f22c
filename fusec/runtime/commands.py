"""Compilers and other tools as child processes, none of which outlives us. May import settings."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence

from fusec import settings


def run(command: Sequence[str], timeout: float) -> tuple[int, str]:
    """Exit code and output of a command, which is killed with its children when we leave early."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=settings.child_environment(LC_ALL="C"),
        start_new_session=True,  # a group of its own: the driver's cc1plus dies with it
    ) as process:
        try:
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
