"""Result files of suites as tables, summaries and plots: from the same file the same bytes."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import render, tables
from benchmarks.plots import draw
from fusec.cli.suites.results import text_of

HEADER: dict[str, Any] = {
    "device_name": "Some GPU",
    "versions": {"fusec": "0.1.0", "torch": "2.13.0", "triton": "3.9.0"},
    "date": "2030-01-02T03:04:05+00:00",
    "command": "fusec bench --suite rows",
    "more_commands": ["fusec bench --suite rows --resume"],
    "commit": "abc",
}


def timed(system: str, milliseconds: float, **more: Any) -> dict[str, Any]:
    return {
        "system": system,
        "name": "torch softmax" if system == "torch" else tables.SYSTEMS[system],
        "timing": {"milliseconds": milliseconds, "low": 0.1, "high": 9.0, "samples": 15},
        "percent_of_copy": 10 / milliseconds,
        **more,
    }


def case(op: str, dtype: str, shape: tuple[int, int], rows: list[dict[str, Any]]) -> dict[str, Any]:
    extents = "x".join(map(str, shape))
    return {
        "name": f"{op}/{dtype}/{extents}",
        "suite": "rows",
        "op": op,
        "dtype": dtype,
        "shape": list(shape),
        "inputs": [f"x={extents}:{dtype}"],
        "rows": rows,
    }


@pytest.fixture
def content() -> dict[str, Any]:
    wrong = timed("liger", 0.01, problem="off by 3 where the largest value is 1")
    failed = {"system": "quack", "name": "quack", "problem": "no such library"}
    first = [timed("eager", 4.0), timed("torch", 0.4), wrong, failed, timed("fusec", 0.1)]
    return {
        **HEADER,
        "suite": "rows",
        "cases": [
            case("softmax", "bf16", (8, 4096), [timed("eager", 0.4), timed("fusec", 0.5)]),
            case("softmax", "bf16", (32768, 4096), first),
            case("row_sum", "f32", (131072, 1024), [timed("torch", 0.3), timed("fusec", 0.3)]),
            case("softmax", "bf16", (131072, 1024), [timed("torch", 0.4), timed("fusec", 0.1)]),
            {**case("entropy", "f32", (4, 8), []), "problem": "out of memory"},
        ],
    }


def test_the_table_of_a_suite(content: dict[str, Any]) -> None:
    lines = tables.table(content).splitlines()
    assert lines[0] == (
        "|  | eager | PyTorch's own | Liger | QuACK | fusec | fusec against the best other |"
    )
    assert [line.partition(" | ")[0] for line in lines[2:7]] == [
        "| softmax, bf16, 131072 x 1024",
        "| softmax, bf16, 32768 x 4096",
        "| softmax, bf16, 8 x 4096",  # few rows come last
        "| row sum, f32, 131072 x 1024",
        "| entropy, f32, 4 x 8",
    ]
    assert lines[3].endswith(
        "| 4.00 ms (2 %) | 0.400 ms (25 %) | wrong | fails | **0.100 ms (100 %)** | 4.00x |"
    )
    assert lines[4].endswith("| **0.400 ms (25 %)** | - | - | - | 0.500 ms (20 %) | 0.80x ▽ |")
    text = "\n".join(lines)
    assert "entropy/f32/4x8: out of memory." in text
    assert "`fusec bench --suite rows`, `fusec bench --suite rows --resume`." in text


def test_the_summary_names_means_worst_cells_and_losses(content: dict[str, Any]) -> None:
    lines = tables.summary([content]).splitlines()
    assert lines[2:5] == [
        "| rows | eager | 2 | 5.66x | 0.80x ▽ softmax, bf16, 8 x 4096 | 1 |",
        "| rows | PyTorch's own | 3 | 2.52x | 1.00x row sum, f32, 131072 x 1024 | 0 |",
        "| rows | **the best other** | 4 | 1.89x | 0.80x ▽ softmax, bf16, 8 x 4096 | 1 |",
    ]
    text = "\n".join(lines)
    assert "Behind the best other in 1 of 4 cells: rows: softmax, bf16, 8 x 4096 0.80x." in text
    assert "Some GPU; fusec 0.1.0, torch 2.13.0, triton 3.9.0; 2030-01-02." in text


def test_host_and_cold_compare_their_own_quantity() -> None:
    host = case("silu", "f32", (1, 1024), [])
    host["rows"] = [
        timed("torch", 1.0, host_microseconds=8.0),
        timed("fusec", 9.0, host_microseconds=4.0),
        timed("bind", 9.0, host_microseconds=2.0),
    ]
    lines = tables.table({**HEADER, "suite": "host", "cases": [host]}).splitlines()
    assert lines[2].endswith("| 8.0 µs | 4.0 µs | **2.0 µs** | 2.00x |")
    cold = case("first", "f32", (4, 8), [])
    cold["rows"] = [
        {"system": "compile", "first_call_seconds": 8.0, "warm_call_seconds": 3.0},
        {"system": "fusec", "first_call_seconds": 0.5, "warm_call_seconds": 4.0},
    ]
    content = {**HEADER, "suite": "cold", "cases": [cold]}
    text = tables.table(content)
    assert "| 8.00 s | **0.50 s** | 16.00x |" in text
    assert "| **3.000 s** | 4.000 s | 0.75x ▽ |" in text
    assert "| cold, warm cache | torch.compile | 1 | 0.75x |" in tables.summary([content])


def test_gradients_compare_time_and_memory() -> None:
    gelu = case("gelu", "bf16", (32768, 4096), [])

    def row(system: str, milliseconds: float, mebibytes: int) -> dict[str, Any]:
        backward = {"timing": {"milliseconds": milliseconds / 2}, "percent_of_copy": 50.0}
        memory = mebibytes << 20
        return timed(system, milliseconds, backward=backward, peak_bytes=memory)

    gelu["rows"] = [row("compile", 4.0, 8), row("max-autotune", 3.0, 8), row("fusec", 2.0, 16)]
    content = {**HEADER, "suite": "gradients", "cases": [gelu]}
    text = tables.table(content)
    assert "| 2.00 ms (50 %) | 1.50 ms (50 %) | **1.00 ms (50 %)** | 1.50x |" in text
    assert "| 4.00 ms (2 %) | 3.00 ms (3 %) | **2.00 ms (5 %)** | 1.50x |" in text
    assert "| **8 MiB** | **8 MiB** | 16 MiB | 0.50x ▽ |" in text
    lines = tables.summary([content]).splitlines()
    better = "| gradients, backward | torch.compile, its better mode | 1 | 1.50x | 1.50x gelu"
    assert any(line.startswith(better) for line in lines)
    brief = tables.summary([content], brief=True).splitlines()
    shown = [line for line in lines if " | torch.compile" in line or " | **the best" in line]
    assert [line for line in brief if line.startswith("| gradients")] == shown
    assert any(
        line.startswith("| gradients, peak memory | torch.compile, its better mode | 1 | 0.50x")
        for line in lines
    )


def test_models_compare_steps_and_what_comes_before_them() -> None:
    network = case("mlp_3", "bf16", (4096, 1024), [])
    network["rows"] = [
        timed("eager", 1.0, peak_bytes=4 << 20),
        timed(
            "compile",
            3.0,
            first_call_seconds=8.0,
            warm_call_seconds=3.0,
            next_call_seconds=2.0,
            peak_bytes=2 << 20,
        ),
        timed(
            "fusec",
            2.0,
            first_call_seconds=4.0,
            warm_call_seconds=2.0,
            next_call_seconds=0.5,
            peak_bytes=2 << 20,
        ),
    ]
    content = {**HEADER, "suite": "models", "cases": [network]}
    text = tables.table(content)
    assert "| **1.00 ms** | 3.00 ms | 2.00 ms | 0.50x ▽ |" in text
    assert "| - | 8.00 s | **4.00 s** | 2.00x |" in text
    assert "| - | 2.00 s | **0.50 s** | 4.00x |" in text
    assert "| 4 MiB | **2 MiB** | **2 MiB** | 1.00x |" in text
    assert "| models, a step | torch.compile | 1 | 1.50x |" in tables.summary([content])


def test_marks_find_the_suites_of_a_machine(tmp_path: Path, content: dict[str, Any]) -> None:
    cases = content.pop("cases")
    (tmp_path / "some-gpu-rows.json").write_text(text_of(content, cases))
    text = (
        "<!-- summary:some-gpu -->\n<!-- /summary -->\n<!-- suites:some-gpu -->\nold\n"
        "<!-- /suites -->\n<!-- suites:no-such-machine -->\n<!-- /suites -->\n"
    )
    rendered = render.render(text, tmp_path)
    assert "| rows | **the best other** |" in rendered
    assert (
        "![rows: row reductions, 64 to 4M columns, bf16](plots/some-gpu-rows-bf16.svg)" in rendered
    )
    assert "<summary>rows: row reductions, 64 to 4M columns, 5 cases</summary>" in rendered
    assert "old" not in rendered
    assert rendered.endswith("<!-- suites:no-such-machine -->\n<!-- /suites -->\n")
    assert render.render(rendered, tmp_path) == rendered


def test_a_result_file_is_read_as_it_was_written(content: dict[str, Any]) -> None:
    header = {key: value for key, value in content.items() if key != "cases"}
    for cases in (content["cases"], content["cases"][:1], []):
        text = text_of(header, cases)
        assert json.loads(text) == {**header, "cases": cases}
        assert text.endswith("}\n")
    # A line of facts and a line a row: a change of one number is a change of one line.
    assert text_of(header, content["cases"]).count("\n") < 60


def test_plots_are_the_same_bytes_every_time(tmp_path: Path, content: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    first = draw(content, tmp_path / "a", "some-gpu-rows")
    second = draw(content, tmp_path / "b", "some-gpu-rows")
    assert [path.name for path in first] == ["some-gpu-rows-bf16.svg", "some-gpu-rows-f32.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    text = first[0].read_text()
    assert all(label in text for label in ("softmax", "columns", "PyTorch's own", "fusec"))
    assert "row sum" not in text
    assert draw({**content, "suite": "host"}, tmp_path, "host") == []
