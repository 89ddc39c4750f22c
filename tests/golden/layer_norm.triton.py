"""mu = mean(x)
variance = mean((x - mu)^2)
(x - mu) * rsqrt(variance + 1e-5) * weight + bias

reads x bf16, weight bf16, bias bf16; writes out bf16; 4 bytes per element
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
def layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    # load
    x = tl.load(x_ptr + row * cols + col).to(tl.float32)
    weight = tl.load(weight_ptr + col).to(tl.float32)
    bias = tl.load(bias_ptr + col).to(tl.float32)
    # reduce: mu (mean)
    mu = _mean_of_tile(x, axis=0)
    # reduce: variance (mean)
    t0 = x - mu
    variance = _mean_of_tile(t0 * t0, axis=0)
    t1 = libdevice.rsqrt(variance + 1e-5)
    out = t0 * t1 * weight + bias
    # store
    tl.store(out_ptr + row * cols + col, out)
