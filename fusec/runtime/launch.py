"""A call made ready: output shapes, buffers, kernels and their parameters for exact shapes, so that
a repeated call only passes addresses. May import everything below the API.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fusec import settings
from fusec.codegen.cpp import parameters, print_cpp
from fusec.codegen.kernel import Kernel
from fusec.errors import DTypeError, ShapeError
from fusec.ir.dtypes import DType
from fusec.ir.node import Dim
from fusec.runtime.specialize import (
    COUNTERS,
    INCLUDE,
    Argument,
    LaidOut,
    OncePerKey,
    Specialization,
    Variant,
    concrete,
    contiguous,
    grid_of,
    kernel_of,
    lay_out,
    triton_program,
)

if TYPE_CHECKING:
    import torch

VARIANT_LIMIT = 64
SERIAL_ELEMENTS = 32768  # below this many positions one thread is faster than two
_CTYPES = {
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "bool": ctypes.c_bool,
    "int64_t": ctypes.c_int64,
    "int32_t": ctypes.c_int32,
    "int16_t": ctypes.c_int16,
    "int8_t": ctypes.c_int8,
    "uint8_t": ctypes.c_uint8,
}
_once = OncePerKey()


class VariantWarning(UserWarning):
    """A formula is being specialised again and again."""


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """How one output is allocated:

    Its shape as the caller sees it, and its strides, in elements.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Given:
    """What a launch has to know of an output tensor the caller brought.

    ``direct``: kernels may write to it.
    """

    label: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    aligned: bool
    direct: bool


def _checked(plan: OutputPlan, own: Given) -> OutputPlan:
    """The plan of an output that the caller brought;

    ShapeError or DTypeError, and nothing is written.
    """
    if own.shape != plan.shape:
        raise ShapeError(
            f"{own.label} is {list(own.shape)}, the result is {list(plan.shape)}",
            hint=f"make it with torch.empty({list(plan.shape)}, ...)",
        )
    if own.dtype != f"torch.{plan.dtype.torch}":
        raise DTypeError(
            f"{own.label} is {own.dtype}, the result is torch.{plan.dtype.torch}",
            hint=f"make it with dtype=torch.{plan.dtype.torch}",
        )
    return replace(plan, strides=own.strides) if own.direct else plan


@dataclass(slots=True)
class Step:
    """One kernel launch: a function of the argument list, a template of it, and what has to be
    filled in.
    """

    function: Callable[[list[Any]], None]
    template: list[Any]
    pointers: tuple[tuple[int, int], ...]  # position in the template, position among the buffers
    numbers: tuple[tuple[int, int, Callable[[Any], Any]], ...]  # position, input, conversion


@dataclass(slots=True)
class Prepared:
    """A call with these exact shapes and strides. ``run`` does the work and nothing else."""

    special: Specialization
    outputs: tuple[OutputPlan, ...]
    make_outputs: tuple[Callable[[], torch.Tensor], ...]
    make_temporaries: tuple[Callable[[], torch.Tensor], ...]
    steps: tuple[Step, ...]
    reference: bool  # the reference evaluator does it: asked for, or an axis has length 0
    tensors: bool  # kernels take tensors (interpreter) instead of addresses

    def run(
        self, values: Sequence[Any], outs: Sequence[torch.Tensor], spare: Sequence[torch.Tensor]
    ) -> None:
        """Launch every kernel. ``values`` are the inputs; ``spare`` the temporaries."""
        buffers = [*values, *outs, *spare]
        for step in self.steps:
            arguments = step.template.copy()
            for position, buffer in step.pointers:
                held = buffers[buffer]
                arguments[position] = held if self.tensors else held.data_ptr()
            for position, index, convert in step.numbers:
                arguments[position] = convert(values[index])
            step.function(arguments)


