"""Measures the gradients of one case: backward alone, forward and backward together, and memory.

Every system computes on inputs of its own, since some write over theirs: Liger puts gradients where
inputs were. May import everything below cli, and cli; torch and the competitors inside functions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fusec.cli import contenders
from fusec.cli.contenders import EAGER, FUSEC
from fusec.cli.options import Value
from fusec.cli.suites import libraries
from fusec.cli.suites.case import Plan, SuiteCase
from fusec.cli.suites.facts import WRONG, first_line, known, rounded
from fusec.cli.suites.systems import COMPILED, OURS, Setting, choose_systems, forget_compiled
from fusec.errors import FusecError
from fusec.runtime import launcher
from fusec.runtime.bench import (
    COPY,
    SUITE,
    copier,
    fewest_bytes,
    largest_error,
    largest_value,
)
from fusec.runtime.peak import peak_bytes
from fusec.runtime.timing import Timing, time_in_turns

if TYPE_CHECKING:
    from typing import TypeGuard

    import torch

Forward = Callable[[], Any]  # to a tensor

_LAUNCHER_TIMEOUT = 60.0  # seconds
# PyTorch's own way where it takes more than the one call that is looked for.
_OWN = {
    "swiglu": ("silu * y", "def native(x, y):\n    return torch.nn.functional.silu(x) * y\n"),
}


class Training(Setting):
    """A case whose tensors of floating-point numbers all want a gradient."""

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        made = super().inputs
        return tuple(v.requires_grad_() if _is_float(v) else v for v in made)

    @cached_property
    def leaves(self) -> tuple[torch.Tensor, ...]:
        return tuple(v for v in self.inputs if _is_float(v))

    @cached_property
    def own(self) -> tuple[str, str] | None:
        """Short name and text of PyTorch's own function, or of its usual combination."""
        return self.native or _OWN.get(self.case.operation.name)


@dataclass(frozen=True)
class Learner:
    """A system at work: ``forward`` computes a result, and ``repeated`` one from which gradients
    may be taken again and again. ``gradient`` is that of the result.
    """

    system: str
    name: str
    forward: Forward
    repeated: Forward
    leaves: tuple[torch.Tensor, ...]
    gradient: torch.Tensor

    def both(self) -> tuple[torch.Tensor, ...]:
        """The result and the gradients of the inputs."""
        import torch

        result = self.forward()
        return (result, *torch.autograd.grad(result, self.leaves, self.gradient))

    def backward(self) -> Callable[[], object]:
        """What computes the gradients once more from what one forward call has kept."""
        import torch

        result = self.repeated()

        def call() -> object:
            return torch.autograd.grad(result, self.leaves, self.gradient, retain_graph=True)

        call()  # a compiler builds it here, as `repeated` asked it to
        return call


@dataclass(frozen=True)
class Way:
    """How a system computes forward, and how where its gradient is to be taken repeatedly."""

    name: str
    forward: Forward
    repeated: Forward | None = None


def measure_gradients(case: SuiteCase, plan: Plan) -> dict[str, Any]:
    """The case as it stands in a result file, without what every case has."""
    if any(system in COMPILED for system in plan.systems):
        forget_compiled()
    expected = _expected(case, plan.device) if plan.error else None
    learners: list[Learner] = []
    calls: dict[str, Callable[[], object]] = {}
    rows: dict[str, dict[str, Any]] = {}
    written: list[tuple[int, int]] = []
    for system in plan.systems:
        row: dict[str, Any] = {"system": system, "name": system}
        try:
            learner = make_learner(case, plan.device, system)
            if learner is None:
                continue
            row["name"] = learner.name
            result, *gradients = learner.both()
            row |= judged((result, *gradients), expected)
            written.append((fewest_bytes((result,)), fewest_bytes(gradients)))
            calls[f"{system} backward"] = learner.backward()
            calls[f"{system} both"] = learner.both
            learners.append(learner)
            del result, gradients
        except Exception as error:  # another package's failure of any kind is a result
            if system in OURS and isinstance(error, FusecError):  # and our own is a fault
                raise
            row["problem"] = first_line(error)
        rows[system] = row
    del expected
    fewest = _fewest(case, plan.device, written)
    for what, moved in fewest.items():
        calls[f"{COPY} {what}"] = copier(moved, plan.device)
    launcher.wait(_LAUNCHER_TIMEOUT)  # else a compiler runs beside what is measured
    timings = time_in_turns(
        calls, plan.device, plan.seconds, fewest_rounds=SUITE.rounds, warm_up=SUITE.warm_up
    )
    for learner in learners:
        peak = peak_bytes(learner.both, plan.device)
        rows[learner.system] |= _timed(learner.system, timings, fewest, peak)
    return {
        **_copied(timings, fewest, "both"),
        "backward": _copied(timings, fewest, "backward"),
        "checked": "all" if plan.error else None,
        "rows": [known(row) for row in rows.values()],
    }


