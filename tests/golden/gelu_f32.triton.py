"""0.5*x*(1 + tanh(0.79788456*(x + 0.044715*x*x*x)))

reads x f32; writes out f32; 8 bytes per element
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def gelu_f32_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    # load
    x = tl.load(x_ptr + i, mask=mask, other=0.0)
    # compute
    t0 = 0.7978846 * (x + 0.044715 * x * x * x) * -2.0
    out = tl.div_rn(x, 1.0 + libdevice.exp(t0))
    # store
    tl.store(out_ptr + i, out, mask=mask)
