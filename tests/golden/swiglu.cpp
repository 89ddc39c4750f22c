// silu(gate) * up
//
// reads gate bf16, up bf16; writes out bf16; 6 bytes per element
#include "fusec.h"

extern "C" void swiglu_kernel(
    const fusec::bf16* gate_ptr,
    const fusec::bf16* up_ptr,
    fusec::bf16* out_ptr,
    int64_t n,
    int32_t threads) {
  #pragma omp parallel for simd num_threads(threads) schedule(static)
  for (int64_t i = 0; i < n; ++i) {
    // load
    const float gate = fusec::load(gate_ptr[i]);
    const float up = fusec::load(up_ptr[i]);
    // compute
    const float out = gate / (1.0f + fusec::fast::exp(-gate)) * up;
    // store
    out_ptr[i] = fusec::store<fusec::bf16>(out);
  }
}
