"""Compiles the cases of a suite in ``torch.compile`` beforehand, in processes beside each other.

They fill Triton's cache with binaries, which take most of the time. What is measured later compiles
again and chooses among them alone: timings taken while others use the GPU would choose badly, so
the choices made here are not kept. May import everything below cli, and cli; torch in functions.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from fusec.cli.suites.case import SuiteCase
from fusec.cli.suites.gradients import compile_gradients
from fusec.cli.suites.systems import COMPILED, SYSTEMS, Setting, forget_compiled


def precompile(
    cases: Sequence[SuiteCase],
    device: str,
    systems: Sequence[str],
    workers: int,
    finished: Callable[[int], None],
) -> None:
    """Compile every case in the modes among ``systems``; ``finished`` hears how many are done."""
    modes = tuple(system for system in systems if system in COMPILED)
    if not modes:
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context)
    try:
        waiting = [pool.submit(compile_case, case, device, modes) for case in cases]
        for number, done in enumerate(as_completed(waiting), 1):
            done.exception()  # a case that fails here says why when it is measured
            finished(number)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def compile_case(case: SuiteCase, device: str, modes: Sequence[str]) -> None:
    """Compile one case, in a process that keeps no choice of its own."""
    import torch._inductor.config as inductor

    forget_compiled()
    settings = {"autotune_local_cache": False, "compile_threads": 1}
    setting = Setting(case, device)
    trained = bool(case.operation.reads)
    with inductor.patch({k: v for k, v in settings.items() if hasattr(inductor, k)}):
        for mode in modes:
            with contextlib.suppress(Exception):  # it says why when it is measured
                if trained:
                    compile_gradients(case, device, mode)
                else:
                    SYSTEMS[mode](setting)
