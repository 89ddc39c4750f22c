"""`fusec bench --suite models`: right gradients, and what is measured of a step."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fusec.cli import main
from fusec.cli.suites import models
from fusec.cli.suites.case import Measure, Operation, Plan, SuiteCase, make_case
from fusec.cli.suites.declared import SUITES
from fusec.cli.suites.models import Network, measure_model
from fusec.cli.suites.transformers import KINDS
from fusec.runtime.timing import FirstCall, steps_in_turns


def case(rows: int = 8, width: int = 16) -> SuiteCase:
    operation = Operation("mlp_2", "gelu(linear(x)), 2 layers", "x=RxC", depth=2)
    return make_case("models", operation, "f32", {"R": rows, "C": width})


PLAN = Plan(device="cpu", systems=("eager", "fusec"), seconds=0.01, measure=Measure.MODELS)


def first_calls(
    monkeypatch: pytest.MonkeyPatch, seconds: float = 3.0
) -> list[tuple[str, str, bool]]:
    """What is asked of fresh processes, which are not started."""
    asked: list[tuple[str, str, bool]] = []

    def call(prepare: str, body: str, again: bool = True) -> FirstCall:
        asked.append((prepare, body, again))
        return FirstCall(seconds, seconds / 2)

    monkeypatch.setattr(models, "first_call", call)
    return asked


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_cases_are_networks_of_some_depth(device: str) -> None:
    cases = SUITES["models"].cases(device)
    assert len({c.name for c in cases}) == len(cases) == 6
    assert [Network.of(c, device).depth for c in cases[:3]] == [3, 8, 3]
    assert tuple(c.operation.name for c in cases[3:]) == KINDS


def test_a_step_computes_what_the_layers_say() -> None:
    network = Network(2, 16, 8, "f32", "cpu")
    result, *gradients = network.step("eager")()
    assert result.shape == (8, 16)
    assert [tuple(g.shape) for g in gradients] == [(16, 16), (16,), (16, 16), (16,)]
    again = network.step("eager")()
    assert all(torch.equal(a, b) for a, b in zip((result, *gradients), again, strict=True))
    wide = network.step("eager", wide=True)()
    for found, exact in zip((result, *gradients), wide, strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-5)


def test_a_case_has_a_step_its_memory_and_first_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = first_calls(monkeypatch)
    result = measure_model(case(), PLAN)
    eager, ours = result["rows"]
    assert (eager["system"], ours["system"]) == ("eager", "fusec")
    assert "first_call_seconds" not in eager  # nothing is built
    expected = {"first_call_seconds": 3.0, "warm_call_seconds": 1.5, "next_call_seconds": 3.0}
    assert {key: ours[key] for key in expected} == expected
    for row in (eager, ours):
        assert 0 < row["timing"]["milliseconds"] < 1e4
        assert row["largest_error"] < 1e-5
    (first, _, again), (following, body, _) = asked
    assert again
    assert body == "step()"
    assert first.count(".step('fusec')") == 1
    assert "depth=4, width=8, batch=4" in following
    assert following.endswith(first)


# Dynamo looks at the gradient of the logits of a GPT-2, which are a result of one graph.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("kind", KINDS)
def test_language_models_agree_with_float64(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    asked = first_calls(monkeypatch)
    operation = Operation(kind, f"{kind}, 2 layers", "t=BxT:i64", depth=1)
    small = make_case("models", operation, "f32", {"B": 2, "T": 8})
    for row in measure_model(small, PLAN)["rows"]:
        assert row["largest_error"] < 1e-4
        assert 0 < row["timing"]["milliseconds"] < 1e4
    assert not asked


def test_wrong_gradients_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    first_calls(monkeypatch)
    step = Network.step

    def wrong(self: Network, system: str, wide: bool = False) -> models.Step:
        right = step(self, system, wide)
        return right if wide else lambda: tuple(2 * value for value in right())

    monkeypatch.setattr(Network, "step", wrong)
    (row,) = measure_model(case(), Plan("cpu", ("eager",), 0.01, Measure.MODELS))["rows"]
    assert "off by" in row["problem"]


def test_another_compilers_failure_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    first_calls(monkeypatch)
    monkeypatch.setattr(models, "BACKENDS", {**models.BACKENDS, "compile": "no such backend"})
    plan = Plan("cpu", ("eager", "compile"), 0.01, Measure.MODELS)
    eager, compiled = measure_model(case(), plan)["rows"]
    assert "timing" in eager
    assert "timing" not in compiled
    assert "no such backend" in compiled["problem"]


def test_turns_divide_by_the_steps_in_a_row() -> None:
    calls: list[str] = []
    steps = {name: lambda name=name: calls.append(name) for name in "ab"}
    timings = steps_in_turns(steps, "cpu", 0.0, in_a_row=7, fewest_rounds=6)
    assert timings["a"].samples == timings["b"].samples == 6
    turns = "".join(calls[-84:])
    rounds = {turns[k : k + 14] for k in range(0, 84, 14)}
    assert rounds == {"a" * 7 + "b" * 7, "b" * 7 + "a" * 7}


def test_a_run_writes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first_calls(monkeypatch)
    suite = SUITES["models"]
    tiny = type(suite)(
        "models", suite.doc, lambda device: [case()], ("eager", "fusec"), suite.measure
    )
    monkeypatch.setitem(SUITES, "models", tiny)
    path = tmp_path / "models.json"
    options = ["--device", "cpu", "--seconds", "0.01", "--json", str(path)]
    assert main(["bench", "--suite", "models", *options]) == 0
    content: dict[str, Any] = json.loads(path.read_text())
    assert [c["name"] for c in content["cases"]] == ["mlp_2/f32/8x16"]


@pytest.mark.gpu
def test_gpu_a_step_agrees_with_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    first_calls(monkeypatch)
    plan = Plan("cuda", ("eager", "fusec"), 0.01, Measure.MODELS)
    for row in measure_model(case(64, 128), plan)["rows"]:
        assert row["largest_error"] < 1e-2
