// Loops over the functions of fusec.h, for test_cpp_header.py to call through ctypes. One
// function per loop, so that a listing tells which of them the compiler vectorised.
#include "fusec.h"

using namespace fusec;

#define LOOP(name, A, B, R, value)                                                        \
  extern "C" void name(const A* first, const B* second, R* __restrict out, int64_t n) {   \
    (void)second;                                                                         \
    _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) {                                 \
      const A x = first[i];                                                               \
      out[i] = value;                                                                     \
    }                                                                                     \
  }
#define Y second[i]
#define FLOAT(name) LOOP(name##_f32, float, float, float, fusec::name(x))
#define DOUBLE(name) LOOP(name##_f64, double, double, double, fusec::name(x))
#define BOTH(name) FLOAT(name) DOUBLE(name)
#define PAIR(name, T, suffix) LOOP(name##_##suffix, T, T, T, fusec::name(x, Y))
#define PAIRS(name) PAIR(name, float, f32) PAIR(name, double, f64)
#define INTEGER_PAIRS(name)  \
  PAIR(name, int32_t, i32)   \
  PAIR(name, int64_t, i64)   \
  PAIR(name, uint32_t, u32)  \
  PAIR(name, uint64_t, u64)

BOTH(exp)
BOTH(exp2)
BOTH(expm1)
BOTH(log)
BOTH(log2)
BOTH(log10)
BOTH(log1p)
BOTH(log1pexp)
BOTH(tanh)
BOTH(sigmoid)
BOTH(erf)
BOTH(sqrt)
BOTH(rsqrt)
BOTH(sin)
BOTH(cos)
BOTH(tan)
BOTH(floor)
BOTH(ceil)
BOTH(trunc)
BOTH(round)
BOTH(abs)
BOTH(sign)
PAIRS(pow)
PAIRS(maximum)
PAIRS(minimum)

// For results of 16 bits.
#define FAST(name) LOOP(fast_##name##_f32, float, float, float, fusec::fast::name(x))
FAST(exp)
FAST(log1p)
FAST(log1pexp)
FAST(tanh)
FAST(ndtr)

// Results past the caches: count of them, from a buffer that holds 0, 1, 2, ...
#define WRITE(T)                                                    \
  extern "C" void write_##T(T* target, int64_t count) {             \
    fusec::Block<T, 1024> block;                                    \
    for (int64_t i = 0; i < 1024; ++i) block.data[i] = (T)i; \
    block.write(target, count);                                     \
  }
WRITE(int8_t)
WRITE(uint16_t)
WRITE(float)
WRITE(double)

// The same from given numbers, rounded on the way.
#define ROUND(T)                                                                     \
  extern "C" void round_##T(const float* from, fusec::T* target, int64_t count) {    \
    fusec::Block<fusec::T, 1024> block;                                              \
    for (int64_t i = 0; i < 1024; ++i) block.data[i] = from[i];                      \
    block.write(target, count);                                                      \
  }
ROUND(bf16)
ROUND(f16)
ROUND(f8e4m3)
ROUND(f8e5m2)

extern "C" int64_t rows_abreast(int64_t rows, int64_t threads) {
  return fusec::rows_abreast(rows, threads);
}

// Through the C library, one element at a time.
BOTH(erfc)
BOTH(asin)
BOTH(acos)
BOTH(atan)
BOTH(sinh)
BOTH(cosh)
BOTH(asinh)
BOTH(acosh)
BOTH(atanh)
BOTH(lgamma)
PAIRS(atan2)
PAIRS(fmod)
PAIRS(remainder)
PAIRS(floor_divide)

INTEGER_PAIRS(maximum)
INTEGER_PAIRS(minimum)
INTEGER_PAIRS(fmod)
INTEGER_PAIRS(remainder)
INTEGER_PAIRS(floor_divide)
INTEGER_PAIRS(trunc_divide)
PAIR(pow, int32_t, i32)
PAIR(pow, int64_t, i64)
LOOP(abs_i32, int32_t, int32_t, int32_t, fusec::abs(x))
LOOP(abs_i64, int64_t, int64_t, int64_t, fusec::abs(x))
LOOP(sign_i32, int32_t, int32_t, int32_t, fusec::sign(x))

// C++ computes these in int; what matters is that the overloads take them and the store wraps.
#define SMALL(T)                                                          \
  LOOP(floor_divide_##T, T, T, T, (T)fusec::floor_divide(x, Y))           \
  LOOP(remainder_##T, T, T, T, (T)fusec::remainder(x, Y))                 \
  LOOP(pow_##T, T, T, T, (T)fusec::pow(x, Y))                             \
  LOOP(maximum_##T, T, T, T, (T)fusec::maximum((T)(x + Y) + 0, x))        \
  LOOP(abs_##T, T, T, T, (T)fusec::abs(x))
SMALL(int8_t)
SMALL(uint8_t)
SMALL(int16_t)

#define STORAGE(T)                                        \
  LOOP(load_##T, T, T, float, load(x))                    \
  LOOP(store_##T, float, float, T, store<T>(x))           \
  LOOP(store_f64_##T, double, double, T, store<T>(x))
STORAGE(bf16)
STORAGE(f16)
STORAGE(f8e4m3)
STORAGE(f8e5m2)

#define CAST(T)                                           \
  LOOP(cast_f32_##T, float, float, T, cast<T>(x))         \
  LOOP(cast_f64_##T, double, double, T, cast<T>(x))
CAST(bool)
CAST(int8_t)
CAST(uint8_t)
CAST(int16_t)
CAST(uint16_t)
CAST(int32_t)
CAST(uint32_t)
CAST(int64_t)
CAST(uint64_t)

#define FINISH(name)                                                          \
  extern "C" float name##_f32(const float* lanes) { return fusec::name(lanes); } \
  extern "C" int64_t name##_i64(const int64_t* lanes) { return fusec::name(lanes); }
FINISH(finish_sum)
FINISH(finish_prod)
FINISH(finish_max)
FINISH(finish_min)
