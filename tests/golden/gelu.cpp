// 0.5*x*(1 + tanh(0.79788456*(x + 0.044715*x^3)))
//
// reads x bf16; writes out bf16; 4 bytes per element
#include "fusec.h"

extern "C" void gelu_kernel(
    const fusec::bf16* x_ptr,
    fusec::bf16* out_ptr,
    int64_t n,
    int32_t threads) {
  #pragma omp parallel for simd num_threads(threads) schedule(static)
  for (int64_t i = 0; i < n; ++i) {
    // load
    const float x = fusec::load(x_ptr[i]);
    // compute
    const float t0 = 0.7978846f * (x + 0.044715f * (x * x * x)) * -2.0f;
    const float out = x / (1.0f + fusec::fast::exp(t0));
    // store
    out_ptr[i] = fusec::store<fusec::bf16>(out);
  }
}
