"""`fusec bench --suite gradients`: right gradients, the bytes they need, and what is measured."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fusec.cli import main
from fusec.cli.suites import gradients
from fusec.cli.suites.case import Measure, Plan, SuiteCase, make_case
from fusec.cli.suites.declared import SUITES, TRAINED, TRAINING
from fusec.cli.suites.gradients import Training, Way, make_learner
from fusec.cli.suites.measure import line, measure
from fusec.cli.suites.precompile import compile_case

OPERATIONS = {op.name: op for op in TRAINED}
ROWS, COLUMNS = 12, 40
# PyTorch's compiler imports modules of its own that are deprecated.
IMPORTS_INDUCTOR = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def small(name: str, dtype: str = "f32") -> SuiteCase:
    return make_case("gradients", OPERATIONS[name], dtype, {"R": ROWS, "C": COLUMNS})


def plan(*systems: str, device: str = "cpu") -> Plan:
    return Plan(device, systems, 0.0, Measure.GRADIENTS)


def test_the_suite_has_six_operations_at_the_sizes_of_a_model() -> None:
    names = [case.name for case in SUITES["gradients"].cases("cuda")]
    assert names == [
        "softmax/bf16/32768x4096",
        "layer_norm/bf16/32768x4096",
        "rms_norm/bf16/32768x4096",
        "gelu/bf16/32768x4096",
        "swiglu/bf16/32768x4096",
        "cross_entropy/bf16/8192x32768",
    ]
    assert {case.name.partition("/")[2] for case in SUITES["gradients"].cases("cpu")} == {
        "f32/2048x2048"
    }


N, C = ROWS * COLUMNS, COLUMNS
FEWEST = {  # elements that backward reads and writes, and forward
    "softmax": (3 * N, 2 * N),
    "layer_norm": (3 * N + C + 2 * C, 2 * N + 2 * C),
    "rms_norm": (3 * N + C + C, 2 * N + C),
    "gelu": (3 * N, 2 * N),
    "swiglu": (5 * N, 3 * N),
    # A target is a 64-bit integer: two elements of 32 bits.
    "cross_entropy": (2 * N + ROWS + 2 * ROWS, N + 2 * ROWS + ROWS),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_agree_with_float64_and_bytes_are_the_fewest(name: str) -> None:
    result = measure(small(name), plan("eager", "torch", "fusec"))
    rows = {row["system"]: row for row in result["rows"]}
    assert list(rows) == ["eager", "torch", "fusec"]
    assert [row["name"] for row in result["rows"] if "problem" in row] == []
    # Roundings at the size of the largest value: few, and those of a person's intermediate values.
    assert rows["fusec"]["largest_error"] <= 2**-20
    assert rows["eager"]["largest_error"] <= 24 * 2**-22
    for row in rows.values():
        assert row["timing"]["samples"] >= 15
        assert row["backward"]["timing"]["samples"] >= 15
    backward, forward = FEWEST[name]
    assert result["backward"]["bytes"] == 4 * backward
    assert result["bytes"] == 4 * (backward + forward)


def test_a_wrong_gradient_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_weights(training: Training) -> Way:
        x, w = training.inputs
        assert isinstance(x, torch.Tensor)
        assert isinstance(w, torch.Tensor)

        def forward() -> torch.Tensor:  # the gradient of w is a twentieth too large
            norm = torch.nn.functional.rms_norm(x, (COLUMNS,), None, 1e-6)
            return norm * (1.2 * w - 0.2 * w.detach())

        return Way("liger", forward)

    monkeypatch.setitem(gradients.WAYS, "liger", no_weights)
    wrong, right = measure(small("rms_norm"), plan("liger", "fusec"))["rows"]
    assert wrong["problem"].startswith("off by 0.2 ")
    assert "problem" not in right


def test_a_system_may_write_over_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    original = gradients.WAYS["torch"]

    def destructive(training: Training) -> Way:
        way = original(training)
        assert way is not None

        def forward() -> torch.Tensor:
            result: torch.Tensor = way.forward()
            with torch.no_grad():
                for leaf in training.leaves:
                    leaf.data.fill_(math.nan)
            return result

        return Way("liger", forward)

    monkeypatch.setitem(gradients.WAYS, "liger", destructive)
    # The gradient of a softmax reads its result, which stays.
    result = measure(small("softmax"), plan("liger", "torch", "fusec"))
    assert [row.get("problem") for row in result["rows"]] == [None, None, None]


def test_what_a_system_raises_stays_in_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(training: Training) -> Way:
        raise ImportError("no such library\nsecond line")

    monkeypatch.setitem(gradients.WAYS, "liger", broken)
    result = measure(small("gelu"), plan("liger", "numexpr", "fusec"))
    assert [(row["system"], row.get("problem")) for row in result["rows"]] == [
        ("liger", "no such library"),
        ("fusec", None),
    ]
    text = line(result, Measure.GRADIENTS)
    assert "liger fails" in text
    assert "% (backward " in text


def test_a_run_of_the_suite_writes_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [small("softmax"), small("cross_entropy")]
    suite = SUITES["gradients"]
    tiny = type(suite)("gradients", suite.doc, lambda device: cases, TRAINING, suite.measure)
    monkeypatch.setitem(SUITES, "gradients", tiny)
    path = tmp_path / "gradients.json"
    options = ("--device", "cpu", "--seconds", "0", "--contenders", "torch,fusec")
    assert main(["bench", "--suite", "gradients", *options, "--json", str(path)]) == 0
    assert f"2 cases in {path}" in capsys.readouterr().out


@pytest.mark.slow
@IMPORTS_INDUCTOR
def test_a_compiled_backward_is_taken_again_and_again() -> None:
    learner = make_learner(small("rms_norm"), "cpu", "compile")
    assert learner is not None
    learner.both()  # a backward that is compiled to run once
    again = learner.backward()
    results: list[Any] = [again(), again()]
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_cases_are_compiled_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(
        "fusec.cli.suites.precompile.compile_gradients",
        lambda case, device, mode: seen.append((case.name, mode)),
    )
    compile_case(small("gelu"), "cpu", ("compile", "max-autotune"))
    assert seen == [("gelu/f32/12x40", "compile"), ("gelu/f32/12x40", "max-autotune")]


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is told by Linux")
def test_peak_memory_is_measured() -> None:
    rows, columns = 1024, 2048  # results of 8 MiB, beyond what stays in the heap
    case = make_case("gradients", OPERATIONS["gelu"], "f32", {"R": rows, "C": columns})
    for row in measure(case, plan("torch", "fusec"))["rows"]:
        # The result and the gradient of the input, and nothing of their size beside them.
        assert 15 << 20 < row["peak_bytes"] < 22 << 20


@pytest.mark.gpu
@IMPORTS_INDUCTOR
@pytest.mark.parametrize("name", OPERATIONS)
def test_all_systems_agree_on_a_gpu(name: str) -> None:
    case = make_case("gradients", OPERATIONS[name], "bf16", {"R": 256, "C": 1024})
    result = measure(case, plan(*TRAINING, device="cuda"))
    assert {row["name"]: row["problem"] for row in result["rows"] if "problem" in row} == {}
    assert {"eager", "torch", "compile", "max-autotune", "fusec"} <= {
        row["system"] for row in result["rows"]
    }
    assert all(row["peak_bytes"] > 0 for row in result["rows"])
