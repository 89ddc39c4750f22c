// gate * sigmoid(gate)
//
// reads gate bf16; writes out bf16; 4 bytes per element
#include "fusec.h"

extern "C" void silu_kernel(
    const fusec::bf16* gate_ptr,
    fusec::bf16* out_ptr,
    int64_t n,
    int32_t threads) {
  #pragma omp parallel for simd num_threads(threads) schedule(static)
  for (int64_t i = 0; i < n; ++i) {
    // load
    const float gate = fusec::load(gate_ptr[i]);
    // compute
    const float out = gate * (1.0f / (1.0f + fusec::fast::exp(-gate)));
    // store
    out_ptr[i] = fusec::store<fusec::bf16>(out);
  }
}
