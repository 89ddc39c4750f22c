"""The formulas under examples/, each with the inputs that its golden sources are made for."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import fusec

EXAMPLES = Path(__file__).parents[1] / "examples"
FORMULAS = sorted(EXAMPLES.glob("*/*.fuse"))
TARGETS = ("sm_80", "sm_90", "sm_100")


def load_run(folder: Path) -> ModuleType:
    """The run.py of an example as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{folder.name}", folder / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Program:
    """One formula, compiled under the name of its file, and inputs without memory."""

    name: str
    function: fusec.CompiledFunction
    inputs: tuple[Any, ...]

    def show(self, stage: str, target: str | None = None) -> str:
        """The text of a stage for the example's inputs."""
        return self.function.show(stage, *self.inputs, target=target)


def program(path: Path, backend: str = "auto") -> Program:
    """The program of one .fuse file."""
    function = fusec.compile(path.read_text(encoding="utf-8"), name=path.stem, backend=backend)
    given = load_run(path.parent).inputs("meta")
    return Program(path.stem, function, tuple(given[name] for name in function.inputs))
