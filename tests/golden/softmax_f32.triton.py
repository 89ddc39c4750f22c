"""softmax(x)

reads x f32; writes out f32; 8 bytes per element
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def softmax_f32_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    # load
    x = tl.load(x_ptr + row * cols + col)
    # reduce: row_max
    row_max = tl.reduce(x, axis=0, combine_fn=_maximum)
    # reduce: row_sum
    t0 = libdevice.exp(x - row_max)
    row_sum = tl.sum(t0, axis=0)
    t1 = tl.div_rn(1.0, row_sum)
    out = t0 * t1
    # store
    tl.store(out_ptr + row * cols + col, out)