def make_learner(case: SuiteCase, device: str, system: str) -> Learner | None:
    """A system and its inputs; None where it does not compute the operation or is not there."""
    choose_systems((system,))
    training = Training(case, device)
    way = WAYS[system](training) if system in WAYS else None
    if way is None:
        return None
    return Learner(
        system,
        way.name,
        way.forward,
        way.repeated or way.forward,
        training.leaves,
        _gradient_of(training),
    )


def compile_gradients(case: SuiteCase, device: str, system: str) -> None:
    """Compile forward and backward in a mode of ``torch.compile``, as they are measured later."""
    learner = make_learner(case, device, system)
    if learner is not None:
        learner.both()
        learner.backward()


def _gradient_of(training: Training) -> torch.Tensor:
    """A gradient of the result, the same for every system."""
    import torch

    first = training.leaves[0]
    shapes = [v.to("meta") if isinstance(v, torch.Tensor) else v for v in training.inputs]
    with torch.no_grad():
        result: Any = training.eager.function(*shapes)
    generator = torch.Generator(first.device).manual_seed(1)
    return torch.randn(result.shape, dtype=first.dtype, device=first.device, generator=generator)


# -- what it should be, and what it costs ----------------------------------------------------------


def _expected(case: SuiteCase, device: str) -> tuple[torch.Tensor, ...] | None:
    """Result and gradients of the formula in float64; None where they do not fit into memory."""
    import torch

    training = Training(case, device)
    wide = [v.detach() if isinstance(v, torch.Tensor) else v for v in training.inputs]
    values = [v.requires_grad_() if _is_float(v) else v for v in contenders.widened(wide)]
    try:
        result: Any = training.exact.function(*values)
        leaves = [v for v in values if _is_float(v)]
        gradients = torch.autograd.grad(result, leaves, _gradient_of(training).double())
    except (torch.OutOfMemoryError, MemoryError):
        return None
    return (result.detach(), *gradients)


def judged(
    found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor] | None
) -> dict[str, Any]:
    """The largest error of a result or gradient as a share of its own largest value: gradients of
    weights are sums over all rows, and would hide an error of the others.
    """
    if expected is None:
        return {}
    error = 0.0
    for one, wanted in zip(found, expected, strict=True):
        error = max(error, largest_error(one.detach(), wanted) / (largest_value(wanted) or 1.0))
    if error <= WRONG:
        return {"largest_error": error}
    return {"largest_error": error, "problem": f"off by {error:.3g} of the largest value"}


def _fewest(case: SuiteCase, device: str, written: Sequence[tuple[int, int]]) -> dict[str, int]:
    """The fewest bytes that each measure has to move.

    Backward reads the gradient of the result, which is as large as the result, and what the case
    says that it reads, and writes the gradients. Forward reads the inputs and writes the result.
    """
    training = Training(case, device)
    values = dict(zip(training.compiled.inputs, training.inputs, strict=True))
    result = min((n for n, _ in written), default=0)
    gradients = min((n for _, n in written), default=0)
    read = sum(
        result if name == "result" else fewest_bytes((values[name],))
        for name in case.operation.reads.split()
    )
    backward = read + result + gradients
    return {"backward": backward, "both": fewest_bytes(training.inputs) + result + backward}


