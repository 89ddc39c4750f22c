"""The helper process that builds Triton kernels: the same kernels and errors as without it,
whatever becomes of it, and nothing left of it afterwards.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

import fusec.torch_backend
from fusec import settings
from fusec.errors import BuildError
from fusec.runtime import build_beside, build_helper, build_triton
from fusec.runtime.build_triton import Target, compile_triton, expect_kernels, key_of
from fusec.runtime.cache import default_store
from fusec.runtime.messages import receive, send
from tests.models import MLP, WIDTH, check_same, results
from tests.runtime.kernels import ADD, ROW_SUM, add_program

TARGET = Target.parse("sm_90")
ROOT = Path(__file__).parents[2]
LONG = 60.0  # seconds: a busy machine is slow, and no test waits for the time to pass


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(build_beside, "_PATIENCE", LONG)
    monkeypatch.setattr(build_beside, "_processors", lambda: 2)
    with settings.override(cache_dir=tmp_path / "cache"):
        yield
        build_beside.stop()
        build_beside._helper = None


@pytest.fixture
def helper() -> build_beside.Helper:
    expect_kernels(TARGET)
    assert build_beside._helper is not None
    return build_beside._helper


@pytest.fixture
def nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process does not compile."""

    def refuse(*_: object) -> None:
        raise AssertionError("compiled in this process")

    monkeypatch.setattr(build_triton, "_run_triton", refuse)


def is_gone(process: int) -> bool:
    """Whether a process ends soon; one that nobody has waited for yet has."""
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


# -- what it builds -------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ["add", "row_max"])
def test_a_kernel_is_the_same_as_one_built_here(helper: build_beside.Helper, entry: str) -> None:
    program = add_program(registers=64)
    if entry == "row_max":
        signature = (("x", "*bf16"), ("out", "*fp32"), ("columns", "i32"), ("BLOCK", "constexpr"))
        options: dict[str, Any] = {"divisible_by_16": frozenset("x"), "num_warps": 8}
        options["divisible_by_8"] = frozenset({"columns"})
        program = add_program(source=ROW_SUM, entry=entry, signature=signature, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_triton, "_run_triton", None)
        beside = compile_triton(program, TARGET)
    default_store().remove(beside.key)
    helper.stop()
    assert compile_triton(program, TARGET) == beside


@pytest.mark.usefixtures("nothing_here")
def test_threads_are_served_side_by_side(helper: build_beside.Helper) -> None:
    blocks = (128, 256, 512, 1024)
    found: dict[int, str] = {}

    def work(block: int) -> None:
        found[block] = compile_triton(add_program(block=block), TARGET).key

    threads = [threading.Thread(target=work, args=(block,)) for block in blocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {block: key_of(add_program(block=block), TARGET) for block in blocks}
    assert not helper.ended


def test_threads_wait_for_it_and_for_nothing_else() -> None:
    """What they give is in order, and the first that fails is told of."""

    def work(item: int) -> tuple[int, threading.Thread]:
        if item > 9:
            raise ValueError(item)
        return item, threading.current_thread()

    here = threading.current_thread()
    assert build_beside.side_by_side(work, range(3)) == [(k, here) for k in range(3)]
    expect_kernels(TARGET)
    assert build_beside.side_by_side(work, [7]) == [(7, here)]
    found = build_beside.side_by_side(work, range(9))
    assert [item for item, _ in found] == [*range(9)]
    assert here not in {thread for _, thread in found}
    with pytest.raises(ValueError, match="11"):
        build_beside.side_by_side(work, [1, 11, 12])


@pytest.mark.usefixtures("nothing_here")
def test_without_a_cache_it_uses_the_private_one() -> None:
    with settings.override(no_cache=True):
        expect_kernels(TARGET)
        assert compile_triton(add_program(), TARGET).binary.startswith(b"\x7fELF")


def test_a_message_has_all_of_a_program() -> None:
    even = {"divisible_by_8": frozenset({"n"}), "divisible_by_4": frozenset({"m"})}
    program = add_program(**even, num_stages=2, fp_fusion=True)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as there, os.fdopen(writing, "wb") as here:
        send(here, {"program": build_triton.as_data(program)})
        message = receive(there)
    assert message is not None
    assert build_helper.program_of(message["program"]) == program


@pytest.mark.gpu
@pytest.mark.usefixtures("nothing_here")
def test_a_model_on_a_gpu_has_its_kernels_from_it() -> None:
    torch._dynamo.reset()
    fusec.torch_backend._register()
    model, x = MLP(3).cuda(), torch.randn(64, WIDTH, device="cuda", requires_grad=True)
    compiled = torch.compile(model, backend="fusec")
    check_same(results(compiled, model, x), results(model, model, x))
    (graph,) = fusec.last_report().graphs[-1:]
    assert graph.regions
    assert [region.failure for region in graph.regions if region.failure] == []
    assert build_beside._helper is not None


# -- where it does not ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [("b * scale", "b * unknown_name"), ("BLOCK)", "BLOCK - 1)"), ("def add(", "def add(:")],
)
def test_an_error_is_the_same_as_one_of_this_process(
    helper: build_beside.Helper, old: str, new: str
) -> None:
    program = add_program(source=ADD.replace(old, new))
    with pytest.raises(BuildError) as beside:
        compile_triton(program, TARGET)
    assert not helper.ended
    helper.stop()
    with pytest.raises(BuildError) as here:
        compile_triton(program, TARGET)
    assert str(beside.value) == str(here.value)
    assert beside.value.tool_output == here.value.tool_output


