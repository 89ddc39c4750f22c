"""examples/mlp trains to the loss curve of eager PyTorch."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

PATH = Path(__file__).parents[1] / "examples" / "mlp" / "mlp.py"
SMALL = ["--depth", "3", "--width", "24", "--batch", "64", "--steps", "20"]


@pytest.fixture(scope="module")
def mlp() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_mlp", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("formula", ["x*sigmoid(1.702*x)", "v * sigmoid(beta * v) + shift"])
def test_it_trains_like_eager(
    mlp: ModuleType, formula: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "mlp.png"
    eager, fusec_s = mlp.main([formula, *SMALL, "--no-compile", "--plot", str(picture)])
    assert [eager.name, fusec_s.name] == ["eager", "fusec"]
    assert len(eager.losses) == 20
    assert eager.losses[-1] < eager.losses[0]
    assert fusec_s.losses == pytest.approx(eager.losses, rel=2e-4)
    assert picture.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert all(f"{run.losses[-1]:.6f}" in printed for run in (eager, fusec_s))


def test_beside_torch_compile(mlp: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = functools.partial(torch.compile, backend="aot_eager")  # a tenth of inductor's time
    monkeypatch.setattr(torch, "compile", quick)
    runs = mlp.main(["x*sigmoid(1.702*x)", "--depth", "2", *SMALL[2:]])
    assert [run.name for run in runs] == ["eager", "torch.compile", "fusec"]
    for run in runs:
        assert run.losses == pytest.approx(runs[0].losses, rel=2e-4)


def test_a_plot_without_matplotlib_is_refused_before_training(
    mlp: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        mlp.main(["x*sigmoid(x)", *SMALL, "--plot", "mlp.png"])
    complaint = capsys.readouterr().err
    assert "--plot needs matplotlib" in complaint
    assert "eager:" not in complaint


def test_a_network_needs_two_layers(mlp: ModuleType) -> None:
    with pytest.raises(SystemExit):
        mlp.main(["x", "--depth", "1"])
