"""The tables of the README come from result files, and losing cells stay."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import render


def row(name: str, milliseconds: float | None, percent: float = 50.0) -> dict[str, Any]:
    return {
        "name": name,
        "timing": None if milliseconds is None else {"milliseconds": milliseconds},
        "percent_of_copy": percent,
        "first_call_seconds": 0.5,
        "warm_call_seconds": 0.02,
    }


@pytest.fixture
def content() -> dict[str, Any]:
    gelu = [row("eager", 354.0, 2), row("torch gelu", 64.0, 8), row("torch.compile", None)]
    line = [row("eager", 9.0, 60), row("torch.compile", 6.0, 90), row("fusec", 6.5, 83)]
    case = {"device": "cpu", "inputs": ["x=4096x4096:float32"]}
    return {
        "device_name": "Some CPU, 2 cores",
        "versions": {"fusec": "0.1.0", "torch": "2.13.0", "triton": None},
        "date": "2030-01-02T03:04:05+00:00",
        "command": "fusec bench --suite pipeline",
        "import_seconds": 0.02,
        "cases": [
            {**case, "name": "gelu", "native": "gelu", "rows": [*gelu, row("fusec", 12.6, 43)]},
            {**case, "name": "ax+b", "inputs": ["x=64x64:f32"], "native": None, "rows": line},
        ],
    }


def test_the_table(content: dict[str, Any]) -> None:
    lines = render.table(content).splitlines()
    assert lines[:4] == [
        "|  | eager | PyTorch's own | torch.compile | fusec | fusec against the best other |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| gelu, 4096 x 4096 | 354 ms (2 %) | 64.0 ms (8 %) | fails | **12.6 ms (43 %)** | 5.08x |",
        "| ax+b, 64 x 64 | 9.00 ms (60 %) | - | **6.00 ms (90 %)** | 6.50 ms (83 %) | 0.92x ▽ |",
    ]
    text = "\n".join(lines[4:])
    assert "fusec 0.50 s (0.020 s with a warm cache)" in text
    assert "`import fusec` 20 ms" in text
    assert "Some CPU, 2 cores; fusec 0.1.0, torch 2.13.0; 2030-01-02; `fusec bench --suite" in text


def test_only_what_is_between_the_marks_changes(tmp_path: Path, content: dict[str, Any]) -> None:
    (tmp_path / "cpu.json").write_text(json.dumps(content))
    text = "before\n<!-- table:cpu -->\nold\n<!-- /table -->\nafter\n"
    rendered = render.render(text, tmp_path)
    assert rendered.startswith("before\n<!-- table:cpu -->\n|  | eager")
    assert rendered.endswith("`.\n<!-- /table -->\nafter\n")
    assert "old" not in rendered
    assert render.render(rendered, tmp_path) == rendered


def test_check_says_what_is_stale(
    tmp_path: Path,
    content: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "cpu.json").write_text(json.dumps(content))
    readme = tmp_path / "README.md"
    readme.write_text("<!-- table:cpu -->\n<!-- /table -->\n")
    rewrite = render.render
    monkeypatch.setattr(render, "render", lambda text: rewrite(text, tmp_path))
    assert render.main(["--check", str(readme)]) == 1
    assert "python -m benchmarks.render" in capsys.readouterr().out
    assert readme.read_text() == "<!-- table:cpu -->\n<!-- /table -->\n"
    assert render.main([str(readme)]) == 0
    assert render.main(["--check", str(readme)]) == 0


def test_a_table_without_results_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        render.render("<!-- table:none -->\n<!-- /table -->\n", tmp_path)
