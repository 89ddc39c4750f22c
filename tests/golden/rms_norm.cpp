// hidden = x + residual
// hidden * rsqrt(mean(hidden^2) + 1e-6) * weight, hidden
//
// reads x bf16, residual bf16, weight bf16; writes out bf16, hidden bf16; 8 bytes per element
#include "fusec.h"

extern "C" void rms_norm_kernel(
    const fusec::bf16* x_ptr,
    const fusec::bf16* residual_ptr,
    const fusec::bf16* weight_ptr,
    fusec::bf16* out_ptr,
    fusec::bf16* hidden_ptr,
    int64_t rows,
    int64_t cols,
    int32_t threads) {
  #pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    // reduce: row_mean; write hidden
    double row_mean_lanes[fusec::LANES];
    fusec::fill<double>(row_mean_lanes, 0.0);
    fusec::sweep(cols, [&](int64_t start, int64_t count) FUSEC_BODY {
      #pragma omp simd
      for (int64_t lane = 0; lane < count; ++lane) {
        const int64_t col = start + lane;
        const float x = fusec::load(x_ptr[row * cols + col]);
        const float residual = fusec::load(residual_ptr[row * cols + col]);
        const float hidden = x + residual;
        row_mean_lanes[lane] += static_cast<double>(hidden * hidden);
        hidden_ptr[row * cols + col] = fusec::store<fusec::bf16>(hidden);
      }
    });
    const float row_mean = static_cast<float>(fusec::finish_mean(row_mean_lanes, cols));
    const float t0 = fusec::rsqrt(row_mean + 1e-6f);
    // compute and store
    #pragma omp simd
    for (int64_t col = 0; col < cols; ++col) {
      const float x = fusec::load(x_ptr[row * cols + col]);
      const float residual = fusec::load(residual_ptr[row * cols + col]);
      const float hidden = x + residual;
      const float weight = fusec::load(weight_ptr[col]);
      const float out = hidden * t0 * weight;
      out_ptr[row * cols + col] = fusec::store<fusec::bf16>(out);
    }
  }
}
