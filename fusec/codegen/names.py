"""Unique, readable names that are legal in every language fusec prints.

May import the standard library only.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable

_CPP = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
char32_t class compl concept const consteval constexpr constinit const_cast continue co_await
co_return co_yield decltype default delete do double dynamic_cast else enum explicit export extern
false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr
operator or or_eq private protected public register reinterpret_cast requires return short signed
sizeof static static_assert static_cast struct switch template this thread_local throw true try
typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq int8_t
int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t ptrdiff_t std omp main NULL
INFINITY NAN unix linux i386 errno stdin stdout stderr assert EOF
"""
_CUDA = """
__global__ __device__ __shared__ __restrict__ threadIdx blockIdx blockDim gridDim warpSize half
float2 float4 dim3
"""
_TRITON = """
tl triton libdevice self print range len min max abs sum float int bool str list tuple dict set
object type id
"""
_FUSEC = """
fusec i row col rows cols n mask row_mask col_mask
BLOCK BLOCK_ROWS BLOCK_COLS LANES start count parts team several strip strip_end
lane threads sweep program split part first last chunk share chunks splits SPLITS
step stretch stretches FOLD row_start row_end col_start col_end piece piece_end pieces ahead
border beyond
"""

# What generated CUDA calls its own; the other languages leave these to the user.
_CUDA_OWN = """
THREADS WARPS ROWS GROUP CLUSTER VECTORS FULL TILE BLOCKS wanted next member length vector shift
inside tile block scale wide_scale first_row head end edge first_col last_col col_blocks start
cluster clusters apart each stop step turn following kind behind beyond last memory memcpy fma fmaf
"""
CUDA_WORDS = frozenset(_CUDA_OWN.split())

RESERVED = frozenset(_CPP.split()) | frozenset(_CUDA.split()) | frozenset(_TRITON.split())
RESERVED |= frozenset(_FUSEC.split()) | frozenset(keyword.kwlist) | frozenset(keyword.softkwlist)
_ASCII = re.compile(r"[^0-9A-Za-z_]")


class Names:
    """Hands out names within one kernel; asks nothing of the world outside it."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._serial = 0

    def reserve(self, names: Iterable[str]) -> None:
        """Hand out none of these."""
        self._taken.update(names)

    def user(self, wanted: str) -> str:
        """``wanted``, made legal and unique."""
        stem = _ASCII.sub(lambda m: f"u{ord(m.group()):x}", wanted)
        if stem in RESERVED or stem.startswith("_") or stem[:1].isdigit():
            stem = f"{stem.lstrip('_') or 'v'}_"
        if stem[:1].isdigit():
            stem = f"v{stem}"
        candidate, serial = stem, 1
        while candidate in self._taken:
            candidate, serial = f"{stem}_{serial}", serial + 1
        self._taken.add(candidate)
        return candidate

    def temporary(self) -> str:
        """``t0``, ``t1`` and so on."""
        while True:
            name = f"t{self._serial}"
            self._serial += 1
            if name not in self._taken:
                self._taken.add(name)
                return name
