"""What machine code says of itself, and what follows from it: kernels that spill give way."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import threading
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fusec
from fusec.codegen import schedule_cuda
from fusec.codegen.candidates import SPILLS_ALLOWED, relaxed, unspilled
from fusec.codegen.kernel import Config, Form
from fusec.errors import BuildError
from fusec.runtime import build_beside, codes, steps
from fusec.runtime.build_cuda import compile_cuda, find_compiler
from fusec.runtime.build_triton import Target
from fusec.runtime.cubin import Facts, read_facts
from fusec.runtime.prepared import Step, StepPlan
from fusec.runtime.show import View, example_arguments
from fusec.runtime.specialize import LaidOut, parts_of
from fusec.runtime.steps import Wiring, build_all, steps_of

HOPPER = Target.parse("sm_90")
GPU = torch.device("cuda", 0)
needs_compiler = pytest.mark.skipif(
    find_compiler() is None, reason="neither NVRTC nor nvcc is installed"
)
SPILLING = """extern "C" __global__ void __launch_bounds__(1024, 2) spilling(float* x) {
  float held[96];
  for (int k = 0; k < 96; ++k) held[k] = x[k * 1024 + threadIdx.x];
  __syncthreads();
  for (int k = 0; k < 96; ++k) x[k * 1024 + threadIdx.x] = held[(k * 7) % 96] * held[95 - k];
}
"""
SMALL = 'extern "C" __global__ void small(float* x) { x[threadIdx.x] += 1.0f; }\n'


# -- facts ----------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(("source", "entry"), [(SPILLING, "spilling"), (SMALL, "small")])
def test_facts_are_those_of_the_toolkit(
    source: str, entry: str, target: str, tmp_path: Path
) -> None:
    place = find_spec("triton")
    assert place is not None
    assert place.submodule_search_locations
    tools = Path(place.submodule_search_locations[0]) / "backends" / "nvidia" / "bin"
    tool = shutil.which("cuobjdump", path=str(tools))
    if tool is None:
        pytest.skip("Triton brought no cuobjdump")
    cubin = compile_cuda(source, entry, Target.parse(target))
    facts = read_facts(cubin, entry)
    (tmp_path / "kernel.cubin").write_bytes(cubin)
    command = [tool, "--dump-resource-usage", str(tmp_path / "kernel.cubin")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found is not None
    assert facts == Facts(int(found[1]), int(found[2]))
    assert (facts.local_bytes > 0) == (entry == "spilling")


def test_facts_in_words() -> None:
    assert str(Facts(40, 0)) == "40 registers, no spills"
    assert str(Facts(64, 56)) == "64 registers, 56 bytes of local memory"


@needs_compiler
def test_what_is_no_cubin_has_no_facts() -> None:
    cubin = compile_cuda(SMALL, "small", HOPPER)
    assert read_facts(cubin, "other") is None
    for damaged in (b"", b"\x7fELF\x02", b"PTX" + cubin, cubin[:100], cubin[:-600], b"\0" * 4096):
        assert read_facts(damaged, "small") is None


# -- the rule -------------------------------------------------------------------------------------

ROW = Config(
    block_cols=14336, warps=8, vectors=7, lanes=8, cluster=4, blocks=3, keep=True, edges=True
)


def test_a_config_that_does_not_spill_stays() -> None:
    asked: list[Config] = []

    def local_bytes(config: Config) -> int:
        asked.append(config)
        return SPILLS_ALLOWED

    assert unspilled(ROW, Form.ROWS, "cuda", local_bytes) == (ROW, None)
    assert asked == [ROW]


def test_the_next_config_is_taken_while_it_spills_less() -> None:
    spills = {3: 96, 2: 80, 1: 8}
    config, why = unspilled(ROW, Form.ROWS, "cuda", lambda config: spills[config.blocks])
    assert config == replace(ROW, blocks=1)
    assert why == (
        "1 blocks on a multiprocessor instead of 3, since 96 bytes a thread spilled, and 8 do now"
    )


def test_what_does_not_help_is_not_taken() -> None:
    tried: list[Config] = []

    def always(config: Config) -> int:
        tried.append(config)
        return 200

    assert unspilled(ROW, Form.ROWS, "cuda", always) == (ROW, None)
    assert len(tried) == 2  # one that does not help ends the search


def test_rows_over_which_triton_fails_are_taken_one_by_one() -> None:
    def local_bytes(config: Config) -> int:
        if config.block_rows > 1:
            raise BuildError("PassManager::run failed")
        return 0

    several = Config(4, 64, warps=1)
    alone = replace(several, block_rows=1)
    assert unspilled(several, Form.ROWS, "triton", local_bytes) == (
        alone, "1 row a program instead of 4: Triton failed over those",
    )  # fmt: skip
    for config, form, backend in (
        (several, Form.ROWS, "cuda"), (several, Form.TILE, "triton"),
        (replace(several, lanes_along_rows=True), Form.ROWS, "triton"),
    ):  # fmt: skip
        with pytest.raises(BuildError):
            unspilled(config, form, backend, local_bytes)


def test_a_formula_that_triton_36_does_not_compile_over_several_rows() -> None:
    text = "m = mean(x)\na = m*2\na, m, sqrt(a), m*3"
    assert ".visible .entry" in fusec.compile(text, backend="triton").show(
        "ptx", torch.empty(1000, 64, device="meta"), target="sm_90"
    )


def every(config: Config, form: Form, backend: str) -> list[Config]:
    found = [config]
    while (other := relaxed(found[-1], form, backend)) is not None:
        assert len(found) < 20
        found.append(other)
    return found


def test_every_step_keeps_what_is_decided_elsewhere() -> None:
    """The row is covered, and as many kernels and programs share it."""
    for config in every(ROW, Form.ROWS, "cuda"):
        same = ("block_cols", "cluster", "splits", "chunks", "resident", "edges", "lanes")
        assert [getattr(config, name) for name in same] == [getattr(ROW, name) for name in same]
    assert [c.blocks for c in every(ROW, Form.ROWS, "cuda")] == [3, 2, 1, 1]
    flat = Config(block_cols=256 * 4 * 8, warps=8, vectors=4, lanes=8)
    assert [(c.vectors, c.block_cols) for c in every(flat, Form.FLAT, "cuda")] == [
        (4, 8192), (2, 4096), (1, 2048),
    ]  # fmt: skip
    tile = Config(block_rows=16, block_cols=512, warps=8, vectors=4, lanes=8)
    assert [(c.vectors, c.block_rows) for c in every(tile, Form.TILE, "cuda")] == [
        (4, 16), (2, 8), (1, 4),
    ]  # fmt: skip
    triton = Config(1, 16384, warps=8, registers=64)
    assert [(c.registers, c.warps) for c in every(triton, Form.ROWS, "triton")] == [
        (64, 8), (0, 8), (0, 16), (0, 32),
    ]  # fmt: skip


# -- what becomes of it ---------------------------------------------------------------------------


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[StepPlan]:
    """The launches of steps on a Hopper that is not there, and only their plans."""
    found: list[StepPlan] = []

    def step_of(plan: StepPlan, device: torch.device, code: bytes | None = None) -> Step:
        if code is None:
            found.append(plan)
        else:
            assert code.startswith(b"\x7fELF")
        return Step(lambda arguments: None, list(plan.values), plan.pointers, (), plan)

    monkeypatch.setattr(steps, "step_of", step_of)
    monkeypatch.setattr(steps, "capability_of", lambda device: 90)
    return found


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules that give a thread 32 registers, where a row of 50257 columns needs more."""
    monkeypatch.setattr(schedule_cuda, "RESIDENT_THREADS", 2048)