def prepare(
    special: Specialization,
    arguments: Sequence[Argument],
    backend: str,
    device: torch.device,
    aligned: frozenset[str],
    given: Sequence[Given] | None = None,
) -> Prepared:
    """Make everything ready for a call. ``aligned``: inputs whose addresses are multiples of 16
    bytes. ``given``: the output tensors of the caller.

    Raises ShapeError where axes disagree, BuildError and UnsupportedError from the compilers.
    """
    sizes = special.sizes(arguments)
    outputs = tuple(_output_plan(special, k, arguments, sizes) for k in range(len(special.outputs)))
    if given is not None:
        outputs = tuple(_checked(plan, own) for plan, own in zip(outputs, given, strict=True))
    written_aligned = [True] * len(outputs) if given is None else [own.aligned for own in given]
    named = zip(special.outputs, written_aligned, strict=True)
    aligned |= frozenset(f"out {output.name}" for output, even in named if even)
    if backend == "torch" or any(n == 0 for n in sizes.values()):
        return Prepared(special, outputs, (), (), (), reference=True, tensors=False)
    kept = {
        o.name: _kept_strides(o.node.shape, o.squeeze, p)
        for o, p in zip(special.outputs, outputs, strict=True)
    }
    buffers = {name: k for k, name in enumerate(special.formula.inputs)}
    written = {o.name: len(buffers) + k for k, o in enumerate(special.outputs)}
    temporaries: list[OutputPlan] = []
    for region, _ in special.regions:
        for root in region.roots:
            if root.output is None:
                shape = concrete(root.node.shape, sizes)
                written[root.name] = len(buffers) + len(outputs) + len(temporaries)
                temporaries.append(OutputPlan(shape, contiguous(shape), root.node.dtype.compute))
    steps = []
    for position in range(len(special.regions)):
        laid = lay_out(special, position, arguments, sizes, kept, backend)
        steps.append(
            _step(special, position, laid, sizes, backend, device, aligned, buffers, written)
        )
    interpreted = backend == "triton" and device.type == "cpu"
    made, spare = allocators(outputs, device), allocators(temporaries, device)
    return Prepared(special, outputs, made, spare, tuple(steps), False, interpreted)


def allocators(
    plans: Sequence[OutputPlan], device: torch.device
) -> tuple[Callable[[], torch.Tensor], ...]:
    """A function for each plan that makes the tensor."""
    import torch

    return tuple(
        functools.partial(
            torch.empty_strided,
            p.shape,
            p.strides,
            dtype=getattr(torch, p.dtype.torch),
            device=device,
        )
        for p in plans
    )


def _output_plan(
    special: Specialization,
    position: int,
    arguments: Sequence[Argument],
    sizes: dict[Dim, int],
) -> OutputPlan:
    """Shape and strides of an output:

    An elementwise one keeps a dense permuted layout of its first full-size input.
    """
    output = special.outputs[position]
    full = concrete(output.node.shape, sizes)
    rank = len(full)
    shape = tuple(n for k, n in enumerate(full) if k - rank not in output.squeeze)
    strides = contiguous(shape)
    region = next(r for r, _ in special.regions if any(x.output is output for x in r.roots))
    if not region.axes and not output.squeeze:
        like = next((a for a in arguments if not a.scalar and a.shape == full and rank), None)
        if like is not None and _is_dense(like):
            strides = like.strides
    return OutputPlan(shape, strides, output.node.dtype)


def _is_dense(argument: Argument) -> bool:
    """Whether the strides are those of a contiguous tensor with its axes permuted."""
    step = 1
    for stride, length in sorted(zip(argument.strides, argument.shape, strict=True)):
        if length == 1:
            continue
        if stride != step:
            return False
        step *= length
    return True


def _kept_strides(
    shape: Sequence[object], squeeze: tuple[int, ...], out: OutputPlan
) -> tuple[int, ...]:
    """Strides for the shape a kernel sees, in which squeezed axes are still there with length 1."""
    rank = len(shape)
    visible = iter(out.strides)
    return tuple(0 if k - rank in squeeze else next(visible) for k in range(rank))


