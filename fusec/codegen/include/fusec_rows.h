// What a kernel that reduces rows is made of: lanes, sweeps over a row, and rows kept between sweeps.
#ifndef FUSEC_ROWS_H
#define FUSEC_ROWS_H

#include "fusec_arith.h"
#include "fusec_base.h"

namespace fusec {

// Running values of a sweep. Fixed, so that a result does not depend on the width of a vector.
constexpr int64_t LANES = 64;

template <class T>
FUSEC_INLINE void fill(T* lanes, T value) {
  for (int64_t lane = 0; lane < LANES; ++lane) lanes[lane] = value;
}

// Calls body(start, count) for each stretch of LANES columns; only the last may be shorter, so the
// compiler sees a constant count everywhere else.
template <class Body>
FUSEC_INLINE void sweep(int64_t cols, const Body& body) {
  int64_t start = 0;
  for (; start + LANES <= cols; start += LANES) body(start, LANES);
  if (start < cols) body(start, cols - start);
}

// The same, with carry() after every 64 stretches and at the end: few enough additions that float
// lanes stay as good as the pairwise sum of so many numbers.
template <class Body, class Carry>
FUSEC_INLINE void sweep(int64_t cols, const Body& body, const Carry& carry) {
  for (int64_t block = 0; block < cols; block += 64 * LANES) {
    const int64_t end = cols - block < 64 * LANES ? cols : block + 64 * LANES;
    int64_t start = block;
    for (; start + LANES <= end; start += LANES) body(start, LANES);
    if (start < end) body(start, end - start);
    carry();
  }
}

// Empties lanes of running sums into wider ones.
FUSEC_INLINE void carry(double* wide, float* lanes) {
  for (int64_t lane = 0; lane < LANES; ++lane) {
    wide[lane] += (double)lanes[lane];
    lanes[lane] = 0.0f;
  }
}

// Asks for a stretch of LANES elements to come into the cache. An address beyond the data does no
// harm.
template <class T>
FUSEC_INLINE void prefetch(const T* first) {
  for (size_t byte = 0; byte < LANES * sizeof(T); byte += 64) {
    __builtin_prefetch((const char*)first + byte, 0, 2);
  }
}

// The same for memory that will be written: its lines are owned by the time the results are there.
template <class T>
FUSEC_INLINE void prefetch_to_write(T* first) {
  for (size_t byte = 0; byte < LANES * sizeof(T); byte += 64) {
    __builtin_prefetch((const char*)first + byte, 1, 2);
  }
}

// The sum of the lanes over the number of elements, divided before it is narrowed.
template <class T>
FUSEC_INLINE T finish_mean(const T* lanes, int64_t width, int64_t count) {
  return finish_sum(lanes, (int)width) / (T)count;
}

// A buffer as long as a row, one for each thread.
template <class T>
struct Row {
  T* data;
  explicit Row(int64_t length) : data((T*)__builtin_malloc((size_t)length * sizeof(T))) {
    if (data == nullptr) __builtin_trap();
  }
  ~Row() { __builtin_free(data); }
  Row(const Row&) = delete;
  Row& operator=(const Row&) = delete;
};

}  // namespace fusec

#endif
