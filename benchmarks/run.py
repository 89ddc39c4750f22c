"""Measures the figures of the README and writes them to benchmarks/results.

    python -m benchmarks.run [--device cpu|cuda] [--only NAME] [--seconds S]

Each case is eager, PyTorch's own function, torch.compile and fusec in one run, taking turns, beside
a copy of as many bytes, in a process of its own: what an earlier case leaves in the heap decides
whether a result gets memory that is mapped already. The file is written again after every case, so
that a run cut short keeps what it has. `python -m benchmarks.render` puts the tables into the
README.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import fusec
from fusec.cli.bench import case_json, cells, choose_device, significant, write_report
from fusec.cli.contenders import make_case
from fusec.cli.options import complete, parse_inputs
from fusec.runtime.bench import Effort, compare
from fusec.runtime.record import device_name, environment
from fusec.runtime.timing import first_call
from fusec.source import Source

RESULTS = Path(__file__).parent / "results"
GELU = "0.5*x*(1+tanh(0.79788456*(x+0.044715*x^3)))"


@dataclass(frozen=True)
class Case:
    """A formula and its inputs, as `fusec bench` takes them."""

    name: str
    formula: str
    inputs: tuple[str, ...]


GPU_CASES = (
    Case("gelu, float32", GELU, ("x=16384x16384:f32",)),
    Case("gelu, bfloat16", GELU, ("x=16384x16384:bf16",)),
    Case("softmax, bfloat16", "softmax(x)", ("x=32768x4096:bf16",)),
    Case(
        "layer norm, bfloat16",
        "layer_norm(x, w, b)",
        ("x=32768x4096:bf16", "w=4096:bf16", "b=4096:bf16"),
    ),
)
CPU_CASES = (
    Case("gelu, float32", GELU, ("x=4096x4096:f32",)),
    Case("softmax, float32", "softmax(x)", ("x=4096x4096:f32",)),
    Case(
        "layer norm, float32",
        "layer_norm(x, w, b)",
        ("x=4096x4096:f32", "w=4096:f32", "b=4096:f32"),
    ),
    Case("x*2+1, float32", "x*2+1", ("x=4096x4096:f32",)),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases of a device and return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument(
        "--only", default="", metavar="NAME", help="cases whose name has this in it"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="timed calls of one case")
    parser.add_argument("--output", type=Path, help="the result file")
    parser.add_argument("--no-first-call", action="store_true", help="leave out fresh processes")
    parser.add_argument("--commit", help="the commit, in a copy that lacks its history")
    options = parser.parse_args(arguments)
    try:
        device = choose_device(options.device)
        path = options.output or RESULTS / f"{slug(device)}-pipeline.json"
        _measure(device, path, options)
    except fusec.FusecError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def slug(device: str) -> str:
    """The device's name as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", device_name(device).lower()).strip("-")


def measure(
    case: Case, device: str, seconds: float = 5.0, first_calls: bool = True
) -> dict[str, object]:
    """One case, as it stands in a result file."""
    compiled = fusec.compile(case.formula)
    chosen = complete(parse_inputs(case.inputs), compiled.inputs)
    ready = make_case(compiled, Source(case.formula), chosen, device=device)
    report = compare(
        ready.contenders,
        ready.inputs,
        ready.reference,
        device=device,
        effort=Effort(seconds, first_calls=first_calls),
    )
    print(f"{case.name}: a copy reaches {significant(report.copy_gigabytes_per_second)} GB/s")
    for row in report.measurements:
        print("  ", f"{row.name:<20}", *(f"{cell:>9}" for cell in cells(row)), row.problem or "")
    return {"name": case.name, **case_json(ready, report)}


def _measure(device: str, path: Path, options: argparse.Namespace) -> None:
    cases = GPU_CASES if device == "cuda" else CPU_CASES
    chosen = [case for case in cases if options.only in case.name]
    commit = options.commit or environment().commit  # the result file itself changes the checkout
    importing = first_call("", "import fusec").warm
    done: list[dict[str, object]] = []
    for case in chosen:
        # Fresh processes take minutes, and say the same of every formula: the first is enough.
        fresh = not options.no_first_call and case is cases[0]
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            done.append(process.submit(measure, case, device, options.seconds, fresh).result())
        write_report(
            path,
            done,
            command=shlex.join(("python", "-m", "benchmarks.run", *sys.argv[1:])),
            device_name=device_name(device),
            import_seconds=importing,
            commit=commit,
        )
    print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
