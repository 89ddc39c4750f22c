"""The tuner: times the Configs around the one that the rules chose, and remembers the quickest.

It measures on tensors of its own, with the protocol of ``runtime.timing``. What it finds is kept in
the cache, for this kind of arguments on this kind of device, and later processes take it from
there. May import every layer below and ``runtime.steps``.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from fusec.codegen.candidates import around
from fusec.codegen.kernel import Config
from fusec.errors import FusecError
from fusec.runtime.cache import checkout, default_store, digest
from fusec.runtime.prepared import BufferPlan, Prepared
from fusec.runtime.specialize import Argument, LaidOut, Specialization, form_of
from fusec.runtime.steps import Wiring, steps_of
from fusec.runtime.timing import time_in_turns

if TYPE_CHECKING:
    import torch

Wire = Callable[[Sequence[LaidOut]], tuple[Wiring, Sequence[BufferPlan]]]
Show = Callable[[str, float], None]

BUILDING = 0.6  # the share of the time in which candidates are still built
WORTH = 0.98  # a candidate has to take less than this share of the time that the rules' choice does
_FILE = "config.json"


def tuned(
    special: Specialization,
    laid: Sequence[LaidOut],
    wire: Wire,
    arguments: Sequence[Argument],
    outputs: Sequence[BufferPlan],
    device: torch.device,
) -> list[LaidOut]:
    """The regions with the quickest Configs found in ``special.formula.tune`` seconds altogether.

    ``wire`` gives the wiring and the temporaries of a list of regions.
    """
    chosen = list(laid)
    places = [_key(special, position, region, device) for position, region in enumerate(laid)]
    unknown = [k for k, place in enumerate(places) if _recall(place) is None]
    with _progress(bool(unknown)) as show:
        for position, place in enumerate(places):
            config = _recall(place)
            if config is None:
                seconds = special.formula.tune / len(unknown)
                trial = _Trial(special, chosen, position, wire, arguments, outputs, device)
                config = _search(trial, seconds, show)
                default_store().put(place, {_FILE: json.dumps(asdict(config)).encode()})
            chosen[position] = replace(laid[position], config=config)
    return chosen


class _Trial:
    """One region, to be run with one Config after the other."""

    def __init__(
        self,
        special: Specialization,
        laid: Sequence[LaidOut],
        position: int,
        wire: Wire,
        arguments: Sequence[Argument],
        outputs: Sequence[BufferPlan],
        device: torch.device,
    ) -> None:
        # What is only tried belongs neither to the variants of the function nor to its kernels.
        self.special = replace(special, built={}, variants=[], binaries={}, recalled={})
        self.laid, self.position, self.wire, self.device = list(laid), position, wire, device
        self.values = [_stand_in(argument, device) for argument in arguments]
        self.outputs = [_empty(plan, device) for plan in outputs]

    @property
    def backend(self) -> str:
        return "cpp" if self.device.type == "cpu" else "triton"

    @property
    def region(self) -> LaidOut:
        return self.laid[self.position]

    def call(self, config: Config) -> Callable[[], object]:
        """Builds the kernels; a function that launches them once. Raises FusecError."""
        trial = replace(self.region, config=config)
        wiring, spare = self.wire(
            [*self.laid[: self.position], trial, *self.laid[self.position + 1 :]]
        )
        steps = steps_of(replace(wiring, special=self.special), self.position, trial)
        prepared = Prepared(self.special, self.device, None, (), (), tuple(steps))
        temporaries = [_empty(plan, self.device) for plan in spare]
        return lambda: prepared.run(self.values, self.outputs, temporaries)


def _search(trial: _Trial, seconds: float, show: Show) -> Config:
    """The quickest Config that can be found in about ``seconds``."""
    started = time.perf_counter()
    rules = trial.region.config
    calls = {rules: trial.call(rules)}
    arrangement = trial.region.arrangement
    form, lone = form_of(trial.region.region, arrangement), not arrangement.layout.rows
    for config in around(rules, form, trial.backend, lone):
        spent = (time.perf_counter() - started) / max(seconds, 1e-9)
        if spent > BUILDING:
            break
        show(f"{trial.region.region.name}: {len(calls)} built", spent)
        with contextlib.suppress(FusecError):  # a Config that this device cannot run
            calls[config] = trial.call(config)
    named = {str(number): call for number, call in enumerate(calls.values())}
    left = max(0.0, seconds - (time.perf_counter() - started))
    times = time_in_turns(
        named,
        trial.device,
        left,
        lambda part: show(f"{trial.region.region.name}: timing", BUILDING + (1 - BUILDING) * part),
    )
    best = min(named, key=lambda name: times[name].milliseconds)
    if times[best].milliseconds > WORTH * times["0"].milliseconds:
        return rules
    return list(calls)[int(best)]


def _key(special: Specialization, position: int, laid: LaidOut, device: torch.device) -> str:
    """Where a choice is kept: all that decides it, sizes as the powers of two that hold them."""
    import torch

    from fusec.runtime.record import device_name

    arrangement = laid.arrangement
    sizes = [n.bit_length() for n in (*arrangement.row_sizes, *arrangement.col_sizes)]
    return digest(
        {
            "kind": "tuned",
            **special.formula.identity(),
            "types": repr([(s.name, s.dtype.name, len(s.shape)) for s in special.specs]),
            "region": f"{position} {laid.region.name}",
            "layout": repr(arrangement.layout),
            "sizes": repr(sizes),
            "rules": repr(laid.config),
            "device": device_name(str(device)),
            "torch": torch.__version__,
            **checkout(),
        }
    )


def _recall(place: str) -> Config | None:
    entry = default_store().get(place)
    if entry is None:
        return None
    try:
        found: dict[str, Any] = json.loads(entry.files[_FILE])
        # JSON has no tuples, and a Config with lists is no key.
        tuples = {k: tuple(v) for k, v in found.items() if isinstance(v, list)}
        return Config(**{**found, **tuples})
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def _stand_in(argument: Argument, device: torch.device) -> Any:
    """A value like an argument: random floats, and zeros for integers, which may be positions."""
    import torch

    if argument.scalar:
        return True if argument.dtype.is_bool else 1.0 if argument.dtype.is_float else 1
    kind = getattr(torch, argument.dtype.torch)
    made = torch.empty_strided(argument.shape, argument.strides, dtype=kind, device=device)
    if argument.dtype.is_float and argument.dtype.bits > 8:
        return made.normal_()
    return made.zero_()


def _empty(plan: BufferPlan, device: torch.device) -> torch.Tensor:
    import torch

    kind = getattr(torch, plan.dtype)
    return torch.empty_strided(plan.shape, plan.strides, dtype=kind, device=device)


@contextlib.contextmanager
def _progress(wanted: bool) -> Iterator[Show]:
    """Shows on a terminal how far the search is; elsewhere says nothing."""
    if not wanted or not sys.stderr.isatty():
        yield lambda what, fraction: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("tuning", total=1.0)
        yield lambda what, part: bar.update(task, description=f"tuning {what}", completed=part)