def laid(text: str, backend: str, *shape: int, **options: Any) -> tuple[Wiring, list[LaidOut]]:
    """The regions of a formula of one bfloat16 input, and a wiring to a GPU."""
    function = fusec.compile(text, backend=backend, **options)
    example = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    arguments = example_arguments(function._formula, [example])
    view = View(function._formula, function.specialization(arguments), arguments)
    special, found = view.laid_out(backend, HOPPER)
    return Wiring(special, view.sizes, GPU, frozenset({"x", "out out"}), ()), found


@needs_compiler
@pytest.mark.usefixtures("crowded")
def test_a_kernel_that_spills_gives_way(launches: list[StepPlan]) -> None:
    wiring, (region,) = laid("log_softmax(x)", "cuda", 2670, 50257)
    (step,) = steps_of(wiring, 0, region)
    assert step.plan == launches[-1]
    assert (step.plan.block, step.plan.cluster, step.plan.grid) == (256, 5, (5 * 2670, 1, 1))
    (variant,) = wiring.special.variants
    assert variant.facts is not None
    assert variant.facts.local_bytes <= SPILLS_ALLOWED
    assert re.search(r"; \d blocks on a multiprocessor instead of 8, since \d+ ", variant.why)
    assert str(variant).endswith(f"; {variant.facts}")
    assert region.config.blocks == 8
    # Code that was only looked at, and code that is loaded, do not wait in memory.
    assert not [key for key in wiring.special.built if key[-1] == "code"]


