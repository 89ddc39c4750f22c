// Exponentials, logarithms and what is made of them, for float: branch-free, at most 2.1 ulp over
// all inputs (most of them 1), subnormal results included. NaN, infinities and -0 behave as in C.
// The double overloads are the C library's own functions.
//
// Coefficients are Chebyshev interpolants of the function named beside them, rounded to float.
#ifndef FUSEC_MATH_H
#define FUSEC_MATH_H

#include "fusec_base.h"

namespace fusec {
namespace detail {

// Adding 1.5 * 2^23 rounds to an integer that then sits in the low bits: no conversion
// instruction, and nothing undefined when x is NaN.
constexpr float round_magic = 0x1.8p23f;
constexpr double round_magic_wide = 0x1.8p52;
constexpr float log2_e = 0x1.715476p0f;
// ln 2 in two parts; the first has enough trailing zeros that k * ln2_high is exact.
constexpr float ln2_high = 0x1.62e400p-1f;
constexpr float ln2_low = 0x1.7f7d1cp-20f;

// x = k ln 2 + r with |r| <= ln 2 / 2.
struct ExpParts {
  uint32_t k;
  float r;
};

FUSEC_INLINE ExpParts split_exp(float x) {
  const float z = fma(x, log2_e, round_magic);
  const float n = z - round_magic;
  const float r = fma(n, -ln2_low, fma(n, -ln2_high, x));
  return {bits_of(z) - bits_of(round_magic), r};
}

// (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2.
FUSEC_INLINE float exp_tail(float r) {
  float p = 0x1.6a23d0p-10f;
  p = fma(p, r, 0x1.123a20p-7f);
  p = fma(p, r, 0x1.5558f2p-5f);
  p = fma(p, r, 0x1.555492p-3f);
  return fma(p, r, 0x1.fffffcp-2f);
}

FUSEC_INLINE float exp_reduced(float r) { return fma(fma(exp_tail(r), r, 1.0f), r, 1.0f); }

// The same number with the bias of an exponent, and with that of two: of the bits of z, a number
// that one of them has rounded to k, a shift makes a power of two.
constexpr float biased_magic = round_magic + 127.0f;
constexpr float twice_biased_magic = round_magic + 254.0f;

// 2^k for -127 <= k <= 128, of z = biased_magic + k; 0 and infinity at the ends.
FUSEC_INLINE float power_of(float z) { return float_from(bits_of(z) << 23); }

// p * 2^k of z = twice_biased_magic + k, in two steps of half of k each, so that overflow and
// subnormal results round once, at the end.
FUSEC_INLINE float scale(float p, float z) {
  const uint32_t half = bits_of(z) >> 1;
  return p * float_from(half << 23) * float_from((bits_of(z) - half) << 23);
}

// z, but no more than `high`. As integers, which are ordered alike: one instruction, and what
// becomes of NaN is for the caller.
FUSEC_INLINE float rounded_at_most(float z, float high) {
  return float_from(bits_of(z) < bits_of(high) ? bits_of(z) : bits_of(high));
}

// e^x where the result is a normal number: |x| < 87.
FUSEC_INLINE float exp_normal(float x) {
  const float z = fma(x, log2_e, biased_magic);
  const float n = z - biased_magic;
  return exp_reduced(fma(n, -ln2_low, fma(n, -ln2_high, x))) * power_of(z);
}

// NaN falls through both.
FUSEC_INLINE float at_most(float x, float high) { return x > high ? high : x; }
FUSEC_INLINE float at_least(float x, float low) { return x < low ? low : x; }

// x = 2^e (1 + f) with 1 + f in [2/3, 4/3); subnormal x included.
struct LogParts {
  float e;
  float f;
};

FUSEC_INLINE LogParts split_log(float x) {
  const bool tiny = x < 0x1p-126f;
  const uint32_t bits = bits_of(tiny ? x * 0x1p23f : x);
  const uint32_t e = (bits - 0x3f2aaaabu) & 0xff800000u;
  const float exponent = (float)((int32_t)e >> 23) - (tiny ? 23.0f : 0.0f);
  return {exponent, float_from(bits - e) - 1.0f};
}

// What a logarithm gives outside (0, inf).
FUSEC_INLINE float log_special(float x, float result) {
  const float positive = x < infinity ? result : x;  // inf and NaN give themselves
  const float zero = x == 0.0f ? -infinity : positive;
  return x < 0.0f ? not_a_number : zero;
}

// (log(1+f) - f) / f^2 on |f| <= 1/3.
FUSEC_INLINE float log1p_tail(float f) {
  float p = -0x1.fcd036p-4f;
  p = fma(p, f, 0x1.1990bcp-3f);
  p = fma(p, f, -0x1.f75896p-4f);
  p = fma(p, f, 0x1.1fdcf0p-3f);
  p = fma(p, f, -0x1.557832p-3f);
  p = fma(p, f, 0x1.99bf86p-3f);
  p = fma(p, f, -0x1.ffffb6p-3f);
  p = fma(p, f, 0x1.55552cp-2f);
  return fma(p, f, -0.5f);
}

// e ln 2 + log(1+f), the small terms first.
FUSEC_INLINE float log_join(float e, float f) {
  const float small = fma(f * f, log1p_tail(f), e * ln2_low);
  return fma(e, ln2_high, small + f);
}

}  // namespace detail

FUSEC_INLINE float exp(float x) {
  // Below -105 the scaling rounds to 0 by itself. Above 89 the reduced argument grows with x, and so
  // does the polynomial: the result is infinite.
  const float bounded = detail::at_least(x, -105.0f);
  const float nearest = fma(bounded, detail::log2_e, detail::twice_biased_magic);
  const float z = detail::rounded_at_most(nearest, detail::twice_biased_magic + 129.0f);
  const float n = z - detail::twice_biased_magic;
  const float r = fma(n, -detail::ln2_low, fma(n, -detail::ln2_high, bounded));
  return detail::scale(detail::exp_reduced(r), z);
}

FUSEC_INLINE float exp2(float x) {
  const float bounded = detail::at_least(detail::at_most(x, 129.0f), -151.0f);
  const float z = bounded + detail::twice_biased_magic;
  const float r = bounded - (z - detail::twice_biased_magic);
  // (2^r - 1) / r on |r| <= 1/2
  float p = 0x1.44138ap-13f;
  p = fma(p, r, 0x1.5f0890p-10f);
  p = fma(p, r, 0x1.3b2a54p-7f);
  p = fma(p, r, 0x1.c6af6cp-5f);
  p = fma(p, r, 0x1.ebfbe0p-3f);
  p = fma(p, r, 0x1.62e430p-1f);
  return detail::scale(fma(p, r, 1.0f), z);
}

FUSEC_INLINE float expm1(float x) {
  const detail::ExpParts parts = detail::split_exp(detail::at_most(x, 89.0f));
  const float r = parts.r;
  const float tail = fma(r * r, detail::exp_tail(r), r);
  // 2^k (1 + tail) - 1, halved on the way because 2^128 is no float.
  const float half = power_of_two(parts.k - 1u);
  const float scaled = 2.0f * fma(tail, half, half - 0.5f);
  const float result = copysign(parts.k == 0u ? tail : scaled, x);
  return x < -20.0f ? -1.0f : result;
}

FUSEC_INLINE float log(float x) {
  const detail::LogParts parts = detail::split_log(x);
  return detail::log_special(x, detail::log_join(parts.e, parts.f));
}

FUSEC_INLINE float log2(float x) {
  const detail::LogParts parts = detail::split_log(x);
  const float f = parts.f;
  // (log2(1+f) - f / ln 2) / f^2 on |f| <= 1/3
  float p = -0x1.6f0800p-3f;
  p = fma(p, f, 0x1.963684p-3f);
  p = fma(p, f, -0x1.6b1660p-3f);
  p = fma(p, f, 0x1.9f4c70p-3f);
  p = fma(p, f, -0x1.eca2eap-3f);
  p = fma(p, f, 0x1.279220p-2f);
  p = fma(p, f, -0x1.715440p-2f);
  p = fma(p, f, 0x1.ec7062p-2f);
  p = fma(p, f, -0x1.715476p-1f);
  const float small = fma(f * f, p, f * 0x1.4ae0c0p-26f);
  return detail::log_special(x, parts.e + fma(f, detail::log2_e, small));
}

FUSEC_INLINE float log10(float x) {
  const detail::LogParts parts = detail::split_log(x);
  const float f = parts.f;
  // (log10(1+f) - f / ln 10) / f^2 on |f| <= 1/3
  float p = -0x1.b9f31cp-5f;
  p = fma(p, f, 0x1.e92110p-5f);
  p = fma(p, f, -0x1.b53368p-5f);
  p = fma(p, f, 0x1.f411c0p-5f);
  p = fma(p, f, -0x1.2898bep-4f);
  p = fma(p, f, 0x1.63e718p-4f);
  p = fma(p, f, -0x1.bcb770p-4f);
  p = fma(p, f, 0x1.287a52p-3f);
  p = fma(p, f, -0x1.bcb7b2p-3f);
  const float low = fma(parts.e, 0x1.3509f8p-18f, f * -0x1.5b235ep-27f);
  const float small = fma(f, 0x1.bcb7b2p-2f, fma(f * f, p, low));
  return detail::log_special(x, fma(parts.e, 0x1.344p-2f, small));  // 0x1.344p-2: log10(2), high
}

FUSEC_INLINE float log1p(float x) {
  // 1 + x = 2^e (1 + f). e comes from the rounded sum, f from x itself, so nothing of x is lost.
  const uint32_t e = (bits_of(1.0f + x) - 0x3f2aaaabu) & 0xff800000u;
  const float inverse = float_from(bits_of(4.0f) - e);  // 4 / 2^e
  const float f = float_from(bits_of(x) - e) + fma(0.25f, inverse, -1.0f);
  const float exponent = (float)((int32_t)e >> 23);
  // The sign is that of x, and -0 is its own logarithm.
  const float result = copysign(detail::log_join(exponent, f), x);
  const float finite = x < infinity ? result : x;
  const float pole = x == -1.0f ? -infinity : finite;
  return x < -1.0f ? not_a_number : pole;
}

FUSEC_INLINE float log1pexp(float x) {
  // What is above 0 of x, and log(1 + e) with e = exp(-|x|) <= 1.
  const float bounded = detail::at_least(-abs(x), -105.0f);
  const float z = fma(bounded, detail::log2_e, detail::biased_magic + 24.0f);
  const float n = z - (detail::biased_magic + 24.0f);
  const float r = fma(n, -detail::ln2_low, fma(n, -detail::ln2_high, bounded));
  // 2^24 too large on the way, so that a subnormal result rounds once, at the end.
  const float e = detail::exp_reduced(r) * detail::power_of(z) * 0x1p-24f;
  // 1 + e is 1 + f, or 2 (1 + f), with |f| <= 1/3.
  const bool upper = e > 0x1.555556p-2f;
  const float f = upper ? fma(e, 0.5f, -0.5f) : e;
  return (x < 0.0f ? 0.0f : x) + detail::log_join(upper ? 1.0f : 0.0f, f);
}

FUSEC_INLINE float tanh(float x) {
  const float a = abs(x);
  const float u = a * a;
  // (tanh(a) / a - 1) / a^2 on a^2 <= 0.36
  float p = -0x1.9ada60p-8f;
  p = fma(p, u, 0x1.59e1c8p-6f);
  p = fma(p, u, -0x1.b955dcp-5f);
  p = fma(p, u, 0x1.110ee0p-3f);
  p = fma(p, u, -0x1.555554p-2f);
  const float small = fma(p * u, a, a);
  const float bounded = detail::at_most(a, 10.0f);
  const float large = 1.0f - 2.0f / (detail::exp_normal(2.0f * bounded) + 1.0f);
  return with_sign(a < 0.6f ? small : large, x);
}

FUSEC_INLINE float sigmoid(float x) {
  // The exponential never exceeds 1, so the lower tail keeps its digits down to the subnormals.
  const float e = exp(-abs(x));
  const float numerator = x < 0.0f ? e : 1.0f;
  const float sum = 1.0f + e;
  const float lost = e - (sum - 1.0f);
  const float quotient = numerator / sum;
  // One Newton step takes back the roundings of the sum and of the division. 1 / sum needs no
  // second division: it is sigmoid(|x|).
  const float rest = fma(-quotient, lost, fma(-quotient, sum, numerator));
  return fma(rest, x < 0.0f ? 1.0f - quotient : quotient, quotient);
}

FUSEC_INLINE float erf(float x) {
  const float a = abs(x);
  const float u = a * a;
  // erf(a) / a - 1 on a <= 0.88, in a^2
  float p = -0x1.451296p-11f;
  p = fma(p, u, 0x1.49c7b0p-8f);
  p = fma(p, u, -0x1.b6f468p-6f);
  p = fma(p, u, 0x1.ce2144p-4f);
  p = fma(p, u, -0x1.81270cp-2f);
  p = fma(p, u, 0x1.06eba6p-3f);
  const float small = fma(p, a, a);
  // log2(erfc(t)) / t on 0.86 <= t <= 4; the product with t is not rounded
  const float t = detail::at_most(a, 4.0f);
  float q = 0x1.4570dap-12f;
  q = fma(q, t, -0x1.30dda0p-8f);
  q = fma(q, t, 0x1.0ee35ap-5f);
  q = fma(q, t, -0x1.37271ep-3f);
  q = fma(q, t, -0x1.d58d70p-1f);
  q = fma(q, t, -0x1.a0cc54p0f);
  const float z = fma(q, t, detail::biased_magic);
  const float r = fma(q, t, detail::biased_magic - z);
  // 2^r on |r| <= 1/2
  float e = 0x1.41d296p-13f;
  e = fma(e, r, 0x1.5f464ep-10f);
  e = fma(e, r, 0x1.3b2dbep-7f);
  e = fma(e, r, 0x1.c6aed2p-5f);
  e = fma(e, r, 0x1.ebfbdap-3f);
  e = fma(e, r, 0x1.62e430p-1f);
  e = fma(e, r, 1.0f);
  const float large = fma(e, -detail::power_of(z), 1.0f);
  return with_sign(a < 0.87f ? small : large, x);
}

FUSEC_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }
FUSEC_INLINE float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }

