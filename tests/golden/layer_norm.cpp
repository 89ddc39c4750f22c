// mu = mean(x)
// variance = mean((x - mu)^2)
// (x - mu) * rsqrt(variance + 1e-5) * weight + bias
//
// reads x bf16, weight bf16, bias bf16; writes out bf16; 4 bytes per element
#include "fusec.h"

extern "C" void layer_norm_kernel(
    const fusec::bf16* x_ptr,
    const fusec::bf16* weight_ptr,
    const fusec::bf16* bias_ptr,
    fusec::bf16* out_ptr,
    int64_t rows,
    int64_t cols,
    int32_t threads) {
  const int64_t ahead = fusec::rows_ahead(cols);
  #pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    // reduce: mu (mean)
    double mu_lanes[fusec::LANES];
    fusec::fill<double>(mu_lanes, 0.0);
    fusec::sweep(cols, [&](int64_t start, int64_t count) FUSEC_BODY {
      #pragma omp simd
      for (int64_t lane = 0; lane < count; ++lane) {
        const int64_t col = start + lane;
        const float x = fusec::load(x_ptr[row * cols + col]);
        mu_lanes[lane] += static_cast<double>(x);
      }
    });
    const float mu = static_cast<float>(fusec::finish_mean(mu_lanes, cols));
    // reduce: variance (mean)
    double variance_lanes[fusec::LANES];
    fusec::fill<double>(variance_lanes, 0.0);
    fusec::sweep(cols, [&](int64_t start, int64_t count) FUSEC_BODY {
      fusec::prefetch(&x_ptr[(row + ahead) * cols + start]);
      fusec::prefetch_to_write(&out_ptr[row * cols + start]);
      #pragma omp simd
      for (int64_t lane = 0; lane < count; ++lane) {
        const int64_t col = start + lane;
        const float x = fusec::load(x_ptr[row * cols + col]);
        const float t0 = x - mu;
        variance_lanes[lane] += static_cast<double>(t0 * t0);
      }
    });
    const float variance = static_cast<float>(fusec::finish_mean(variance_lanes, cols));
    const float t1 = fusec::rsqrt(variance + 1e-5f);
    // compute and store
    #pragma omp simd
    for (int64_t col = 0; col < cols; ++col) {
      const float x = fusec::load(x_ptr[row * cols + col]);
      const float t0 = x - mu;
      const float weight = fusec::load(weight_ptr[col]);
      const float bias = fusec::load(bias_ptr[col]);
      const float out = t0 * t1 * weight + bias;
      out_ptr[row * cols + col] = fusec::store<fusec::bf16>(out);
    }
  }
}