@needs_compiler
@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_another_shape_of_the_class_builds_nothing(
    backend: str, launches: list[StepPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    wiring, (region,) = laid("softmax(x)", backend, 64, 4096)
    (first,) = steps_of(wiring, 0, region)
    monkeypatch.setattr(codes, "code_of", None)
    (second,) = steps_of(wiring, 0, region)
    assert first.plan == second.plan
    assert first.plan is not None
    assert first.plan.binary
    (variant,) = wiring.special.variants
    assert variant.facts is not None
    assert variant.facts.local_bytes <= SPILLS_ALLOWED


def test_addresses_decide_a_triton_kernel(launches: list[StepPlan]) -> None:
    wiring, (region,) = laid("x * 2", "triton", 64, 4096)
    steps_of(wiring, 0, region)
    steps_of(replace(wiring, aligned=frozenset()), 0, region)
    first, second = wiring.special.variants
    assert first.why.endswith("multiples of 16: n, out_ptr, x_ptr")
    assert second.why.endswith("multiples of 16: n")
    assert len({plan.binary for plan in launches}) == 2


@pytest.mark.parametrize(
    ("text", "regions"), [("sum(x, axis=0)", 1), ("x - max(x), x - mean(x, axis=0)", 2)]
)
def test_kernels_are_built_side_by_side(
    monkeypatch: pytest.MonkeyPatch, text: str, regions: int
) -> None:
    """Where there is a helper; elsewhere one after the other, in the thread that asks."""
    monkeypatch.setattr(steps, "capability_of", lambda device: 90)
    wiring, found = laid(text, "triton", 4096, 1024)
    kernels = sum(len(parts_of(region)) for region in found)
    assert (len(found), kernels > 1) == (regions, True)
    asked: list[threading.Thread] = []
    meet = threading.Barrier(kernels)
    build = codes.code_of

    def code_of(*arguments: Any) -> codes.Code:
        asked.append(threading.current_thread())
        if build_beside._helper is not None:
            meet.wait(60)  # raises where one of them is not there in time
        return build(*arguments)

    monkeypatch.setattr(codes, "code_of", code_of)
    build_all(wiring, found)
    assert {*asked} == {threading.current_thread()}
    built = dict(wiring.special.built)
    wiring.special.built.clear()
    asked.clear()
    monkeypatch.setattr(
        build_beside, "_helper", SimpleNamespace(ended=False, build=lambda _: False)
    )
    build_all(wiring, found)
    assert len({*asked}) == len(asked) == kernels
    assert threading.current_thread() not in asked
    assert wiring.special.built.keys() == built.keys()


@needs_compiler
@pytest.mark.usefixtures("crowded")
def test_what_the_tuner_found_is_not_changed(launches: list[StepPlan]) -> None:
    wiring, (region,) = laid("log_softmax(x)", "cuda", 2670, 50257, tune=1.0)
    steps_of(wiring, 0, region)
    (variant,) = wiring.special.variants
    assert "instead of" not in variant.why
    assert variant.facts is not None
    assert variant.facts.local_bytes > SPILLS_ALLOWED


@needs_compiler
@pytest.mark.usefixtures("crowded")
def test_the_plan_says_what_a_target_needs() -> None:
    example = torch.empty(2670, 50257, dtype=torch.bfloat16, device="meta")
    plan = fusec.compile("log_softmax(x)").show("plan", example, target="sm_90")
    assert re.search(r"sm_90 in CUDA C\+\+: \d+ registers, (no spills|\d\d? bytes)", plan)
    assert " blocks on a multiprocessor instead of 8, since " in plan
    plain = fusec.compile("x * 2").show("plan", target="sm_80")
    assert re.search(r"sm_80 in Triton: \d+ registers, no spills\n", plain)
    assert "registers" not in fusec.compile("x * 2").show("plan")
    assert "registers" not in fusec.compile("x * 2").show("plan", target="gfx942")
    # The machine code that is shown is the one that runs.
    function = fusec.compile("log_softmax(x)", backend="cuda")
    shown = function.show("sass", example, target="sm_90")
    assert shown.count("STL") <= SPILLS_ALLOWED // 4


@needs_compiler
def test_the_documentation_says_how_much_spills() -> None:
    """Of the row kernel of the benchmarks that spills most, which it names."""
    text = (Path(__file__).parents[2] / "docs" / "performance.md").read_text(encoding="utf-8")
    said = re.search(r"spills more than (\d+) bytes.*?\((\w+) over (\d+) (\w+) columns", text, re.S)
    assert said is not None
    most, name, columns, dtype = said.groups()
    shapes = [(2670, int(columns)), (int(columns),), (int(columns),)]
    examples = [torch.empty(s, dtype=getattr(torch, dtype), device="meta") for s in shapes]
    plan = fusec.compile(f"{name}(x, w, b)").show("plan", *examples, target="sm_90")
    spilled = [int(count) for count in re.findall(r"(\d+) bytes of local memory", plan)]
    assert spilled
    assert max(spilled) <= int(most) <= SPILLS_ALLOWED


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda", "triton"])
@pytest.mark.parametrize("text", ["softmax(x)", "-sum(softmax(x) * log_softmax(x))"])
def test_the_driver_counts_as_many(backend: str, text: str) -> None:
    from fusec.runtime.prepared import cuda_function

    function = fusec.compile(text, backend=backend)
    x = torch.randn(64, 16384, device="cuda")
    bound = function.bind(x)
    expected = torch.softmax(x.double(), -1)
    if text != "softmax(x)":
        expected = -(expected * torch.log_softmax(x.double(), -1)).sum(-1)
    torch.testing.assert_close(bound().double(), expected, rtol=1e-4, atol=1e-6)
    (variant,) = function.variants
    assert variant.facts is not None
    assert bound.plan is not None
    loaded = cuda_function(bound.plan.steps[0], 0)
    found = []
    for attribute in (4, 3):  # registers of a thread, bytes of its local memory
        value = ctypes.c_int()
        loaded._driver.call("cuFuncGetAttribute", ctypes.byref(value), attribute, loaded._handle)
        found.append(value.value)
    assert Facts(*found) == variant.facts
    assert f"{variant.facts}" in function.show("plan", x)
