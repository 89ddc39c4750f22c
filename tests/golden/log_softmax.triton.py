"""log_softmax(logits)

reads logits f32; writes out f32; 8 bytes per element
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def log_softmax_kernel(logits_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    # load
    logits = tl.load(logits_ptr + row * cols + col)
    # reduce: row_max
    row_max = tl.reduce(logits, axis=0, combine_fn=_maximum)
    # reduce: row_sum
    t0 = logits - row_max
    row_sum = tl.sum(libdevice.exp(t0), axis=0)
    t1 = libdevice.log(row_sum)
    out = t0 - t1
    # store
    tl.store(out_ptr + row * cols + col, out)
