"""Every declared case is a formula that fusec and eager agree on; competitors compute the same."""

import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from fusec.cli.options import complete, parse_inputs
from fusec.cli.suites import declared, systems
from fusec.cli.suites import measure as measure_module
from fusec.cli.suites.case import Measure, Operation, Plan, make_case
from fusec.cli.suites.declared import FIRST_CALLS, PIPELINE, POINTWISE, ROWS, SCALE, SMALL, SUITES
from fusec.cli.suites.libraries import NUMEXPR
from fusec.cli.suites.measure import line, measure, measure_apart
from fusec.cli.suites.precompile import compile_case, precompile
from fusec.cli.suites.systems import Setting
from fusec.runtime.bench import largest_error, largest_value

ROOT = Path(__file__).parents[2]
OPERATIONS = {op.name: op for op in (*POINTWISE, *ROWS, *SMALL, *FIRST_CALLS, *PIPELINE, SCALE)}
TINY = {"N": 96, "R": 20, "C": 48, "B": 3, "K": 5, "H": 4}
# Roundings of the storage type at the size of the largest value: one, and a dozen of eager's.
FUSED, UNFUSED = 1.5, 12
# PyTorch's compiler imports modules of its own that are deprecated.
IMPORTS_INDUCTOR = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def test_names_are_unique_and_every_input_can_be_read() -> None:
    for suite in SUITES.values():
        for device in ("cpu", "cuda"):
            cases = suite.cases(device)
            repeated = [n for n, k in Counter(case.name for case in cases).items() if k > 1]
            assert repeated == []
            for case in cases:
                assert case.suite == suite.name
                first = next(iter(parse_inputs(case.inputs).values()))
                assert math.prod(first.shape) == case.elements


def test_the_suites_hold_what_they_are_for() -> None:
    pointwise, rows = SUITES["pointwise"].cases("cuda"), SUITES["rows"].cases("cuda")
    assert {case.elements for case in pointwise} == {1 << power for power in declared.SIZES}
    assert {1 << 10, 1 << 26, 1 << 27, 1 << 28} <= {case.elements for case in pointwise}
    assert {case.columns for case in rows} == set(declared.COLUMNS)
    full = [case for case in rows if case.rows not in declared.FEW_ROWS]
    assert all(0.99 * 2**27 < case.elements <= 2**27 for case in full)
    assert len(full) * 4 == len(rows)
    assert {case.dtype for case in (*pointwise, *rows)} == {"bf16", "f32"}


@pytest.mark.parametrize("name", OPERATIONS)
def test_fusec_and_eager_agree(name: str) -> None:
    for dtype, epsilon in (("f32", 2**-22), ("bf16", 2**-8)):
        setting = Setting(make_case("test", OPERATIONS[name], dtype, TINY), "cpu")
        reference = setting.reference()
        # Sums and norms round their intermediate values at the size of the largest of them.
        size = max(1.0, largest_value(reference))
        fused = setting.compiled(*setting.inputs)
        assert largest_error(setting.part(fused), reference) <= FUSED * 4 * epsilon * size
        eager = setting.eager.function(*setting.inputs)
        assert largest_error(setting.part(eager), reference) <= UNFUSED * epsilon * size


