// # softmax with one more place in the sum, worth exp(0): a head may attend to nothing
// scaled = scores / temperature
// top = maximum(max(scaled), 0)
// e = exp(scaled - top)
// nothing = exp(-top)
// total = sum(e) + nothing
// e / total, nothing / total
//
// reads scores f32; writes out f32, out_1 f32; 8 bytes per element
#include "fusec.h"

extern "C" void quiet_softmax_kernel(
    const float* scores_ptr,
    float* out_ptr,
    float* out_1_ptr,
    float temperature,
    int64_t rows,
    int64_t cols,
    int32_t threads) {
  const int64_t ahead = fusec::rows_ahead(cols);
  #pragma omp parallel num_threads(threads)
  {
    const fusec::Row<float> e_row(cols);
    #pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
      // reduce: row_max
      float row_max_lanes[fusec::LANES];
      fusec::fill<float>(row_max_lanes, -__builtin_inff());
      fusec::sweep(cols, [&](int64_t start, int64_t count) FUSEC_BODY {
        #pragma omp simd
        for (int64_t lane = 0; lane < count; ++lane) {
          const int64_t col = start + lane;
          const float scores = scores_ptr[row * cols + col];
          const float scaled = scores / temperature;
          row_max_lanes[lane] = fusec::maximum(row_max_lanes[lane], scaled);
        }
      });
      const float row_max = fusec::finish_max(row_max_lanes);
      const float top = fusec::maximum(row_max, 0.0f);
      const float nothing = fusec::exp(-top);
      // reduce: row_sum
      float row_sum_lanes[fusec::LANES];
      fusec::fill<float>(row_sum_lanes, 0.0f);
      double row_sum_wide[fusec::LANES];
      fusec::fill<double>(row_sum_wide, 0.0);
      fusec::sweep(cols, [&](int64_t start, int64_t count) FUSEC_BODY {
        fusec::prefetch(&scores_ptr[(row + ahead) * cols + start]);
        fusec::prefetch_to_write(&out_ptr[row * cols + start]);
        #pragma omp simd
        for (int64_t lane = 0; lane < count; ++lane) {
          const int64_t col = start + lane;
          const float scores = scores_ptr[row * cols + col];
          const float scaled = scores / temperature;
          const float e = fusec::exp(scaled - top);
          e_row.data[col] = e;
          row_sum_lanes[lane] += e;
        }
      }, [&] {
        fusec::carry(row_sum_wide, row_sum_lanes);
      });
      const float row_sum = static_cast<float>(fusec::finish_sum(row_sum_wide));
      const float total = row_sum + nothing;
      // compute and store
      #pragma omp simd
      for (int64_t col = 0; col < cols; ++col) {
        const float e = e_row.data[col];
        const float out = e / total;
        out_ptr[row * cols + col] = out;
      }
      // compute
      const float out_1 = nothing / total;
      // store
      out_1_ptr[row] = out_1;
    }
  }
}
