"""The reviewed sources of every example; each compiles, and Triton's needs no formatting."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fusec.runtime.build_cpp import find_compiler
from fusec.runtime.build_cuda import find_compiler as find_cuda
from tests.conftest import GOLDEN_ROOT
from tests.example_programs import EXAMPLES, FORMULAS, TARGETS, program

ROOT = Path(__file__).parents[2]
INCLUDE = ROOT / "fusec" / "codegen" / "include"
STRICT = ("-std=c++17", "-fopenmp", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only")
SUFFIXES = (".cpp", ".cu", ".triton.py")
CUDA_TARGETS = ("sm_80", "sm_90")
WITH_FORMULA = pytest.mark.parametrize("path", FORMULAS, ids=[path.stem for path in FORMULAS])


@WITH_FORMULA
def test_sources(path: Path, golden: Callable[[str, str], None]) -> None:
    example = program(path)
    golden(f"{path.stem}.cpp", example.show("cpp"))
    golden(f"{path.stem}.triton.py", example.show("triton"))
    golden(f"{path.stem}.cu", example.show("cuda"))


@WITH_FORMULA
def test_triton_compiles_for_every_target(path: Path) -> None:
    example = program(path)
    for target in TARGETS:
        assert f".target {target}" in example.show("ptx", target)


@pytest.mark.skipif(find_cuda() is None, reason="neither NVRTC nor nvcc is installed")
@WITH_FORMULA
def test_cuda_compiles_for_every_target(path: Path) -> None:
    for target in CUDA_TARGETS:
        assert f".target {target}" in program(path, backend="cuda").show("ptx", target)


def test_cpp_compiles_without_a_warning() -> None:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    sources = [str(path) for path in sorted(GOLDEN_ROOT.glob("*.cpp"))]
    command = [*compiler.command, *STRICT, f"-I{INCLUDE}", *sources]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_formatting_changes_nothing() -> None:
    sources = [str(path) for path in sorted(GOLDEN_ROOT.glob("*.triton.py"))]
    command = [sys.executable, "-m", "ruff", "format", "--diff", *sources]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (ran.returncode, ran.stdout) == (0, "")


# Models that torch.compile takes whole: their graphs are PyTorch's.
WITHOUT_FORMULA = {"transformer"}


def test_every_golden_belongs_to_an_example_and_is_linked_from_it() -> None:
    names = {f"{path.stem}{suffix}" for path in FORMULAS for suffix in SUFFIXES}
    assert {path.name for path in GOLDEN_ROOT.iterdir() if path.is_file()} == names
    for path in FORMULAS:
        readme = (path.parent / "README.md").read_text(encoding="utf-8")
        for suffix in SUFFIXES:
            assert f"(../../tests/golden/{path.stem}{suffix})" in readme
    folders = {path.parent.name for path in EXAMPLES.glob("*/run.py")}
    assert folders == {path.parent.name for path in FORMULAS} | WITHOUT_FORMULA
