"""logsumexp(logits) - logits[target]

reads logits f32, target i64; writes out f32; 4 bytes per element
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def log_softmax_cross_entropy_kernel(logits_ptr, target_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    # load
    target = tl.load(target_ptr + row)
    logits_at = tl.load(
        logits_ptr + row * cols + target, mask=(target >= 0) & (target < cols), other=float("nan")
    )
    logits = tl.load(logits_ptr + row * cols + col)
    # reduce: row_max
    row_max = tl.reduce(logits, axis=0, combine_fn=_maximum)
    t0 = tl.where((row_max == float("inf")) | (row_max == float("-inf")), 0.0, row_max)
    # reduce: row_sum
    row_sum = tl.sum(libdevice.exp(logits - t0), axis=0)
    out = libdevice.log(row_sum) + t0 - logits_at
    # store
    tl.store(out_ptr + row, out)
