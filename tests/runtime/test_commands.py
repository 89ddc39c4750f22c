"""Child processes: what ends with them, and what with us."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from fusec.runtime.commands import run


def test_code_and_output() -> None:
    assert run([sys.executable, "-c", "print('a'); raise SystemExit(3)"], 60) == (3, "a\n")
    code, output = run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], 60)
    assert code == -9
    assert output.endswith("killed by signal 9")
    with pytest.raises(FileNotFoundError):
        run(["/no/such/compiler"], 60)


def test_time_is_limited() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run([sys.executable, "-c", "import time; time.sleep(60)"], 0.2)


@pytest.mark.parametrize("fails", [False, True])
def test_an_interrupt_while_a_process_starts(fails: bool) -> None:
    code = f"""
        import os, signal, subprocess, sys
        from fusec.runtime import commands
        signal.signal(signal.SIGINT, signal.default_int_handler)
        started = []

        class Interrupted(subprocess.Popen):
            def __init__(self, *given, **named):
                super().__init__(*given, **named)
                started.append(self)
                os.kill(os.getpid(), signal.SIGINT)
                if {fails}:
                    self.kill()
                    raise OSError("no")
                print("goes on")

        subprocess.Popen = Interrupted
        try:
            commands.run([sys.executable, "-c", "import time; time.sleep(60)"], 60)
        except KeyboardInterrupt:
            print("ended", started[0].wait())
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    finished = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    expected = "ended -9\n" if fails else "goes on\nended -9\n"
    assert (finished.stdout, finished.stderr) == (expected, "")
