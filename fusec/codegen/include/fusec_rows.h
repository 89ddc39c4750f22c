// What a kernel that reduces rows is made of: lanes, sweeps over a row, and rows kept between sweeps.
#ifndef FUSEC_ROWS_H
#define FUSEC_ROWS_H

#include "fusec_arith.h"
#include "fusec_base.h"
#include "fusec_types.h"

namespace fusec {

template <class T, size_t N>
FUSEC_INLINE void fill(T (&lanes)[N], T value) {
  for (size_t lane = 0; lane < N; ++lane) lanes[lane] = value;
}

// Rows and columns of a tile of an operand that runs along the rows where the others run along the
// columns: strips of 64 x 64, and so many that a page of the others is met for more than a line or two.
constexpr int64_t TILE = 64, WIDE = 256;

// Starts running values of as many rows as there are.
template <class T>
FUSEC_INLINE void fill(T* lanes, int64_t count, T value) {
  for (int64_t lane = 0; lane < count; ++lane) lanes[lane] = value;
}

template <class T, size_t N>
FUSEC_INLINE void copy(const T (&from)[N], T (&to)[N]) {
  for (size_t lane = 0; lane < N; ++lane) to[lane] = from[lane];
}

// Where the rows are the lanes: how many of them run side by side, a multiple of LANES up to
// ABREAST that gives every thread some. More of them read longer stretches of memory.
constexpr int64_t ABREAST = 2048;
FUSEC_INLINE int64_t rows_abreast(int64_t rows, int64_t threads) {
  const int64_t share = (rows / threads + LANES - 1) / LANES * LANES;
  return share < LANES ? LANES : minimum(share, ABREAST);
}

// The same where the rows are several axes: runs of rows side by side, none of which goes beyond the
// innermost axis, `inner` rows long.
struct Runs {
  int64_t inner, step, blocks, count;
  Runs(int64_t rows, int64_t inner, int64_t threads) : inner(inner) {
    step = rows_abreast(inner, rows > inner ? 1 : threads);
    blocks = (inner + step - 1) / step;
    count = inner > 0 ? rows / inner * blocks : 0;
  }
  FUSEC_INSTANCE int64_t begin(int64_t run) const { return run / blocks * inner + run % blocks * step; }
  FUSEC_INSTANCE int64_t length(int64_t run) const { return minimum(step, inner - run % blocks * step); }
};

// A number that the compiler knows.
template <int64_t N>
struct Several {
  constexpr operator int64_t() const { return N; }
};

// Calls body(start, several) for 4 columns at a time, so that a lane fetches its running values once
// for them, and for those that are left one by one.
template <class Body>
FUSEC_INLINE void down(int64_t begin, int64_t end, const Body& body) {
  int64_t start = begin;
  for (; start + 4 <= end; start += 4) body(start, Several<4>());
  for (; start < end; ++start) body(start, Several<1>());
}

// Calls body(start, count) for each stretch of LANES columns; only the last may be shorter, so the
// compiler sees a constant count everywhere else.
template <class Body>
FUSEC_INLINE void sweep_part(int64_t begin, int64_t end, const Body& body) {
  int64_t start = begin;
  for (; start + LANES <= end; start += LANES) body(start, LANES);
  if (start < end) body(start, end - start);
}

// The same, with carry() after every 64 stretches and at the end: few enough additions that float
// lanes stay as good as the pairwise sum of so many numbers.
template <class Body, class Carry>
FUSEC_INLINE void sweep_part(int64_t begin, int64_t end, const Body& body, const Carry& carry) {
  for (int64_t block = begin; block < end; block += 64 * LANES) {
    sweep_part(block, end - block < 64 * LANES ? end : block + 64 * LANES, body);
    carry();
  }
}

// Where the innermost of several axes, `inner` columns long, ends next, if not `end` comes first.
FUSEC_INLINE int64_t run_end(int64_t start, int64_t end, int64_t inner) {
  return minimum(end, start - start % inner + inner);
}

// Stretches of which none goes beyond the innermost of several axes, `inner` columns long.
template <class Body>
FUSEC_INLINE void sweep_runs(int64_t begin, int64_t end, int64_t inner, const Body& body) {
  for (int64_t start = begin, stop; start < end; start = stop) {
    stop = run_end(start, end, inner);
    sweep_part(start, stop, body);
  }
}

template <class Body, class Carry>
FUSEC_INLINE void sweep_runs(int64_t begin, int64_t end, int64_t inner, const Body& body,
                             const Carry& carry) {
  int64_t added = 0;  // numbers to a lane since the last carry
  for (int64_t start = begin, stop; start < end; start = stop) {
    stop = run_end(start, minimum(end, start + 64 * LANES), inner);
    sweep_part(start, stop, body);
    added += (stop - start + LANES - 1) / LANES;
    if (added < 64 && stop < end) continue;
    carry();
    added = 0;
  }
}

template <class... Bodies>
FUSEC_INLINE void sweep(int64_t cols, const Bodies&... bodies) {
  sweep_part(0, cols, bodies...);
}

// The parts of a long row: each has its own lanes, which are joined in order, so a result depends on
// the length of the row alone and not on who computes a part.
constexpr int64_t PARTS = 32;
constexpr int64_t ROW_PART = 16384, COLUMN_PART = 256;  // the least of a row, and of a column
struct Parts {
  int64_t cols, size, count;
  // `least` columns to a part, and a multiple of that.
  Parts(int64_t cols, int64_t least) : cols(cols) {
    size = ((cols + PARTS - 1) / PARTS + least - 1) / least * least;
    count = (cols + size - 1) / size;
  }
  FUSEC_INSTANCE int64_t begin(int64_t part) const { return part * size; }
  FUSEC_INSTANCE int64_t end(int64_t part) const { return minimum(begin(part) + size, cols); }

