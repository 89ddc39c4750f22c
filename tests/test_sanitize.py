"""What compute-sanitizer is given covers every kind of kernel, and a finding fails the run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import fusec
from fusec import settings
from fusec.codegen.kernel import Kernel
from fusec.runtime.show import View, example_arguments
from tests import sanitize
from tests.sanitized import BACKENDS, Case, cases, values

CASES = cases()
QUICK = [case for case in CASES if not case.name.startswith(("example", "2 rows", "3 rows"))]


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_every_case_is_right(case: Case) -> None:
    case.run("cpp", "cpu")


def test_a_wrong_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("off", "x + 1", lambda: (values(8),))
    case.run("cpp", "cpu")
    monkeypatch.setattr("tests.sanitized.reference", lambda *given: [values(8) + 1.1])
    with pytest.raises(AssertionError, match=r"off by 0\.1"):
        case.run("cpp", "cpu")


def kernels(case: Case) -> list[Kernel]:
    """The CUDA kernels that a case launches on a Hopper."""
    function = fusec.compile(case.text, backend="cuda")
    arguments = example_arguments(function._formula, case.inputs())
    special = function.specialization(arguments)
    return [k for _, k in View(function._formula, special, arguments).kernels("cuda")]


def test_rows_of_every_kind_are_there() -> None:
    names = ("rows", "2 rows", "3 rows", "columns")
    chosen = [case for case in CASES if case.name.startswith(names)]
    configs = [kernel.config for case in chosen for kernel in kernels(case)]
    resident = [config for config in configs if config.resident]
    groups = {config.threads // config.block_rows for config in resident if config.cluster == 1}
    assert min(groups) < 32  # lanes of a warp
    assert 32 in groups
    assert max(groups) > 32  # a block
    assert {config.cluster for config in resident} >= {1, 4, 8}
    assert any(config.splits > 1 for config in configs if not config.resident)
    assert any(config.edges for config in configs)
    assert any(config.lanes_along_rows for config in configs)


def test_layouts_of_every_kind_are_there() -> None:
    names = {case.name: case.inputs() for case in CASES}
    first = {
        name: given[0]
        for name, given in names.items()
        if given and isinstance(given[0], torch.Tensor)
    }
    assert any(x.data_ptr() % 16 for x in first.values())
    assert any(not x.is_contiguous() for x in first.values())
    assert any(x.numel() == 0 for x in first.values())
    assert {torch.float32, torch.bfloat16, torch.float16, torch.float64} <= {
        x.dtype for x in first.values()
    }
    assert sum(name.startswith("example") for name in names) >= 10


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toolkit whose compute-sanitizer says what it was asked, and finds what FINDS names."""
    program = tmp_path / "bin" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text(
        f"""#!{sys.executable}
import os, sys
print(*sys.argv[1:])
print("no cache of memory", os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"])
sys.exit({sanitize.FOUND} if sys.argv[2] == os.environ.get("FINDS") else 0)
"""
    )
    program.chmod(0o755)
    monkeypatch.setattr(sanitize, "_command", lambda options: [sys.executable, "-c", ""])
    return tmp_path


def test_every_tool_runs_and_a_finding_fails(
    toolkit: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with settings.override(cuda_home=toolkit):
        assert sanitize.main([]) == 0
        printed = capsys.readouterr().out
        assert [f"{tool}: clean" in printed for tool in sanitize.TOOLS] == [True] * 4
        assert "no cache of memory 1" in printed
        monkeypatch.setenv("FINDS", "racecheck")
        assert sanitize.main([]) == 1
        printed = capsys.readouterr().out
        assert "racecheck: findings\n  --tool racecheck --error-exitcode 86" in printed
        assert "memcheck: clean" in printed
        assert sanitize.main(["--tool", "memcheck"]) == 0


def test_without_the_tool_or_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sanitize, "find_sanitizer", lambda: None)
    assert sanitize.main([]) == 2
    assert "no compute-sanitizer" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert sanitize.main(["--watched"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_a_budget_that_is_spent_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (
        sanitize.main(["--watched", "--time", "-1", "--only", "^rows of [0-9]"])
        == sanitize.LEFT_OUT
    )
    assert "left out, from 'rows of 1' on: 14 of 14 cases" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_on_a_gpu(case: Case, backend: str) -> None:
    case.run(backend, "cuda")


def test_a_finding_stands_below_its_case() -> None:
    said = ["case: one, cuda", "case: two, triton", "===== a race", "case: three, cuda", "end"]
    assert sanitize.telling(said) == [*said[1:3], *said[3:]]
    assert sanitize.telling(["case: one, cuda", "case: two, cuda"]) == []
