// Bit casts, fused multiply-add and selects: what every other fusec header is made of.
#ifndef FUSEC_BASE_H
#define FUSEC_BASE_H

#include <stddef.h>
#include <stdint.h>

// Inlining is not a hint here: one call that survives keeps the loop around it scalar.
#define FUSEC_INLINE static inline __attribute__((always_inline))
// For an explicit specialisation, which takes its linkage from the template.
#define FUSEC_INSTANCE inline __attribute__((always_inline))
// A lambda that is part of the loop that calls it, and one that is compiled once.
#define FUSEC_BODY __attribute__((always_inline))
#define FUSEC_WORK __attribute__((noinline))

namespace fusec {

constexpr float infinity = __builtin_inff();
constexpr float not_a_number = __builtin_nanf("");

FUSEC_INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
FUSEC_INLINE uint64_t bits_of(double x) { return __builtin_bit_cast(uint64_t, x); }
FUSEC_INLINE float float_from(uint32_t bits) { return __builtin_bit_cast(float, bits); }
FUSEC_INLINE double double_from(uint64_t bits) { return __builtin_bit_cast(double, bits); }

// The polynomials below want one rounding per step. Without the instruction, a library call per
// step would cost more than the accuracy is worth, so two roundings it is.
FUSEC_INLINE float fma(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
FUSEC_INLINE double fma(double a, double b, double c) {
#ifdef __FP_FAST_FMA
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

FUSEC_INLINE float abs(float x) { return __builtin_fabsf(x); }
FUSEC_INLINE double abs(double x) { return __builtin_fabs(x); }
FUSEC_INLINE float copysign(float magnitude, float sign) {
  return float_from((bits_of(magnitude) & 0x7fffffffu) | (bits_of(sign) & 0x80000000u));
}
// The same for a magnitude that is not negative.
FUSEC_INLINE float with_sign(float magnitude, float sign) {
  return float_from(bits_of(magnitude) | (bits_of(sign) & 0x80000000u));
}
FUSEC_INLINE double copysign(double magnitude, double sign) {
  return __builtin_copysign(magnitude, sign);
}

// 2^k for -127 < k < 128.
FUSEC_INLINE float power_of_two(uint32_t k) { return float_from((k + 127u) << 23); }

}  // namespace fusec

#endif
