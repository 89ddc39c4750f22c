"""One kernel launch each: the kernel built or found, and its argument list but for addresses.

May import everything below the API but ``runtime.launch`` and what stands above that.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fusec import settings
from fusec.codegen.candidates import unspilled
from fusec.codegen.cpp import packed_entry, parameters, print_cpp
from fusec.codegen.describe import turns_text
from fusec.codegen.kernel import Config, Kernel, Pointer
from fusec.codegen.schedule_cuda import CLUSTERS_SINCE
from fusec.ir.dtypes import DType
from fusec.ir.node import Dim
from fusec.runtime.build_beside import side_by_side
from fusec.runtime.counters import COUNTERS, OncePerKey
from fusec.runtime.prepared import Step, StepPlan, cuda_function, step_of
from fusec.runtime.specialize import (
    INCLUDE,
    LaidOut,
    Specialization,
    Variant,
    form_of,
    grid_of,
    kernel_of,
    parts_of,
)

if TYPE_CHECKING:
    import torch

    from fusec.runtime.codes import Code

VARIANT_LIMIT = 64
_OVERLAP_IN_GRAPHS = 12030  # the driver that captures kernels which begin before another ends
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


def build_all(wiring: Wiring, regions: Sequence[LaidOut]) -> None:
    """Build the kernels of all regions, as :func:`steps_of` does, but side by side."""
    side_by_side(lambda k: _settled(wiring, k, regions[k]), range(len(regions)))


def steps_of(wiring: Wiring, position: int, laid: LaidOut) -> list[Step]:
    """The launches of one region, with kernels built if this class of layouts is new."""
    laid = _settled(wiring, position, laid)
    return [_step(wiring, position, laid, part) for part in parts_of(laid)]


def _step(wiring: Wiring, position: int, laid: LaidOut, part: int) -> Step:
    special, backend, device = wiring.special, laid.backend, wiring.device
    kernel = _kernel(special, position, laid, part)
    sizes = _sizes(wiring, laid, kernel)
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
        binary = _cpp_library(special, kernel, _key(position, laid, part))
        types = tuple(kind for _, kind in parameters(kernel))
        serial = rows * cols < SERIAL_ELEMENTS
        return step_of(plan._replace(binary=binary, types=types, serial=serial), device)
    plan = plan._replace(grid=grid_of(kernel, rows, cols))
    if device.type == "cpu":
        look = _emulated_step if backend == "cuda" else _interpreted_step
        return look(wiring, kernel, _key(position, laid, part), plan)
    return _gpu_step(wiring, position, laid, part, plan)


def capability_of(device: torch.device) -> int:
    """The compute capability of a CUDA device, times ten; that of a Hopper where there is none."""
    if device.type != "cuda":
        return CLUSTERS_SINCE
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def may_overlap(device: torch.device) -> bool:
    """Whether kernels of this device may be launched before another ends, in graphs as well."""
    import torch

    if device.type != "cuda" or torch.version.cuda is None:
        return device.type != "cuda"
    driver = getattr(torch._C, "_cuda_getDriverVersion", int)  # 0, too old, if not told
    return driver() >= _OVERLAP_IN_GRAPHS


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


def _gpu_step(wiring: Wiring, position: int, laid: LaidOut, part: int, plan: StepPlan) -> Step:
    """A launch of a Triton or CUDA C++ kernel on a GPU."""
    special, device = wiring.special, wiring.device
    key = _code_key(wiring, position, laid, part)

    def make() -> StepPlan:
        code = _code(wiring, position, laid, part)
        _note_code(special, laid, _kernel(special, position, laid, part), code)
        built = plan._replace(
            binary=code.key,
            types=code.types,
            block=code.threads,
            shared=code.shared,
            cluster=laid.config.cluster,
            waits=_kernel(special, position, laid, part).waits,
        )
        step_of(built, device, code.binary)  # loads it, so that the binary can be forgotten
        special.built.pop((*key, "code"), None)
        return built

    built: StepPlan = _once.get(special.built, (*key, "binary"), make)
    plan = built._replace(values=plan.values, grid=plan.grid)
    return step_of(_filled(wiring, position, laid, part, plan), device)


def _filled(wiring: Wiring, position: int, laid: LaidOut, part: int, plan: StepPlan) -> StepPlan:
    """With blocks that stay: as many as this device holds."""
    if not laid.config.turns:
        return plan
    function = cuda_function(plan, wiring.device.index or 0)
    at_once = function.clusters_at_once(plan.block, plan.cluster)
    kernel = _kernel(wiring.special, position, laid, part)
    rows, cols = laid.arrangement.rows, laid.arrangement.cols
    return plan._replace(grid=grid_of(kernel, rows, cols, at_once))


def _key(position: int, laid: LaidOut, part: int) -> tuple[object, ...]:
    """All that decides a kernel."""
    return (position, part, laid.arrangement.layout, laid.config, laid.backend)


def _kernel(special: Specialization, position: int, laid: LaidOut, part: int) -> Kernel:
    key = _key(position, laid, part)
    kernel: Kernel = _once.get(special.built, key, lambda: kernel_of(special, laid, part))
    return kernel


def _sizes(wiring: Wiring, laid: LaidOut, kernel: Kernel) -> list[int]:
    return [laid.number(size.source, wiring.sizes) for size in kernel.sizes]


def _near(wiring: Wiring, kernel: Kernel) -> frozenset[str]:
    return frozenset(p.name for p in kernel.pointers if wiring.is_aligned(p))


def _code_key(wiring: Wiring, position: int, laid: LaidOut, part: int) -> tuple[object, ...]:
    """All that decides the machine code of a kernel."""
    key = (*_key(position, laid, part), wiring.device.index)
    if laid.backend == "cuda":
        return key
    from fusec.runtime.program import divisible

    kernel = _kernel(wiring.special, position, laid, part)
    sizes = _sizes(wiring, laid, kernel)
    by_16, by_8, by_4 = (divisible(kernel, sizes, factor) for factor in (16, 8, 4))
    return (*key, by_16 | _near(wiring, kernel), by_8 - by_16, by_4 - by_8)


def _code(wiring: Wiring, position: int, laid: LaidOut, part: int) -> Code:
    """The machine code, which waits in memory until it is loaded."""
    special = wiring.special

    def build() -> Code:
        from fusec.runtime.build_triton import Target
        from fusec.runtime.codes import code_of

        kernel = _kernel(special, position, laid, part)
        target = Target.parse(f"sm_{capability_of(wiring.device)}")
        sizes, near = _sizes(wiring, laid, kernel), _near(wiring, kernel)
        return code_of(special.formula, kernel, laid.backend, target, sizes, near)

    key = (*_code_key(wiring, position, laid, part), "code")
    code: Code = _once.get(special.built, key, build)
    return code


def _settled(wiring: Wiring, position: int, laid: LaidOut) -> LaidOut:
    """The region with a Config whose kernels do not spill, as ``candidates.unspilled`` decides.

    Found once for each class of layouts; the cache on disk has every kernel that it looks at. What
    the tuner tries or has found stays as it is: that was measured.
    """
    special, device = wiring.special, wiring.device
    if device.type != "cuda" or laid.backend == "cpp" or special.formula.tune:
        return laid

    def local_bytes(config: Config) -> int:
        tried = replace(laid, config=config)
        codes = side_by_side(lambda part: _code(wiring, position, tried, part), parts_of(tried))
        return max(code.facts.local_bytes if code.facts else 0 for code in codes)

    def find() -> tuple[Config, str | None]:
        tried: list[Config] = []

        def note(config: Config) -> int:
            tried.append(config)
            return local_bytes(config)

        form = form_of(laid.region, laid.arrangement)
        config, why = unspilled(laid.config, form, laid.backend, note)
        for other in tried:
            _forget_codes(wiring, position, replace(laid, config=other), keep=other == config)
        return config, why

    key = (_code_key(wiring, position, laid, parts_of(laid)[0]), "settled")
    config, why = _once.get(special.built, key, find)
    return replace(laid, config=config, relaxed=why)


def _forget_codes(wiring: Wiring, position: int, laid: LaidOut, keep: bool) -> None:
    for part in () if keep else parts_of(laid):
        wiring.special.built.pop((*_code_key(wiring, position, laid, part), "code"), None)


def _note_code(special: Specialization, laid: LaidOut, kernel: Kernel, code: Code) -> None:
    """List a kernel that was built for a GPU, and why it is as it is."""
    config = kernel.config
    why = f"layout {_layout_text(kernel)}; "
    if laid.backend == "cuda":
        why += f"{config.threads} threads, {config.lanes} lanes, {config.vectors} vectors, "
        why += f"{config.block_rows} rows a block, cluster {config.cluster}"
        turns = turns_text(config, [laid.accesses[k].name for k in config.staged])
        why += f"; {turns}" if turns else ""
        why += f"; chosen because {laid.reason}" if laid.reason else ""
    else:
        why += f"block {config.block_rows} x {config.block_cols}; multiples of 16: {code.even}"
    why += f"; {laid.relaxed}" if laid.relaxed else ""
    described = _describe(special, kernel)
    note_variant(special, Variant(kernel.name, laid.backend, described, why, code.facts), code.key)
    suffix = {"cuda": "cu", "triton": "py"}[laid.backend]
    _report(special, f"{kernel.name}.{suffix}", code.source, code.seconds)


def _interpreted_step(
    wiring: Wiring, kernel: Kernel, key: tuple[object, ...], plan: StepPlan
) -> Step:
    """A launch of a Triton kernel in Triton's interpreter."""
    from fusec.runtime.interpret import run_interpreted
    from fusec.runtime.program import triton_program

    special = wiring.special
    sizes = plan.values[len(kernel.pointers) + len(kernel.numbers) :]
    program = triton_program(kernel, sizes, _near(wiring, kernel), special.formula.numerics)
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


def _emulated_step(wiring: Wiring, kernel: Kernel, key: tuple[object, ...], plan: StepPlan) -> Step:
    """A launch of a CUDA C++ kernel, emulated."""
    special = wiring.special
    run = _once.get(special.built, (*key, "emulated"), lambda: _emulated(special, kernel))
    blocks = plan.grid[0]
    return Step(
        lambda arguments: run(blocks, arguments),
        list(plan.values),
        plan.pointers,
        plan.conversions(),
    )


def _emulated(special: Specialization, kernel: Kernel) -> Any:
    from fusec.runtime.emulate_cuda import emulated

    run = emulated(kernel, INCLUDE)
    where = "cuda (emulated)"
    variant = Variant(kernel.name, where, _describe(special, kernel), _layout_text(kernel))
    note_variant(special, variant, "")
    return run
