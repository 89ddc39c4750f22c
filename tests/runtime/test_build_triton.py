"""Ahead-of-time compilation for every target, its cache, and its errors."""

import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import fusec
from fusec import settings
from fusec.errors import BuildError, UnsupportedError
from fusec.runtime import build_triton
from fusec.runtime.build_triton import Target, TritonBinary, compile_triton, sass, triton_version
from tests.runtime.kernels import ADD, add_program, row_max_program

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path):
    with settings.override(cache_dir=tmp_path / "cache"):
        yield


def compile_for(target: str, program=None) -> TritonBinary:
    if target.startswith("gfx") and triton_version().startswith("3.4"):
        pytest.skip("Triton 3.4 needs a ROCm linker that it does not bring")
    return compile_triton(program or add_program(), Target.parse(target))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sm_80", Target("cuda", 80, 32)),
        ("sm_90a", Target("cuda", 90, 32)),
        ("sm100", Target("cuda", 100, 32)),
        ("gfx942", Target("hip", "gfx942", 64)),
        ("gfx1100", Target("hip", "gfx1100", 32)),
    ],
)
def test_targets_are_parsed(text: str, expected: Target) -> None:
    assert Target.parse(text) == expected
    assert Target.parse(str(expected)) == expected


@pytest.mark.parametrize("text", ["", "90", "sm_9", "h100", "sm_90; rm", "gfx", "sm_90x"])
def test_other_targets_are_refused(text: str) -> None:
    with pytest.raises(UnsupportedError, match="unknown target"):
        Target.parse(text)


@pytest.mark.parametrize("make", [add_program, row_max_program])
@pytest.mark.parametrize("target", TARGETS)
def test_every_target_compiles(target: str, make) -> None:
    binary = compile_for(target, make())
    native = ("amdgcn", "hsaco") if target.startswith("gfx") else ("ptx", "cubin")
    assert set(binary.stages) == {"ttir", "ttgir", "llir", *native}
    assert binary.binary.startswith(b"\x7fELF")
    assert binary.num_warps == 4
    assert binary.num_threads == (256 if target.startswith("gfx") else 128)
    assert all(isinstance(binary.stages[name], str) for name in ("ttir", native[0]))


def test_float8_on_an_older_gpu_is_refused_in_words() -> None:
    x = torch.zeros(8, 8).to(torch.float8_e4m3fn)
    function = fusec.compile("x")
    with pytest.raises(UnsupportedError, match="sm_89 or newer, the target is sm_80"):
        function.show("ptx", x, target="sm_80")
    assert function.show("ptx", x, target="sm_90")


def test_divisibility_gives_vector_loads() -> None:
    wide = compile_for("sm_90").stages["ptx"]
    narrow = compile_for("sm_90", add_program(divisible_by_16=frozenset())).stages["ptx"]
    assert "ld.global.v4" in str(wide)
    assert "ld.global.v4" not in str(narrow)


@pytest.mark.parametrize(
    ("columns", "dtype", "loads"),
    [
        (96, torch.bfloat16, "v4.b32"),
        (104, torch.bfloat16, "v4.b32"),
        (100, torch.bfloat16, "v2.b32"),
        (101, torch.bfloat16, "b16"),
        (100, torch.float32, "v4.b32"),
        (101, torch.float32, "b32"),
    ],
)
def test_loads_are_as_wide_as_rows_allow(columns: int, dtype: torch.dtype, loads: str) -> None:
    x = torch.empty(4096, columns, dtype=dtype, device="meta")
    ptx = fusec.compile("softmax(x)", backend="triton").show("ptx", x, target="sm_90")
    assert set(re.findall(r"ld\.global\.([\w.]+)", ptx)) == {loads}


def test_options_reach_the_compiler() -> None:
    assert compile_for("sm_90", add_program(num_warps=8)).num_threads == 256
    fused = compile_for("sm_90", add_program(fp_fusion=True)).stages["ptx"]
    apart = compile_for("sm_90", add_program(fp_fusion=False)).stages["ptx"]
    assert "fma.rn.f32" in str(fused)
    assert "fma.rn.f32" not in str(apart)


def test_the_second_time_comes_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_for("sm_90")
    monkeypatch.setattr(build_triton, "_run_triton", None)
    assert compile_for("sm_90") == first


def test_a_warm_process_does_not_import_triton(tmp_path: Path) -> None:
    compile_for("sm_90")
    code = f"""
        import pathlib, sys
        from fusec import settings
        from fusec.runtime.build_triton import Target, compile_triton
        from tests.runtime.kernels import add_program
        with settings.override(cache_dir=pathlib.Path({str(tmp_path / "cache")!r})):
            compile_triton(add_program(), Target.parse("sm_90"))
        print(sorted({{"torch", "triton", "numpy"}} & set(sys.modules)))
    """
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", textwrap.dedent(code)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    assert finished.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "change",
    [
        {"source": ADD + "\n"},
        {"constants": (("BLOCK", 512),)},
        {"divisible_by_16": frozenset({"x"})},
        {"divisible_by_8": frozenset({"n"})},
        {"divisible_by_4": frozenset({"n"})},
        {"num_warps": 8},
        {"num_stages": 2},
        {"fp_fusion": True},
    ],
)
def test_everything_is_part_of_the_key(change: dict) -> None:
    target = Target.parse("sm_90")
    base = build_triton.key_of(add_program(), target)
    assert build_triton.key_of(add_program(**change), target) != base
    assert build_triton.key_of(add_program(), Target.parse("sm_80")) != base


