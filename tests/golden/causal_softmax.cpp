// # position along the last axis: the key; along the one before it: the query
// allowed = index(-1) <= index(-2)
// softmax(where(allowed, scores * scale, -inf))
//
// reads scores f32; writes out f32; 8 bytes per element
#include "fusec.h"

extern "C" void causal_softmax_kernel(
    const float* scores_ptr,
    float* out_ptr,
    float scale,
    int64_t rows,
    int64_t cols,
    int64_t row_size_1,
    int64_t scores_row_stride_0,
    int64_t out_row_stride_0,
    int32_t threads) {
  #pragma omp parallel num_threads(threads)
  {
    const fusec::Row<float> exp_row(cols);
    #pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t row_1 = row % row_size_1;
      const int64_t row_0 = row / row_size_1;
      // reduce: row_max
      float row_max_lanes[fusec::LANES];
      fusec::fill<float>(row_max_lanes, -__builtin_inff());
      fusec::sweep(cols, [&](int64_t start, int64_t count) FUSEC_BODY {
        #pragma omp simd
        for (int64_t lane = 0; lane < count; ++lane) {
          const int64_t col = start + lane;
          const bool allowed = col <= row_1;
          const float scores = scores_ptr[row_0 * scores_row_stride_0 + row_1 * cols + col];
          const float t0 = (allowed ? scores * scale : -__builtin_inff());
          row_max_lanes[lane] = fusec::maximum(row_max_lanes[lane], t0);
        }
      });
      const float row_max = fusec::finish_max(row_max_lanes);
      // reduce: row_sum
      float row_sum_lanes[fusec::LANES];
      fusec::fill<float>(row_sum_lanes, 0.0f);
      double row_sum_wide[fusec::LANES];
      fusec::fill<double>(row_sum_wide, 0.0);
      fusec::sweep(cols, [&](int64_t start, int64_t count) FUSEC_BODY {
        #pragma omp simd
        for (int64_t lane = 0; lane < count; ++lane) {
          const int64_t col = start + lane;
          const bool allowed = col <= row_1;
          const float scores = scores_ptr[row_0 * scores_row_stride_0 + row_1 * cols + col];
          const float t0 = (allowed ? scores * scale : -__builtin_inff());
          const float t1 = fusec::exp(t0 - row_max);
          exp_row.data[col] = t1;
          row_sum_lanes[lane] += t1;
        }
      }, [&] {
        fusec::carry(row_sum_wide, row_sum_lanes);
      });
      const float row_sum = static_cast<float>(fusec::finish_sum(row_sum_wide));
      const float t2 = 1.0f / row_sum;
      // compute and store
      #pragma omp simd
      for (int64_t col = 0; col < cols; ++col) {
        const float t1 = exp_row.data[col];
        const float out = t1 * t2;
        out_ptr[row_0 * out_row_stride_0 + row_1 * cols + col] = out;
      }
    }
  }
}
