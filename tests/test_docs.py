"""README and docs: every block of code runs, and what it is said to print it prints.

- ``python`` blocks of a file run in order and share their names; a block under
  ``<!-- output -->`` is what the one before it printed.
- ``pycon`` blocks are doctests in the same names.
- ``console`` blocks hold ``$ fusec ...`` and what it answers, if anything is shown.
- A block under ``<!-- show ARGUMENTS -->`` is the output of ``fusec show ARGUMENTS``.
- A block under ``<!-- modules -->`` is the first sentence of every module of fusec.
- ``<!-- skip: REASON -->`` stands over what cannot run here; the reasons are few.

``--update-golden`` rewrites outputs.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import re
import shlex
import textwrap
from pathlib import Path
from typing import Any

import pytest

from benchmarks.render import render
from fusec.cli import main
from tests.example_programs import EXAMPLES
from tests.markdown import Block, blocks, replaced

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
REASONS = ("needs a GPU", "needs the network", "installs packages", "takes minutes")
WITH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@WITH_PAGE
def test_blocks(
    page: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    update = request.config.getoption("--update-golden")
    text = page.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    changes: dict[Block, str] = {}
    for block in blocks(text):
        where = f"{page.name}:{block.line}"
        if block.directive.startswith("skip: "):
            assert block.directive.removeprefix("skip: ") in REASONS, where
        elif block.directive == "output":
            changes |= check(block, printed, update, where)
        elif block.directive == "modules":
            changes |= check(block, module_map(), update, where)
        elif block.directive.startswith("show "):
            changes |= check(block, run_fusec(block.directive, where), update, where)
        elif block.language == "python":
            printed = run_python(block, names, where)
        elif block.language == "pycon":
            run_doctest(block, names, where)
        elif block.language == "console":
            run_console(block, where)
        else:
            assert block.language == "text", f"{where}: say what this block is"
    if changes:
        page.write_text(replaced(text, changes), encoding="utf-8")


def check(block: Block, actual: str, update: bool, where: str) -> dict[Block, str]:
    """The change that an update has to make; without one the texts have to be equal."""
    actual = actual.rstrip("\n") + "\n"
    if update:
        return {block: actual} if block.text != actual else {}
    assert actual == block.text, f"{where} is stale: pytest tests/test_docs.py --update-golden"
    return {}


def run_python(block: Block, names: dict[str, Any], where: str) -> str:
    """Execute a block; what it printed."""
    code = compile("\n" * block.line + block.text, where, "exec")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, names)
    return printed.getvalue()


def run_doctest(block: Block, names: dict[str, Any], where: str) -> None:
    """Execute the examples of an interactive session."""
    test = doctest.DocTestParser().get_doctest(block.text, names, where, where, block.line)
    assert test.examples, where
    complaints = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=_FLAGS)
    failed, _ = runner.run(test, out=complaints.write, clear_globs=False)
    names.update(test.globs)
    assert failed == 0, complaints.getvalue()


def run_console(block: Block, where: str) -> None:
    """Run each command; lines below it are its output, where ``...`` stands for any text."""
    for session in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, expected = session.partition("\n")
        assert command.startswith("fusec "), f"{where}: {command}"
        actual = run_fusec(command.removeprefix("fusec "), where, may_fail="error: " in expected)
        if expected.strip():
            pattern = re.escape(expected.strip()).replace(re.escape("..."), ".*")
            assert re.fullmatch(pattern, actual.strip(), re.DOTALL), f"{where}:\n{actual}"


def run_fusec(command: str, where: str, may_fail: bool = False) -> str:
    """Everything a command of fusec writes; it fails exactly where it should."""
    with (
        contextlib.redirect_stdout(io.StringIO()) as printed,
        contextlib.redirect_stderr(printed),
    ):
        code = main(shlex.split(command))
    assert code == (2 if may_fail else 0), f"{where}: {printed.getvalue()}"
    return printed.getvalue()


def module_map() -> str:
    """One entry for each module: its path and what its docstring says first."""
    entries = []
    for path in sorted((ROOT / "fusec").rglob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        sentence = re.split(r"(?<=\.) ", " ".join(docstring.split("\n\n")[0].split()))[0]
        name = path.relative_to(ROOT / "fusec").with_suffix("").as_posix()
        if not path.stem.startswith("__"):
            entries.append(textwrap.fill(f"{name:<28}{sentence}", 99, subsequent_indent=" " * 28))
    return "\n".join(entries)


@WITH_PAGE
def test_tables_come_from_result_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert render(text) == text, "stale tables: python -m benchmarks.render"


def test_ops_page_is_generated() -> None:
    generated = run_fusec("ops --markdown", "ops.md")
    assert (ROOT / "docs" / "ops.md").read_text(encoding="utf-8") == generated, "run: make docs"


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted(EXAMPLES.glob("*/README.md"))], ids=lambda p: str(p.relative_to(ROOT))
)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose)
    missing = [
        t for t in targets if not t.startswith("http") and not (page.parent / t).resolve().exists()
    ]
    assert missing == []
