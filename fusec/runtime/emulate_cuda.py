"""Runs generated CUDA on CPU tensors: compiled as C++, each CUDA thread a fiber. May import
``fusec.codegen`` and ``runtime.build_cpp``.

For tests and for looking on a machine without a GPU: results are those of the kernel, warps,
barriers and clusters included; the mathematical functions are the C library's.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusec.codegen.cuda import print_cuda
from fusec.codegen.cuda_helpers import HELPERS
from fusec.codegen.cuda_place import constants, parameters
from fusec.codegen.cuda_turns import shared_bytes
from fusec.codegen.kernel import Kernel
from fusec.errors import InternalError
from fusec.runtime.build_cpp import build_cpp

if TYPE_CHECKING:
    import torch

# Helpers that are made of PTX, in C++.
_PORTABLE = {
    "float16": """
enum class float16 : unsigned short {};

inline float widen(float16 x) {
  const unsigned bits = static_cast<unsigned>(x), size = (bits & 0x7fff) << 13;
  const unsigned special = size >= 0x0f800000 ? size | 0x7f800000 : 0;
  const unsigned normal = __float_as_uint(__uint_as_float(size) * 0x1p112f);
  return __uint_as_float((special ? special : normal) | (bits & 0x8000) << 16);
}
""",
    "narrow_float16": HELPERS["narrow_bits"].replace("narrow_bits", "half_bits")
    + """
inline float16 narrow_float16(float x) {
  const unsigned bits = __float_as_uint(x), size = bits & 0x7fffffff;
  const unsigned code = size >= 0x477ff000 ? 0x7c00 : half_bits<10, 15>(size);
  return static_cast<float16>((x != x ? 0x7fff : code) | (bits >> 16 & 0x8000));
}
""",
    "load_early": HELPERS["load_vector"].replace("load_vector", "load_early"),
    "open_barrier": "\ninline void open_barrier(unsigned long long& barrier) { barrier = 0; }\n",
    "expect": """
inline void expect(unsigned long long& barrier, unsigned bytes) {
  cuda_on_cpu::counter(barrier).arrive(bytes);
}
""",
    "send": """
inline void send(unsigned long long& slot, unsigned long long bits, unsigned long long& barrier,
                 int rank) {
  *static_cast<unsigned long long*>(cuda_on_cpu::of_block(&slot, rank)) = bits;
  cuda_on_cpu::counter(cuda_on_cpu::of_block(&barrier, rank)).complete(sizeof(bits));
  cuda_on_cpu::progress = true;
}
""",
    "receive": """
inline void receive(unsigned long long& barrier) {
  while (cuda_on_cpu::counter(barrier).phase == 0) cuda_on_cpu::yield();
}
""",
    "quick_exp": "\ninline float quick_exp(float x) { return expf(x); }\n",
    "receive_again": """
inline void receive_again(unsigned long long& barrier, int again) {
  while (cuda_on_cpu::counter(barrier).phase == again % 2) cuda_on_cpu::yield();
}
""",
    "copy_ahead": """
template <class T>
void copy_ahead(Vector<T>& to, const T* from, bool inside) {
  to = {};
  if (inside) memcpy(&to, from, sizeof(to));
}
""",
    "copied": "\ninline void copied() {}\n",
    "quick_divide": "\ninline float quick_divide(float a, float b) { return a / b; }\n",
}
_GIVEN = "extern __shared__ __align__(16) unsigned char memory[];"  # by a launch
_SHARED = re.compile(r"__shared__ ([\w ]+) (\w+)((?:\[[^\]]+\])*);")
# Signed overflow stays undefined, as it is for nvcc and NVRTC.
_FLAGS = ("-O1", "-fno-openmp", "-fno-wrapv", "-w")
_CTYPES = {
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "bool": ctypes.c_bool,
    "long long": ctypes.c_int64,
    "int": ctypes.c_int32,
    "short": ctypes.c_int16,
    "signed char": ctypes.c_int8,
    "unsigned char": ctypes.c_uint8,
}
_FAILURES = {1: "its threads wait for each other for ever", 2: "there is no memory for its threads"}
_running = threading.Lock()  # the fibers of a library are its own, and they are static


def emulated(kernel: Kernel, include: Path) -> Callable[[int, Sequence[Any]], None]:
    """A function of a number of blocks and the arguments of a launch: addresses and numbers.

    Raises BuildError where the source does not compile and InternalError where it hangs.
    """
    library = build_cpp(host_source(kernel), include, flags=_FLAGS)
    function = library[f"run_{kernel.name}"]
    function.restype = ctypes.c_int
    kinds: list[Any] = [_CTYPES.get(kind, ctypes.c_void_p) for _, kind in parameters(kernel)]
    function.argtypes = [ctypes.c_uint, *kinds]

    def run(blocks: int, arguments: Sequence[torch.Tensor | int | float]) -> None:
        with _running:
            code = function(blocks, *arguments)
        if code != 0:
            raise InternalError(f"{kernel.name} does not end: {_FAILURES[code]}")

    return run


def host_source(kernel: Kernel) -> str:
    """The kernel as C++, and a function that runs it."""
    text = print_cuda(kernel)
    for name, portable in _PORTABLE.items():
        text = text.replace(HELPERS[name], portable)
    text = text.replace(_GIVEN, f"__shared__ unsigned char memory[{shared_bytes(kernel)}];")
    names = ", ".join(name for name, _ in parameters(kernel))
    passed = ", ".join(f"{kind} {name}" for name, kind in parameters(kernel))
    fixed = constants(kernel)
    return (
        '#include "cuda_on_cpu.h"\n'
        + _SHARED.sub(r"auto& \2 = cuda_on_cpu::shared<\1\3, __COUNTER__>();", text)
        + f'\nextern "C" int run_{kernel.name}(unsigned blocks, {passed}) {{\n'
        + f"  return cuda_on_cpu::launch(blocks, {fixed['THREADS']}, {fixed['CLUSTER']}, "
        + f"[&] {{ {kernel.name}({names}); }});\n}}\n"
    )
