"""What a suite is made of: an operation, the lengths it is measured at, and one case of that.

May import the standard library only, so that listing and selecting load nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

_LENGTH = re.compile(r"[A-Z]")


@dataclass(frozen=True)
class Operation:
    """A formula and its inputs, in lengths that a suite fills in: ``x=RxC w=C t=R:i64``.

    An input without a type has that of the case; ``:same:transposed`` names a layout as well. The
    results are independent along axis ``part``, so that a part of it is enough to find the error.
    ``after`` is the formula that the process has computed before, when first calls are measured.
    ``reads`` is what the gradient cannot do without beside the gradient of the result: names of
    inputs, or ``result``. ``depth`` is the number of layers of a model.
    """

    name: str
    formula: str
    inputs: str
    part: int = 0
    after: str = ""
    reads: str = ""
    depth: int = 0

    def filled(self, lengths: Mapping[str, int | str], dtype: str) -> tuple[str, ...]:
        """The inputs as ``fusec bench -i`` takes them."""
        return tuple(_filled(text, lengths, dtype) for text in self.inputs.split())


@dataclass(frozen=True)
class SuiteCase:
    """One operation at one type and shape. ``shape`` is that of the first input, a tensor."""

    suite: str
    operation: Operation
    dtype: str
    shape: tuple[int, ...]
    inputs: tuple[str, ...]

    @property
    def name(self) -> str:
        """``softmax/bf16/32768x4096``: unique in its suite, and what ``--only`` searches."""
        return f"{self.operation.name}/{self.dtype}/{'x'.join(map(str, self.shape))}"

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def rows(self) -> int:
        return self.elements // self.columns


class Measure(Enum):
    """What of a case is measured."""

    TIME = "device time beside a copy, for many cases"
    HOST = "the caller's time"
    COLD = "first calls in fresh processes"
    THOROUGH = "device and host time, kernels, first calls"
    GRADIENTS = "backward, forward and backward together, and the memory that takes"
    MODELS = "a step of training, its memory, and first steps"
    WAYS = "device time, kernels, bytes and lines of source of each way to write a formula"


@dataclass(frozen=True)
class Plan:
    """How the cases of a run are measured. ``first_calls`` counts where all is measured."""

    device: str
    systems: tuple[str, ...]
    seconds: float
    measure: Measure = Measure.TIME
    error: bool = True
    first_calls: bool = False


@dataclass(frozen=True)
class Suite:
    """A declared list of cases, the most telling first.

    ``systems`` take part unless others are asked for. On the devices of ``fresh`` each case gets a
    process of its own: on a CPU, what an earlier case left in the heap decides whether a result
    gets memory that is mapped already. ``device`` is the only one it is for; ``on_cpu`` says
    what a suite leaves out where there is no GPU.
    """

    name: str
    doc: str
    cases: Callable[[str], Sequence[SuiteCase]]  # for a device, cpu or cuda
    systems: tuple[str, ...]
    measure: Measure = Measure.TIME
    fresh: tuple[str, ...] = ()
    device: str | None = None
    on_cpu: str = ""


def make_case(
    suite: str, operation: Operation, dtype: str, lengths: Mapping[str, int | str]
) -> SuiteCase:
    """The operation with its lengths filled in."""
    inputs = operation.filled(lengths, dtype)
    extents = inputs[0].partition("=")[2].partition(":")[0]
    shape = tuple(int(extent) for extent in extents.split("x"))
    return SuiteCase(suite, operation, dtype, shape, inputs)


def _filled(text: str, lengths: Mapping[str, int | str], dtype: str) -> str:
    name, _, value = text.partition("=")
    if "." in value:
        return text  # a Python number
    shape, _, kind = value.partition(":")
    extents = _LENGTH.sub(lambda letter: str(lengths[letter[0]]), shape)
    kind, colon, layout = kind.partition(":")
    kind = dtype if kind in ("", "same") else kind
    return f"{name}={extents}:{kind}{colon}{layout}"