@pytest.mark.parametrize("name", [op.name for op in (*POINTWISE, *ROWS)])
def test_a_part_of_the_results_has_its_own_reference(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case("test", OPERATIONS[name], "f32", TINY)
    whole = Setting(case, "cpu")
    expected = whole.reference()
    monkeypatch.setattr(systems, "_CHECKED", 200)
    few = Setting(case, "cpu")
    length = case.shape[case.operation.part]
    # Axes too short to be cut are compared whole: one-dimensional cases have 96 elements.
    assert few.checked == max(1, min(length, 200 * length // case.elements))
    if few.checked < length:
        assert few.said().startswith(f"the first {few.checked} of {length} ")
    assert largest_error(few.part(expected), few.reference()) <= 1e-9
    # What is cut off is not looked at, and what is left is.
    assert largest_error(few.part(whole.compiled(*whole.inputs)), few.reference()) < 1e-3


def test_a_layout_is_that_of_the_memory() -> None:
    transposed = Setting(make_case("test", OPERATIONS["transposed"], "f32", TINY), "cpu")
    assert transposed.inputs[0].stride() == (1, 20)
    images = Setting(make_case("test", OPERATIONS["channels_last"], "bf16", TINY), "cpu")
    assert images.inputs[0].is_contiguous(memory_format=torch.channels_last)
    assert images.inputs[0].shape == (3, 5, 4, 4)


@pytest.mark.parametrize("name", NUMEXPR)
def test_expressions_of_numexpr_are_the_formulas(name: str) -> None:
    """Read as Python over tensors, which needs no numexpr."""
    case = make_case("test", OPERATIONS[name], "f32", TINY)
    setting = Setting(case, "cpu")
    functions = {f: getattr(torch, f) for f in ("exp", "tanh", "log1p")}

    def where(condition: torch.Tensor, yes: torch.Tensor, no: object) -> torch.Tensor:
        return torch.where(condition, yes, torch.as_tensor(no, dtype=yes.dtype))

    given = dict(zip(setting.compiled.inputs, setting.inputs, strict=True))
    result = eval(NUMEXPR[name], {**functions, "where": where, **given})
    assert largest_error(result, setting.reference()) < 1e-4


def test_a_wrong_result_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(setting: Setting) -> object:
        return setting.contender("eager", lambda x: 2 * torch.softmax(x, -1))

    monkeypatch.setitem(systems.SYSTEMS, "eager", doubled)
    case = make_case("rows", OPERATIONS["softmax"], "f32", {"R": 4, "C": 8})
    result = measure(case, Plan("cpu", ("eager", "fusec"), 0.0))
    wrong, right = result["rows"]
    assert wrong["problem"].startswith("off by ")
    assert "problem" not in right
    assert "eager" in line(result, Measure.TIME)


def test_what_a_system_raises_stays_in_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(setting: Setting) -> object:
        raise ImportError("no such library\nsecond line")

    monkeypatch.setitem(systems.SYSTEMS, "liger", broken)
    case = make_case("rows", OPERATIONS["softmax"], "f32", {"R": 4, "C": 8})
    result = measure(case, Plan("cpu", ("liger", "fusec"), 0.0))
    assert [row.get("problem") for row in result["rows"]] == [None, "no such library"]
    assert "liger fails" in line(result, Measure.TIME)


def test_a_case_that_cannot_run_is_a_problem_of_its_own() -> None:
    case = make_case("rows", Operation("odd", "x + y", "x=RxC y=CxR"), "f32", {"R": 4, "C": 8})
    result = measure(case, Plan("cpu", ("fusec",), 0.0))
    assert "4" in result["problem"]
    assert result["rows"] == []


def test_host_time_is_that_of_the_case() -> None:
    (case, *_) = SUITES["host"].cases("cpu")
    plan = Plan("cpu", ("torch", "graph", "fusec", "bind", "bind-out"), 0.0, Measure.HOST)
    result = measure(case, plan)
    assert [row["system"] for row in result["rows"]] == ["torch", "fusec", "bind", "bind-out"]
    assert all(row["host_microseconds"] > 0 for row in result["rows"])
    assert "µs" in line(result, Measure.HOST)


@pytest.mark.slow
def test_first_calls_of_a_process_and_of_the_next_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_module, "_FIRST_CALLS", 2)
    after = Operation("next", "x*2", "x=RxC", after="x+1")
    case = make_case("cold", after, "f32", {"R": 4, "C": 8})
    result = measure(case, Plan("cpu", ("fusec",), 0.0, Measure.COLD))
    (row,) = result["rows"]
    assert 0 < row["warm_call_seconds"] < row["first_call_seconds"]
    assert row["samples"] == 2
    assert "warm" in line(result, Measure.COLD)


@pytest.mark.slow
@IMPORTS_INDUCTOR
def test_torch_compile_is_known_to_compile() -> None:
    case = make_case("rows", OPERATIONS["softmax"], "f32", {"R": 4, "C": 8})
    result = measure(case, Plan("cpu", ("compile",), 0.0))
    (row,) = result["rows"]
    assert (row["name"], row.get("problem")) == ("torch.compile", None)
    assert row["timing"]["samples"] >= 15


def test_a_program_that_was_not_compiled_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    case = make_case("rows", OPERATIONS["softmax"], "f32", {"R": 4, "C": 8})
    (row,) = measure(case, Plan("cpu", ("compile",), 0.0))["rows"]
    assert row["problem"] == "torch.compile ran the formula without compiling it"


@pytest.mark.slow
def test_a_process_of_its_own_gives_the_same_result() -> None:
    case = make_case("cpu", OPERATIONS["scale"], "f32", {"N": 64})
    result = measure_apart(case, Plan("cpu", ("fusec",), 0.0))
    assert result["name"] == "scale/f32/64"
    assert result["rows"][0]["largest_error"] < 1e-6


def test_cases_are_compiled_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config as inductor

    seen: list[tuple[str, bool]] = []

    def compiles(setting: Setting) -> object:
        seen.append((setting.case.name, inductor.autotune_local_cache))
        raise RuntimeError("says why when it is measured")

    monkeypatch.setitem(systems.SYSTEMS, "max-autotune", compiles)
    case = make_case("rows", OPERATIONS["softmax"], "f32", {"R": 4, "C": 8})
    compile_case(case, "cpu", ("max-autotune",))
    assert seen == [("softmax/f32/4x8", False)]


@pytest.mark.slow
@IMPORTS_INDUCTOR
def test_processes_compile_beside_each_other() -> None:
    case = make_case("rows", OPERATIONS["softmax"], "f32", {"R": 4, "C": 8})
    finished: list[int] = []
    precompile([case], "cpu", ("compile", "fusec"), 1, finished.append)
    assert finished == [1]
    precompile([case], "cpu", ("eager", "fusec"), 1, finished.append)
    assert finished == [1]  # nothing to compile


INTERPRETED = """
import torch
from fusec.cli.suites.triton_kernels import KERNELS, takes
F = torch.nn.functional
x, y = torch.randn(6, 37), torch.randn(6, 37)
w, b = torch.randn(37), torch.randn(37)
expected = {
    "silu": ((x,), F.silu(x)),
    "gelu_tanh": ((x,), F.gelu(x, approximate="tanh")),
    "relu2": ((x,), F.relu(x) ** 2),
    "swiglu": ((x, y), F.silu(x) * y),
    "axpy": ((2.5, x, y), 2.5 * x + y),
    "softmax": ((x,), F.softmax(x, -1)),
    "layer_norm": ((x, w, b), F.layer_norm(x, (37,), w, b)),
}
assert set(expected) == set(KERNELS)
for name, (inputs, result) in expected.items():
    torch.testing.assert_close(KERNELS[name](*inputs), result, rtol=1e-5, atol=1e-5)
assert takes("softmax", 1 << 17) and not takes("softmax", 1 << 18) and not takes("mish", 8)
print("equal")
"""


@pytest.mark.slow
def test_the_kernels_written_by_hand_compute_their_operation() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == "equal\n", done.stderr


@pytest.mark.gpu
@IMPORTS_INDUCTOR
@pytest.mark.parametrize("name", [op.name for op in (*POINTWISE, *ROWS)])
def test_all_systems_agree_on_a_gpu(name: str) -> None:
    lengths = {**TINY, "N": 8192, "R": 64, "C": 512, "K": 16}
    for dtype in ("bf16", "f32"):
        case = make_case("test", OPERATIONS[name], dtype, lengths)
        result = measure(case, Plan("cuda", declared.TIMED, 0.01))
        problems = {row["name"]: row["problem"] for row in result["rows"] if "problem" in row}
        assert problems == {}
        assert {"eager", "compile", "max-autotune", "fusec"} <= {
            row["system"] for row in result["rows"]
        }


@pytest.mark.gpu
@IMPORTS_INDUCTOR
def test_a_captured_graph_is_replayed() -> None:
    (case, *_) = SUITES["host"].cases("cuda")
    result = measure(case, Plan("cuda", declared.HOST, 0.01, Measure.HOST))
    assert {"graph", "triton", "bind"} <= {row["system"] for row in result["rows"]}
    assert [row["name"] for row in result["rows"] if "problem" in row] == []


def test_inputs_that_complete_a_formula_are_all_declared() -> None:
    for operation in OPERATIONS.values():
        case = make_case("test", operation, "f32", TINY)
        options = parse_inputs(case.inputs)
        names = Setting(case, "cpu").compiled.inputs
        assert sorted(options) == sorted(names)
        assert len(complete(options, names)) == len(names)
