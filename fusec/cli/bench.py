"""``fusec bench``: fusec against eager, PyTorch's own function and ``torch.compile``, side by side.

The protocol is ``runtime/bench.py``; this module chooses inputs, shows progress and prints.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fusec.cli import options
from fusec.cli.output import console
from fusec.cli.suites.request import Request
from fusec.cli.suites.selection import make_selection, split
from fusec.errors import FusecError

if TYPE_CHECKING:
    from rich.table import Table

    from fusec.cli.contenders import Case
    from fusec.runtime.bench import Measurement, Progress, Report

_GPU_SIZE = 16384
_SECONDS = 5.0
_LONGEST_TITLE = 76  # columns
_COLUMNS = ("ms", "GB/s", "% copy", "host µs", "kernels", "first s", "error")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def bench(
    formula: Annotated[str | None, typer.Argument(help=options.FORMULA_HELP)] = None,
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
        float | None,
        typer.Option(
            "--seconds",
            min=0.0,
            help="Time for the timed calls of all contenders; 5, and 0.2 for a case of a suite.",
        ),
    ] = None,
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
    tune: Annotated[
        float,
        typer.Option("--tune", metavar="SECONDS", min=0.0, help="Search for a better schedule."),
    ] = 0.0,
    suite: Annotated[
        list[str] | None,
        typer.Option(
            "--suite", metavar="NAME", help="Run a suite instead of a formula. Repeatable."
        ),
    ] = None,
    list_them: Annotated[
        bool, typer.Option("--list", help="List the suites, or the cases of those that are named.")
    ] = False,
    only: Annotated[
        str, typer.Option("--only", metavar="REGEX", help="Cases whose name has this in it.")
    ] = "",
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="LIST", help="Cases of these types: bf16,f32.")
    ] = "",
    columns: Annotated[
        str, typer.Option("--columns", metavar="LIST", help="Cases so wide: 64,1K-16K,50257.")
    ] = "",
    rows: Annotated[
        str, typer.Option("--rows", metavar="LIST", help="Cases of so many rows: 1,8 or 1K-.")
    ] = "",
    elements: Annotated[
        str, typer.Option("--elements", metavar="LIST", help="Cases so large: 2^26-2^28.")
    ] = "",
    contenders: Annotated[
        str,
        typer.Option(
            "--contenders", metavar="LIST", help="Who takes part in a suite, as in fusec,torch."
        ),
    ] = "",
    no_error: Annotated[
        bool, typer.Option("--no-error", help="Do not compare a suite's results with float64.")
    ] = False,
    budget: Annotated[
        float,
        typer.Option(
            "--budget", min=0.0, metavar="SECONDS", help="Start no case of a suite after this time."
        ),
    ] = 0.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Add the cases of a suite that the file lacks.")
    ] = False,
    merge: Annotated[
        bool, typer.Option("--merge", help="Measure cases again and keep the others of the file.")
    ] = False,
    precompile: Annotated[
        int,
        typer.Option(
            "--precompile",
            min=0,
            metavar="N",
            help="Compile a suite's cases with torch.compile in N processes beforehand.",
        ),
    ] = 0,
    gpus: Annotated[
        int,
        typer.Option(
            "--gpus", min=1, metavar="N", help="Share the cases of a suite out over N GPUs."
        ),
    ] = 1,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start the file of a suite anew.")
    ] = False,
    commit: Annotated[
        str | None,
        typer.Option("--commit", help="The commit, in a copy of a checkout without its history."),
    ] = None,
) -> None:
    """Time a formula in fusec, in eager PyTorch, as PyTorch's own function and in torch.compile.

    Inputs without -i are float32 matrices, 16384 x 16384 on a GPU and 4096 x 4096 on a CPU. With
    --suite, the declared cases of a suite are measured and go to a result file, case by case.
    """
    if suite or list_them:
        _bench_suites(
            Request(
                suites=tuple(suite or ()),
                selection=make_selection(only, dtype, columns, rows, elements),
                systems=split(contenders),
                device=device or "",
                seconds=seconds,
                error=not no_error,
                budget=budget,
                output=json_file,
                resume=resume,
                merge=merge,
                overwrite=overwrite,
                first_calls=not no_first_call,
                gpus=gpus,
                precompile=precompile,
                commit=commit,
            ),
            formula,
            list_them,
        )
        return
    _without_suite(
        {
            "--only": only, "--dtype": dtype, "--columns": columns, "--rows": rows,
            "--elements": elements, "--contenders": contenders, "--no-error": no_error,
            "--budget": budget, "--resume": resume, "--merge": merge, "--overwrite": overwrite,
            "--precompile": precompile, "--gpus": gpus > 1, "--commit": commit,
        }
    )  # fmt: skip
    if formula is None:
        raise FusecError("a formula is missing", hint="or --suite NAME; --list shows the suites")
    seconds = _SECONDS if seconds is None else seconds
    options.choose(numerics, options.NUMERICS, "--numerics")
    options.choose(backend, options.BACKENDS, "--backend")
    given = options.parse_inputs(inputs or ())
    source = options.read_formula(formula)
    place = options.choose_device(device)

    from fusec import api
    from fusec.cli.contenders import make_case
    from fusec.cli.suites.results import check_writable
    from fusec.runtime.bench import Effort, compare

    if json_file is not None:
        check_writable(json_file)
    with options.blamed_on(source), _progress() as progress:
        compiled = api.compile(source.text, backend=backend, numerics=numerics, tune=tune)
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
            effort=Effort(seconds, first_calls=not no_first_call),
            progress=progress,
        )
    _print(case, report)
    if json_file is not None:
        write_report(json_file, [case_json(case, report)])


def _without_suite(given: dict[str, object]) -> None:
    """FusecError for options that only a suite has."""
    names = [name for name, value in given.items() if value]
    if names:
        raise FusecError(
            f"{', '.join(names)} without a suite",
            hint="name one with --suite; for a formula there are --seconds and --no-compile",
        )


def _bench_suites(request: Request, formula: str | None, list_them: bool) -> None:
    """List the cases, or measure them."""
    from fusec.cli.suites import command

    if formula is not None:
        raise FusecError(
            "a formula and a suite exclude each other", hint="leave the formula out, or --suite"
        )
    if list_them:  # also of a device that is not here
        listed = options.choose_device(None) if not request.device else request.device
        options.choose(listed, options.DEVICES, "--device")
        lines = command.list_cases(request.suites, request.selection, listed)
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        return
    command.run(request)


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
    from fusec.cli.suites.results import unwritable
    from fusec.runtime.record import environment, write_json

    try:
        write_json(path, {**asdict(environment()), **more, "cases": list(cases)})
    except OSError as error:
        raise unwritable(path, error) from error


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
