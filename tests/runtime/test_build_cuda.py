"""CUDA C++ compiles: through NVRTC and nvcc, from the cache, and with words where it cannot."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import fusec
from fusec import settings
from fusec.errors import BuildError, UnsupportedError
from fusec.runtime import build_cuda
from fusec.runtime.build_cuda import compile_cuda, find_compiler, find_nvcc, find_nvrtc
from fusec.runtime.build_triton import Target

HOPPER = Target.parse("sm_90")
SOURCE = 'extern "C" __global__ void nothing(float* x) { x[threadIdx.x] = 1.0f; }\n'
needs_compiler = pytest.mark.skipif(
    find_compiler() is None, reason="neither NVRTC nor nvcc is installed"
)
KINDS = [
    pytest.param(kind, marks=pytest.mark.skipif(not there, reason=f"{kind} is not installed"))
    for kind, there in (("nvrtc", find_nvrtc()), ("nvcc", find_nvcc()))
]


@pytest.mark.parametrize("kind", KINDS)
def test_machine_code_and_ptx(kind: str) -> None:
    cubin = compile_cuda(SOURCE, "nothing", HOPPER, build=kind)
    assert cubin.startswith(b"\x7fELF")
    ptx = compile_cuda(SOURCE, "nothing", HOPPER, form="ptx", build=kind).decode()
    assert ".target sm_90" in ptx
    assert ".entry nothing" in ptx


@needs_compiler
def test_a_second_build_comes_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_cuda(SOURCE, "nothing", HOPPER)

    def refuse(*args: object) -> tuple[None, str]:
        raise AssertionError("compiled again")

    monkeypatch.setattr(build_cuda, "_nvrtc", refuse)
    monkeypatch.setattr(build_cuda, "_nvcc", refuse)
    assert compile_cuda(SOURCE, "nothing", HOPPER) == first
    with pytest.raises(AssertionError, match="compiled again"):
        compile_cuda(SOURCE + "\n", "nothing", HOPPER)


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_compiler_refuses_is_kept_and_shown(kind: str) -> None:
    broken = SOURCE.replace("1.0f", "nonsense")
    with pytest.raises(BuildError) as caught:
        compile_cuda(broken, "nothing", HOPPER, build=kind)
    assert "nonsense" in str(caught.value.tool_output)
    assert caught.value.source_path is not None
    assert Path(caught.value.source_path).read_text(encoding="utf-8") == broken


@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_that_the_toolkit_does_not_know(kind: str) -> None:
    with pytest.raises(UnsupportedError, match="does not know sm_999") as caught:
        compile_cuda(SOURCE, "nothing", Target.parse("sm_999"), build=kind)
    assert "triton" in str(caught.value)


@pytest.mark.parametrize("target", ["sm_60", "gfx942"])
def test_gpus_that_cuda_is_not_written_for(target: str) -> None:
    with pytest.raises(UnsupportedError, match="sm_70 or newer") as caught:
        fusec.compile("x + 1", backend="cuda").show("ptx", target=target)
    assert "triton" in str(caught.value)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda *args, **named: None)
    with settings.override(nvrtc=tmp_path / "missing.so", cuda_home=None):
        assert find_compiler() is None
        with pytest.raises(UnsupportedError, match="neither NVRTC nor nvcc") as caught:
            compile_cuda(SOURCE + "// none", "nothing", HOPPER)
    assert "FUSEC_NVRTC" in str(caught.value)


@needs_compiler
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_stages_of_the_cuda_backend(target: str) -> None:
    """A cluster shares a row where the GPU has clusters, and elsewhere a loop takes it."""
    example = torch.empty(64, 131072, dtype=torch.bfloat16, device="meta")
    function = fusec.compile("softmax(x)", backend="cuda")
    assert ("__cluster_dims__" in function.show(None, example, target=target)) == (
        target != "sm_80"
    )
    ptx = function.show("ptx", example, target=target)
    assert f".target {target}" in ptx
    assert ("barrier.cluster" in ptx) == (target != "sm_80")
    assert "lanes" in function.show("kernel", example)


@needs_compiler
def test_machine_code_of_the_cuda_backend() -> None:
    assert "LDG.E.128" in fusec.compile("gelu(x)", backend="cuda").show("sass", target="sm_90")


def test_stages_that_cuda_has_not() -> None:
    with pytest.raises(UnsupportedError, match="no stage 'ttir'"):
        fusec.compile("x + 1", backend="cuda").show("ttir")
