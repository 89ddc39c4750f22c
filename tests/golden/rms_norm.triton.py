"""hidden = x + residual
hidden * rsqrt(mean(hidden^2) + 1e-6) * weight, hidden

reads x bf16, residual bf16, weight bf16; writes out bf16, hidden bf16; 8 bytes per element
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _mean_of_tile(x, axis: tl.constexpr, keep_dims: tl.constexpr = False):
    # A power of two changes no digit, and keeps the sum in range wherever the mean is.
    scale: tl.constexpr = 1.0 / x.shape[axis]
    return tl.sum(x * scale, axis=axis, keep_dims=keep_dims)


@triton.jit
def rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    hidden_ptr,
    cols,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    # load
    x = tl.load(x_ptr + row * cols + col).to(tl.float32)
    residual = tl.load(residual_ptr + row * cols + col).to(tl.float32)
    weight = tl.load(weight_ptr + col).to(tl.float32)
    # reduce: row_mean
    hidden = x + residual
    row_mean = _mean_of_tile(hidden * hidden, axis=0)
    t0 = libdevice.rsqrt(row_mean + 1e-6)
    # store
    tl.store(hidden_ptr + row * cols + col, hidden)
    # compute
    out = hidden * t0 * weight
    # store
    tl.store(out_ptr + row * cols + col, out)