def test_a_helper_that_was_killed_is_done_without(helper: build_beside.Helper) -> None:
    os.kill(helper.process, signal.SIGKILL)
    assert compile_triton(add_program(), TARGET).binary.startswith(b"\x7fELF")
    assert helper.ended


def test_a_helper_that_dies_over_a_kernel_is_done_without(helper: build_beside.Helper) -> None:
    assert helper._ready.result(LONG)
    os.kill(helper.process, signal.SIGSTOP)
    threading.Timer(0.2, os.kill, (helper.process, signal.SIGKILL)).start()
    assert not helper.build({"any": "kernel"})
    assert compile_triton(add_program(), TARGET).binary.startswith(b"\x7fELF")


def test_a_helper_that_is_stuck_is_done_without(
    helper: build_beside.Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert helper._ready.result(LONG)
    monkeypatch.setattr(build_beside, "_LONGEST", 0.2)
    os.kill(helper.process, signal.SIGSTOP)
    assert compile_triton(add_program(), TARGET).binary.startswith(b"\x7fELF")


def test_a_helper_that_is_slow_to_start_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_beside, "_PATIENCE", 0.2)
    monkeypatch.setattr(build_beside, "_CODE", "import time; time.sleep(600)")
    expect_kernels(TARGET)
    assert compile_triton(add_program(), TARGET).binary.startswith(b"\x7fELF")
    assert build_beside._helper is not None
    assert not build_beside._helper.ended


def test_a_helper_that_cannot_start_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_beside, "_CODE", "raise SystemExit('no Triton today')")
    expect_kernels(TARGET)
    first = build_beside._helper
    assert first is not None
    assert not first.build({})
    expect_kernels(TARGET)
    assert build_beside._helper is first
    assert first.failed


def test_one_that_has_served_is_followed_by_another(helper: build_beside.Helper) -> None:
    assert helper._ready.result(LONG)
    expect_kernels(TARGET)
    assert build_beside._helper is helper
    os.kill(helper.process, signal.SIGTERM)
    assert is_gone(helper.process)
    while not helper.ended:
        time.sleep(0.01)
    expect_kernels(TARGET)
    assert build_beside._helper is not helper


def test_another_kernel_than_asked_for_is_not_built(helper: build_beside.Helper) -> None:
    program, key = add_program(), key_of(add_program(num_warps=8), TARGET)
    data = {"program": build_triton.as_data(program), "target": ["cuda", 90, 32]}
    assert not helper.build({"key": key, "root": str(default_store().root), **data})
    assert default_store().get(key) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(sys, "executable", ""),
        lambda patch: patch.setattr(sys, "frozen", True, raising=False),
        lambda patch: patch.setattr(build_beside, "_processors", lambda: 1),
        lambda patch: patch.setattr(build_beside.importlib.util, "find_spec", lambda _: None),
        lambda patch: patch.delattr(os, "fork"),
    ],
)
def test_none_is_started_where_it_is_of_no_use(
    monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    with monkeypatch.context() as patch:
        change(patch)
        expect_kernels(TARGET)
    assert build_beside._helper is None


@pytest.mark.parametrize(
    "changes", [{"no_helper": True}, {"tool_environment": (("MLIR_ENABLE_DUMP", "1"),)}]
)
def test_settings_keep_it_from_starting(changes: dict[str, Any]) -> None:
    with settings.override(**changes):
        expect_kernels(TARGET)
        assert build_beside._helper is None
        assert compile_triton(add_program(), TARGET).binary.startswith(b"\x7fELF")


def test_no_process_to_be_had_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    expect_kernels(TARGET)
    assert build_beside._helper is None


def test_an_interpreted_triton_is_refused_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a fresh process: Triton decides at import whether it interprets."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    done = run(
        """
        from fusec.errors import UnsupportedError
        try:
            compile_triton(add_program(), TARGET)
        except UnsupportedError as error:
            print(error.message)
        """
    )
    wanted = "Triton interprets kernels in this process and cannot compile them"
    assert done.stdout.strip() == wanted, done.stderr


