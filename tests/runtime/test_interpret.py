"""Triton's interpreter in its helper process: memory, errors, and the process itself."""

import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch

from fusec import settings
from fusec.errors import BuildError, InternalError, UnsupportedError
from fusec.runtime import interpret
from fusec.runtime.build_triton import TritonProgram
from fusec.runtime.interpret import run_interpreted
from tests.runtime.kernels import ADD, HEADER, add_program


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


# ---- memory ----


def test_scalars_of_every_type() -> None:
    x, y, out = torch.randn(3, 16)
    for scale in (0.1, math.inf, 2):
        run_interpreted(add_program(), (1, 1, 1), [x, y, out, 16, scale])
        same(out, x + y * scale)
    source = HEADER + "@triton.jit\ndef k(out, a, b, c):\n    tl.store(out, tl.where(a, b, c))\n"
    signature = (("out", "*i64"), ("a", "i1"), ("b", "i64"), ("c", "i32"))
    out = torch.zeros(1, dtype=torch.int64)
    run_interpreted(TritonProgram(source, "k", signature), (1, 1, 1), [out, True, 2**40, -1])
    assert out.item() == 2**40
    with pytest.raises(BuildError, match="OverflowError"):
        run_interpreted(TritonProgram(source, "k", signature), (1, 1, 1), [out, True, 0, 2**31])


def test_views_of_one_storage_are_written_in_place() -> None:
    base = torch.arange(300.0)
    x, y, out = base[10:110], base[60:160], base[200:300]
    expected = x + y * 2
    run_interpreted(add_program(), (1, 1, 1), [x, y, out, 100, 2.0])
    same(base[200:], expected)
    same(base[:200], torch.arange(200.0))
    expected = x + x * 2
    run_interpreted(add_program(), (1, 1, 1), [x, x, x, 100, 2.0])  # in place, three times the same
    same(base[10:110], expected)


def test_strided_tensors_keep_what_lies_between() -> None:
    source = ADD.replace("+ offsets", "+ offsets * 3")
    base = torch.arange(900.0).reshape(3, 300)
    x, y, out = (base.as_strided((100,), (3,), row * 300 + row) for row in range(3))
    expected = base.clone()
    expected.as_strided((100,), (3,), 602).copy_(x + y)
    run_interpreted(add_program(source=source), (1, 1, 1), [x, y, out, 100, 1.0])
    same(base, expected)


def test_empty_tensors_and_grids() -> None:
    x = torch.ones(4)
    empty = torch.empty(0)
    run_interpreted(add_program(), (0, 1, 1), [x, x, x, 4, 1.0])
    same(x, torch.ones(4))
    run_interpreted(add_program(), (1, 1, 1), [empty, empty, empty, 0, 1.0])


def test_the_whole_grid_runs() -> None:
    source = HEADER + (
        "@triton.jit\ndef k(out, n):\n"
        "    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)\n"
        "    tl.store(out + (z * 3 + y) * 2 + x, x + 10 * y + 100 * z + tl.num_programs(1))\n"
    )
    out = torch.zeros(4, 3, 2, dtype=torch.int32)
    program = TritonProgram(source, "k", (("out", "*i32"), ("n", "i32")))
    run_interpreted(program, (2, 3, 4), [out, 0])
    assert out[3, 2, 1] == 321 + 3
    assert out.unique().numel() == 24


@pytest.mark.parametrize("shift", [-4, 100])
def test_a_write_outside_is_noticed(shift: int) -> None:
    source = ADD.replace("tl.store(out + offsets", f"tl.store(out + {shift} + offsets")
    x = torch.randn(100)
    with pytest.raises(InternalError, match="outside"):
        run_interpreted(add_program(source=source), (1, 1, 1), [x, x, x.clone(), 100, 1.0])


def test_arguments_are_counted_and_live_on_the_cpu() -> None:
    x = torch.ones(4)
    with pytest.raises(InternalError, match="takes 5 arguments"):
        run_interpreted(add_program(), (1, 1, 1), [x, x, x])
    with pytest.raises(UnsupportedError, match="CPU"):
        run_interpreted(add_program(), (1, 1, 1), [x.to("meta"), x, x, 4, 1.0])


