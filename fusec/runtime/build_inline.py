"""Builds the whole CUDA program of a call as a PyTorch extension: ``build="load_inline"``. May
import everything below the API but ``runtime.launch`` and what stands above that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fusec.errors import BuildError, UnsupportedError
from fusec.runtime.build_cuda import find_nvcc
from fusec.runtime.cache import default_root, digest
from fusec.runtime.counters import OncePerKey
from fusec.runtime.cuda_host import declarations, host_name, program_source
from fusec.runtime.prepared import Step, conversion
from fusec.runtime.shapes import contiguous
from fusec.runtime.specialize import (
    Argument,
    LaidOut,
    Specialization,
    Variant,
    kernel_of,
    parts_of,
)
from fusec.runtime.steps import note_variant, scalar_of

_once = OncePerKey()


def inline_step(
    special: Specialization,
    laid: Sequence[LaidOut],
    arguments: Sequence[Argument],
    outputs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    aligned: frozenset[str],
) -> Step:
    """One step that calls the host function of the program with its tensors.

    ``outputs``: shapes and strides. Raises UnsupportedError for what the host function does not
    take and BuildError with the compiler's words.
    """
    inputs = special.formula.inputs
    given = [(a.shape, a.strides) for a in arguments if not a.scalar] + list(outputs)
    names = [n for n, a in zip(inputs, arguments, strict=True) if not a.scalar]
    names += [f"out {output.name}" for output in special.outputs]
    odd = [
        name
        for name, (shape, strides) in zip(names, given, strict=True)
        if strides != contiguous(shape) or name not in aligned
    ]
    if odd:
        raise UnsupportedError(
            f"build='load_inline' takes contiguous tensors at multiples of 16 bytes, which "
            f"{odd[0]!r} is not",
            backend="cuda",
            hint="pass x.contiguous(), or leave build='load_inline' out",
        )
    kernels = [(one, kernel_of(special, one, part)) for one in laid for part in parts_of(one)]
    source = program_source(special, kernels)
    key = ("load_inline", source)
    module = _once.get(special.built, key, lambda: _build(special, source))
    run = getattr(module, f"{host_name(special)}_out")
    count = len(inputs)
    pointers = tuple((k, k) for k, a in enumerate(arguments) if not a.scalar)
    pointers += tuple((count + k, count + k) for k in range(len(special.outputs)))
    numbers = tuple(
        (k, k, conversion(*scalar_of(a.dtype))) for k, a in enumerate(arguments) if a.scalar
    )
    template: list[Any] = [0] * (count + len(special.outputs))
    return Step(lambda values: run(*values), template, pointers, numbers)


def _build(special: Specialization, source: str) -> Any:
    from torch.utils import cpp_extension

    load_inline: Any = cpp_extension.load_inline
    if find_nvcc() is None:
        raise UnsupportedError(
            "build='load_inline' needs nvcc, which is not on this machine",
            backend="cuda",
            hint="install the CUDA toolkit, or leave build='load_inline' out: NVRTC needs none",
        )
    name = f"fusec_{digest({'kind': 'load_inline', 'source': source})[:16]}"
    folder = Path(default_root()) / "load_inline" / name
    folder.mkdir(parents=True, exist_ok=True)
    fast = special.formula.numerics == "fast"
    function = f"{host_name(special)}_out"
    try:
        module = load_inline(
            name=name,
            cpp_sources=declarations(special),
            cuda_sources=source,
            functions=[function],
            extra_cuda_cflags=[f"--fmad={'true' if fast else 'false'}"],
            build_directory=str(folder),
        )
    except (RuntimeError, OSError) as error:
        raise BuildError(
            "torch.utils.cpp_extension.load_inline could not build the generated CUDA",
            tool_output=str(error),
            source_path=str(folder / "cuda.cu"),
        ) from error
    why = "load_inline: contiguous tensors"
    note_variant(special, Variant(function, "cuda", function, why), "")
    return module