# -- what is left of it ---------------------------------------------------------------------------

START = """
import os, pathlib, signal, sys, threading, time
from fusec import settings
from fusec.runtime import build_beside
from fusec.runtime.build_triton import Target, compile_triton, expect_kernels
from tests.models import MLP, WIDTH, check_same, results
from tests.runtime.kernels import add_program
TARGET = Target.parse("sm_90")
build_beside._PATIENCE = 60.0
build_beside._processors = lambda: 2
expect_kernels(TARGET)
print(build_beside._helper.process, flush=True)
"""


def script(code: str) -> list[str]:
    return [sys.executable, "-c", START + textwrap.dedent(code)]


def run(code: str, expected: int = 0) -> subprocess.CompletedProcess[str]:
    """Run ``code`` with a helper, which has to be gone afterwards; what it printed itself."""
    place = {**os.environ, "FUSEC_CACHE_DIR": str(settings.get().cache_dir)}
    done = subprocess.run(
        script(code), capture_output=True, text=True, cwd=ROOT, env=place, timeout=4 * LONG
    )
    assert done.returncode == expected, done.stderr
    number, _, done.stdout = done.stdout.partition("\n")
    assert is_gone(int(number))
    return done


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("compile_triton(add_program(), TARGET)", 0),
        ("build_beside._helper._ready.result(60)", 0),
        ("", 0),
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_it_ends_with_its_parent_and_says_nothing(code: str, status: int) -> None:
    done = run(code, status)
    assert (done.stdout, done.stderr) == ("", "")


def test_it_ends_with_its_parent_although_another_child_lives() -> None:
    """A child of a fork has copies of the pipes, and closes them; it neither waits for the helper
    nor warns of it.
    """
    code = """
    import gc, warnings
    warnings.simplefilter("error")
    assert build_beside._helper._ready.result(60)
    child = os.fork()
    if not child:
        gc.collect()
        assert build_beside._helper is None and not build_beside.build({})
        time.sleep(2)
        os._exit(0)
    compile_triton(add_program(), TARGET)
    build_beside.stop()
    print(os.waitpid(child, 0)[1])
    """
    assert run(code).stdout == "0\n"


def test_control_c_is_for_the_parent() -> None:
    """The helper is in no group of the terminal; the parent stops waiting, and goes on."""
    code = """
    helper = build_beside._helper
    assert helper._ready.result(60) and os.getpgid(helper.process) != os.getpgid(0)
    os.kill(helper.process, signal.SIGSTOP)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        compile_triton(add_program(), TARGET)
    except KeyboardInterrupt:
        os.kill(helper.process, signal.SIGCONT)
        print(compile_triton(add_program(), TARGET).entry, helper.ended)
    """
    done = run(code)
    assert (done.stdout, done.stderr) == ("add False\n", "")


def serve(monkeypatch: pytest.MonkeyPatch, parent: int, idle: float) -> list[Any]:
    """What a server replies that is asked for nothing, once it has ended."""
    monkeypatch.setattr(build_helper, "IDLE", idle)
    monkeypatch.setattr(build_helper, "_LOOK", 0.01)
    reading, asking = os.pipe()
    hearing, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as requests, os.fdopen(hearing, "rb") as heard:
        with os.fdopen(writing, "wb", buffering=0) as replies:
            build_helper.Server(requests, replies, parent).serve()
        os.close(asking)
        return [*iter(lambda: receive(heard), None)]


def test_it_ends_when_it_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert serve(monkeypatch, os.getppid(), 0.05) == []


def test_it_ends_when_its_parent_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    assert serve(monkeypatch, os.getppid() + 1, LONG) == []
