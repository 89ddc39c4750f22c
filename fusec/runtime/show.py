"""The stages of a formula's way to machine code, as text. May import everything below the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fusec.codegen.cpp import print_cpp
from fusec.codegen.describe import describe
from fusec.codegen.kernel import Kernel
from fusec.errors import DTypeError, UnknownNameError, UnsupportedError, did_you_mean
from fusec.frontend.resolve_names import index_names
from fusec.ir.dtypes import BOOL, F32, F64, I64, by_torch_name
from fusec.ir.text import print_graph
from fusec.runtime.formula import Formula
from fusec.runtime.show_gradient import GradientView
from fusec.runtime.specialize import (
    Argument,
    LaidOut,
    Specialization,
    contiguous,
    kernel_of,
    lay_out_all,
    parts_of,
)

if TYPE_CHECKING:
    from fusec.ir.node import Dim
    from fusec.runtime.build_triton import Target, TritonBinary

STAGES = (
    "formula",
    "grad",
    "explain",
    "graph",
    "plan",
    "kernel",
    "triton",
    "cpp",
    "ttir",
    "ttgir",
    "llir",
    "ptx",
    "sass",
    "amdgcn",
)
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

    def kernels(self, backend: str, plain: bool = False) -> list[tuple[LaidOut, Kernel]]:
        """Every region lowered for ``backend``; ``plain`` without fast forms, which are CUDA's."""
        found: list[tuple[LaidOut, Kernel]] = []
        special, every = self.laid_out(backend)
        for laid in every:
            kernels = [kernel_of(special, laid, backend, part, plain) for part in parts_of(laid)]
            found.extend((laid, kernel) for kernel in kernels)
        return found

    def laid_out(self, backend: str) -> tuple[Specialization, list[LaidOut]]:
        """What runs in a call like the example, and how its regions lie in memory."""
        special, every, self.sizes = lay_out_all(
            self.special, self.arguments, self.sizes, {}, backend
        )
        return special, every

    def binaries(self, target: Target) -> list[TritonBinary]:
        """Every region compiled by Triton for ``target``, as if all addresses were aligned."""
        from fusec.runtime.build_triton import compile_triton
        from fusec.runtime.program import triton_program

        found = []
        for laid, kernel in self.kernels("triton", target.backend == "hip"):
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
) -> str:
    """The text of one stage; several kernels are joined by a blank line."""
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
    return _stage(view, stage, target)


def _stage(view: View, stage: str, target: str | None) -> str:
    special = view.special
    match stage:
        case "formula":
            return _formula(view.formula, special)
        case "graph":
            return print_graph(special.plan.graph)
        case "plan":
            return _plan(view.laid_out("triton")[0])
        case "kernel":
            return "\n".join(describe(kernel) for _, kernel in view.kernels("triton"))
        case "triton":
            from fusec.codegen.triton import print_triton

            return "\n\n".join(print_triton(kernel) for _, kernel in view.kernels("triton"))
        case "cpp":
            return "\n".join(print_cpp(kernel) for _, kernel in view.kernels("cpp"))
    return _compiled(view, stage, target)


def _formula(formula: Formula, special: Specialization) -> str:
    from fusec.passes.algebra import latex

    text = formula.source.text.strip()
    return f"{text}\n\n{latex(special.plan.graph)}\n"


def _plan(special: Specialization) -> str:
    lines = []
    for region, accesses in special.regions:
        space = ", ".join(map(str, region.space))
        lines.append(f"{region.name}: {region.kind} over [{space}]")
        reads = dict.fromkeys(o.name for o in accesses if o.kind != "root")
        lines.append(
            f"  reads {', '.join(reads) or 'nothing'}; "
            f"writes {', '.join(root.name for root in region.roots)}"
        )
        lines.append(f"  {region.reason}")
    return "\n".join(lines) + "\n"


def _compiled(view: View, stage: str, target: str | None) -> str:
    from fusec.runtime.build_triton import Target, sass

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
