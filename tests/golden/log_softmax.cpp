// log_softmax(logits)
//
// reads logits f32; writes out f32; 8 bytes per element
#include "fusec.h"

extern "C" void log_softmax_kernel(
    const float* logits_ptr,
    float* out_ptr,
    int64_t rows,
    int64_t cols,
    int32_t threads) {
  const int64_t ahead = fusec::rows_ahead(cols);
  #pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    // reduce: row_max
    float row_max_lanes[fusec::LANES];
    fusec::fill<float>(row_max_lanes, -__builtin_inff());
    fusec::sweep(cols, [&](int64_t start, int64_t count) FUSEC_BODY {
      #pragma omp simd
      for (int64_t lane = 0; lane < count; ++lane) {
        const int64_t col = start + lane;
        const float logits = logits_ptr[row * cols + col];
        row_max_lanes[lane] = fusec::maximum(row_max_lanes[lane], logits);
      }
    });
    const float row_max = fusec::finish_max(row_max_lanes);
    // reduce: row_sum
    float row_sum_lanes[fusec::LANES];
    fusec::fill<float>(row_sum_lanes, 0.0f);
    double row_sum_wide[fusec::LANES];
    fusec::fill<double>(row_sum_wide, 0.0);
    fusec::sweep(cols, [&](int64_t start, int64_t count) FUSEC_BODY {
      fusec::prefetch(&logits_ptr[(row + ahead) * cols + start]);
      fusec::prefetch_to_write(&out_ptr[row * cols + start]);
      #pragma omp simd
      for (int64_t lane = 0; lane < count; ++lane) {
        const int64_t col = start + lane;
        const float logits = logits_ptr[row * cols + col];
        const float t0 = logits - row_max;
        row_sum_lanes[lane] += fusec::exp(t0);
      }
    }, [&] {
      fusec::carry(row_sum_wide, row_sum_lanes);
    });
    const float row_sum = static_cast<float>(fusec::finish_sum(row_sum_wide));
    const float t1 = fusec::log(row_sum);
    // compute and store
    #pragma omp simd
    for (int64_t col = 0; col < cols; ++col) {
      const float logits = logits_ptr[row * cols + col];
      const float t0 = logits - row_max;
      const float out = t0 - t1;
      out_ptr[row * cols + col] = out;
    }
  }
}
