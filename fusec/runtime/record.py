"""What stands beside every measured number: machine, versions, date, command and commit.

May import every layer below the runtime, and torch and triton inside functions.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from fusec.runtime.build_cpp import find_compiler
from fusec.runtime.device import cpu_facts, gpu_facts
from fusec.version import __version__

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("torch", "triton", "numpy", "lark", "sympy")


@dataclass(frozen=True)
class Environment:
    """Where and how numbers were measured; ``commit`` ends in ``-dirty`` for a changed checkout."""

    machine: Mapping[str, object]
    versions: Mapping[str, str | None]
    date: str
    command: str
    commit: str | None


def environment(command: Sequence[str] | None = None) -> Environment:
    """The facts of this process; ``command`` replaces its own command line."""
    return Environment(
        machine={"cpu": asdict(cpu_facts()), "gpus": [asdict(gpu) for gpu in gpu_facts()]},
        versions=versions(),
        date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        command=shlex.join(command or ["fusec", *sys.argv[1:]]),
        commit=_commit(),
    )


def versions() -> dict[str, str | None]:
    """Versions of fusec and everything below it; None where it is absent."""
    import torch

    compiler = find_compiler()
    found: dict[str, str | None] = {"fusec": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        found[package] = package_version(package)
    found["cuda"] = torch.version.cuda
    found["compiler"] = compiler.version.splitlines()[0] if compiler else None
    return found


def package_version(name: str) -> str | None:
    """The installed version of a distribution, or None."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def device_name(device: str) -> str:
    """The name of what ``cuda`` or ``cpu`` stands for here."""
    gpus = gpu_facts() if device != "cpu" else ()
    if gpus:
        return gpus[0].name
    cpu = cpu_facts()
    return f"{cpu.name}, {cpu.cores} cores"


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a result file: readable, stable, with a newline at the end. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _commit() -> str | None:
    head = _git("rev-parse", "HEAD")
    if head is None:
        return None
    # Results that are being written change no number.
    changes = _git("status", "--porcelain", "--", ".", ":(exclude)benchmarks/results")
    return f"{head}-dirty" if changes else head


def _git(*arguments: str) -> str | None:
    if not (_ROOT / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
