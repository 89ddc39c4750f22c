"""One kernel launch each: the kernel built or found, and its argument list but for addresses.

May import everything below the API but ``runtime.launch`` and what stands above that.
"""

from __future__ import annotations

import ctypes
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusec import settings
from fusec.codegen.cpp import parameters, print_cpp
from fusec.codegen.kernel import Kernel, Pointer
from fusec.ir.dtypes import DType
from fusec.ir.node import Dim
from fusec.runtime.specialize import (
    COUNTERS,
    INCLUDE,
    LaidOut,
    OncePerKey,
    Specialization,
    Variant,
    grid_of,
    kernel_of,
    parts_of,
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


@dataclass(slots=True)
class Step:
    """One kernel launch: a function of the argument list, a template of it, and what has to be
    filled in.
    """

    function: Callable[[list[Any]], None]
    template: list[Any]
    pointers: tuple[tuple[int, int], ...]  # position in the template, position among the buffers
    numbers: tuple[tuple[int, int, Callable[[Any], Any]], ...]  # position, input, conversion


@dataclass(frozen=True, slots=True)
class Wiring:
    """What the launches of one call share: the numbers of the shapes and where each buffer is.

    ``aligned`` has names of inputs, and of outputs behind ``out``, at multiples of 16 bytes.
    """

    special: Specialization
    sizes: dict[Dim, int]
    backend: str
    device: torch.device
    aligned: frozenset[str]
    temporaries: tuple[str, ...]

    def position(self, pointer: Pointer) -> int:
        """Where among inputs, outputs and temporaries a kernel's buffer is."""
        inputs = self.special.formula.inputs
        if not pointer.written and pointer.buffer in inputs:
            return inputs.index(pointer.buffer)
        outputs = [output.name for output in self.special.outputs]
        return len(inputs) + [*outputs, *self.temporaries].index(pointer.buffer)

    def is_aligned(self, pointer: Pointer) -> bool:
        """Whether the buffer starts at a multiple of 16 bytes; what fusec allocates does."""
        name = f"out {pointer.buffer}" if pointer.written else pointer.buffer
        return name in self.aligned or pointer.buffer in self.temporaries


def steps_of(wiring: Wiring, position: int, laid: LaidOut) -> list[Step]:
    """The launches of one region, with kernels built if this class of layouts is new."""
    return [_step(wiring, position, laid, part) for part in parts_of(laid)]


def _step(wiring: Wiring, position: int, laid: LaidOut, part: int) -> Step:
    special, backend = wiring.special, wiring.backend
    key = (position, part, laid.arrangement.layout, laid.config, backend)
    kernel: Kernel = _once.get(special.built, key, lambda: kernel_of(special, laid, backend, part))
    numbers = [laid.number(s.source, wiring.sizes) for s in kernel.sizes]
    template: list[Any] = [0] * (len(kernel.pointers) + len(kernel.numbers)) + numbers
    pointers = tuple((k, wiring.position(p)) for k, p in enumerate(kernel.pointers))
    first, inputs = len(kernel.pointers), special.formula.inputs
    scalars = tuple(
        (first + k, inputs.index(n.input), _conversion(n.dtype))
        for k, n in enumerate(kernel.numbers)
    )
    rows, cols = laid.arrangement.rows, laid.arrangement.cols
    if backend == "cpp":
        function = _cpp_function(special, kernel, key)
        template.append(1 if rows * cols < SERIAL_ELEMENTS else threads())
        return Step(_cpp_call(function), template, pointers, scalars)
    near = frozenset(p.name for p in kernel.pointers if wiring.is_aligned(p))
    grid = grid_of(kernel, rows, cols)
    run = _triton_function(special, kernel, key, numbers, near, grid, wiring.device)
    return Step(run, template, pointers, scalars)


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
        source = print_cpp(kernel)
        library = build_cpp(source, INCLUDE)
        function = library[kernel.name]
        function.restype = None
        function.argtypes = [_ctype(kind) for _, kind in parameters(kernel)]
        why = f"layout {_layout_text(kernel)}"
        _note_variant(special, kernel, "cpp", _describe(special, kernel), why)
        _report(special, f"{kernel.name}.cpp", source, time.perf_counter() - started)
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


def _report(special: Specialization, name: str, source: str, seconds: float) -> None:
    """What FUSEC_DEBUG and FUSEC_DUMP ask to see of a build."""
    if settings.get().debug >= 1:
        sys.stderr.write(f"fusec: {name} built in {seconds * 1e3:.0f} ms\n")
    if settings.get().debug >= 4:
        sys.stderr.write(source)
    if special.dump is not None:
        special.dump.mkdir(parents=True, exist_ok=True)
        (special.dump / name).write_text(source, encoding="utf-8")


def _triton_function(
    special: Specialization,
    kernel: Kernel,
    key: tuple[object, ...],
    sizes: Sequence[int],
    aligned: frozenset[str],
    grid: tuple[int, int, int],
    device: torch.device,
) -> Callable[[list[Any]], None]:
    from fusec.runtime.program import triton_program

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
        _report(special, f"{kernel.name}.py", program.source, time.perf_counter() - started)
        if settings.get().debug >= 5:
            sys.stderr.write(str(binary.stages["ptx"]))
        return function.prepare(program.parameter_types(), binary.num_threads)

    launch = _once.get(
        special.built,
        (*key, program.divisible_by_16, program.divisible_by_8, device.index, "function"),
        make,
    )
    current_stream = torch._C._cuda_getCurrentRawStream
    index = device.index or 0
    return lambda arguments: launch(grid, current_stream(index), arguments)
