// 0.5*x*(1 + tanh(0.79788456*(x + 0.044715*x*x*x)))
//
// reads x f32; writes out f32; 8 bytes per element
#include "fusec.h"

extern "C" void gelu_f32_kernel(const float* x_ptr, float* out_ptr, int64_t n, int32_t threads) {
  constexpr int64_t BLOCK = 128;
  #pragma omp parallel num_threads(threads)
  {
    fusec::Block<float, BLOCK> out_block;
    #pragma omp for schedule(static)
    for (int64_t start = 0; start < n; start += BLOCK) {
      const int64_t count = fusec::minimum(n - start, BLOCK);
      fusec::prefetch<BLOCK>(&x_ptr[start + fusec::AHEAD]);
      #pragma omp simd
      for (int64_t lane = 0; lane < count; ++lane) {
        const int64_t i = start + lane;
        // load
        const float x = x_ptr[i];
        // compute
        const float t0 = 0.7978846f * (x + 0.044715f * x * x * x) * -2.0f;
        const float out = x / (1.0f + fusec::exp(t0));
        // store
        out_block.data[lane] = out;
      }
      out_block.write(&out_ptr[start], count);
    }
  }
}
