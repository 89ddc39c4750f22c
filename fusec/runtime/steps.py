"""One kernel launch each: the kernel built or found, and its argument list but for addresses.

May import everything below the API but ``runtime.launch`` and what stands above that.
"""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusec import settings
from fusec.codegen.cpp import packed_entry, parameters, print_cpp
from fusec.codegen.kernel import Kernel, Pointer
from fusec.codegen.schedule_cuda import CLUSTERS_SINCE
from fusec.ir.dtypes import DType
from fusec.ir.node import Dim
from fusec.runtime.counters import COUNTERS, OncePerKey
from fusec.runtime.prepared import Step, StepPlan, step_of
from fusec.runtime.specialize import (
    INCLUDE,
    LaidOut,
    Specialization,
    Variant,
    grid_of,
    kernel_of,
    parts_of,
)

if TYPE_CHECKING:
    import torch

    from fusec.runtime.build_triton import TritonBinary, TritonProgram

VARIANT_LIMIT = 64
SERIAL_ELEMENTS = 32768  # below this many positions one thread is faster than two
_once = OncePerKey()


class VariantWarning(UserWarning):
    """A formula is being specialised again and again."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """What the launches of one call share: the numbers of the shapes and where each buffer is.

    ``aligned`` has names of inputs, and of outputs behind ``out``, at multiples of 16 bytes.
    """

    special: Specialization
    sizes: dict[Dim, int]
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
    special, backend = wiring.special, laid.backend
    key = (position, part, laid.arrangement.layout, laid.config, backend)
    kernel: Kernel = _once.get(special.built, key, lambda: kernel_of(special, laid, part))
    sizes = [laid.number(s.source, wiring.sizes) for s in kernel.sizes]
    inputs = special.formula.inputs
    first = len(kernel.pointers)
    plan = StepPlan(
        backend,
        "",
        kernel.name,
        (),
        (*[0] * (first + len(kernel.numbers)), *sizes),
        tuple((k, wiring.position(p)) for k, p in enumerate(kernel.pointers)),
        tuple(
            (first + k, inputs.index(n.input), *scalar_of(n.dtype))
            for k, n in enumerate(kernel.numbers)
        ),
    )
    rows, cols = laid.arrangement.rows, laid.arrangement.cols
    if backend == "cpp":
        binary = _cpp_library(special, kernel, key)
        types = tuple(kind for _, kind in parameters(kernel))
        serial = rows * cols < SERIAL_ELEMENTS
        return step_of(plan._replace(binary=binary, types=types, serial=serial), wiring.device)
    if backend == "cuda":
        plan = plan._replace(grid=grid_of(kernel, rows, cols))
        return _cuda_step(special, kernel, key, plan, wiring.device, laid.reason)
    near = frozenset(p.name for p in kernel.pointers if wiring.is_aligned(p))
    plan = plan._replace(grid=grid_of(kernel, rows, cols))
    return _triton_step(special, kernel, key, plan, near, wiring.device)


def capability_of(device: torch.device) -> int:
    """The compute capability of a CUDA device, times ten; that of a Hopper where there is none."""
    if device.type != "cuda":
        return CLUSTERS_SINCE
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def scalar_of(dtype: DType) -> tuple[str, int, int]:
    """How a Python number becomes a parameter of ``dtype``: kind, least value, bits."""
    if dtype.is_float or dtype.is_bool:
        return "float" if dtype.is_float else "bool", 0, dtype.bits
    return "int", int(dtype.minimum), dtype.bits


def note_variant(special: Specialization, variant: Variant, binary: str) -> None:
    """List a kernel; one that a recipe brought before is listed and counted already."""
    known = special.recalled.pop(binary, None)
    special.variants.append(variant)
    if binary:
        special.binaries[binary] = variant
    COUNTERS.compiles += known is None
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


def _cpp_library(special: Specialization, kernel: Kernel, key: tuple[object, ...]) -> str:
    """The key of the built library."""
    from fusec.runtime.build_cpp import build_library

    def make() -> str:
        started = time.perf_counter()
        source = print_cpp(kernel)
        binary, _ = build_library(source + packed_entry(kernel), INCLUDE)
        why = f"layout {_layout_text(kernel)}"
        variant = Variant(kernel.name, "cpp", _describe(special, kernel), why)
        note_variant(special, variant, binary)
        _report(special, f"{kernel.name}.cpp", source, time.perf_counter() - started)
        return binary

    binary: str = _once.get(special.built, (*key, "library"), make)
    return binary


def _layout_text(kernel: Kernel) -> str:
    strides = [s.name for s in kernel.sizes if s.source[0] in ("stride", "gather")]
    form = {"flat": "one axis", "tile": "rows and columns", "rows": "reduced rows"}[
        kernel.form.value
    ]
    return form + (f", strides given for {', '.join(strides)}" if strides else ", contiguous")


def _report(special: Specialization, name: str, source: str, seconds: float) -> None:
    """What FUSEC_DEBUG and FUSEC_DUMP ask to see of a build."""
    if settings.get().debug >= 1:
        sys.stderr.write(f"fusec: {name} built in {seconds * 1e3:.0f} ms\n")
    if settings.get().debug >= 4:
        sys.stderr.write(source)
    if special.dump is not None:
        special.dump.mkdir(parents=True, exist_ok=True)
        (special.dump / name).write_text(source, encoding="utf-8")


def _triton_step(
    special: Specialization,
    kernel: Kernel,
    key: tuple[object, ...],
    plan: StepPlan,
    aligned: frozenset[str],
    device: torch.device,
) -> Step:
    from fusec.runtime.program import triton_program

    sizes = plan.values[len(kernel.pointers) + len(kernel.numbers) :]
    program = triton_program(kernel, sizes, aligned, special.formula.numerics)
    if device.type == "cpu":
        return _interpreted_step(special, kernel, key, plan, program)

    def make() -> StepPlan:
        binary = _triton_binary(special, kernel, program, device)
        built = plan._replace(
            binary=binary.key,
            types=program.parameter_types(),
            block=binary.num_threads,
            shared=binary.shared,
        )
        step_of(built, device, binary.binary)  # loads it, so that the binary can be forgotten
        return built

    built: StepPlan = _once.get(
        special.built,
        (*key, program.divisible_by_16, program.divisible_by_8, device.index, "binary"),
        make,
    )
    return step_of(built._replace(values=plan.values, grid=plan.grid), device)


def _interpreted_step(
    special: Specialization,
    kernel: Kernel,
    key: tuple[object, ...],
    plan: StepPlan,
    program: TritonProgram,
) -> Step:
    from fusec.runtime.interpret import run_interpreted

    kept = (*key, "interpreted")
    if kept not in special.built:
        special.built[kept] = True
        where = "triton (interpreter)"
        described = Variant(kernel.name, where, _describe(special, kernel), _layout_text(kernel))
        note_variant(special, described, "")
    return Step(
        lambda arguments: run_interpreted(program, plan.grid, arguments),
        list(plan.values),
        plan.pointers,
        plan.conversions(),
    )


def _triton_binary(
    special: Specialization, kernel: Kernel, program: TritonProgram, device: torch.device
) -> TritonBinary:
    import torch

    from fusec.runtime.build_triton import Target, compile_triton

    started = time.perf_counter()
    major, minor = torch.cuda.get_device_capability(device)
    binary = compile_triton(program, Target.parse(f"sm_{major}{minor}"))
    even = ", ".join(sorted(program.divisible_by_16)) or "nothing"
    config = kernel.config
    why = f"layout {_layout_text(kernel)}; block {config.block_rows} x {config.block_cols}; "
    why += f"multiples of 16: {even}"
    variant = Variant(kernel.name, "triton", _describe(special, kernel), why)
    note_variant(special, variant, binary.key)
    _report(special, f"{kernel.name}.py", program.source, time.perf_counter() - started)
    if settings.get().debug >= 5:
        sys.stderr.write(str(binary.stages["ptx"]))
    return binary


def _cuda_step(
    special: Specialization,
    kernel: Kernel,
    key: tuple[object, ...],
    plan: StepPlan,
    device: torch.device,
    reason: str | None,
) -> Step:
    """A launch of a CUDA C++ kernel; on CPU tensors it is emulated."""
    from fusec.runtime.program import launch_types

    if device.type == "cpu":
        run = _once.get(special.built, (*key, "emulated"), lambda: _emulated(special, kernel))
        blocks = plan.grid[0]
        return Step(
            lambda arguments: run(blocks, arguments),
            list(plan.values),
            plan.pointers,
            plan.conversions(),
        )

    def make() -> StepPlan:
        binary, code = _cuda_binary(special, kernel, device, reason)
        built = plan._replace(
            binary=binary,
            types=tuple(launch_types(kernel)),
            block=kernel.config.threads,
            cluster=kernel.config.cluster,
        )
        step_of(built, device, code)  # loads it, so that the binary can be forgotten
        return built

    built: StepPlan = _once.get(special.built, (*key, device.index, "binary"), make)
    return step_of(built._replace(values=plan.values, grid=plan.grid), device)


def _emulated(special: Specialization, kernel: Kernel) -> Any:
    from fusec.runtime.emulate_cuda import emulated

    run = emulated(kernel, INCLUDE)
    where = "cuda (emulated)"
    variant = Variant(kernel.name, where, _describe(special, kernel), _layout_text(kernel))
    note_variant(special, variant, "")
    return run


def _cuda_binary(
    special: Specialization, kernel: Kernel, device: torch.device, reason: str | None
) -> tuple[str, bytes]:
    """The key and the content of the built kernel."""
    from fusec.codegen.cuda import print_cuda
    from fusec.runtime.build_cuda import build_cuda
    from fusec.runtime.build_triton import Target

    started = time.perf_counter()
    source, config, formula = print_cuda(kernel), kernel.config, special.formula
    target = Target.parse(f"sm_{capability_of(device)}")
    fast = formula.numerics == "fast"
    binary, code = build_cuda(source, kernel.name, target, fast, build=formula.build)
    why = f"layout {_layout_text(kernel)}; {config.threads} threads, {config.lanes} lanes, "
    why += f"{config.vectors} vectors, {config.block_rows} rows a block, cluster {config.cluster}"
    why += f"; chosen because {reason}" if reason else ""
    note_variant(special, Variant(kernel.name, "cuda", _describe(special, kernel), why), binary)
    _report(special, f"{kernel.name}.cu", source, time.perf_counter() - started)
    return binary, code
