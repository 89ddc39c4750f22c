"""What became of a model that ``torch.compile(backend="fusec")`` took: kernels, bytes, the rest.

Imports the standard library only.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

_LOG = logging.getLogger("fusec")
_UNITS = ("bytes", "KiB", "MiB", "GiB")


@dataclass(slots=True)
class RegionReport:
    """Operators that run as one. ``eager`` and ``fused`` are bytes read and written, for the shapes
    of the first call; ``failure`` says why PyTorch runs them after all.
    """

    name: str
    operators: int
    kernels: int
    eager: int
    fused: int
    failure: str | None = None

    @property
    def saved(self) -> int:
        """Bytes of memory traffic less than eager's."""
        return self.eager - self.fused if self.failure is None else 0


@dataclass(slots=True)
class GraphReport:
    """One graph: ``stage`` is forward, backward or inference. ``left`` counts operators that stayed
    with PyTorch, by name and reason.
    """

    stage: str
    operators: int
    regions: list[RegionReport] = field(default_factory=list)
    left: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def running(self) -> list[RegionReport]:
        """The regions that run as kernels."""
        return [r for r in self.regions if r.failure is None]

    @property
    def kernels(self) -> int:
        """Kernel launches of one run."""
        return sum(r.kernels for r in self.running)

    @property
    def fused(self) -> int:
        """PyTorch's operators that are in them."""
        return sum(r.operators for r in self.running)

    @property
    def saved(self) -> int:
        """Bytes of memory traffic less than eager's."""
        return sum(r.saved for r in self.running)

    def __str__(self) -> str:
        lines = [f"{self.stage}: {_numbers(self)}"]
        same = Counter((r.name, r.operators, r.kernels, r.saved, r.failure) for r in self.regions)
        for (name, operators, kernels, saved, failure), count in same.items():
            times = f"{count} x " if count > 1 else ""
            what = f"{operators} operators in {kernels} kernels, {_bytes(saved)} saved"
            what = what if failure is None else f"stays with PyTorch: {failure}"
            lines.append(f"  {times}{name}: {what}")
        lines += [f"  left: {n} x {name}: {why}" for (name, why), n in self.left.most_common()]
        return "\n".join(lines)


@dataclass(slots=True)
class Report:
    """One graph that Dynamo gave to fusec, as its forward and backward graphs.

    ``str()`` says how many kernels run, how many of PyTorch's operators are in them, how many bytes
    of memory traffic they save against eager, counted from shapes, and what was left, and why.
    """

    graphs: list[GraphReport] = field(default_factory=list)

    @property
    def kernels(self) -> int:
        """Kernel launches of one run of every graph."""
        return sum(g.kernels for g in self.graphs)

    @property
    def operators(self) -> int:
        """PyTorch's operators, views not counted."""
        return sum(g.operators for g in self.graphs)

    @property
    def fused(self) -> int:
        """Operators that run in kernels of fusec."""
        return sum(g.fused for g in self.graphs)

    @property
    def saved(self) -> int:
        """Bytes of memory traffic less than eager's, for the shapes of the first call."""
        return sum(g.saved for g in self.graphs)

    def __str__(self) -> str:
        if not self.graphs:
            return "fusec: no model has been compiled"
        return "\n".join([f"fusec: {_numbers(self)}", *map(str, self.graphs)])


_LAST = [Report()]


def last_report() -> Report:
    """The report of the graph that ``torch.compile(backend="fusec")`` compiled last; an empty one
    before. A backward graph is in it once PyTorch has compiled it.
    """
    return _LAST[-1]


def begin() -> Report:
    """A new report, which is the last one from now on."""
    _LAST[:] = [Report()]
    return _LAST[-1]


def finish(report: Report, graph: GraphReport) -> None:
    """Add a graph to a report, and log it."""
    report.graphs.append(graph)
    _LOG.info("%s", graph)


def fail(region: RegionReport, reason: str) -> None:
    """Note, and warn in the log, that a region runs in PyTorch after all."""
    region.failure = reason
    _LOG.warning("%s stays with PyTorch: %s", region.name, reason)


def _numbers(of: GraphReport | Report) -> str:
    saved = _bytes(of.saved)
    return f"{of.kernels} kernels for {of.fused} of {of.operators} operators, {saved} saved"


def _bytes(count: int) -> str:
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.4g} {_UNITS[unit]}"
