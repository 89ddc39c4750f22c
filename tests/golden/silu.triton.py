"""gate * sigmoid(gate)

reads gate bf16; writes out bf16; 4 bytes per element
"""

import triton
import triton.language as tl


@triton.jit
def _exp(x):
    # A product and one instruction, where tl.exp would also look after subnormal results.
    return tl.exp2(x * 1.442695)


@triton.jit
def silu_kernel(gate_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    # load
    gate = tl.load(gate_ptr + i, mask=mask, other=0.0).to(tl.float32)
    # compute
    out = gate * (1.0 / (1.0 + _exp(gate * -1.0)))
    # store
    tl.store(out_ptr + i, out, mask=mask)
