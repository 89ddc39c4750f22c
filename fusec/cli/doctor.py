"""``fusec doctor``: what is installed here, which backends work, and why the others do not."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from fusec.cli.output import console
from fusec.errors import FusecError

_OPENMP_PROBE = """\
#include <omp.h>
extern "C" int threads() { return omp_get_max_threads(); }
"""


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, what was found, and whether that is as it should be.

    ``ok`` is None for what is neither good nor bad, such as a tool that is not needed.
    """

    name: str
    found: str
    ok: bool | None = True


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what is installed, which backends work here, and why not where not.

    The exit code is 0 when at least one compiling backend works, and otherwise 1.
    """
    installed, backends = installation(), backend_checks()
    if as_json:
        groups = {"installed": installed, "backends": backends}
        content = {name: [asdict(c) for c in checks] for name, checks in groups.items()}
        typer.echo(json.dumps(content, indent=2))
    else:
        _print("installed", installed)
        _print("backends", backends)
    if not any(check.ok for check in backends if check.name != "torch"):
        raise typer.Exit(1)


def installation() -> list[Check]:
    """Python, packages, compilers, devices and the cache."""
    return [
        Check("python", f"{platform.python_version()} on {platform.platform(terse=True)}"),
        *_packages(),
        *_compilers(),
        *_devices(),
        _cache(),
    ]


def backend_checks() -> list[Check]:
    """Compile and run ``x + 1`` with each backend."""
    import torch

    cpu = torch.arange(8, dtype=torch.float32)
    checks = [
        _probe("cpp", lambda: _runs("cpp", cpu)),
        _probe("triton (interpreter)", lambda: _runs("triton", cpu)),
        _probe("cuda (emulated)", lambda: _runs("cuda", cpu)),
    ]
    if torch.cuda.is_available():
        checks.insert(0, _probe("cuda", lambda: _runs("cuda", cpu.cuda())))
        checks.insert(0, _probe("triton", lambda: _runs("triton", cpu.cuda())))
    else:
        absent = "no CUDA device; show still compiles for one"
        checks[:0] = [Check(name, absent, None) for name in ("triton", "cuda")]
    return [*checks, _probe("torch", lambda: _runs("torch", cpu))]


def _runs(backend: str, values: object) -> str:
    import torch

    from fusec import api

    result = api.compile("x + 1", backend=backend)(values)
    assert isinstance(values, torch.Tensor)
    assert isinstance(result, torch.Tensor)
    if not torch.equal(result, values + 1):
        raise ArithmeticError(f"x + 1 gave {result.tolist()}")
    return "works"


def _probe(name: str, attempt: Callable[[], str]) -> Check:
    try:
        return Check(name, attempt())
    except FusecError as error:
        return Check(name, error.message, False)
    except Exception as error:  # a broken installation fails in ways that nobody can list
        summary = " ".join(str(error).split())[:200]
        return Check(name, f"{type(error).__name__}: {summary}", False)


def _packages() -> list[Check]:
    import torch

    from fusec.runtime.record import package_version
    from fusec.version import __version__

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    checks = [Check("fusec", __version__), Check("torch", f"{torch.__version__} ({build})")]
    for name in ("triton", "lark", "sympy", "numpy"):
        version = package_version(name)
        needed = name != "triton"  # the C++ backend does without
        checks.append(
            Check(
                name, version or "not installed", True if version else (False if needed else None)
            )
        )
    return checks


def _compilers() -> list[Check]:
    from fusec import settings
    from fusec.runtime.build_cpp import find_compiler

    compiler = find_compiler()
    if compiler is None:
        tried = ", ".join(" ".join(command) for command in settings.get().cxx)
        return [Check("C++ compiler", f"none runs (tried {tried})", False), _nvcc(), _cuda_build()]
    version = compiler.version.splitlines()[0]
    checks = [Check("C++ compiler", f"{compiler.path} ({version})"), _probe("OpenMP", _openmp)]
    return [*checks, _nvcc(), _cuda_build()]


def _openmp() -> str:
    """Build a library that asks OpenMP for its number of threads."""
    import tempfile

    from fusec.runtime.build_cpp import build_cpp

    with tempfile.TemporaryDirectory(prefix="fusec-doctor-") as folder:
        library = build_cpp(_OPENMP_PROBE, Path(folder))
        return f"works, {library.threads()} threads"


def _nvcc() -> Check:
    from fusec.runtime.build_cuda import find_nvcc

    path = find_nvcc()
    if path is None:
        return Check("nvcc", "not found; Triton brings what it needs", None)
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
        release = [line for line in done.stdout.splitlines() if "release" in line]
        if release:
            return Check("nvcc", f"{path} ({release[0].strip()})")
    return Check("nvcc", f"{path} does not run", False)


def _cuda_build() -> Check:
    """What builds CUDA C++, and why."""
    from fusec.runtime.build_cuda import find_compiler, find_nvrtc

    compiler = find_compiler()
    if compiler is None:
        return Check("CUDA C++", "neither NVRTC nor nvcc; pip install nvidia-cuda-nvrtc", None)
    if compiler.kind == "nvrtc":
        return Check("CUDA C++", f"built by NVRTC, the quicker one: {find_nvrtc()}")
    return Check("CUDA C++", f"built by nvcc ({compiler.path}); NVRTC, quicker, is not found")


def _devices() -> list[Check]:
    from fusec.runtime.device import cpu_facts, gpu_facts

    cpu = cpu_facts()
    checks = [Check("CPU", f"{cpu.name}, {cpu.cores} cores")]
    gpus = gpu_facts()
    if not gpus:
        return [*checks, Check("GPU", "torch sees no CUDA device", None)]
    checks.append(Check("CUDA driver", _driver()))
    for gpu in gpus:
        memory = f"{gpu.memory_bytes / 2**30:.0f} GiB"
        facts = f"{gpu.capability}, {gpu.multiprocessors} multiprocessors, {memory}"
        checks.append(Check(f"GPU {gpu.index}", f"{gpu.name} ({facts})"))
    return checks


def _driver() -> str:
    with contextlib.suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
        return " ".join(text.splitlines()[0].split())
    return "works"


def _cache() -> Check:
    from fusec.runtime.cache import default_root

    root = default_root()
    existing = next(path for path in (root, *root.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        return Check("cache", f"{root} (cannot be written; FUSEC_CACHE_DIR moves it)", False)
    sizes = []
    for path in root.rglob("*"):
        with contextlib.suppress(OSError):
            sizes.append(path.stat().st_size if path.is_file() else 0)
    return Check("cache", f"{root} ({sum(sizes) / 1e6:.1f} MB)")


def _print(title: str, checks: list[Check]) -> None:
    from rich.table import Table
    from rich.text import Text

    signs = {True: ("ok", "green"), False: ("no", "bold red"), None: ("-", "dim")}
    table = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        sign, style = signs[check.ok]
        table.add_row(Text(sign, style=style), check.name, Text(check.found))
    console().print(table)