# ---- the process ----


def add_once() -> torch.Tensor:
    x, y = torch.randn(2, 100)
    out = torch.empty(100)
    run_interpreted(add_program(), (1, 1, 1), [x, y, out, 100, 2.0])
    same(out, x + y * 2)
    return out


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("a + b * scale", "a + missing", "NameError: name 'missing'.*\nline 12: "),
        ("def add(", "def add(:", "SyntaxError"),
        ("tl.arange(0, BLOCK)", "tl.arange(0, 1000)", "power of 2"),
    ],
)
def test_an_error_of_the_kernel_comes_back(old: str, new: str, said: str) -> None:
    x = torch.ones(4)
    with pytest.raises(BuildError, match=said):
        run_interpreted(add_program(source=ADD.replace(old, new)), (1, 1, 1), [x, x, x, 4, 1.0])
    add_once()


def test_prints_do_not_disturb(capfd: pytest.CaptureFixture[str]) -> None:
    interpret._stop_at_exit()
    source = ADD.replace("    mask =", '    print("seen")\n    mask =')
    x = torch.ones(4)
    run_interpreted(add_program(source=source), (1, 1, 1), [x, x, x, 4, 1.0])
    assert "seen" in capfd.readouterr().err
    interpret._stop_at_exit()


def test_a_dead_helper_is_replaced() -> None:
    add_once()
    helper = interpret._helper
    assert helper is not None
    os.kill(helper._process.pid, signal.SIGKILL)
    helper._process.wait()
    add_once()
    assert interpret._helper is not helper


def test_death_during_a_kernel_is_reported() -> None:
    source = ADD.replace("    mask =", "    import os\n    os.kill(os.getpid(), 9)\n    mask =")
    x = torch.ones(4)
    with pytest.raises(InternalError, match="signal 9"):
        run_interpreted(add_program(source=source), (1, 1, 1), [x, x, x, 4, 1.0])
    add_once()


def test_threads_take_turns() -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                add_once()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


SCRIPT = """
    import os, signal, sys, time
    import torch
    from fusec.runtime import interpret
    from fusec.runtime.interpret import run_interpreted
    from tests.runtime.kernels import ADD, add_program
    def add_once():
        x = torch.ones(4)
        run_interpreted(add_program(), (1, 1, 1), [x, x, x, 4, 2.0])
        assert x.tolist() == [3.0] * 4
    add_once()
    first = interpret._helper._process.pid
"""


def run_script(body: str) -> str:
    code = textwrap.dedent(SCRIPT) + textwrap.dedent(body)
    finished = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
        env=settings.child_environment(),
    )
    assert finished.stderr == ""
    return finished.stdout


def gone(process: int) -> bool:
    for _ in range(100):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        if "State:\tZ" in Path(f"/proc/{process}/status").read_text():
            return True  # ended; whoever inherited it has not asked yet
        time.sleep(0.05)
    return False


def test_a_forked_child_has_a_helper_of_its_own() -> None:
    output = run_script(
        """
        child = os.fork()
        if child == 0:
            add_once()
            ok = interpret._helper._process.pid != first
            interpret._stop_at_exit()
            os._exit(0 if ok else 1)
        assert os.waitpid(child, 0)[1] == 0
        add_once()
        assert interpret._helper._process.pid == first
        print("good")
        """
    )
    assert output == "good\n"


@pytest.mark.parametrize("end", ["sys.exit(0)", "os._exit(0)"])
def test_the_helper_ends_with_its_parent(end: str) -> None:
    assert gone(int(run_script(f"print(first, flush=True)\n{end}\n")))


def test_ctrl_c_ends_a_kernel_that_runs_on() -> None:
    output = run_script(
        """
        import threading
        source = ADD.replace("    mask =", "    while True: pass\\n    mask =")
        timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        x = torch.ones(4)
        try:
            run_interpreted(add_program(source=source), (1, 1, 1), [x, x, x, 4, 1.0])
        except KeyboardInterrupt:
            add_once()
            print(first != interpret._helper._process.pid)
        """
    )
    assert output == "True\n"
