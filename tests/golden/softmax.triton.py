"""softmax(x)

reads x bf16; writes out bf16; 4 bytes per element
"""

import triton
import triton.language as tl


@triton.jit
def _maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _exp(x):
    # A product and one instruction, where tl.exp would also look after subnormal results.
    return tl.exp2(x * 1.442695)


@triton.jit
def softmax_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    # load
    x = tl.load(x_ptr + row * cols + col).to(tl.float32)
    # reduce: row_max
    row_max = tl.reduce(x, axis=0, combine_fn=_maximum)
    # reduce: row_sum
    t0 = _exp(x - row_max)
    row_sum = tl.sum(t0, axis=0)
    t1 = 1.0 / row_sum
    out = t0 * t1
    # store
    tl.store(out_ptr + row * cols + col, out)
