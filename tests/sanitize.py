"""Runs fusec's GPU kernels under compute-sanitizer: ``python -m tests.sanitize``.

First without a tool, so that kernels are built and results compared; then under memcheck,
racecheck, initcheck and synccheck, all four beside each other, each in a process of its own that
takes the kernels from the cache. PyTorch gives every tensor memory of its own there: inside one
large block no access would be out of bounds. Ends with 0 when nothing was found and nothing was
left out, with 1 otherwise, and with 2 where there is no GPU or no compute-sanitizer.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fusec import settings

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND, LEFT_OUT = 86, 87  # exit codes of the tool and of a run that was too slow
_TOOLKIT = "/usr/local/cuda/bin"
_TAIL = 60  # lines of what a tool said
_CASE = "case: "
_SLACK = 120.0  # seconds beyond the budget after which a process is ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases under every tool; the exit code."""
    options = _parser().parse_args(arguments)
    if options.watched or options.list:
        return run_cases(options)
    sanitizer = find_sanitizer()
    if sanitizer is None:
        print("no compute-sanitizer: it comes with the CUDA toolkit (CUDA_HOME)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="fusec-sanitize-") as folder:
        built = subprocess.run(_command(options), env=_environment(folder), check=False)
        if built.returncode:
            return 2 if built.returncode == 2 else 1
        return _watch(sanitizer, options, folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.sanitize", description=__doc__)
    parser.add_argument("--tool", action="append", choices=TOOLS, help="default: all four")
    parser.add_argument("--backend", action="append", choices=("cuda", "triton"))
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose name has this")
    parser.add_argument(
        "--time", type=float, default=90.0, metavar="SECONDS", help="start no case after this"
    )
    parser.add_argument("--watched", action="store_true", help="run the cases, without a tool")
    parser.add_argument("--list", action="store_true", help="name the cases")
    return parser


def find_sanitizer() -> str | None:
    """The tool of CUDA_HOME, on the PATH, or of the usual toolkit."""
    home = settings.get().cuda_home
    own = shutil.which("compute-sanitizer", path=str(home / "bin")) if home is not None else None
    name = "compute-sanitizer"
    return own or shutil.which(name) or shutil.which(name, path=_TOOLKIT)


def run_cases(options: argparse.Namespace) -> int:
    """Run every chosen case on the GPU, in this process."""
    from tests.sanitized import BACKENDS, cases

    chosen = [case for case in cases() if re.search(options.only, case.name)]
    if options.list:
        print(*(case.name for case in chosen), sep="\n")
        return 0
    import torch

    if not torch.cuda.is_available():
        print("no CUDA device: nothing was run", file=sys.stderr)
        return 2
    deadline = time.monotonic() + options.time
    for number, case in enumerate(chosen):
        if time.monotonic() > deadline:
            print(f"left out, from {case.name!r} on: {len(chosen) - number} of {len(chosen)} cases")
            return LEFT_OUT
        for backend in options.backend or BACKENDS:
            print(f"{_CASE}{case.name}, {backend}", flush=True)
            case.run(backend, "cuda")
            torch.cuda.synchronize()  # so that what a tool says stands below the case
    print(f"{len(chosen)} cases on {', '.join(options.backend or BACKENDS)}")
    return 0


def _watch(sanitizer: str, options: argparse.Namespace, folder: str) -> int:
    """All tools at once; what each says at the end, and the exit code of all."""
    running = {}
    for tool in options.tool or TOOLS:
        log = Path(folder) / f"{tool}.txt"
        # Child processes too: a python that is only a launcher starts the one that counts.
        command = [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND)]
        if tool == "memcheck":  # calls that ask the driver how far they may go, and end when told
            command += ["--report-api-errors", "no"]
        command += ["--target-processes", "all", *_command(options)]
        with log.open("w") as output:
            started = subprocess.Popen(
                command, env=_environment(folder), stdout=output, stderr=subprocess.STDOUT
            )
        running[tool] = started, log
    deadline = time.monotonic() + options.time + _SLACK
    return max([_outcome(tool, *what, deadline) for tool, what in running.items()])


def _outcome(tool: str, process: subprocess.Popen[bytes], log: Path, deadline: float) -> int:
    try:
        code = process.wait(max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        code = LEFT_OUT
    said = log.read_text(encoding="utf-8", errors="replace").splitlines()
    words = {0: "clean", FOUND: "findings", LEFT_OUT: "too slow for its time"}
    print(f"{tool}: {words.get(code, f'failed with {code}')}")
    for line in telling(said)[-_TAIL:] if code else said[-2:]:
        print(f"  {line}")
    return 1 if code else 0


def telling(said: Sequence[str]) -> list[str]:
    """What a tool said, less the cases of which it said nothing."""
    pairs = zip(said, [*said[1:], _CASE], strict=True)
    return [
        line for line, after in pairs if not (line.startswith(_CASE) and after.startswith(_CASE))
    ]


def _command(options: argparse.Namespace) -> list[str]:
    passed = ["--only", options.only, "--time", str(options.time)]
    for backend in options.backend or ():
        passed += ["--backend", backend]
    return [sys.executable, "-m", "tests.sanitize", "--watched", *passed]


def _environment(folder: str) -> dict[str, str]:
    """Kernels from one cache; tensors with memory of their own; no compiler in the background."""
    return settings.child_environment(
        FUSEC_CACHE_DIR=str(Path(folder) / "cache"),
        TRITON_CACHE_DIR=str(Path(folder) / "triton"),
        FUSEC_NO_LAUNCHER="1",
        PYTORCH_NO_CUDA_MEMORY_CACHING="1",
    )


if __name__ == "__main__":
    sys.exit(main())
