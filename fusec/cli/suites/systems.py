"""Who takes part in a suite: fusec and its competitors, each made for one case.

A maker returns a Contender or, where the system does not compute the formula or is not installed,
None. May import everything below cli, and cli; torch and the competitors inside functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fusec.cli import contenders
from fusec.cli.contenders import COMPILE, EAGER, FUSEC, FUSEC_OUT
from fusec.cli.options import InputOption, Value, complete, parse_inputs
from fusec.cli.suites import libraries
from fusec.cli.suites.case import Operation, SuiteCase, make_case
from fusec.errors import UnknownNameError, did_you_mean
from fusec.runtime.bench import Contender
from fusec.runtime.eager import TorchProgram
from fusec.source import Source

if TYPE_CHECKING:
    import torch

    from fusec.api import CompiledFunction

PRINTED = {"fusec-cuda": "cuda", "fusec-triton": "triton", "fusec-cpp": "cpp"}  # with the backend
OURS = ("fusec", "fusec-out", "bind", "bind-out", "graph", *PRINTED)
COMPILED = {"compile": "default", "max-autotune": "max-autotune-no-cudagraphs"}
_CHECKED = 1 << 22  # elements of the largest part that is compared with float64
# Lengths at which PyTorch's own function for an operation is looked for: all different, none 1.
_PROBE = {"N": 96, "R": 20, "C": 48, "B": 3, "K": 5, "H": 4}


@dataclass(frozen=True)
class Setting:
    """One case on one device: its inputs, made once, and its formula as PyTorch code.

    ``host``: a CPU's host time is that of the case itself, and not of small inputs.
    """

    case: SuiteCase
    device: str
    host: bool = False

    @cached_property
    def source(self) -> Source:
        return Source(self.case.operation.formula)

    @cached_property
    def compiled(self) -> CompiledFunction:
        from fusec import api

        return api.compile(self.source.text)

    def printed(self, backend: str) -> CompiledFunction:
        """The formula for one backend."""
        from fusec import api

        return api.compile(self.source.text, name=self.case.operation.name, backend=backend)

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
        if self.device != "cpu" or self.host:
            return self.prepared(name, lambda: function(*inputs))
        few = self.few
        return Contender(name, lambda: function(*inputs), lambda: function(*few))

    def prepared(self, name: str, call: Callable[[], object]) -> Contender:
        """A contender whose call has its inputs."""
        return Contender(name, call, call if self.host else None)


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


def _printed(backend: str, name: str) -> Maker:
    """fusec in one of the languages it prints, where tensors of the device can run it."""

    def make(setting: Setting) -> Contender | None:
        if (backend == "cpp") != (setting.device == "cpu"):
            return None  # on CPU tensors the others are emulated
        return setting.contender(name, setting.printed(backend))

    return make


def _fusec_out(setting: Setting) -> Contender | None:
    if setting.device != "cpu":
        return None
    return contenders.into_given_memory(setting.compiled, setting.inputs)


def _bind(setting: Setting) -> Contender:
    return setting.contender("fusec bind", setting.compiled.bind(*setting.inputs))


def _bind_out(setting: Setting) -> Contender:
    """Inputs and results bound, as a CUDA graph binds them."""
    made = setting.compiled(*setting.inputs)
    return setting.contender("fusec bind out", setting.compiled.bind(*setting.inputs, out=made))


def _graph(setting: Setting) -> Contender | None:
    """fusec's kernels, captured in a CUDA graph: what a launch costs without anybody's Python."""
    if setting.device == "cpu":
        return None
    import torch

    setting.compiled(*setting.inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = setting.compiled(*setting.inputs)

    def call() -> object:
        graph.replay()
        return result

    return setting.prepared("CUDA graph", call)


def _compiled(name: str, mode: str) -> Maker:
    """``torch.compile`` for exactly these shapes; RuntimeError where it did not compile."""

    def make(setting: Setting) -> Contender:
        import torch
        from torch._dynamo.utils import counters

        # A program of its own: what is compiled in one mode must not be found by the other.
        program = contenders.torch_program_for(setting.source, setting.options)
        compiled = torch.compile(program.function, fullgraph=True, dynamic=False, mode=mode)
        before = counters["stats"]["unique_graphs"]
        compiled(*setting.inputs)
        if counters["stats"]["unique_graphs"] == before:
            raise RuntimeError("torch.compile ran the formula without compiling it")
        return setting.contender(name, compiled)

    return make


def forget_compiled() -> None:
    """Start every case with an empty torch.compile, so that no limit of recompilations is near."""
    import torch._dynamo

    torch._dynamo.reset()
    for limit in ("recompile_limit", "cache_size_limit"):  # its name in newer and older versions
        if hasattr(torch._dynamo.config, limit):
            setattr(torch._dynamo.config, limit, 1024)


def _triton(setting: Setting) -> Contender | None:
    if setting.device == "cpu" or not libraries.installed("triton"):
        return None
    from fusec.cli.suites.triton_kernels import KERNELS, takes

    operation = setting.case.operation.name
    if not takes(operation, setting.case.columns):
        return None
    return setting.contender("triton", KERNELS[operation])


def _liger(setting: Setting) -> Contender | None:
    if setting.device == "cpu":
        return None
    call = libraries.liger(setting.case.operation.name, setting.inputs)
    return None if call is None else setting.prepared("liger", call)


def _quack(setting: Setting) -> Contender | None:
    if setting.device == "cpu":
        return None
    call = libraries.quack(setting.case.operation.name, setting.inputs)
    return None if call is None else setting.prepared("quack", call)


def _numexpr(setting: Setting) -> Contender | None:
    if setting.device != "cpu":
        return None
    names = setting.compiled.inputs
    call = libraries.numexpr(setting.case.operation.name, names, setting.inputs)
    return None if call is None else Contender("numexpr", call, as_torch=_from_numpy)


def _jax(setting: Setting) -> Contender | None:
    if setting.device != "cpu":
        return None
    call = libraries.jax(setting.case.operation.name, setting.inputs)
    return None if call is None else Contender("jax", call, as_torch=_from_jax)


SYSTEMS: dict[str, Maker] = {
    "eager": _eager,
    "torch": _own,
    "compile": _compiled("torch.compile", COMPILED["compile"]),
    "max-autotune": _compiled("max-autotune", COMPILED["max-autotune"]),
    "triton": _triton,
    "liger": _liger,
    "quack": _quack,
    "numexpr": _numexpr,
    "jax": _jax,
    "graph": _graph,
    "fusec": _fusec,
    "fusec-out": _fusec_out,
    "bind": _bind,
    "bind-out": _bind_out,
    "fusec-cuda": _printed("cuda", "fusec, CUDA C++"),
    "fusec-triton": _printed("triton", "fusec, Triton"),
    "fusec-cpp": _printed("cpp", "fusec, C++"),
}
# The systems behind the names of `fusec bench`, whose own function of PyTorch is called by name.
NAMES = {EAGER: "eager", COMPILE: "compile", FUSEC: "fusec", FUSEC_OUT: "fusec-out"}


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


def _from_numpy(outputs: object) -> object:
    import torch

    return torch.from_numpy(outputs)


def _from_jax(outputs: Any) -> object:
    """Results of JAX as tensors."""
    import torch

    if isinstance(outputs, tuple | list):
        return tuple(_from_jax(output) for output in outputs)
    return torch.utils.dlpack.from_dlpack(outputs)
