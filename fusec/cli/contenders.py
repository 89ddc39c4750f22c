"""Who computes a formula: eager, PyTorch's own, ``torch.compile`` and fusec, on the same inputs.

May import everything below cli; torch inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fusec.cli.options import LAYOUTS, InputOption, Value
from fusec.ir.dtypes import BOOL, F64, I64, DType, by_torch_name
from fusec.ir.graph import InputSpec
from fusec.ir.node import Dim
from fusec.runtime.bench import Contender
from fusec.runtime.eager import TorchProgram, torch_program
from fusec.source import Source

if TYPE_CHECKING:
    from fusec.api import CompiledFunction

EAGER, COMPILE, FUSEC, FUSEC_OUT = "eager", "torch.compile", "fusec", "fusec out="
_HOST_EXTENT = 32  # longest axis of the inputs on which a CPU's host time is measured
_LARGEST_INTEGER = 100  # inputs of integers are below this, and below every row's length


@dataclass(frozen=True)
class Case:
    """A formula on given inputs, and every way of computing it that takes part."""

    source: Source
    options: tuple[InputOption, ...]
    device: str
    inputs: tuple[Value, ...]
    contenders: tuple[Contender, ...]
    reference: Callable[[], object]
    native: str | None  # the name of PyTorch's own function
    eager_text: str


def make_case(
    compiled: CompiledFunction,
    source: Source,
    options: Sequence[InputOption],
    *,
    device: str,
    backend: str = "auto",
    numerics: str = "torch",
    with_compile: bool = True,
) -> Case:
    """The contenders for ``source`` on random inputs as ``options`` describe them.

    Raises FusecError for a formula or inputs that do not fit.
    """
    texts = input_texts(options, device)
    inputs = make_values(texts)
    few = make_values(input_texts(small_inputs(options), device))
    eager = torch_program_for(source, options)
    exact = torch_program_for(source, [wide(option) for option in options])
    maker = _Maker(texts, inputs, few, eager, device)
    contenders = [maker.make(EAGER, eager.function, maker.call("formula"), eager.text)]
    native = native_call(exact, eager, inputs, few)
    if native is not None:
        name, text = native
        contenders.append(
            maker.make(f"torch {name}", native_function(text), maker.call("native"), text)
        )
    if with_compile:
        contenders.append(maker.torch_compile())
    call = f"fusec.compile({source.text!r}, backend={backend!r}, numerics={numerics!r})"
    contenders.append(maker.make(FUSEC, compiled, f"import fusec\n{maker.call(call)}", ""))
    if device == "cpu":
        contenders.append(into_given_memory(compiled, inputs))
    return Case(
        source=source,
        options=tuple(options),
        device=device,
        inputs=inputs,
        contenders=tuple(contenders),
        reference=lambda: exact.function(*widened(inputs)),
        native=None if native is None else native[0],
        eager_text=eager.text,
    )


def input_texts(options: Sequence[InputOption], device: str) -> list[str]:
    """Python expressions that make each input, so that another process can make it as well."""
    tensors = [o for o in options if not o.is_number]
    longest = max((len(o.shape) for o in tensors), default=0)
    rows = [o.shape[-1] for o in tensors if o.shape and len(o.shape) == longest]
    return [
        repr(o.number) if o.number is not None else _random(o, device, min(rows, default=1))
        for o in options
    ]


def small_inputs(options: Sequence[InputOption]) -> list[InputOption]:
    """The same inputs with short axes; equal lengths stay equal."""
    return [replace(o, shape=tuple(min(n, _HOST_EXTENT) for n in o.shape)) for o in options]


@dataclass(frozen=True)
class _Maker:
    """Builds contenders that differ in their function alone."""

    texts: Sequence[str]
    inputs: tuple[Value, ...]
    few: tuple[Value, ...]
    eager: TorchProgram
    device: str

    def call(self, function: str) -> str:
        """The text of a call on the inputs."""
        return f"result = {function}({', '.join(self.eager.parameters)})"

    def make(
        self, name: str, function: Callable[..., object], body: str, definition: str
    ) -> Contender:
        pairs = zip(self.eager.parameters, self.texts, strict=True)
        made = [f"{parameter} = {text}" for parameter, text in pairs]
        prepare = "\n".join(("from math import inf, nan", *made, definition))
        inputs, few = self.inputs, self.few
        host_call = (lambda: function(*few)) if self.device == "cpu" else None
        return Contender(name, lambda: function(*inputs), host_call, (prepare, body))

    def torch_compile(self) -> Contender:
        """The eager program under ``torch.compile`` in its default mode."""
        import torch

        body = self.call("torch.compile(formula)")
        return self.make(COMPILE, torch.compile(self.eager.function), body, self.eager.text)


def into_given_memory(compiled: CompiledFunction, inputs: tuple[Value, ...]) -> Contender:
    """fusec into tensors that exist, as a copy does: on a CPU fresh memory costs as much again."""
    made: list[object] = []

    def call() -> object:
        if not made:
            made.append(compiled(*inputs))
        return compiled(*inputs, out=made[0])

    return Contender(FUSEC_OUT, call)


def _random(option: InputOption, device: str, row: int) -> str:
    """The text of an expression for a random tensor, laid out as the option says."""
    if not option.layout:
        return _dense(option, device, row)
    order = LAYOUTS[option.layout][len(option.shape)]
    stored = replace(option, shape=tuple(option.shape[axis] for axis in order), layout="")
    back = tuple(order.index(axis) for axis in range(len(order)))
    text = _dense(stored, device, row)
    return f"({text}).permute{back}"


def _dense(option: InputOption, device: str, row: int) -> str:
    shape, dtype = option.shape, f"torch.{option.dtype}"
    if option.dtype.startswith("float8"):
        return f"torch.randn({shape}, device={device!r}).to({dtype})"
    if option.dtype.startswith(("float", "bfloat")):
        return f"torch.randn({shape}, dtype={dtype}, device={device!r})"
    if option.dtype == "bool":
        return f"torch.rand({shape}, device={device!r}) < 0.5"
    high = max(1, min(_LARGEST_INTEGER, row))
    return f"torch.randint(0, {high}, {shape}, dtype={dtype}, device={device!r})"


def make_values(texts: Sequence[str]) -> tuple[Value, ...]:
    """The values of our own expressions, the same in every run."""
    import torch

    torch.manual_seed(0)
    names = {"torch": torch, "inf": float("inf"), "nan": float("nan")}
    return tuple(eval(text, names) for text in texts)


def native_function(text: str) -> Callable[..., object]:
    """The function that the text of ``native_call`` defines."""
    import torch

    namespace: dict[str, object] = {"torch": torch}
    exec(text, namespace)
    native = namespace["native"]
    assert callable(native)
    return native


def widened(inputs: Sequence[Value]) -> tuple[Value, ...]:
    """Floating-point inputs in float64, the rest as they are."""
    import torch

    return tuple(
        value.to(torch.float64)
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for value in inputs
    )


def torch_program_for(source: Source, options: Sequence[InputOption]) -> TorchProgram:
    """The formula as PyTorch code, for inputs of these types."""
    from fusec.frontend.parser import parse
    from fusec.frontend.resolve import resolve

    specs = []
    sizes: dict[Dim, int] = {}
    for option in options:
        shape: list[Dim | int] = []
        for axis, length in enumerate(option.shape):
            dim = Dim(f"{option.name}.{axis}")
            sizes[dim] = length
            shape.append(1 if length == 1 else dim)
        specs.append(InputSpec(option.name, _dtype(option), tuple(shape), option.is_number))
    return torch_program(resolve(source, parse(source), tuple(specs), sizes=sizes).graph)


def _dtype(option: InputOption) -> DType:
    if option.number is not None:
        kinds: dict[type, DType] = {bool: BOOL, int: I64, float: F64}
        return kinds[type(option.number)]
    found = by_torch_name(option.dtype)
    assert found is not None
    return found


def wide(option: InputOption) -> InputOption:
    """The input in float64 if it is a tensor of floating-point numbers."""
    if option.is_number or "float" not in option.dtype:
        return option
    return replace(option, dtype="float64")


def native_call(
    exact: TorchProgram, eager: TorchProgram, inputs: Sequence[Value], few: Sequence[Value]
) -> tuple[str, str] | None:
    """Short name and text of PyTorch's own function for the formula, if it takes these types."""
    from fusec.runtime.native import find_native

    found = find_native(exact.function, eager.parameters, inputs)
    if found is None:
        return None
    text = found.source(eager.parameters)
    try:
        native_function(text)(*few)
    except (RuntimeError, TypeError, ValueError):
        return None  # PyTorch has the function, but not for these types
    return found.name, text
