"""The suite ``five-ways``: what each way moves, how its source is counted, and its tables."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tables
from fusec.cli import main
from fusec.cli.suites import ways
from fusec.cli.suites.case import make_case
from fusec.cli.suites.declared import FIVE_WAYS, LECTURE, SUITES
from fusec.cli.suites.systems import SYSTEMS, Setting

GELU, SOFTMAX = FIVE_WAYS
SHAPE = {"R": 24, "C": 64}
MATRIX = 24 * 64 * 4  # bytes
ROW = 24 * 4


def setting(operation: Any = GELU, device: str = "cpu") -> Setting:
    return Setting(make_case("five-ways", operation, "f32", SHAPE), device)


def test_bytes_are_those_of_every_kernel() -> None:
    # Three products and a sum of two tensors, and five ops on one.
    eager = ways.look(setting(), "eager")
    assert eager.operand_bytes == 22 * MATRIX
    assert ways.look(setting(), "torch").operand_bytes == 2 * MATRIX
    assert ways.look(setting(), "fusec-cpp").operand_bytes == 2 * MATRIX
    # max, sub, exp, sum, 1 / sum (two ops) and mul: a value of a row is read once for it.
    assert ways.look(setting(SOFTMAX), "eager").operand_bytes == 8 * MATRIX + 8 * ROW
    assert ways.look(setting(SOFTMAX), "fusec-cpp").operand_bytes == 2 * MATRIX


def test_a_broadcast_operand_counts_once() -> None:
    from fusec.cli.suites.case import Operation

    case = make_case("five-ways", Operation("bias", "x + b", "x=RxC b=C"), "f32", SHAPE)
    assert ways.look(Setting(case, "cpu"), "fusec-cpp").operand_bytes == 2 * MATRIX + 64 * 4


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("// a comment\n\nint main() {\n  return 0;  // done\n}\n", 3),
        ('"""A docstring\n\nof three lines."""\n\nimport math\n\n# why\nx = 1\n', 2),
        ('def f():\n    """What f does."""\n    return 1\n', 3),
    ],
)
def test_lines_of_source(text: str, lines: int) -> None:
    assert ways.count_lines(text) == lines


def test_the_sources_are_what_is_printed() -> None:
    given = setting(SOFTMAX)
    way = ways.look(given, "fusec-cpp")
    assert way.source == given.printed("cpp").show("cpp", *given.inputs)
    assert way.facts()["source_lines"] == ways.count_lines(way.source) > 10
    assert "torch.tanh(" in ways.look(setting(), "eager").source


def test_the_languages_of_a_gpu_take_no_part_on_a_cpu() -> None:
    made = {system: SYSTEMS[system](setting()) for system in ("fusec-cuda", "fusec-triton")}
    assert made == {"fusec-cuda": None, "fusec-triton": None}
    assert SYSTEMS["fusec-cpp"](setting()) is not None


def test_a_run_without_a_gpu_says_what_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ways.json"
    options = ("--device", "cpu", "--seconds", "0", "--contenders", "eager,torch,fusec-cpp")
    only = ("--only", "^softmax/f32", "--json", str(path))
    assert main(["bench", "--suite", "five-ways", *options, *only]) == 0
    streams = capsys.readouterr()
    assert streams.err.strip() == SUITES["five-ways"].on_cpu
    lines = streams.out.splitlines()
    assert [line[:18].strip() for line in lines[1:5]] == [
        "",
        "PyTorch, op by op",
        "PyTorch's own",
        "fusec, C++",
    ]
    assert max(map(len, lines[:5])) <= 80
    (case,) = json.loads(path.read_text())["cases"]
    assert [row["bytes"] for row in case["rows"]][1:] == [2 * 4096 * 4096 * 4] * 2


def measured(system: str, milliseconds: float | None, **more: Any) -> dict[str, Any]:
    timing = None if milliseconds is None else {"milliseconds": milliseconds}
    return {"system": system, "name": system, "timing": timing, "percent_of_copy": 50.0, **more}


@pytest.fixture
def case() -> dict[str, Any]:
    return {
        "name": "gelu/f32/16384x16384",
        "op": "gelu",
        "dtype": "f32",
        "shape": [16384, 16384],
        "inputs": ["x=16384x16384:f32"],
        "copy_gigabytes_per_second": 4260.0,
        "rows": [
            measured("eager", 4.5, kernels=9, bytes=23_622_000_000, source_lines=2),
            measured("torch", 0.5, kernels=1, bytes=2_147_000_000, source_lines=2),
            measured("fusec-triton", 0.25, kernels=1, bytes=2_147_000_000, source_lines=16),
            measured("fusec-cuda", None, problem="no NVRTC", percent_of_copy=None),
        ],
    }


def test_the_table_stands_beside_the_lecture(case: dict[str, Any]) -> None:
    assert ways.table_rows(case) == [
        ("PyTorch, op by op", "4.50", "9.00", "50", "9", "23622", "2", "8.10"),
        ("PyTorch's own", "0.500", "1.00", "50", "1", "2147", "2", "1.10"),
        ("fusec, CUDA C++", "fails", "-", "-", "-", "-", "-", "1.80"),
        ("fusec, Triton", "0.250", "0.50", "50", "1", "2147", "16", "1.80"),
    ]
    text = ways.table_text(case)
    assert max(map(len, text.splitlines())) <= 80
    assert text.endswith("fusec, CUDA C++: no NVRTC")
    # Its figures are for one shape and type.
    for changed in ({"dtype": "bf16"}, {"shape": [4096, 4096]}):
        assert {row[-1] for row in ways.table_rows({**case, **changed})} == {"-"}
    assert set(LECTURE) == {operation.name for operation in FIVE_WAYS}


def test_the_rendered_table(case: dict[str, Any]) -> None:
    content = {
        "suite": "five-ways",
        "cases": [case],
        "device_name": "Some GPU",
        "versions": {"fusec": "0.1.0", "torch": "2.13.0", "triton": None},
        "date": "2030-01-02T03:04:05+00:00",
        "command": "fusec bench --suite five-ways",
    }
    lines = tables.table(content).splitlines()
    assert lines[0].startswith("| gelu, f32, 16384 x 16384 | ms | times own |")
    assert lines[3] == "| PyTorch's own | 0.500 | 1.00 | 50 | 1 | 2147 | 2 | 1.10 |"
    assert ways.NOTE in lines


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torch_compile_tells_its_kernels_and_bytes() -> None:
    way = ways.look(setting(), "compile")
    assert way.operand_bytes == 2 * MATRIX
    assert way.facts()["source_lines"] > 10


@pytest.mark.gpu
def test_every_way_runs_on_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "ways.json"
    options = ("--device", "cuda", "--seconds", "0.05", "--only", "gelu/f32", "--json", str(path))
    assert main(["bench", "--suite", "five-ways", *options]) == 0
    (case,) = json.loads(path.read_text())["cases"]
    rows = {row["system"]: row for row in case["rows"]}
    assert list(rows) == ["eager", "torch", "fusec-cuda", "fusec-triton", "compile"]
    assert not any("problem" in row for row in rows.values())
    for system in ("torch", "fusec-cuda", "fusec-triton", "compile"):
        assert rows[system]["kernels"] == 1
        assert rows[system]["bytes"] == 2 * 4 * 16384**2
    assert rows["eager"]["kernels"] > 5
