"""Every example runs, prints what it found, and is as accurate as PyTorch or better."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.example_programs import EXAMPLES, load_run

FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/run.py"))
# Two results that are both correctly rounded may differ in how the last addition falls.
ROOM = 1.25


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_example(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours, torch_s = load_run(folder).main()
    assert 0 <= ours <= torch_s * ROOM
    assert "largest error" in capsys.readouterr().out
    lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 20
