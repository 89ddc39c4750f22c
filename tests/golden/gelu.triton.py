"""0.5*x*(1 + tanh(0.79788456*(x + 0.044715*x^3)))

reads x bf16; writes out bf16; 4 bytes per element
"""

import triton
import triton.language as tl


@triton.jit
def _exp(x):
    # A product and one instruction, where tl.exp would also look after subnormal results.
    return tl.exp2(x * 1.442695)


@triton.jit
def gelu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    # load
    x = tl.load(x_ptr + i, mask=mask, other=0.0).to(tl.float32)
    # compute
    t0 = 0.7978846 * (x + 0.044715 * (x * x * x)) * -2.0
    out = x / (1.0 + _exp(t0))
    # store
    tl.store(out_ptr + i, out, mask=mask)
