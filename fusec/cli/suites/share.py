"""Goes over the cases of a suite: one after another, or on several GPUs at once.

Every case is measured on one GPU, all its systems and its copy beside each other there, so that
ratios are of one device. May import everything below cli, and cli; torch in functions.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, TypeAlias

from fusec import settings
from fusec.cli.suites.case import Plan, SuiteCase
from fusec.cli.suites.measure import lost_device
from fusec.errors import FusecError

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

Result: TypeAlias = dict[str, Any]
Take: TypeAlias = Callable[[SuiteCase, Plan], Result]
Work: TypeAlias = Sequence[tuple[SuiteCase, Plan]]


def check_gpus(count: int, device: str) -> None:
    """FusecError unless there are so many GPUs to measure on."""
    if device == "cpu":
        raise FusecError("--gpus shares cases out over GPUs, and these run on the CPU")
    import torch

    if count > (there := torch.cuda.device_count()):
        raise FusecError(f"--gpus {count} is more than the {there} that PyTorch finds")


def measure_all(
    take: Take, work: Work, gpus: int, deadline: float
) -> Generator[Result, None, None]:
    """Results in the order of ``work``; none of a case that would start after ``deadline``.

    ``deadline`` is a reading of ``time.monotonic``. Raises FusecError where a GPU is lost.
    """
    if gpus > 1:
        yield from _beside_each_other(take, work, gpus, deadline)
        return
    for case, plan in work:
        result = _one(take, case, plan, deadline)
        if result is None:
            return
        yield result
        _complain_if_lost(case, plan)


def _beside_each_other(
    take: Take, work: Work, gpus: int, deadline: float
) -> Generator[Result, None, None]:
    """The same by a process for each GPU, which takes the next case when it is done with one."""
    context = multiprocessing.get_context("spawn")
    numbers: Queue[int] = context.Queue()
    for number in range(gpus):
        numbers.put(number)
    pool = ProcessPoolExecutor(gpus, context, initializer=_settle, initargs=(numbers,))
    try:
        waiting = [pool.submit(_apart, take, case, plan, deadline) for case, plan in work]
        for (case, _), future in zip(work, waiting, strict=True):
            try:
                result = future.result()
            except BrokenProcessPool as error:
                raise FusecError(
                    f"a process that measured has ended, at {case.name} or a case after it",
                    hint="--resume goes on",
                ) from error
            if result is None:
                return
            yield result
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _settle(numbers: Queue[int]) -> None:
    """Take a GPU, and leave Ctrl-C to the process that waits for this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings.show_one_gpu(numbers.get())


def _apart(take: Take, case: SuiteCase, plan: Plan, deadline: float) -> Result | None:
    """What a process does with a case."""
    result = _one(take, case, plan, deadline)
    if result is not None:
        _complain_if_lost(case, plan)
    return result


def _one(take: Take, case: SuiteCase, plan: Plan, deadline: float) -> Result | None:
    return None if time.monotonic() > deadline else take(case, plan)


def _complain_if_lost(case: SuiteCase, plan: Plan) -> None:
    if lost := lost_device(plan.device):
        raise FusecError(
            f"the GPU is lost to this process after {case.name}: {lost}",
            hint="the cases before are in the file; --resume goes on",
        )
