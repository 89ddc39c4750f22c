"""What ``show`` returns at every stage and for every target."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import fusec
from fusec import settings
from fusec.errors import DTypeError, UnknownNameError, UnsupportedError

TEXT = "softmax(x * 0.5) + b"
STAGES = ("formula", "graph", "plan", "kernel", "triton", "cpp", "ttir", "ttgir", "llir", "ptx")


@pytest.fixture(scope="module")
def function() -> fusec.CompiledFunction:
    return fusec.compile(TEXT, name="soft")


def test_formula_is_the_text_and_its_mathematics(function: fusec.CompiledFunction) -> None:
    text = function.show("formula")
    assert text.startswith(TEXT)
    assert "\\" in text, "LaTeX has commands"


def test_graph_lists_inputs_and_operations(function: fusec.CompiledFunction) -> None:
    text = function.show("graph")
    for word in ("x", "b", "exp", "max", "sum", "f32"):
        assert word in text


def test_plan_has_one_kernel_and_its_reason(function: fusec.CompiledFunction) -> None:
    text = function.show("plan")
    assert text.startswith("soft_kernel: row reduction over [")
    assert "reads x, b" in text
    two = fusec.compile("softmax(softmax(x), axis=0)").show("plan")
    assert two.count("row reduction") == 1
    assert two.count("column reduction") == 1


def test_kernel_is_the_program_in_words(function: fusec.CompiledFunction) -> None:
    text = function.show("kernel")
    assert "soft_kernel" in text
    assert "load" in text


def test_triton_is_a_python_file_with_the_formula_on_top(function: fusec.CompiledFunction) -> None:
    text = function.show("triton")
    module = ast.parse(text)
    documentation = ast.get_docstring(module)
    assert documentation is not None
    assert documentation.startswith(TEXT)
    names = [n.name for n in module.body if isinstance(n, ast.FunctionDef)]
    assert names[-1] == "soft_kernel"
    assert text.count("tl.load(x_ptr") == 1, "a row that fits is read once"
    assert text == function.show(), "triton is the default"


def test_cpp_has_one_function(function: fusec.CompiledFunction) -> None:
    text = function.show("cpp")
    assert text.startswith(f"// {TEXT}")
    assert text.count('extern "C" void soft_kernel(') == 1
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize(
    ("target", "stage", "marks"),
    [
        ("sm_80", "ptx", (".target sm_80", ".entry soft_kernel")),
        ("sm_90", "ptx", (".target sm_90", ".entry soft_kernel")),
        ("sm_100", "ptx", (".target sm_100", ".entry soft_kernel")),
        ("sm_90", "ttir", ("tt.func public @soft_kernel", "tt.load")),
        ("sm_90", "ttgir", ("cuda:90", "ttg.num-warps")),
        ("sm_80", "ttgir", ("cuda:80",)),
        ("sm_90", "llir", ("define", "@soft_kernel", "nvvm")),
        ("gfx942", "amdgcn", ("gfx942", "soft_kernel", "s_endpgm")),
        ("gfx942", "ttgir", ("hip:gfx942",)),
        ("gfx942", "llir", ("@soft_kernel", "amdgpu")),
    ],
)
def test_targets_need_no_gpu(
    function: fusec.CompiledFunction, target: str, stage: str, marks: tuple[str, ...]
) -> None:
    text = function.show(stage, target=target)
    for mark in marks:
        assert mark in text


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_sass(function: fusec.CompiledFunction, target: str) -> None:
    text = function.show("sass", target=target)
    assert "soft_kernel" in text
    assert "LDG" in text
    assert "EXIT" in text


def test_stages_that_a_target_does_not_have(function: fusec.CompiledFunction) -> None:
    with pytest.raises(UnsupportedError, match="no stage 'ptx'"):
        function.show("ptx", target="gfx942")
    with pytest.raises(UnsupportedError, match="no SASS"):
        function.show("sass", target="gfx942")
    with pytest.raises(UnsupportedError, match="no stage 'amdgcn'"):
        function.show("amdgcn", target="sm_90")


def test_unknown_stages_and_targets(function: fusec.CompiledFunction) -> None:
    with pytest.raises(UnsupportedError, match="no stage 'trition'") as caught:
        function.show("trition")
    assert "triton" in str(caught.value)
    for target in ("sm_999x", "h100", "", "gfx"):
        with pytest.raises(UnsupportedError):
            function.show("ptx", target=target or "none")


def test_examples_fix_types_and_layouts(function: fusec.CompiledFunction) -> None:
    wide = torch.empty(8, 70000, dtype=torch.bfloat16, device="meta")
    row = torch.empty(70000, device="meta")
    text = function.show("triton", wide, row)
    assert "for start in range" in text
    assert "bf16[" in function.show("graph", wide, row)
    short = function.show("triton", torch.empty(8, 70), torch.empty(70))
    assert "for start in range" not in short
    turned = function.show("triton", torch.empty(70, 8).t(), torch.empty(70))
    assert turned != short
    scaled = fusec.compile("x * s").show("graph", torch.empty(4), 2.5)
    assert "f64" in scaled


def test_examples_that_do_not_fit(function: fusec.CompiledFunction) -> None:
    with pytest.raises(UnknownNameError, match="1 example inputs, the formula has 2"):
        function.show("triton", torch.empty(4))
    with pytest.raises(DTypeError, match=r"'x' is torch.complex64"):
        function.show("triton", torch.empty(4, dtype=torch.complex64), torch.empty(4))
    with pytest.raises(UnsupportedError, match="length 0"):
        function.show("triton", torch.empty(0, 4), torch.empty(4))
    assert "softmax" in function.show("formula", torch.empty(0, 4), torch.empty(4))


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_is_the_same_text_twice(stage: str) -> None:
    first, second = (fusec.compile(TEXT).show(stage) for _ in range(2))
    assert first == second
    assert first.strip()


def test_several_kernels_are_all_shown() -> None:
    function = fusec.compile("x / sum(x, axis=0) + x / sum(x)")
    triton, cpp, plan = (function.show(s) for s in ("triton", "cpp", "plan"))
    kernels = plan.count("reads ")
    assert kernels >= 2
    assert triton.count("import triton.language as tl") >= kernels  # a column sum may take two
    assert cpp.count('extern "C"') == kernels


def test_a_formula_cannot_break_out_of_its_comment() -> None:
    function = fusec.compile('x + 1 # """ \\ */ ??/')
    ast.parse(function.show("triton"))
    assert torch.equal(fusec.compile('x + 1 # """ \\ */ ??/')(torch.ones(2)), torch.full((2,), 2.0))


def test_debug_and_dump_show_what_was_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with settings.override(debug=4, dump=tmp_path):
        fusec.compile("softmax(x) * 7", name="seven")(torch.randn(3, 50))
    shown = capsys.readouterr().err
    assert "seven_kernel.cpp built in" in shown
    assert "row reduction" in shown
    (directory,) = tmp_path.iterdir()
    source = (directory / "seven_kernel.cpp").read_text()
    assert source in shown
    assert (directory / "00-resolved.ir").exists()


@pytest.mark.parametrize("text", ["x", "x = x; x", "out", "x, x"])
def test_a_result_that_is_an_input_is_another_tensor(text: str) -> None:
    function = fusec.compile(text)
    (name,) = function.inputs
    shown = function.show("cpp", torch.randn(3, 4))
    written = {"x": "out", "out": "out_1"}[name]
    assert f"reads {name} f32; writes {written} f32" in shown
    assert f"float* {written}_ptr" in shown
    count = len(text.split(","))
    assert f"; {4 + 4 * count} bytes per element" in shown
