"""A Kernel as the program that Triton's compiler gets: source, signature, what it may assume.

Apart from specialising: a process without a GPU need not load it. May import ``fusec.codegen``
and ``runtime.build_triton``.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusec.codegen.kernel import Form, Kernel
from fusec.codegen.triton import print_triton
from fusec.codegen.triton_place import Place
from fusec.runtime.build_triton import TritonProgram

TRITON_TYPES = {
    "f64": "fp64", "f32": "fp32", "f16": "fp16", "bf16": "bf16", "f8e4m3": "fp8e4nv",
    "f8e5m2": "fp8e5",
    "i64": "i64", "i32": "i32", "i16": "i16", "i8": "i8", "u8": "u8", "bool": "i1",
}  # fmt: skip


def launch_types(kernel: Kernel) -> list[str]:
    """The types of the arguments of a launch."""
    index = "i64" if kernel.config.wide_index else "i32"
    types = [f"*{TRITON_TYPES[p.storage.name]}" for p in kernel.pointers]
    types += [TRITON_TYPES[n.dtype.name] for n in kernel.numbers]
    return types + [index] * len(kernel.sizes)


def triton_program(
    kernel: Kernel, sizes: Sequence[int], aligned: frozenset[str], numerics: str
) -> TritonProgram:
    """The printed kernel with all that Triton's compiler has to know.

    ``aligned``: pointers that are 16-byte aligned.
    """
    index = "i64" if kernel.config.wide_index else "i32"
    signature = [(p.name, f"*{TRITON_TYPES[p.storage.name]}") for p in kernel.pointers]
    signature += [(n.name, TRITON_TYPES[n.dtype.name]) for n in kernel.numbers]
    signature += [(s.name, index) for s in kernel.sizes]
    fixed = Place(kernel).constants()
    signature += [(name, "constexpr") for name in fixed]
    return TritonProgram(
        source=print_triton(kernel),
        entry=kernel.name,
        signature=tuple(signature),
        constants=tuple(fixed.items()),
        divisible_by_16=aligned | divisible(kernel, sizes, 16),
        divisible_by_8=divisible(kernel, sizes, 8) - divisible(kernel, sizes, 16),
        divisible_by_4=divisible(kernel, sizes, 4) - divisible(kernel, sizes, 8),
        num_warps=kernel.config.warps,
        num_stages=kernel.config.stages,
        registers=kernel.config.registers,
        fp_fusion=numerics == "fast",
        flushes=kernel.flushes,
    )


def divisible(kernel: Kernel, sizes: Sequence[int], factor: int) -> frozenset[str]:
    """Size parameters that are multiples of ``factor``, where knowing so lets loads be wide."""
    along_rows = kernel.form is not Form.ROWS or kernel.config.lanes_along_rows
    return frozenset(
        s.name
        for s, value in zip(kernel.sizes, sizes, strict=True)
        if value % factor == 0 and (along_rows or s.name != "rows")
    )
