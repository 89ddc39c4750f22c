// softmax(x)
//
// reads x f32; writes out f32; 8 bytes per element
#include "fusec.h"

extern "C" void softmax_f32_kernel(
    const float* x_ptr,
    float* out_ptr,
    int64_t rows,
    int64_t cols,
    int32_t threads) {
  const int64_t ahead = fusec::rows_ahead(cols);
  constexpr int64_t BLOCK = 1024;
  #pragma omp parallel num_threads(threads)
  {
    const fusec::Row<float> exp_row(cols);
    fusec::Block<float, BLOCK> out_block;
    #pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
      // reduce: row_max
      float row_max_lanes[fusec::LANES];
      fusec::fill<float>(row_max_lanes, -__builtin_inff());
      fusec::sweep(cols, [&](int64_t start, int64_t count) FUSEC_BODY {
        #pragma omp simd
        for (int64_t lane = 0; lane < count; ++lane) {
          const int64_t col = start + lane;
          const float x = x_ptr[row * cols + col];
          row_max_lanes[lane] = fusec::maximum(row_max_lanes[lane], x);
        }
      });
      const float row_max = fusec::finish_max(row_max_lanes);
      // reduce: row_sum
      float row_sum_lanes[fusec::LANES];
      fusec::fill<float>(row_sum_lanes, 0.0f);
      double row_sum_wide[fusec::LANES];
      fusec::fill<double>(row_sum_wide, 0.0);
      fusec::sweep(cols, [&](int64_t start, int64_t count) FUSEC_BODY {
        fusec::prefetch(&x_ptr[(row + ahead) * cols + start]);
        #pragma omp simd
        for (int64_t lane = 0; lane < count; ++lane) {
          const int64_t col = start + lane;
          const float x = x_ptr[row * cols + col];
          const float t0 = fusec::exp(x - row_max);
          exp_row.data[col] = t0;
          row_sum_lanes[lane] += t0;
        }
      }, [&] {
        fusec::carry(row_sum_wide, row_sum_lanes);
      });
      const float row_sum = static_cast<float>(fusec::finish_sum(row_sum_wide));
      const float t1 = 1.0f / row_sum;
      // compute and store
      for (int64_t start = 0; start < cols; start += BLOCK) {
        const int64_t count = fusec::minimum(cols - start, BLOCK);
        #pragma omp simd
        for (int64_t lane = 0; lane < count; ++lane) {
          const int64_t col = start + lane;
          const float t0 = exp_row.data[col];
          const float out = t0 * t1;
          out_block.data[lane] = out;
        }
        out_block.write(&out_ptr[row * cols + start], count);
      }
    }
  }
}
