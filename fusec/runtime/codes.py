"""A kernel as machine code for a GPU, with what the machine code says of itself.

May import ``fusec.codegen``, ``runtime.program`` and ``runtime.cubin``, and the builders inside
functions.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fusec import settings
from fusec.codegen.kernel import Kernel
from fusec.runtime.cubin import Facts, read_facts
from fusec.runtime.program import launch_types, triton_program

if TYPE_CHECKING:
    from fusec.runtime.build_triton import Target
    from fusec.runtime.formula import Formula


class Code(NamedTuple):
    """A built kernel: its entry in the cache and content, its facts where they can be read, and
    what a launch needs: types, threads of a block, bytes of dynamic shared memory.
    """

    key: str
    binary: bytes
    facts: Facts | None
    types: tuple[str, ...]
    threads: int
    shared: int
    source: str
    even: str  # what it takes for multiples of 16, in words
    seconds: float  # that building it took


def code_of(
    formula: Formula,
    kernel: Kernel,
    backend: str,
    target: Target,
    sizes: Sequence[int] = (),
    aligned: frozenset[str] = frozenset(),
) -> Code:
    """``kernel`` built for ``target`` or found. Triton assumes of ``sizes`` what they are multiples
    of, and that the pointers ``aligned`` are at multiples of 16 bytes.

    Raises BuildError and UnsupportedError from the compilers.
    """
    started = time.perf_counter()
    if backend == "cuda":
        from fusec.codegen.cuda import print_cuda
        from fusec.codegen.cuda_turns import shared_bytes
        from fusec.runtime.build_cuda import build_cuda

        source, fast = print_cuda(kernel), formula.numerics == "fast"
        key, binary = build_cuda(source, kernel.name, target, fast, build=formula.build)
        types, threads, even = tuple(launch_types(kernel)), kernel.config.threads, ""
        shared = shared_bytes(kernel)
    else:
        from fusec.runtime.build_triton import compile_triton

        program = triton_program(kernel, sizes, aligned, formula.numerics)
        built = compile_triton(program, target)
        source, key, binary = program.source, built.key, built.binary
        types, threads, shared = program.parameter_types(), built.num_threads, built.shared
        even = ", ".join(sorted(program.divisible_by_16)) or "nothing"
        if settings.get().debug >= 5:
            sys.stderr.write(str(built.stages["ptx"]))
    facts = read_facts(binary, kernel.name)
    seconds = time.perf_counter() - started
    return Code(key, binary, facts, types, threads, shared, source, even, seconds)