def _step(
    special: Specialization,
    position: int,
    laid: LaidOut,
    sizes: dict[Dim, int],
    backend: str,
    device: torch.device,
    aligned: frozenset[str],
    inputs: dict[str, int],
    written: dict[str, int],
) -> Step:
    """The launch of one region, with its kernel built if this class of layouts is new."""
    kernel_key = (position, laid.arrangement.layout, laid.config, backend)
    kernel: Kernel = _once.get(special.built, kernel_key, lambda: kernel_of(special, laid, backend))
    numbers = [laid.number(s.source, sizes) for s in kernel.sizes]
    grid = grid_of(kernel, laid.arrangement.rows, laid.arrangement.cols)
    template: list[Any] = [0] * (len(kernel.pointers) + len(kernel.numbers)) + numbers
    originals = _original_names(kernel, laid)
    pointers = tuple(
        (k, written[name] if pointer.written or name not in inputs else inputs[name])
        for k, (pointer, name) in enumerate(zip(kernel.pointers, originals, strict=True))
    )
    first = len(kernel.pointers)
    scalars = tuple(
        (first + k, inputs[n.input], _conversion(n.dtype)) for k, n in enumerate(kernel.numbers)
    )
    if backend == "cpp":
        function = _cpp_function(special, kernel, kernel_key)
        elements = laid.arrangement.rows * laid.arrangement.cols
        template.append(1 if elements < SERIAL_ELEMENTS else threads())
        return Step(_cpp_call(function), template, pointers, scalars)
    near = frozenset(
        p.name
        for p, name in zip(kernel.pointers, originals, strict=True)
        if (f"out {name}" in aligned if p.written else name in aligned)
        or _is_temporary(special, name)
    )
    run = _triton_function(special, kernel, kernel_key, numbers, near, grid, device)
    return Step(run, template, pointers, scalars)


def _is_temporary(special: Specialization, name: str) -> bool:
    """Whether ``name`` is a buffer between kernels, which fusec allocates and which is therefore
    aligned.
    """
    roots = [root for region, _ in special.regions for root in region.roots]
    return any(root.name == name and root.output is None for root in roots)


def _original_names(kernel: Kernel, laid: LaidOut) -> list[str]:
    """The buffer names behind the kernel's pointer parameters, which had to be legal in C."""
    names: list[str] = []
    seen: set[tuple[str, bool]] = set()
    for operand in laid.accesses:
        key = (operand.name, operand.kind == "root")
        if key not in seen:
            seen.add(key)
            names.append(operand.name)
    assert len(names) == len(kernel.pointers)
    return names


def _cpp_call(function: Any) -> Callable[[list[Any]], None]:
    """A call with the arguments of a list;

    In a forked child on one thread, whatever was decided before the fork.
    """
    from fusec.runtime.build_cpp import may_use_threads

    def call(arguments: list[Any]) -> None:
        if not may_use_threads():
            arguments[-1] = 1
        function(*arguments)

    return call


def threads() -> int:
    """How many threads a CPU kernel may use: FUSEC_NUM_THREADS, else as many as PyTorch uses."""
    import torch

    from fusec.runtime.build_cpp import may_use_threads

    return (settings.get().num_threads or torch.get_num_threads()) if may_use_threads() else 1


def _conversion(dtype: DType) -> Callable[[Any], Any]:
    """How a Python number becomes a parameter of ``dtype``; integers wrap as PyTorch's do."""
    if dtype.is_float:
        return float
    if dtype.is_bool:
        return bool
    low, span = int(dtype.minimum), 1 << dtype.bits
    return lambda value: (int(value) - low) % span + low


def _note_variant(
    special: Specialization, kernel: Kernel, backend: str, key: str, why: str
) -> None:
    special.variants.append(Variant(kernel.name, backend, key, why))
    COUNTERS.compiles += 1
    if len(special.variants) == VARIANT_LIMIT:
        recent = special.variants[-1]
        warnings.warn(
            f"{special.formula.name} has been built {VARIANT_LIMIT} times for one set of types; "
            f"the latest was for {recent.key}. f.variants lists them all",
            VariantWarning,
            stacklevel=6,
        )