def _timed(
    system: str, timings: Mapping[str, Timing], fewest: Mapping[str, int], peak: int | None
) -> dict[str, Any]:
    """The part of a row that is measured: ``timing`` is that of forward and backward."""

    def share(what: str) -> float:
        copied, taken = timings[f"{COPY} {what}"], timings[f"{system} {what}"]
        return 100 * copied.milliseconds / taken.milliseconds

    both, backward = timings[f"{system} both"], timings[f"{system} backward"]
    return {
        "timing": asdict(both),
        "gigabytes_per_second": fewest["both"] / both.milliseconds / 1e6,
        "percent_of_copy": share("both"),
        "backward": {"timing": asdict(backward), "percent_of_copy": share("backward")},
        "peak_bytes": peak,
    }


def _copied(timings: Mapping[str, Timing], fewest: Mapping[str, int], what: str) -> dict[str, Any]:
    copy = timings[f"{COPY} {what}"]
    return {
        "bytes": fewest[what],
        "copy": rounded(asdict(copy)),
        "copy_gigabytes_per_second": rounded(fewest[what] / copy.milliseconds / 1e6),
    }


def _is_float(value: object) -> TypeGuard[torch.Tensor]:
    import torch

    return isinstance(value, torch.Tensor) and value.is_floating_point()


# -- systems ---------------------------------------------------------------------------------------


def _eager(training: Training) -> Way:
    return Way(EAGER, lambda: training.eager.function(*training.inputs))


def _own(training: Training) -> Way | None:
    if training.own is None:
        return None
    name, text = training.own
    function = contenders.native_function(text)
    return Way(f"torch {name}", lambda: function(*training.inputs))


def _fusec(training: Training) -> Way:
    return Way(FUSEC, lambda: training.compiled(*training.inputs))


def _liger(training: Training) -> Way | None:
    if training.device == "cpu":
        return None
    call = libraries.liger(training.case.operation.name, training.inputs)
    return None if call is None else Way("liger", call)


def _compiled(name: str, mode: str) -> Callable[[Training], Way]:
    """``torch.compile`` of PyTorch's own function, whose gradient it knows best, for exactly these
    shapes; of the formula where PyTorch has none.
    """

    def make(training: Training) -> Way:
        from torch._dynamo.utils import counters

        before = counters["stats"]["unique_graphs"]
        forward = _program(training, mode)
        forward()
        if counters["stats"]["unique_graphs"] == before:
            raise RuntimeError("torch.compile ran the formula without compiling it")
        return Way(name, forward, lambda: _repeatable(training, mode, forward))

    return make


def _program(training: Training, mode: str) -> Forward:
    """A program of its own: what is compiled in one mode must not be found by the other."""
    import torch

    text = training.own[1] if training.own else training.eager.text
    function = contenders.native_function(text.replace("def formula(", "def native("))
    compiled = torch.compile(function, fullgraph=True, dynamic=False, mode=mode)
    return lambda: compiled(*training.inputs)


def _repeatable(training: Training, mode: str, forward: Forward) -> torch.Tensor:
    """A result whose gradient can be taken repeatedly. A compiled backward may write over what was
    saved for it, which has to be forbidden when it is compiled.
    """
    import torch
    import torch._functorch.config as config

    def once_more(result: torch.Tensor) -> torch.Tensor:
        torch.autograd.grad(result, training.leaves, torch.ones_like(result), retain_graph=True)
        return result

    with contextlib.suppress(RuntimeError):
        return once_more(forward())
    with config.patch(donated_buffer=False):
        return once_more(_program(training, mode)())


WAYS: dict[str, Callable[[Training], Way | None]] = {
    "eager": _eager,
    "torch": _own,
    "compile": _compiled("torch.compile", COMPILED["compile"]),
    "max-autotune": _compiled("max-autotune", COMPILED["max-autotune"]),
    "liger": _liger,
    "fusec": _fusec,
}
