"""Who takes part in a suite: fusec and its competitors, each made for one case.

A maker returns a Contender or, where the system does not compute the formula or is not installed,
None. May import everything below cli, and cli; torch and the competitors inside functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from fusec.cli import contenders
from fusec.cli.contenders import EAGER, FUSEC
from fusec.cli.options import InputOption, Value, complete, parse_inputs
from fusec.cli.suites.case import Operation, SuiteCase, make_case
from fusec.errors import UnknownNameError, did_you_mean
from fusec.runtime.bench import Contender
from fusec.runtime.eager import TorchProgram
from fusec.source import Source

if TYPE_CHECKING:
    import torch

    from fusec.api import CompiledFunction

_CHECKED = 1 << 22  # elements of the largest part that is compared with float64
# Lengths at which PyTorch's own function for an operation is looked for: all different, none 1.
_PROBE = {"N": 96, "R": 20, "C": 48, "B": 3, "K": 5, "H": 4}


@dataclass(frozen=True)
class Setting:
    """One case on one device: its inputs, made once, and its formula as PyTorch code."""

    case: SuiteCase
    device: str

    @cached_property
    def source(self) -> Source:
        return Source(self.case.operation.formula)

    @cached_property
    def compiled(self) -> CompiledFunction:
        from fusec import api

        return api.compile(self.source.text)

    @cached_property
    def options(self) -> list[InputOption]:
        return complete(parse_inputs(self.case.inputs), self.compiled.inputs)

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        return contenders.make_values(contenders.input_texts(self.options, self.device))

    @cached_property
    def few(self) -> tuple[Value, ...]:
        """Inputs so small that a CPU spends its time on the way to them."""
        small = contenders.small_inputs(self.options)
        return contenders.make_values(contenders.input_texts(small, self.device))

    @cached_property
    def eager(self) -> TorchProgram:
        return contenders.torch_program_for(self.source, self.options)

    @cached_property
    def exact(self) -> TorchProgram:
        wide = [contenders.wide(option) for option in self.options]
        return contenders.torch_program_for(self.source, wide)

    @cached_property
    def native(self) -> tuple[str, str] | None:
        """Short name and text of PyTorch's own function for the formula."""
        return _native(self.case.operation, self.case.dtype, self.device)

    # -- the error: in a part of the results, where all of them would take long -------------------

    @cached_property
    def checked(self) -> int:
        """How far along the independent axis results are compared."""
        length = self.case.shape[self.case.operation.part]
        return max(1, min(length, _CHECKED * length // self.case.elements))

    def reference(self) -> object:
        """The formula in float64, for the part that is compared."""
        inputs = tuple(self._narrowed(value) for value in self.inputs)
        return self.exact.function(*contenders.widened(inputs))

    def part(self, outputs: object) -> object:
        """What the reference computes, of a contender's results."""
        if isinstance(outputs, tuple | list):
            return tuple(self.part(output) for output in outputs)
        if self.checked == self.case.shape[self.case.operation.part]:
            return outputs
        return _cut(outputs, self.case.operation.part, self.checked)

    def said(self) -> str:
        """Which part that is, for the result file."""
        length = self.case.shape[self.case.operation.part]
        if self.checked == length:
            return "all"
        axis = "rows" if self.case.operation.part == 0 and len(self.case.shape) > 1 else "elements"
        axis = "columns" if self.case.operation.part else axis
        return f"the first {self.checked} of {length} {axis}"

    def _narrowed(self, value: Value) -> Value:
        """The part of an input that the part of the results needs."""
        axis, shape = self.case.operation.part, self.case.shape
        if isinstance(value, int | float | bool):
            return value
        # An index tensor has no last axis; every other input is aligned at the right.
        place = axis if axis < 0 else axis - len(shape) + (0 if value.is_floating_point() else 1)
        if value.dim() < -place or value.shape[place] != shape[axis]:
            return value
        return value.narrow(place, 0, self.checked)

    # -- contenders -------------------------------------------------------------------------------

    def contender(self, name: str, function: Callable[..., object]) -> Contender:
        """A contender that calls ``function`` on the inputs."""
        inputs = self.inputs
        if self.device != "cpu":
            return Contender(name, lambda: function(*inputs))
        few = self.few
        return Contender(name, lambda: function(*inputs), lambda: function(*few))


@functools.cache  # to find one takes longer than to time it
def _native(operation: Operation, dtype: str, device: str) -> tuple[str, str] | None:
    probe = Setting(make_case("probe", operation, dtype, _PROBE), device)
    return contenders.native_call(probe.exact, probe.eager, probe.inputs, probe.few)


Maker = Callable[[Setting], "Contender | None"]


def _eager(setting: Setting) -> Contender:
    return setting.contender(EAGER, setting.eager.function)


def _own(setting: Setting) -> Contender | None:
    if setting.native is None:
        return None
    name, text = setting.native
    return setting.contender(f"torch {name}", contenders.native_function(text))


def _fusec(setting: Setting) -> Contender:
    return setting.contender(FUSEC, setting.compiled)


def _fusec_out(setting: Setting) -> Contender | None:
    if setting.device != "cpu":
        return None
    return contenders.into_given_memory(setting.compiled, setting.inputs)


SYSTEMS: dict[str, Maker] = {
    "eager": _eager,
    "torch": _own,
    "fusec": _fusec,
    "fusec-out": _fusec_out,
}


def choose_systems(names: Sequence[str]) -> tuple[str, ...]:
    """The systems of ``--contenders``; ``copy`` always takes part. UnknownNameError for others."""
    for name in names:
        if name not in SYSTEMS and name != "copy":
            known = [*SYSTEMS, "copy"]
            raise UnknownNameError(
                f"--contenders has no '{name}' (there are {', '.join(known)})",
                hint=did_you_mean(name, known),
            )
    return tuple(name for name in names if name != "copy")


def _cut(output: object, axis: int, length: int) -> torch.Tensor:
    import torch

    assert isinstance(output, torch.Tensor)
    return output.narrow(axis, 0, length)