def _describe(special: Specialization, kernel: Kernel) -> str:
    types = ", ".join(
        f"{s.name} {s.dtype.name}" + ("" if s.scalar else f"[{', '.join(map(str, s.shape))}]")
        for s in special.specs
    )
    config = kernel.config
    return f"{types}; {kernel.form.value}" + (
        " wide index" if config.wide_index and config.block_cols > 1024 else ""
    )


def _cpp_function(special: Specialization, kernel: Kernel, key: tuple[object, ...]) -> Any:
    from fusec.runtime.build_cpp import build_cpp

    def make() -> Any:
        started = time.perf_counter()
        library = build_cpp(print_cpp(kernel), INCLUDE)
        function = library[kernel.name]
        function.restype = None
        function.argtypes = [_ctype(kind) for _, kind in parameters(kernel)]
        why = f"layout {_layout_text(kernel)}"
        _note_variant(special, kernel, "cpp", _describe(special, kernel), why)
        _report(kernel.name, "cpp", time.perf_counter() - started)
        return function

    return _once.get(special.built, (*key, "function"), make)


def _layout_text(kernel: Kernel) -> str:
    strides = [s.name for s in kernel.sizes if s.source[0] in ("stride", "gather")]
    form = {"flat": "one axis", "tile": "rows and columns", "rows": "reduced rows"}[
        kernel.form.value
    ]
    return form + (f", strides given for {', '.join(strides)}" if strides else ", contiguous")


def _ctype(kind: str) -> Any:
    if kind.endswith("*"):
        return ctypes.c_void_p
    return _CTYPES[kind]


def _report(name: str, backend: str, seconds: float) -> None:
    if settings.get().debug >= 1:
        sys.stderr.write(f"fusec: {name} built for {backend} in {seconds * 1e3:.0f} ms\n")


def _triton_function(
    special: Specialization,
    kernel: Kernel,
    key: tuple[object, ...],
    sizes: Sequence[int],
    aligned: frozenset[str],
    grid: tuple[int, int, int],
    device: torch.device,
) -> Callable[[list[Any]], None]:
    program = triton_program(kernel, sizes, aligned, special.formula.numerics)
    if device.type == "cpu":
        from fusec.runtime.interpret import run_interpreted

        kept = (*key, "interpreted")
        if kept not in special.built:
            special.built[kept] = True
            _note_variant(
                special,
                kernel,
                "triton (interpreter)",
                _describe(special, kernel),
                _layout_text(kernel),
            )
        return lambda arguments: run_interpreted(program, grid, arguments)
    import torch

    def make() -> Any:
        from fusec.runtime.build_triton import Target, compile_triton
        from fusec.runtime.driver import load_function

        started = time.perf_counter()
        major, minor = torch.cuda.get_device_capability(device)
        binary = compile_triton(program, Target.parse(f"sm_{major}{minor}"))
        function = load_function(binary.binary, binary.entry, binary.shared, device.index or 0)
        even = ", ".join(sorted(program.divisible_by_16)) or "nothing"
        config = kernel.config
        why = f"layout {_layout_text(kernel)}; block {config.block_rows} x {config.block_cols}; "
        _note_variant(
            special, kernel, "triton", _describe(special, kernel), why + f"multiples of 16: {even}"
        )
        _report(kernel.name, "triton", time.perf_counter() - started)
        return function.prepare(program.parameter_types(), binary.num_threads)

    launch = _once.get(
        special.built, (*key, program.divisible_by_16, device.index, "function"), make
    )
    current_stream = torch._C._cuda_getCurrentRawStream
    index = device.index or 0
    return lambda arguments: launch(grid, current_stream(index), arguments)


def evaluate_reference(special: Specialization, values: Sequence[Any]) -> list[torch.Tensor]:
    """The outputs from the reference evaluator: PyTorch, op by op."""
    import torch

    from fusec.ir.evaluate import evaluate

    arrays = dict(zip(special.formula.inputs, values, strict=True))
    results: list[torch.Tensor] = evaluate(special.plan.graph, arrays, torch)
    return results
