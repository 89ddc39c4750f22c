"""Measures a model in training: a step forward and backward, its memory, and the first steps.

A step's time is what many in a row take, caller and device together, as a training loop meets it.
May import everything below cli, and cli; torch inside functions.
"""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from fusec.cli.suites.case import Plan, SuiteCase
from fusec.cli.suites.facts import first_line, known, rounded
from fusec.cli.suites.gradients import judged
from fusec.cli.suites.transformers import KINDS, Transformer, compiled, together
from fusec.runtime import launcher
from fusec.runtime.bench import SUITE
from fusec.runtime.peak import peak_bytes
from fusec.runtime.timing import first_call, steps_in_turns

if TYPE_CHECKING:
    import torch

# What torch.compile is called with; None for a model as it is.
BACKENDS: Mapping[str, str | None] = {"eager": None, "compile": "inductor", "fusec": "fusec"}
_NAMES = {"compile": "torch.compile"}
_STEPS = 10  # in a row
_LAUNCHER_TIMEOUT = 60.0  # seconds

Step = Callable[[], "tuple[torch.Tensor, ...]"]  # to the result and the gradients of parameters


@dataclass(frozen=True)
class Network:
    """As many layers of ``gelu(linear(x))`` as ``depth`` says, ``width`` wide, and a batch."""

    depth: int
    width: int
    batch: int
    dtype: str
    device: str

    @classmethod
    def of(cls, case: SuiteCase, device: str) -> Network:
        """That of a case."""
        batch, width = case.shape
        return cls(case.operation.depth, width, batch, case.dtype, device)

    def other(self) -> Network:
        """A deeper and narrower one, with a smaller batch."""
        return replace(self, depth=self.depth + 2, width=self.width // 2, batch=self.batch // 2)

    def step(self, system: str, wide: bool = False) -> Step:
        """A step of training; the same numbers in every system. ``wide``: in float64."""
        import torch

        dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[self.dtype]
        generator = torch.Generator().manual_seed(0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers = [torch.nn.Linear(self.width, self.width) for _ in range(self.depth)]
        model = _network(layers).to(dtype)
        x, gradient = (
            torch.randn(self.batch, self.width, generator=generator).to(dtype) for _ in range(2)
        )
        if wide:
            model, x, gradient = copy.deepcopy(model).double(), x.double(), gradient.double()
        model, x, gradient = model.to(self.device), x.to(self.device), gradient.to(self.device)
        call = compiled(model, BACKENDS[system])
        parameters = list(model.parameters())

        def step() -> tuple[torch.Tensor, ...]:
            for parameter in parameters:
                parameter.grad = None
            result = call(x)
            result.backward(gradient)
            return (result.detach(), *(p.grad for p in parameters if p.grad is not None))

        return step


def _network(layers: list[Any]) -> Any:
    """The layers one after the other, with a gelu behind each."""
    import torch

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(layers)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = torch.nn.functional.gelu(layer(x))
            return x

    return Layers()


def measure_model(case: SuiteCase, plan: Plan) -> dict[str, Any]:
    """The case as it stands in a result file, without what every case has."""
    known_model = case.operation.name in KINDS
    make = _steps_of(case, plan.device)
    alike: Callable[[Any], Any] = together if known_model else tuple
    expected = alike(make("eager", True)()) if plan.error else None
    rows: dict[str, dict[str, Any]] = {}
    steps: dict[str, Step] = {}
    for system in plan.systems:
        row: dict[str, Any] = {"system": system, "name": _NAMES.get(system, system)}
        rows[system] = row
        try:
            step = make(system, False)
            row |= judged(alike(step()), expected)
        except Exception as error:  # another package's failure of any kind is a result
            if system == "fusec":  # and our own is a fault
                raise
            row["problem"] = first_line(error)
            continue
        steps[system] = step
    launcher.wait(_LAUNCHER_TIMEOUT)  # else a compiler runs beside what is measured
    timings = steps_in_turns(
        steps, plan.device, plan.seconds, in_a_row=_STEPS, fewest_rounds=SUITE.rounds
    )
    for system, step in steps.items():
        rows[system] |= {
            "timing": asdict(timings[system]),
            "peak_bytes": peak_bytes(step, plan.device),
        }
        if BACKENDS[system] is not None and not known_model:
            rows[system] |= _first_steps(case, plan.device, system)
    return {"checked": "all" if plan.error else None, "rows": [known(r) for r in rows.values()]}


def _steps_of(case: SuiteCase, device: str) -> Callable[[str, bool], Step]:
    """What gives the step of a system, in float64 if asked."""
    if case.operation.name in KINDS:
        model = Transformer.of(case, device)
        return lambda system, wide: model.step(BACKENDS[system], wide)
    return Network.of(case, device).step


def _first_steps(case: SuiteCase, device: str, system: str) -> dict[str, Any]:
    """The first step of a process, of another after it with warm caches, and of a second model in a
    process whose first was another: seconds.
    """
    network = Network.of(case, device)
    make = _made(network, system)
    try:
        first = first_call(make, "step()")
        prepare = f"{_made(network.other(), system)}\nstep()\n{make}"
        following = first_call(prepare, "step()", again=False)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        return {"problem": first_line(error)}
    return {
        "first_call_seconds": rounded(first.cold),
        "warm_call_seconds": rounded(first.warm),
        "next_call_seconds": rounded(following.cold),
    }


def _made(network: Network, system: str) -> str:
    """Python that makes ``step``."""
    lines = ["from fusec.cli.suites.models import Network", f"step = {network!r}.step({system!r})"]
    return "\n".join(lines)
