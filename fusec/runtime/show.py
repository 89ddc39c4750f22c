"""The stages of a formula's way to machine code, as text. May import everything below the API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fusec.codegen.candidates import unspilled
from fusec.codegen.cpp import print_cpp
from fusec.codegen.describe import describe, turns_text
from fusec.codegen.kernel import Config, Kernel
from fusec.codegen.schedule_cuda import CLUSTERS_SINCE
from fusec.errors import DTypeError, UnknownNameError, UnsupportedError, did_you_mean
from fusec.frontend.resolve_names import index_names
from fusec.ir.dtypes import BOOL, F32, F64, I64, by_torch_name
from fusec.ir.text import print_graph
from fusec.passes.formula import formula_text
from fusec.runtime.build_triton import Target
from fusec.runtime.codes import Code, code_of
from fusec.runtime.formula import Formula
from fusec.runtime.shapes import contiguous
from fusec.runtime.show_gradient import GradientView
from fusec.runtime.specialize import (
    Argument,
    Circumstances,
    LaidOut,
    Specialization,
    form_of,
    kernel_of,
    lay_out_all,
    parts_of,
)
from fusec.runtime.traced_formula import TracedFormula

if TYPE_CHECKING:
    from fusec.ir.node import Dim
    from fusec.runtime.build_triton import TritonBinary

STAGES = (
    "formula",
    "grad",
    "explain",
    "graph",
    "plan",
    "kernel",
    "triton",
    "cuda",
    "cpp",
    "ttir",
    "ttgir",
    "llir",
    "ptx",
    "sass",
    "amdgcn",
)
LANGUAGES = {"triton": "Triton", "cuda": "CUDA C++", "cpp": "C++"}
DEFAULT_LENGTH = 4096
_DEFAULT_TARGET = "sm_90"


class View:
    """One formula specialised for example inputs, and the kernels that follow."""

    def __init__(
        self, formula: Formula, special: Specialization, arguments: Sequence[Argument]
    ) -> None:
        self.formula = formula
        self.special = special
        self.arguments = arguments
        self.sizes: dict[Dim, int] = special.sizes(arguments)

    def kernels(
        self,
        backend: str,
        target: Target | None = None,
        plain: bool = False,
        built: bool = False,
    ) -> list[tuple[LaidOut, Kernel]]:
        """Every region lowered for ``backend`` (and where that matters, a GPU); ``plain`` without
        fast forms, which are CUDA's; ``built`` as it is after a look at its machine code.
        """
        found: list[tuple[LaidOut, Kernel]] = []
        special, every = self.laid_out(backend, target)
        for laid in every:
            if built and target is not None and target.backend == "cuda":
                laid = self.settled(special, laid, target)[0]
            kernels = [kernel_of(special, laid, part, plain) for part in parts_of(laid)]
            found.extend((laid, kernel) for kernel in kernels)
        return found

    def laid_out(
        self, backend: str, target: Target | None = None, automatic: bool = False
    ) -> tuple[Specialization, list[LaidOut]]:
        """What runs in a call like the example, and how its regions lie in memory."""
        capability = CLUSTERS_SINCE
        if target is not None:
            capability = int(target.arch) if target.backend == "cuda" else 0
        special, every, self.sizes = lay_out_all(
            self.special, self.arguments, self.sizes, {}, backend,
            Circumstances(None, capability, automatic),
        )  # fmt: skip
        return special, every

    def settled(
        self, special: Specialization, laid: LaidOut, target: Target
    ) -> tuple[LaidOut, list[Code]]:
        """The region as it runs on ``target``, where what spills gives way, and its kernels."""
        tried: dict[Config, list[Code]] = {}

        def local_bytes(config: Config) -> int:
            tried[config] = self.codes(special, replace(laid, config=config), target)
            return max(code.facts.local_bytes if code.facts else 0 for code in tried[config])

        form = form_of(laid.region, laid.arrangement)
        config, why = unspilled(laid.config, form, laid.backend, local_bytes)
        return replace(laid, config=config, relaxed=why), tried[config]

    def codes(self, special: Specialization, laid: LaidOut, target: Target) -> list[Code]:
        """The kernels of a region built for ``target``, as if all addresses were aligned."""
        found = []
        for part in parts_of(laid):
            kernel = kernel_of(special, laid, part)
            sizes = [laid.number(size.source, self.sizes) for size in kernel.sizes]
            near = frozenset(pointer.name for pointer in kernel.pointers)
            found.append(code_of(self.formula, kernel, laid.backend, target, sizes, near))
        return found

    def binaries(self, target: Target) -> list[TritonBinary]:
        """Every region compiled by Triton for ``target``, as if all addresses were aligned."""
        from fusec.runtime.build_triton import compile_triton
        from fusec.runtime.program import triton_program

        found = []
        for laid, kernel in self.kernels(
            "triton", target, plain=target.backend == "hip", built=True
        ):
            numbers = [laid.number(s.source, self.sizes) for s in kernel.sizes]
            pointers = frozenset(p.name for p in kernel.pointers)
            program = triton_program(kernel, numbers, pointers, self.formula.numerics)
            found.append(compile_triton(program, target))
        return found


def example_arguments(formula: Formula, examples: Sequence[Any]) -> tuple[Argument, ...]:
    """What specialising sees of example inputs;

    Float32 4096 x 4096 (int64 rows for positions) where there are none.
    """
    if not examples:
        shape = (DEFAULT_LENGTH, DEFAULT_LENGTH)
        positions = index_names(formula.program)
        whole = Argument(F32, shape, contiguous(shape))
        rows = Argument(I64, shape[:1], (1,))
        return tuple(rows if name in positions else whole for name in formula.inputs)
    if len(examples) != len(formula.inputs):
        raise UnknownNameError(
            f"{len(examples)} example inputs, the formula has {len(formula.inputs)} "
            f"({', '.join(formula.inputs)})",
            hint="give one for each, or none",
        )
    return tuple(
        _argument(name, value) for name, value in zip(formula.inputs, examples, strict=True)
    )


def _argument(name: str, value: Any) -> Argument:
    if isinstance(value, (bool, int, float)):
        kind = BOOL if isinstance(value, bool) else I64 if isinstance(value, int) else F64
        return Argument(kind, scalar=True)
    import torch

    tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
    dtype = by_torch_name(str(tensor.dtype).removeprefix("torch."))
    if dtype is None:
        raise DTypeError(
            f"example input {name!r} is {tensor.dtype}", hint="fusec takes real numbers and bools"
        )
    return Argument(dtype, tuple(tensor.shape), tuple(tensor.stride()))


def show(
    formula: Formula,
    special: Specialization,
    arguments: Sequence[Argument],
    stage: str,
    target: str | None,
    backend: str = "auto",
) -> str:
    """The text of one stage; several kernels are joined by a blank line.

    The kernel, its PTX and its SASS are those of ``backend``: CUDA C++ or, by default, Triton.
    """
    if stage not in STAGES:
        hint = did_you_mean(stage, STAGES) or f"one of {', '.join(STAGES)}"
        raise UnsupportedError(f"there is no stage {stage!r}", hint=hint)
    if any(n == 0 for a in arguments for n in a.shape) and stage not in STAGES[:5]:
        raise UnsupportedError(
            "an example input has an axis of length 0", hint="nothing is compiled for empty tensors"
        )
    view = View(formula, special, arguments)
    if stage in ("grad", "explain"):
        gradient = GradientView.of(special, view.sizes)
        return gradient.formula() if stage == "grad" else gradient.table()
    return _stage(view, stage, target, backend)


def _stage(view: View, stage: str, target: str | None, backend: str) -> str:
    special = view.special
    match stage:
        case "formula":
            return _formula(view.formula, special)
        case "graph":
            return print_graph(special.plan.graph)
        case "plan":
            return _plan(view, backend, target)
        case "kernel":
            printed = backend if backend in ("cuda", "cpp") else "triton"
            return "\n".join(describe(kernel) for _, kernel in view.kernels(printed))
        case "triton" | "cuda" | "cpp":
            return _source(view, stage, target)
    compiled = _compiled_cuda if backend == "cuda" else _compiled
    return compiled(view, stage, target)


def _source(view: View, language: str, target: str | None) -> str:
    """What is printed in ``triton``, ``cuda`` or ``cpp``."""
    if language == "cpp":
        return "\n".join(print_cpp(kernel) for _, kernel in view.kernels("cpp"))
    kernels = view.kernels(language, Target.parse(target) if target else None)
    if language == "triton":
        from fusec.codegen.triton import print_triton

        return "\n\n".join(print_triton(kernel) for _, kernel in kernels)
    from fusec.runtime.cuda_host import program_source, sources_of

    contiguous_inputs = all(a.scalar or a.strides == contiguous(a.shape) for a in view.arguments)
    if contiguous_inputs:
        return program_source(view.special, kernels)
    return sources_of(kernels)


def _formula(formula: Formula, special: Specialization) -> str:
    from fusec.passes.algebra import latex

    text = formula.source.text.strip()
    if isinstance(formula, TracedFormula):
        text = f"{text}\n\n{formula_text(special.plan.graph).strip()}"
    return f"{text}\n\n{latex(special.plan.graph)}\n"


def _plan(view: View, backend: str, target: str | None) -> str:
    """The regions and why they are so; with a target, what their kernels need there."""
    lines = []
    chosen = Target.parse(target) if target else None
    language = "cuda" if backend == "cuda" else "triton"
    special, every = view.laid_out(language, chosen, automatic=backend == "auto")
    for (region, accesses), laid in zip(special.regions, every, strict=True):
        space = ", ".join(map(str, region.space))
        lines.append(f"{region.name}: {region.kind} over [{space}]")
        reads = dict.fromkeys(o.name for o in accesses if o.kind != "root")
        lines.append(
            f"  reads {', '.join(reads) or 'nothing'}; "
            f"writes {', '.join(root.name for root in region.roots)}"
        )
        lines.append(f"  {region.reason}")
        if laid.reason is not None:
            lines.append(f"  CUDA C++ on a GPU: {laid.reason}")
        turns = turns_text(laid.config, [laid.accesses[k].name for k in laid.config.staged])
        if turns:
            lines.append(f"  {turns}")
        if chosen is not None and chosen.backend == "cuda" and backend != "cpp":
            lines += _needs(view, special, laid, chosen)
        built = [v for v in special.variants if v.facts and v.kernel.startswith(region.name)]
        lines += [f"  built in {LANGUAGES[v.backend]}: {v.facts}" for v in built]
    return "\n".join(lines) + "\n"


def _needs(view: View, special: Specialization, laid: LaidOut, target: Target) -> list[str]:
    """What a thread of each kernel of a region needs, built for ``target``."""
    laid, codes = view.settled(special, laid, target)
    where = f"{target} in {LANGUAGES[laid.backend]}"
    said = []
    for number, code in enumerate(codes, 1):
        which = f", kernel {number} of {len(codes)}" if len(codes) > 1 else ""
        said.append(f"  {where}{which}: {code.facts or 'facts of an unknown form'}")
    return [*said, f"  {laid.relaxed}"] if laid.relaxed else said


def _compiled_cuda(view: View, stage: str, target: str | None) -> str:
    from fusec.codegen.cuda import print_cuda
    from fusec.runtime.build_cuda import compile_cuda
    from fusec.runtime.build_triton import sass

    if stage not in ("ptx", "sass"):
        raise UnsupportedError(
            f"CUDA C++ has no stage {stage!r}",
            hint="it has ptx and sass; backend='triton' has more",
        )
    chosen = Target.parse(target or _present_target())
    fast = view.formula.numerics == "fast"
    texts = []
    for _, kernel in view.kernels("cuda", chosen, built=True):
        form = "ptx" if stage == "ptx" else "cubin"
        binary = compile_cuda(print_cuda(kernel), kernel.name, chosen, fast, form)
        texts.append(binary.decode(errors="replace") if stage == "ptx" else sass(binary))
    return "\n".join(texts)


def _compiled(view: View, stage: str, target: str | None) -> str:
    from fusec.runtime.build_triton import sass

    chosen = Target.parse(target or _present_target())
    texts = []
    for binary in view.binaries(chosen):
        if stage == "sass":
            if "cubin" not in binary.stages:
                raise UnsupportedError(
                    f"{chosen} has no SASS", hint="use --stage amdgcn for AMD targets"
                )
            texts.append(sass(binary.binary))
            continue
        text = binary.stages.get(stage)
        if text is None:
            known = ", ".join(k for k, v in binary.stages.items() if isinstance(v, str))
            raise UnsupportedError(f"{chosen} has no stage {stage!r}", hint=f"it has {known}")
        texts.append(text if isinstance(text, str) else text.decode(errors="replace"))
    return "\n".join(texts)


def _present_target() -> str:
    """The GPU of this machine, or Hopper where there is none."""
    import torch

    if not torch.cuda.is_available():
        return _DEFAULT_TARGET
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"