def test_only_variables_that_change_the_binary_are_part_of_the_key() -> None:
    target = Target.parse("sm_90")
    base = build_triton.key_of(add_program(), target)
    with settings.override(tool_environment=(("TRITON_CACHE_DIR", "/x"), ("TRITON_HOME", "/y"))):
        assert build_triton.key_of(add_program(), target) == base
    with settings.override(tool_environment=(("DISABLE_LLVM_OPT", "1"),)):
        assert build_triton.key_of(add_program(), target) != base


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("b * scale", "b * unknown_name", "unknown_name"),
        ("tl.arange(0, BLOCK)", "tl.arange(0, BLOCK - 1)", "power of 2"),
        ("def add(", "def add(:", "SyntaxError"),
    ],
)
def test_an_error_of_triton_is_ours(old: str, new: str, said: str) -> None:
    source = ADD.replace(old, new)
    with pytest.raises(BuildError, match="could not compile add for sm_90") as caught:
        compile_for("sm_90", add_program(source=source))
    assert said in caught.value.tool_output
    assert caught.value.source_path is not None
    assert Path(caught.value.source_path).read_text() == source


def test_tritons_own_cache_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    compile_for("sm_90")
    assert not (tmp_path / "triton").exists()
    assert "manager_class" not in vars(knobs.cache)
    assert list((tmp_path / "cache" / "tmp").iterdir()) == []


def test_threads_compile_at_once() -> None:
    blocks = (128, 256, 512)
    found: dict[int, TritonBinary] = {}

    def work(block: int) -> None:
        found[block] = compile_for("sm_90", add_program(block=block))

    threads = [threading.Thread(target=work, args=(block,)) for block in blocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({binary.binary for binary in found.values()}) == 3


@pytest.mark.parametrize("times", [1, 7, 8])
@pytest.mark.parametrize("wrapped", [False, True])
def test_threads_that_parse_at_once_may_confuse_python(
    times: int, wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python counts the depth of syntax trees for all threads together, and may lose count."""
    run = build_triton._run_triton
    failures: list[SystemError] = []

    def fail_first(*arguments: Any) -> Any:
        if len(failures) == times:
            return run(*arguments)
        failures.append(
            SystemError("AST constructor recursion depth mismatch (before=42, after=39)")
        )
        if wrapped:
            raise ValueError("at 12:4") from failures[-1]
        raise failures[-1]

    monkeypatch.setattr(build_triton, "_run_triton", fail_first)
    if times < 8:
        assert compile_for("sm_90").binary
    else:
        with pytest.raises(BuildError, match="could not compile add") as caught:
            compile_for("sm_90")
        assert "recursion depth mismatch" in caught.value.tool_output
    assert len(failures) == times


def test_other_system_errors_are_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []

    def fail(*arguments: Any) -> Any:
        runs.append(1)
        raise SystemError("bad call flags")

    monkeypatch.setattr(build_triton, "_run_triton", fail)
    with pytest.raises(BuildError) as caught:
        compile_for("sm_90")
    assert "bad call flags" in caught.value.tool_output
    assert len(runs) == 1


def test_a_memory_only_cache_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusec.runtime import cache

    monkeypatch.setattr(cache, "_private_directory", lambda: None)
    store = cache.Store(None)
    monkeypatch.setattr(build_triton, "default_store", lambda: store)
    assert compile_for("sm_90").binary


def test_machine_code_is_shown() -> None:
    text = sass(compile_for("sm_90").binary)
    assert "LDG" in text
    assert "EXIT" in text
    with pytest.raises(BuildError):
        sass(b"not a cubin")


def test_an_interpreting_process_says_so() -> None:
    code = """
        from fusec.errors import UnsupportedError
        from fusec.runtime.build_triton import Target, compile_triton
        from tests.runtime.kernels import add_program
        try:
            compile_triton(add_program(), Target.parse("sm_90"))
        except UnsupportedError as error:
            print(error.message)
    """
    finished = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env=settings.child_environment(TRITON_INTERPRET="1", FUSEC_NO_CACHE="1"),
    )
    assert "interprets kernels in this process" in finished.stdout


_ASKED = """
import fusec, torch
fusec.compile("gelu(x)").show("ptx", torch.empty(64, 64, device="meta"), target="sm_90")
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend, get_ptxas_version
asked = get_ptxas_version.cache_info().misses
print(asked, "release" in CUDABackend(GPUTarget("cuda", 90, 32)).hash())
"""


def test_ptxas_is_not_run_for_the_cache_of_triton(tmp_path: Path) -> None:
    """A build does not use it; whoever does has a key with the version in it."""
    done = subprocess.run(
        [sys.executable, "-c", _ASKED], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "True"]
