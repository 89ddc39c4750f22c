"""``fusec bench``: fusec against eager, PyTorch's own function and ``torch.compile``, side by side.

The protocol is ``runtime/bench.py``; this module chooses inputs, shows progress and prints.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fusec.cli import options
from fusec.cli.output import console
from fusec.errors import FusecError, UnsupportedError

if TYPE_CHECKING:
    from rich.table import Table

    from fusec.cli.contenders import Case
    from fusec.runtime.bench import Measurement, Progress, Report

_GPU_SIZE = 16384
_DEVICES = ("cpu", "cuda")
_LONGEST_TITLE = 76  # columns
_COLUMNS = ("ms", "GB/s", "% copy", "host µs", "kernels", "first s", "error")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def bench(
    formula: Annotated[str, typer.Argument(help=options.FORMULA_HELP)],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="NAME=SHAPE[:DTYPE]", help=options.INPUT_HELP),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the results there as JSON.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu or cuda; cuda where there is a GPU.")
    ] = None,
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=0.0, help="Time for the timed calls of all contenders."),
    ] = 5.0,
    no_compile: Annotated[
        bool,
        typer.Option("--no-compile", help="Leave out torch.compile, which takes long to start."),
    ] = False,
    no_first_call: Annotated[
        bool, typer.Option("--no-first-call", help="Leave out first calls in fresh processes.")
    ] = False,
    numerics: Annotated[
        str, typer.Option("--numerics", help=f"One of {', '.join(options.NUMERICS)}.")
    ] = "torch",
    backend: Annotated[
        str, typer.Option("--backend", help=f"One of {', '.join(options.BACKENDS)}.")
    ] = "auto",
) -> None:
    """Time a formula in fusec, in eager PyTorch, as PyTorch's own function and in torch.compile.

    Inputs without -i are float32 matrices, 16384 x 16384 on a GPU and 4096 x 4096 on a CPU.
    """
    options.choose(numerics, options.NUMERICS, "--numerics")
    options.choose(backend, options.BACKENDS, "--backend")
    given = options.parse_inputs(inputs or ())
    source = options.read_formula(formula)
    place = choose_device(device)

    from fusec import api
    from fusec.cli.contenders import make_case
    from fusec.runtime.bench import compare

    with options.blamed_on(source), _progress() as progress:
        compiled = api.compile(source.text, backend=backend, numerics=numerics)
        size = _GPU_SIZE if place == "cuda" else options.DEFAULT_SIZE
        case = make_case(
            compiled,
            source,
            options.complete(given, compiled.inputs, size),
            device=place,
            backend=backend,
            numerics=numerics,
            with_compile=not no_compile,
        )
        report = compare(
            case.contenders,
            case.inputs,
            case.reference,
            device=place,
            seconds=seconds,
            first_calls=not no_first_call,
            progress=progress,
        )
    _print(case, report)
    if json_file is not None:
        write_report(json_file, [case_json(case, report)])


def choose_device(device: str | None) -> str:
    """``cpu`` or ``cuda``; UnsupportedError for cuda without one."""
    import torch

    if device is not None:
        options.choose(device, _DEVICES, "--device")
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise UnsupportedError(
            "there is no CUDA device here", hint="fusec doctor says what there is"
        )
    return device or ("cuda" if available else "cpu")


def case_json(case: Case, report: Report) -> dict[str, object]:
    """One case of a result file."""
    return {
        "formula": case.source.text,
        "inputs": [str(option) for option in case.options],
        "device": report.device,
        "bytes": report.bytes_moved,
        "copy": asdict(report.copy),
        "copy_gigabytes_per_second": report.copy_gigabytes_per_second,
        "native": case.native,
        "rows": [asdict(row) for row in report.measurements],
    }


def write_report(path: Path, cases: Sequence[dict[str, object]], **more: object) -> None:
    """Write a result file with the facts of this machine; ParseError when that is impossible."""
    from fusec.runtime.record import environment, write_json

    try:
        write_json(path, {**asdict(environment()), **more, "cases": list(cases)})
    except OSError as error:
        raise FusecError(
            f"cannot write {path}: {(error.strerror or str(error)).lower()}"
        ) from error


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """A progress bar on stderr if that is a terminal; otherwise nothing is shown."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda what, fraction: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(24), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)

        def show(what: str, fraction: float) -> None:
            bar.update(task, description=what, completed=fraction)

        yield show


def _print(case: Case, report: Report) -> None:
    from rich.text import Text

    from fusec.runtime.record import device_name

    screen = console()
    title = " ".join(case.source.text.split())
    if len(title) > _LONGEST_TITLE:
        title = f"{title[: _LONGEST_TITLE - 3]}..."
    machine = device_name(report.device)
    copy = significant(report.copy_gigabytes_per_second)
    screen.print(Text(title, style="bold"))
    screen.print(Text("  ".join(str(option) for option in case.options)))
    screen.print(Text(f"{machine}: a copy reaches {copy} GB/s"))
    screen.print(table(report.measurements))
    for row in report.measurements:
        if row.problem is not None:
            screen.print(Text(f"{row.name}: {row.problem}"))


def table(rows: Sequence[Measurement]) -> Table:
    """The rows as they are printed, at most 80 columns wide; the fastest is green."""
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    grid.add_column("", no_wrap=True)
    for name in _COLUMNS:
        grid.add_column(name, justify="right", no_wrap=True)
    timed = [row.timing.milliseconds for row in rows if row.timing is not None]
    for row in rows:
        fastest = row.timing is not None and row.timing.milliseconds == min(timed)
        grid.add_row(row.name, *cells(row), style="green" if fastest else None)
    return grid


def cells(row: Measurement) -> tuple[str, ...]:
    """The row as it is printed; a dash for what was not measured."""
    milliseconds = None if row.timing is None else row.timing.milliseconds
    return (
        significant(milliseconds),
        significant(row.gigabytes_per_second),
        "-" if row.percent_of_copy is None else f"{row.percent_of_copy:.0f}",
        "-" if row.host_microseconds is None else f"{row.host_microseconds:.1f}",
        "-" if row.kernels is None else str(row.kernels),
        significant(row.first_call_seconds),
        "-" if row.largest_error is None else f"{row.largest_error:.1e}",
    )


def significant(value: float | None) -> str:
    """Three significant digits without an exponent; four decimals at most."""
    if value is None:
        return "-"
    decimals = next((n for n, least in enumerate((100, 10, 1, 0.1)) if value >= least), 4)
    return f"{value:.{decimals}f}"
