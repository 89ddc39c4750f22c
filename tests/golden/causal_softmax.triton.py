"""# position along the last axis: the key; along the one before it: the query
allowed = index(-1) <= index(-2)
softmax(where(allowed, scores * scale, -inf))

reads scores f32; writes out f32; 8 bytes per element
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def causal_softmax_kernel(
    scores_ptr,
    out_ptr,
    scale,
    rows,
    cols,
    row_size_1,
    scores_row_stride_0,
    out_row_stride_0,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    row_mask = row < rows
    col = tl.arange(0, BLOCK_COLS)[None, :]
    row_1 = row % row_size_1
    row_0 = row // row_size_1
    # load
    scores = tl.load(
        scores_ptr + row_0 * scores_row_stride_0 + row_1 * cols + col, mask=row_mask, other=0.0
    )
    # reduce: row_max
    allowed = col <= row_1
    t0 = tl.where(allowed, scores * scale, float("-inf"))
    row_max = tl.reduce(t0, axis=1, keep_dims=True, combine_fn=_maximum)
    # reduce: row_sum
    t1 = libdevice.exp(t0 - row_max)
    row_sum = tl.sum(t1, axis=1, keep_dims=True)
    t2 = tl.div_rn(1.0, row_sum)
    out = t1 * t2
    # store
    tl.store(out_ptr + row_0 * out_row_stride_0 + row_1 * cols + col, out, mask=row_mask)
