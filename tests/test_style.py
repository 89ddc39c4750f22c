"""House style that no linter holds: length of files, docstrings, output, leftover markers."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fusec"
MODULES = sorted(PACKAGE.rglob("*.py"))
PYTHON = [
    path
    for folder in ("fusec", "tests", "examples", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "golden" not in path.parts
]

MAX_LINES = 400
MAX_TEST_LINES = 700  # a list of cases is read one case at a time
# Files that may be longer, each with the reason.
LONG_FILES = {
    "fusec/ir/ops.py": "the one place for every op: about eight lines each, best read as one table",
}

# A marker of unfinished work belongs in an issue. Each is written in capitals, as a word.
LEFTOVER = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK|WI" r"P)\b")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_file_is_short_enough_to_read(path: Path) -> None:
    length = len(path.read_text(encoding="utf-8").splitlines())
    limit = MAX_TEST_LINES if name_of(path).startswith("tests/") else MAX_LINES
    assert name_of(path) in LONG_FILES or length <= limit


def test_long_files_exist_and_are_long() -> None:
    lengths = {name: len((ROOT / name).read_text().splitlines()) for name in LONG_FILES}
    assert {name for name, length in lengths.items() if length <= MAX_LINES} == set()


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_module_has_a_docstring(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_the_command_line_prints(path: Path) -> None:
    if path.is_relative_to(PACKAGE / "cli"):
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    printing = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert printing == []


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_no_leftover_markers(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [f"{number}: {line}" for number, line in enumerate(lines, 1) if LEFTOVER.search(line)]
    assert found == []
