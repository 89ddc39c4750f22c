"""# softmax with one more place in the sum, worth exp(0): a head may attend to nothing
scaled = scores / temperature
top = maximum(max(scaled), 0)
e = exp(scaled - top)
nothing = exp(-top)
total = sum(e) + nothing
e / total, nothing / total

reads scores f32; writes out f32, out_1 f32; 8 bytes per element
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def quiet_softmax_kernel(scores_ptr, out_ptr, out_1_ptr, temperature, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    mask = col < cols
    # load
    scores = tl.load(scores_ptr + row * cols + col, mask=mask, other=0.0)
    # reduce: row_max
    scaled = tl.div_rn(scores, temperature)
    row_max = tl.reduce(tl.where(mask, scaled, float("-inf")), axis=0, combine_fn=_maximum)
    top = tl.maximum(row_max, 0.0, propagate_nan=tl.PropagateNan.ALL)
    nothing = libdevice.exp(top * -1.0)
    # reduce: row_sum
    e = libdevice.exp(scaled - top)
    row_sum = tl.sum(tl.where(mask, e, 0.0), axis=0)
    total = row_sum + nothing
    out = tl.div_rn(e, total)
    out_1 = tl.div_rn(nothing, total)
    # store
    tl.store(out_ptr + row * cols + col, out, mask=mask)
    tl.store(out_1_ptr + row, out_1)
