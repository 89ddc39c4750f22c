"""Runs the examples in docstrings."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WITH_EXAMPLES = [
    path.relative_to(ROOT).with_suffix("")
    for path in sorted((ROOT / "fusec").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=str)
def test_docstring_examples(path: Path) -> None:
    module = importlib.import_module(".".join(path.parts).removesuffix(".__init__"))
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
