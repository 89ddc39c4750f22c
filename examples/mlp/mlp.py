"""Trains a network of linear layers whose activation is a formula, given on the command line.

The same network, from the same weights and on the same data, with the activation in eager PyTorch,
under ``torch.compile`` and from fusec: a table of losses and times, and a plot of both.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import fusec
from fusec.cli.contenders import torch_program_for
from fusec.cli.options import InputOption
from fusec.source import Source

FEATURES = 32  # of a sample


@dataclass(frozen=True)
class Run:
    """One training: the loss before each step, and how long each step took, in milliseconds."""

    name: str
    losses: list[float]
    milliseconds: list[float]

    @property
    def step(self) -> float:
        """The median step in milliseconds; the first half may still compile."""
        return statistics.median(self.milliseconds[len(self.milliseconds) // 2 :])


class Eager(nn.Module):
    """The formula as PyTorch runs it without fusec: one call per operation."""

    def __init__(self, formula: str, inputs: Sequence[str]) -> None:
        super().__init__()
        self.inputs = inputs
        for name in inputs[1:]:
            self.register_parameter(name, nn.Parameter(torch.ones(())))
        shapes = ((2, 2), *[()] * len(inputs[1:]))
        options = [InputOption(name, shape) for name, shape in zip(inputs, shapes, strict=True)]
        self.function = torch_program_for(Source(formula), options).function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The activation of ``x``."""
        return self.function(x, *(getattr(self, name) for name in self.inputs[1:]))


def network(activation: Callable[[], nn.Module], depth: int, width: int) -> nn.Sequential:
    """``depth`` linear layers, each but the last with an activation behind it."""
    layers: list[nn.Module] = [nn.Linear(FEATURES, width), activation()]
    for _ in range(depth - 2):
        layers += [nn.Linear(width, width), activation()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def train(name: str, model: nn.Module, data: tuple[torch.Tensor, torch.Tensor], steps: int) -> Run:
    """Adam on all of the data, ``steps`` times."""
    inputs, wanted = data
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    run = Run(name, [], [])
    print(f"{name}: {steps} steps", file=sys.stderr)
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        run.losses.append(loss.item())  # waits for the device
        run.milliseconds.append((time.perf_counter() - start) * 1000)
    return run


def teacher(samples: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Points, and a smooth function of them to learn."""
    points = torch.randn(samples, FEATURES)
    direction = torch.randn(FEATURES, 1) / FEATURES**0.5
    return points.to(device), torch.sin(3 * points @ direction).to(device)


def compare(choices: argparse.Namespace) -> list[Run]:
    """Trains the network once for each who computes the activation."""
    torch.manual_seed(0)
    inputs = fusec.compile(choices.formula).inputs
    learnt = dict.fromkeys(inputs[1:], 1.0)
    data = teacher(choices.batch, choices.device)

    def fresh(activation: Callable[[], nn.Module]) -> nn.Module:
        torch.manual_seed(1)
        return network(activation, choices.depth, choices.width).to(choices.device)

    def eager() -> nn.Module:
        return Eager(choices.formula, inputs)

    models = {"eager": fresh(eager)}
    if not choices.no_compile:
        models["torch.compile"] = torch.compile(fresh(eager))
    models["fusec"] = fresh(lambda: fusec.nn.Formula(choices.formula, learnt))
    return [train(name, model, data, choices.steps) for name, model in models.items()]


def show(runs: Sequence[Run], title: str) -> None:
    """A table of losses and times."""
    table = Table(title=title)
    for column in ("", "first step, ms", "step, ms", "loss at first", "loss at last"):
        table.add_column(column, justify="right" if column else "left")
    for run in runs:
        first, step = f"{run.milliseconds[0]:.1f}", f"{run.step:.2f}"
        table.add_row(run.name, first, step, f"{run.losses[0]:.6f}", f"{run.losses[-1]:.6f}")
    Console().print(table)


def plot(runs: Sequence[Run], title: str, path: Path) -> None:
    """Loss and time of every step, beside each other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2)
    for run in runs:
        left.plot(run.losses, label=run.name)
        right.plot(run.milliseconds, label=f"{run.name}, {run.step:.2f} ms")
    left.set(xlabel="step", ylabel="loss", yscale="log")
    right.set(xlabel="step", ylabel="milliseconds", yscale="log")
    left.legend()
    right.legend()
    figure.savefig(path)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The choices on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("formula", help="of x; other names are parameters that are learnt from 1")
    parser.add_argument("--depth", type=int, default=4, help="linear layers, at least 2")
    parser.add_argument("--width", type=int, help="1024, and 256 on a CPU")
    parser.add_argument("--batch", type=int, help="samples, all in each step; 8192, and 1024")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--plot", type=Path, help="a picture of losses and times, such as mlp.png")
    choices = parser.parse_args(arguments)
    if choices.depth < 2 or choices.steps < 1:
        parser.error("--depth is at least 2, --steps at least 1")
    if choices.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")
    on_cpu = choices.device == "cpu"
    choices.width = choices.width or (256 if on_cpu else 1024)
    choices.batch = choices.batch or (1024 if on_cpu else 8192)
    return choices


def main(arguments: Sequence[str] | None = None) -> list[Run]:
    """Train, print, and plot if asked for."""
    choices = parse(arguments)
    runs = compare(choices)
    title = f"{choices.formula}, {choices.depth} layers of {choices.width}, on {choices.device}"
    show(runs, title)
    if choices.plot:
        plot(runs, title, choices.plot)
    return runs


if __name__ == "__main__":
    main()