  // Calls body(row, team) for each row: one row after the other, each by all threads as a team, where
  // it has more parts than there are rows for the threads; else by a thread each, since threads that
  // meet in every sweep wait for the slowest, which on a busy machine takes long.
  template <class Body>
  void each_row(int64_t rows, int32_t threads, const Body& body) const {
    if (rows < minimum((int64_t)threads, count)) {
      for (int64_t row = 0; row < rows; ++row) body(row, threads);
      return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; ++row) body(row, 1);
  }

  // Calls body(first, count, team) for stretches of rows that are lanes: one after the other, each by
  // all threads, where there are more parts than stretches for the threads; else by a thread each.
  template <class Body>
  void each_stretch(int64_t rows, int32_t threads, const Body& body) const {
    const int64_t stretches = (rows + ABREAST - 1) / ABREAST;
    if (stretches < minimum((int64_t)threads, count)) {
      for (int64_t first = 0; first < rows; first += ABREAST) {
        body(first, minimum(rows - first, ABREAST), threads);
      }
      return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t first = 0; first < rows; first += ABREAST) {
      body(first, minimum(rows - first, ABREAST), 1);
    }
  }

  // The same for runs of rows.
  template <class Body>
  void each_run(const Runs& runs, int32_t threads, const Body& body) const {
    if (runs.count < minimum((int64_t)threads, count)) {
      for (int64_t run = 0; run < runs.count; ++run) {
        body(runs.begin(run), runs.length(run), threads);
      }
      return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t run = 0; run < runs.count; ++run) body(runs.begin(run), runs.length(run), 1);
  }
};

// Empties lanes of running sums into wider ones.
FUSEC_INLINE void carry(double* wide, float* lanes) {
  for (int64_t lane = 0; lane < LANES; ++lane) {
    wide[lane] += (double)lanes[lane];
    lanes[lane] = 0.0f;
  }
}

// How many elements before they are needed a loop asks for its operands: long enough for memory,
// and no more than caches hold beside what is worked on.
constexpr int64_t AHEAD = 512;
// The same for rows, so that short ones come in time: in elements where one sweep does next to
// nothing, and in rows where a later sweep computes.
constexpr int64_t FAR = 2048;
FUSEC_INLINE int64_t rows_ahead(int64_t cols) { return cols < FAR ? FAR / maximum(cols, 1) : 1; }

// Asks for a stretch of elements to come into the cache. An address beyond the data does no harm.
template <int64_t count = LANES, class T>
FUSEC_INLINE void prefetch(const T* first) {
  for (size_t byte = 0; byte < count * sizeof(T); byte += 64) {
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
FUSEC_INLINE T finish_mean(const T* lanes, int64_t count) {
  return finish_sum(lanes) / (T)count;
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

// Starts running sums over rows.
template <class T>
FUSEC_INLINE void zero(const Row<T>& sums, int64_t length) {
  for (int64_t col = 0; col < length; ++col) sums.data[col] = 0;
}

namespace detail {

// A piece of a line of the cache, as long as one store can be.
#if defined(__AVX512F__)
typedef float Piece __attribute__((vector_size(64), may_alias));
#elif defined(__AVX__)
typedef float Piece __attribute__((vector_size(32), may_alias));
#else
typedef float Piece __attribute__((vector_size(16), may_alias));
#endif

// Writes to memory without reading the line first and without keeping it in a cache.
FUSEC_INLINE void store_past_caches(Piece* target, Piece value) {
#if defined(__clang__)
  __builtin_nontemporal_store(value, target);
#elif defined(__AVX512F__)
  __builtin_ia32_movntps512((float*)target, value);
#elif defined(__AVX__)
  __builtin_ia32_movntps256((float*)target, value);
#elif defined(__SSE__)
  __builtin_ia32_movntps((float*)target, value);
#else
  *target = value;
#endif
}

}  // namespace detail

namespace detail {

// What results of a storage type are computed in, and held in until they are written.
template <class T>
struct Held {
  typedef T type;
};
template <>
struct Held<bf16> {
  typedef float type;
};
template <>
struct Held<f16> {
  typedef float type;
};
template <>
struct Held<f8e4m3> {
  typedef float type;
};
template <>
struct Held<f8e5m2> {
  typedef float type;
};

constexpr size_t LINE = 64;  // bytes of a line of the cache
constexpr size_t PIECES = LINE / sizeof(Piece);

// One result as it is stored.
template <class T, class H>
FUSEC_INLINE T rounded(H x) {
  if constexpr (sizeof(T) == sizeof(H)) {
    return x;
  } else {
    return store<T>(x);
  }
}

// As many results as fill a line.
template <class T, class H>
FUSEC_INLINE void round_each(const H* from, Piece (&line)[PIECES]) {
  alignas(LINE) T stored[LINE / sizeof(T)];
#pragma omp simd
  for (size_t k = 0; k < LINE / sizeof(T); ++k) stored[k] = rounded<T>(from[k]);
  __builtin_memcpy(line, stored, LINE);
}

// The same with the machine's own instructions where it has some for the type.
template <class T, class H>
FUSEC_INLINE void round_line(const H* from, Piece (&line)[PIECES]) {
  if constexpr (sizeof(T) == sizeof(H)) {
    __builtin_memcpy(line, from, LINE);
  } else {
    round_each<T>(from, line);
  }
}

#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
template <>
FUSEC_INSTANCE void round_line<bf16, float>(const float* from, Piece (&line)[PIECES]) {
  Piece low, high;
  __builtin_memcpy(&low, from, LINE);
  __builtin_memcpy(&high, from + LINE / sizeof(float), LINE);
  // The instruction takes subnormal numbers for 0.
  uint16_t tiny_low, tiny_high;
  __asm__("vfpclassps $0x20, %1, %0" : "=Yk"(tiny_low) : "v"(low));
  __asm__("vfpclassps $0x20, %1, %0" : "=Yk"(tiny_high) : "v"(high));
  if (__builtin_expect(tiny_low | tiny_high, 0)) {
    round_each<bf16>(from, line);
    return;
  }
  __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(line[0]) : "v"(low), "v"(high));
}
#endif

#if defined(__AVX512F__)
template <>
FUSEC_INSTANCE void round_line<f16, float>(const float* from, Piece (&line)[PIECES]) {
  for (size_t half = 0; half < 2; ++half) {
    Piece wide;
    __builtin_memcpy(&wide, from + half * LINE / sizeof(float), LINE);
    char rounded[LINE / 2] __attribute__((aligned(LINE / 2)));
    __asm__("vcvtps2ph $0, %1, %0" : "=m"(rounded) : "v"(wide));
    __builtin_memcpy((char*)line + half * LINE / 2, rounded, LINE / 2);
  }
}
#endif

}  // namespace detail

// Results on their way past the caches, a buffer for each thread: a kernel fills `data`, which stays
// in the first cache, and write() sends `count` of it on, rounded to T. Whole lines of memory go past
// the caches; what lies before the first and behind the last of them takes the usual way.
template <class T, int64_t LENGTH>
struct Block {
  typedef typename detail::Held<T>::type Held;
  alignas(64) Held data[LENGTH];

  FUSEC_INSTANCE void write(T* target, int64_t count) const {
    constexpr int64_t step = detail::LINE / sizeof(T);
    const int64_t ahead = (int64_t)((-(size_t)target & (detail::LINE - 1)) / sizeof(T));
    int64_t done = ahead < count ? ahead : count;
    write_each(target, 0, done);
    for (; done + step <= count; done += step) {
      detail::Piece line[detail::PIECES];
      detail::round_line<T>(data + done, line);
      detail::Piece* to = (detail::Piece*)(target + done);
      for (size_t k = 0; k < detail::PIECES; ++k) detail::store_past_caches(to + k, line[k]);
    }
    write_each(target, done, count);
  }

  FUSEC_INSTANCE void write_each(T* target, int64_t first, int64_t end) const {
    for (int64_t k = first; k < end; ++k) target[k] = detail::rounded<T>(data[k]);
  }

  // Other threads see the results in order only after a fence.
  ~Block() {
#if defined(__SSE__)
    __builtin_ia32_sfence();
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
  }
};

}  // namespace fusec

#endif
