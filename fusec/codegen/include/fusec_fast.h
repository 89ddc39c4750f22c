// Functions for results of 16 bits: relative errors of 2^-16 and less, where a rounding step of
// float16 is 2^-11 and one of bfloat16 2^-8. NaN, infinities, zeros and subnormal results as in C.
//
// Coefficients are minimax fits of the function named beside them, rounded to float.
#ifndef FUSEC_FAST_H
#define FUSEC_FAST_H

#include "fusec_math.h"

namespace fusec {
namespace fast {
namespace detail {

// 2^r to 2^-18 on |r| <= 1/2.
FUSEC_INLINE float exp2_reduced(float r) {
  float p = 0x1.3a02ccp-7f;
  p = fma(p, r, 0x1.c9fc46p-5f);
  p = fma(p, r, 0x1.ec0378p-3f);
  p = fma(p, r, 0x1.62e12cp-1f);
  return fma(p, r, 1.0f);
}

}  // namespace detail

FUSEC_INLINE float exp(float x) {
  using fusec::detail::biased_magic;
  constexpr float half_log2_e = 0.5f * fusec::detail::log2_e;
  // The square of e^(x/2), whose exponent fits one power of two wherever that of e^x can be held.
  // Above 89 the reduced argument grows with x, until the square is infinite.
  const float bounded = fusec::detail::at_least(x, -105.0f);
  const float nearest = fma(bounded, half_log2_e, biased_magic);
  const float z = fusec::detail::rounded_at_most(nearest, biased_magic + 65.0f);
  const float r = fma(bounded, half_log2_e, biased_magic - z);
  const float root = detail::exp2_reduced(r) * fusec::detail::power_of(z);
  return root * root;
}

namespace detail {

// log(1+f) to 2^-18 on |f| <= 1/3.
FUSEC_INLINE float log1p_reduced(float f) {
  float p = 0x1.5ce3dap-3f;
  p = fma(p, f, -0x1.8d6f04p-3f);
  p = fma(p, f, 0x1.95ba28p-3f);
  p = fma(p, f, -0x1.fcc7dap-3f);
  p = fma(p, f, 0x1.555efep-2f);
  p = fma(p, f, -0x1.0002d8p-1f);
  return fma(f * f, p, f);
}

}  // namespace detail

FUSEC_INLINE float log1pexp(float x) {
  // What is above 0 of x, and log(1 + e) with e <= 1: 1 + e is 1 + f, or 2 (1 + f).
  const float e = exp(-abs(x));
  const bool upper = e > 0x1.555556p-2f;
  const float f = upper ? fma(e, 0.5f, -0.5f) : e;
  return (x < 0.0f ? 0.0f : x) + ((upper ? 0x1.62e430p-1f : 0.0f) + detail::log1p_reduced(f));
}

FUSEC_INLINE float log1p(float x) {
  // 1 + x = 2^e (1 + f), as in the full log1p; nothing of a small x is lost.
  const uint32_t e = (bits_of(1.0f + x) - 0x3f2aaaabu) & 0xff800000u;
  const float inverse = float_from(bits_of(4.0f) - e);  // 4 / 2^e
  const float f = float_from(bits_of(x) - e) + fma(0.25f, inverse, -1.0f);
  const float exponent = (float)((int32_t)e >> 23);
  const float result = copysign(fma(exponent, 0x1.62e430p-1f, detail::log1p_reduced(f)), x);
  const float finite = x < infinity ? result : x;
  const float pole = x == -1.0f ? -infinity : finite;
  return x < -1.0f ? not_a_number : pole;
}

FUSEC_INLINE float tanh(float x) {
  using fusec::detail::biased_magic;
  using fusec::detail::log2_e;
  const float a = abs(x);
  const float u = a * a;
  // (tanh(a) / a - 1) / a^2 on a <= 0.35
  const float small = fma(fma(0x1.fe7cbep-4f, u, -0x1.5500b0p-2f) * u, a, a);
  // 1 - 2 / (e^(2a) + 1)
  const float bounded = fusec::detail::at_most(a, 10.0f);
  const float z = fma(bounded, 2.0f * log2_e, biased_magic);
  const float r = fma(bounded, 2.0f * log2_e, biased_magic - z);
  const float e = detail::exp2_reduced(r) * fusec::detail::power_of(z);
  return with_sign(a < 0.35f ? small : 1.0f - 2.0f / (e + 1.0f), x);
}

// The standard normal distribution function. One exponential of a polynomial gives the lower tail
// without cancellation, and the upper one is what is missing from 1.
FUSEC_INLINE float ndtr(float x) {
  using fusec::detail::biased_magic;
  const float a = fusec::detail::at_most(abs(x), 13.0f);
  // (log2(ndtr(-a)) + 1) / a on a <= 13, to 2^-16 up to 5.3 and to 2^-7 beyond
  float q = 0x1.e5125ap-25f;
  q = fma(q, a, -0x1.9ba948p-19f);
  q = fma(q, a, 0x1.2d8a72p-14f);
  q = fma(q, a, -0x1.fcfe68p-11f);
  q = fma(q, a, 0x1.1903fep-7f);
  q = fma(q, a, -0x1.ba1fb6p-5f);
  q = fma(q, a, -0x1.d58f4ep-2f);
  q = fma(q, a, -0x1.26b412p0f);
  // At a = 13 this rounds to -127, whose power of two is 0 here.
  const float z = fma(q, a, biased_magic - 1.0f);
  const float r = fma(q, a, biased_magic - 1.0f - z);
  const float tail = detail::exp2_reduced(r) * fusec::detail::power_of(z);
  return x < 0.0f ? tail : 1.0f - tail;
}

}  // namespace fast
}  // namespace fusec

#endif