namespace detail {

// log2(x) to 2^-45 relative, for 0 < x < inf.
FUSEC_INLINE double log2_wide(float x) {
  const LogParts parts = split_log(x);
  const double f = (double)parts.f;
  const double s = f / (2.0 + f);
  const double u = s * s;
  // 2 atanh(s) / (s ln 2) on |s| <= 1/5
  double p = 0x1.010e4a12e0aabp-2;
  p = fma(p, u, 0x1.0aecdf031315dp-2);
  p = fma(p, u, 0x1.4856eee981fabp-2);
  p = fma(p, u, 0x1.a61737e345516p-2);
  p = fma(p, u, 0x1.2776c5339ae32p-1);
  p = fma(p, u, 0x1.ec709dc388c36p-1);
  p = fma(p, u, 0x1.71547652b8308p+1);
  return fma(p, s, (double)parts.e);
}

// 2^t for |t| < 1000, to 2^-38 relative.
FUSEC_INLINE double exp2_wide(double t) {
  const double z = t + round_magic_wide;
  const double r = t - (z - round_magic_wide);
  double p = 0x1.63b2d7971923fp-20;
  p = fma(p, r, 0x1.00c0e4e15189cp-16);
  p = fma(p, r, 0x1.4308c7183d6a2p-13);
  p = fma(p, r, 0x1.5d877598350dep-10);
  p = fma(p, r, 0x1.3b2ab70ad2565p-7);
  p = fma(p, r, 0x1.c6b08da70cce3p-5);
  p = fma(p, r, 0x1.ebfbdff82a734p-3);
  p = fma(p, r, 0x1.62e42fef9cc69p-1);
  const uint64_t k = bits_of(z) - bits_of(round_magic_wide);
  return fma(p, r, 1.0) * double_from((k + 1023u) << 52);
}

}  // namespace detail

