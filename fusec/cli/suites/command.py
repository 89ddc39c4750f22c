"""``fusec bench --suite``: goes over the cases, shows each, keeps what is measured.

May import everything below cli, and cli.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from fusec.cli.options import choose_device
from fusec.cli.output import console
from fusec.cli.suites.case import Measure, Plan, Suite, SuiteCase
from fusec.cli.suites.declared import SUITES
from fusec.cli.suites.facts import rounded
from fusec.cli.suites.measure import line, measure, measure_apart
from fusec.cli.suites.precompile import precompile
from fusec.cli.suites.request import SUITE_SECONDS, Request
from fusec.cli.suites.results import ResultFile, check_writable, default_path
from fusec.cli.suites.selection import Selection
from fusec.cli.suites.share import check_gpus, measure_all
from fusec.cli.suites.systems import choose_systems
from fusec.errors import FusecError, UnknownNameError, did_you_mean
from fusec.runtime.timing import first_call

_THOROUGH_SECONDS = 5.0  # of timed calls of a case of which everything is measured


def find_suites(names: Sequence[str]) -> list[Suite]:
    """The suites of these names; UnknownNameError with the nearest one."""
    for name in names:
        if name not in SUITES:
            raise UnknownNameError(
                f"there is no suite '{name}' (there are {', '.join(SUITES)})",
                hint=did_you_mean(name, SUITES),
            )
    return [SUITES[name] for name in names]


def list_cases(names: Sequence[str], selection: Selection, device: str) -> list[str]:
    """A line for each suite, or for each chosen case of the suites that are named."""
    if not names:
        return [
            f"{s.name:<10} {len(selection.choose(s.cases(device))):>5} cases  {s.doc}"
            for s in SUITES.values()
        ]
    return [
        f"{case.suite:<10} {case.name:<40} {case.operation.formula}"
        for suite in find_suites(names)
        for case in selection.choose(suite.cases(suite.device or device))
    ]


def run(request: Request) -> None:
    """Measure the chosen cases of each suite; FusecError where nothing can be measured."""
    suites = find_suites(request.suites)
    choose_systems(request.systems)
    if request.output is not None and len(suites) > 1 and request.output.suffix:
        raise FusecError(
            f"{len(suites)} suites cannot share {request.output}", hint="--json names a folder then"
        )
    deadline = time.monotonic() + request.budget if request.budget else float("inf")
    for suite in suites:
        _run_suite(suite, replace(request, device=_device(suite, request.device)), deadline)


def _device(suite: Suite, asked: str) -> str:
    """The device of a suite: its own, the one that was asked for, or what there is."""
    if suite.device is not None and asked not in ("", suite.device):
        raise FusecError(f"the suite '{suite.name}' is for --device {suite.device}")
    return choose_device(suite.device or asked or None)


def _run_suite(suite: Suite, request: Request, deadline: float) -> None:
    cases = request.selection.choose(suite.cases(request.device))
    if not cases:
        raise FusecError(
            f"no case of '{suite.name}' passes the filters",
            hint=f"fusec bench --suite {suite.name} --list shows them",
        )
    if request.gpus > 1:
        check_gpus(request.gpus, request.device)
    file = _open(suite, request)
    todo = [case for case in cases if not (request.resume and case.name in file.cases)]
    plan = _plan(suite, request)
    if suite.on_cpu and request.device == "cpu":
        _complain(suite.on_cpu)
    take = measure_apart if request.device in suite.fresh else measure
    done = 0
    # Fresh processes take minutes, and say the same of every formula: one is enough.
    work = [
        (case, replace(plan, first_calls=request.first_calls and case is cases[0])) for case in todo
    ]
    try:
        if request.precompile and suite.measure in (Measure.TIME, Measure.GRADIENTS):
            _precompile(todo, plan, request.precompile)
        with (
            _progress(len(todo)) as say,
            contextlib.closing(measure_all(take, work, request.gpus, deadline)) as results,
        ):
            for result in results:
                file.add(result)
                done += 1
                say(line(result, suite.measure))
    except KeyboardInterrupt:
        _complain(f"stopped: {_left(file, done, todo)}")
        raise
    if done < len(todo):
        _complain(f"the budget of {request.budget:g} s is spent: {_left(file, done, todo)}")
    else:
        console().print(f"{len(file.cases)} cases in {file.path}", soft_wrap=True)


def _precompile(cases: Sequence[SuiteCase], plan: Plan, workers: int) -> None:
    """Fill the caches of torch.compile, and say now and then how far that is."""
    start, every = time.monotonic(), max(1, len(cases) // 10)

    def finished(number: int) -> None:
        if number % every == 0 or number == len(cases):
            spent = time.monotonic() - start
            _complain(f"compiled {number} of {len(cases)} cases beforehand, {spent:.0f} s")

    precompile(cases, plan.device, plan.systems, workers, finished)


def _plan(suite: Suite, request: Request) -> Plan:
    seconds = _THOROUGH_SECONDS if suite.measure is Measure.THOROUGH else SUITE_SECONDS
    return Plan(
        device=request.device,
        systems=choose_systems(request.systems) or suite.systems,
        seconds=seconds if request.seconds is None else request.seconds,
        measure=suite.measure,
        error=request.error,
    )


def _open(suite: Suite, request: Request) -> ResultFile:
    from fusec.runtime.record import device_name, environment

    path = _path(suite, request)
    check_writable(path)
    facts = asdict(environment())
    if request.commit is not None:
        facts["commit"] = request.commit
    facts = {**facts, "suite": suite.name, "device_name": device_name(request.device)}
    if suite.measure is Measure.THOROUGH and request.first_calls:
        facts["import_seconds"] = rounded(first_call("", "import fusec").warm)
    file = ResultFile(path, facts)
    if request.resume or request.merge:
        file.join()
    return file


def _path(suite: Suite, request: Request) -> Path:
    usual = default_path(request.device, suite.name)
    if request.output is None:
        if usual.exists() and not (request.resume or request.merge or request.overwrite):
            raise FusecError(
                f"{usual} exists",
                hint="--resume adds the cases it lacks, --merge measures cases anew and keeps the "
                "others, --overwrite starts anew, and --json names another file",
            )
        return usual
    return request.output if request.output.suffix else request.output / usual.name


def _left(file: ResultFile, done: int, todo: Sequence[SuiteCase]) -> str:
    """What is measured, what is not, and how to go on."""
    rest = (
        f"the rest, from {todo[done].name} on, is left out" if done < len(todo) else "all of them"
    )
    return f"{done} of {len(todo)} cases are in {file.path}, {rest}; --resume goes on"


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """What shows a finished case: a line, and on a terminal a bar below the lines."""
    screen = console()
    done = itertools.count(1)

    def plain(text: str) -> None:
        screen.print(f"[{next(done)}/{total}] {text}", markup=False, soft_wrap=True)
        screen.file.flush()

    if not screen.is_terminal:
        yield plain
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task("", total=total)

        def show(text: str) -> None:
            bar.console.print(text, markup=False)
            bar.advance(task)

        yield show


def _complain(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
