// Rounding, division with Python's signs, extremes that propagate NaN, integer arithmetic that
// neither traps nor overflows, and the fixed order in which a reduction's lanes are combined.
#ifndef FUSEC_ARITH_H
#define FUSEC_ARITH_H

#include "fusec_base.h"

namespace fusec {

FUSEC_INLINE float floor(float x) { return __builtin_floorf(x); }
FUSEC_INLINE float ceil(float x) { return __builtin_ceilf(x); }
FUSEC_INLINE float trunc(float x) { return __builtin_truncf(x); }
FUSEC_INLINE float round(float x) { return __builtin_rintf(x); }  // halves to even, as in torch
FUSEC_INLINE double floor(double x) { return __builtin_floor(x); }
FUSEC_INLINE double ceil(double x) { return __builtin_ceil(x); }
FUSEC_INLINE double trunc(double x) { return __builtin_trunc(x); }
FUSEC_INLINE double round(double x) { return __builtin_rint(x); }

FUSEC_INLINE float fmod(float a, float b) { return __builtin_fmodf(a, b); }
FUSEC_INLINE double fmod(double a, double b) { return __builtin_fmod(a, b); }

// a - b floor(a / b): the sign of b, except that an exact multiple keeps the zero of a.
#define FUSEC_DIVISION(F)                                        \
  FUSEC_INLINE F remainder(F a, F b) {                           \
    const F rest = fmod(a, b);                                   \
    return (rest != 0) & ((b < 0) != (rest < 0)) ? rest + b : rest; \
  }                                                              \
  /* Through the remainder, so that a quotient just below an integer is not rounded up to it. */ \
  FUSEC_INLINE F floor_divide(F a, F b) {                        \
    const F rest = fmod(a, b);                                   \
    const F exact = (a - rest) / b;                              \
    const F lower = (rest != 0) & ((b < 0) != (rest < 0)) ? exact - 1 : exact; \
    const F whole = floor(lower);                                \
    const F nearest = lower - whole > (F)0.5 ? whole + 1 : whole; \
    const F result = lower != 0 ? nearest : copysign((F)0, a / b); \
    return b == 0 ? a / b : result;                              \
  }
FUSEC_DIVISION(float)
FUSEC_DIVISION(double)
#undef FUSEC_DIVISION

// Integers round towards minus infinity. Dividing by zero gives 0; the most negative number
// divided by -1 wraps to itself. Neither reaches the divide instruction, which would trap.
#define FUSEC_SIGNED(I, U)                                               \
  FUSEC_INLINE I floor_divide(I a, I b) {                                \
    const I safe = (b == 0) | (b == -1) ? (I)1 : b;                      \
    const I quotient = a / safe;                                         \
    const I rest = a % safe;                                             \
    const I lower = quotient - (I)((rest != 0) & ((rest < 0) != (safe < 0))); \
    return b == 0 ? (I)0 : b == -1 ? (I)((U)0 - (U)a) : lower;           \
  }                                                                      \
  FUSEC_INLINE I trunc_divide(I a, I b) {                                \
    const I safe = (b == 0) | (b == -1) ? (I)1 : b;                      \
    return b == 0 ? (I)0 : b == -1 ? (I)((U)0 - (U)a) : a / safe;        \
  }                                                                      \
  FUSEC_INLINE I fmod(I a, I b) {                                        \
    const I safe = (b == 0) | (b == -1) ? (I)1 : b;                      \
    return a % safe;                                                     \
  }                                                                      \
  FUSEC_INLINE I remainder(I a, I b) {                                   \
    const I rest = fmod(a, b);                                           \
    return (rest != 0) & ((rest < 0) != (b < 0)) ? rest + b : rest;      \
  }                                                                      \
  FUSEC_INLINE I abs(I x) { return x < 0 ? (I)((U)0 - (U)x) : x; }       \
  FUSEC_INLINE I pow(I base, I exponent) {                               \
    if (exponent < 0) { /* a fraction, rounded to zero, unless the base is 1 or -1 */ \
      return base == 1 ? 1 : base == -1 ? (exponent & 1 ? -1 : 1) : 0;   \
    }                                                                    \
    U result = 1;                                                        \
    U square = (U)base;                                                  \
    for (U rest = (U)exponent; rest != 0; rest >>= 1) {                  \
      result = rest & 1 ? result * square : result;                      \
      square *= square;                                                  \
    }                                                                    \
    return (I)result;                                                    \
  }
FUSEC_SIGNED(int32_t, uint32_t)
FUSEC_SIGNED(int64_t, uint64_t)
#undef FUSEC_SIGNED

#define FUSEC_UNSIGNED(U)                                                       \
  FUSEC_INLINE U floor_divide(U a, U b) { return b == 0 ? (U)0 : a / (b == 0 ? (U)1 : b); } \
  FUSEC_INLINE U trunc_divide(U a, U b) { return floor_divide(a, b); }          \
  FUSEC_INLINE U remainder(U a, U b) { return b == 0 ? (U)0 : a % (b == 0 ? (U)1 : b); } \
  FUSEC_INLINE U fmod(U a, U b) { return remainder(a, b); }                     \
  FUSEC_INLINE U abs(U x) { return x; }
FUSEC_UNSIGNED(uint32_t)
FUSEC_UNSIGNED(uint64_t)
#undef FUSEC_UNSIGNED

// NaN from either side wins. For integers the second test is never true and costs nothing. Two
// type parameters, because C++ widens int8 + int8 to int and leaves a lone int8 as it is.
template <class A, class B>
FUSEC_INLINE auto maximum(A a, B b) -> decltype(true ? A() : B()) {
  return (a > b) | (a != a) ? a : b;
}
template <class A, class B>
FUSEC_INLINE auto minimum(A a, B b) -> decltype(true ? A() : B()) {
  return (a < b) | (a != a) ? a : b;
}

// -1, 0 or 1; 0 for NaN and for both zeros, as torch.sign.
template <class T>
FUSEC_INLINE T sign(T x) {
  return (T)((T)(x > (T)0) - (T)(x < (T)0));
}

// Running values of a sweep over a row. Fixed, so that a result does not depend on the width of a
// vector.
constexpr int64_t LANES = 64;

// Combines the lanes of a sweep: lane l with lane l + half, halving. The order depends on nothing
// else, so neither does the result. NaN propagates in max and min. Arrays of their own for each
// step and constant lengths make a step a few vector operations.
#define FUSEC_HALVE(combined, half, from, into)            \
  _Pragma("omp simd") for (int l = 0; l < half; ++l) {     \
    const T a = from[l];                                   \
    const T b = from[l + half];                            \
    into[l] = combined;                                    \
  }
#define FUSEC_FINISH(name, combined)                       \
  template <class T>                                       \
  FUSEC_INLINE T finish_##name(const T* lanes) {           \
    T by_32[32], by_16[16], by_8[8], by_4[4], by_2[2];     \
    FUSEC_HALVE(combined, 32, lanes, by_32)                \
    FUSEC_HALVE(combined, 16, by_32, by_16)                \
    FUSEC_HALVE(combined, 8, by_16, by_8)                  \
    FUSEC_HALVE(combined, 4, by_8, by_4)                   \
    for (int l = 0; l < 2; ++l) {                          \
      const T a = by_4[l];                                 \
      const T b = by_4[l + 2];                             \
      by_2[l] = combined;                                  \
    }                                                      \
    const T a = by_2[0];                                   \
    const T b = by_2[1];                                   \
    return combined;                                       \
  }
FUSEC_FINISH(sum, (T)(a + b))
FUSEC_FINISH(prod, (T)(a * b))
FUSEC_FINISH(max, maximum(a, b))
FUSEC_FINISH(min, minimum(a, b))
#undef FUSEC_FINISH
#undef FUSEC_HALVE

}  // namespace fusec

#endif