FUSEC_INLINE float pow(float x, float y) {
  const float a = abs(x);
  const float b = abs(y);
  const double logarithm = detail::log2_wide(a);
  const double bounded = a == 0.0f ? -(double)infinity : a < infinity ? logarithm : (double)a;
  const double t = (double)y * bounded;
  const double low = t < -200.0 ? -200.0 : t;
  const float power = (float)detail::exp2_wide(low > 200.0 ? 200.0 : low);
  // Every finite float from 2^24 on is an even integer; halves tell odd from even below.
  const bool whole = __builtin_truncf(b) == b;
  const bool odd = whole & (b < 0x1p24f) & (__builtin_truncf(b * 0.5f) * 2.0f != b);
  const bool negative = bits_of(x) >> 31;
  const float signed_power = negative & odd ? -power : power;
  const bool undefined = (x < 0.0f) & (a < infinity) & !whole;
  const float result = undefined ? not_a_number : signed_power;
  // 1^y, x^0 and (-1)^(+-inf) are 1 whatever the other operand, NaN included.
  return (x == 1.0f) | (y == 0.0f) | ((a == 1.0f) & (b == infinity)) ? 1.0f : result;
}

// The C library's own, one element at a time.
#define FUSEC_LIBRARY(name)                                            \
  FUSEC_INLINE float name(float x) { return __builtin_##name##f(x); } \
  FUSEC_INLINE double name(double x) { return __builtin_##name(x); }
FUSEC_LIBRARY(erfc)
FUSEC_LIBRARY(asin)
FUSEC_LIBRARY(acos)
FUSEC_LIBRARY(atan)
FUSEC_LIBRARY(sinh)
FUSEC_LIBRARY(cosh)
FUSEC_LIBRARY(asinh)
FUSEC_LIBRARY(acosh)
FUSEC_LIBRARY(atanh)
#undef FUSEC_LIBRARY

#define FUSEC_LIBRARY(name) \
  FUSEC_INLINE double name(double x) { return __builtin_##name(x); }
FUSEC_LIBRARY(exp)
FUSEC_LIBRARY(exp2)
FUSEC_LIBRARY(expm1)
FUSEC_LIBRARY(log)
FUSEC_LIBRARY(log2)
FUSEC_LIBRARY(log10)
FUSEC_LIBRARY(log1p)
FUSEC_LIBRARY(tanh)
FUSEC_LIBRARY(erf)
FUSEC_LIBRARY(sqrt)
#undef FUSEC_LIBRARY

FUSEC_INLINE double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
FUSEC_INLINE double sigmoid(double x) {
  const double e = __builtin_exp(-__builtin_fabs(x));
  return (x < 0.0 ? e : 1.0) / (1.0 + e);
}
FUSEC_INLINE double log1pexp(double x) {
  return (x < 0.0 ? 0.0 : x) + __builtin_log1p(__builtin_exp(-__builtin_fabs(x)));
}
// The standard normal distribution function; through double, since x is scaled before erfc.
FUSEC_INLINE double ndtr(double x) { return 0.5 * __builtin_erfc(x * -0.70710678118654752); }
FUSEC_INLINE float ndtr(float x) { return (float)ndtr((double)x); }
FUSEC_INLINE double pow(double x, double y) { return __builtin_pow(x, y); }
FUSEC_INLINE float atan2(float y, float x) { return __builtin_atan2f(y, x); }
FUSEC_INLINE double atan2(double y, double x) { return __builtin_atan2(y, x); }

// The reentrant form: plain lgamma writes a global that threads would share.
FUSEC_INLINE float lgamma(float x) {
  int sign;
  return __builtin_lgammaf_r(x, &sign);
}
FUSEC_INLINE double lgamma(double x) {
  int sign;
  return __builtin_lgamma_r(x, &sign);
}

}  // namespace fusec

#endif
