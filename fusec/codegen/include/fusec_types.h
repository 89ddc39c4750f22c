// Storage types narrower than float, and the casts between floats and integers.
//
// load(x) widens a stored element to the type it is computed in; store<T>(x) rounds once, to
// nearest, ties to even. Everything is integer arithmetic with selects, so the bits are the same
// with and without conversion instructions, and loops vectorise.
#ifndef FUSEC_TYPES_H
#define FUSEC_TYPES_H

#include "fusec_base.h"

// What a value beyond 448 becomes in e4m3: the largest number (as torch from 2.13 on), or with
// -DFUSEC_E4M3_OVERFLOW=0x7f NaN (as torch before).
#ifndef FUSEC_E4M3_OVERFLOW
#define FUSEC_E4M3_OVERFLOW 0x7e
#endif

namespace fusec {

// The bits of an element. Enumerations, not structs: a loop that copies a struct stays scalar.
enum class bf16 : uint16_t {};
enum class f16 : uint16_t {};
enum class f8e4m3 : uint8_t {};
enum class f8e5m2 : uint8_t {};

namespace detail {

// |x| as a float format with `fraction` fraction bits and a smallest normal number of
// 2^-(bias - 1), rounded to nearest even. Correct below the format's overflow; above it the
// caller selects.
FUSEC_INLINE uint32_t narrow(uint32_t magnitude, uint32_t fraction, uint32_t bias) {
  const uint32_t drop = 23u - fraction;
  const uint32_t odd = (magnitude >> drop) & 1u;
  const uint32_t rounded = magnitude + ((1u << (drop - 1u)) - 1u) + odd;
  const uint32_t normal = (rounded - ((127u - bias) << 23)) >> drop;
  // Adding a float whose last bit weighs one subnormal step makes the adder do the rounding.
  const uint32_t step = (127u - bias + drop + 1u) << 23;
  const uint32_t subnormal = bits_of(float_from(magnitude) + float_from(step)) - step;
  return magnitude < ((128u - bias) << 23) ? subnormal : normal;
}

}  // namespace detail

FUSEC_INLINE float load(bf16 x) { return float_from((uint32_t)x << 16); }

FUSEC_INLINE float load(f16 x) {
  const uint32_t magnitude = ((uint32_t)x & 0x7fffu) << 13;
  const uint32_t scaled = bits_of(float_from(magnitude) * 0x1p112f);  // exact, subnormals too
  const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  return float_from(scaled | special | (((uint32_t)x & 0x8000u) << 16));
}

FUSEC_INLINE float load(f8e5m2 x) { return load((f16)((uint32_t)x << 8)); }

FUSEC_INLINE float load(f8e4m3 x) {
  const uint32_t magnitude = ((uint32_t)x & 0x7fu) << 20;
  const uint32_t scaled = bits_of(float_from(magnitude) * 0x1p120f);
  const uint32_t special = magnitude == 0x07f00000u ? 0x7fc00000u : 0u;
  return float_from(scaled | special | (((uint32_t)x & 0x80u) << 24));
}

// Every other element type is computed in as it is stored.
template <class T>
FUSEC_INLINE T load(T x) {
  return x;
}

template <class T>
FUSEC_INLINE T store(float x);
template <class T>
FUSEC_INLINE T store(double x);

template <>
FUSEC_INSTANCE bf16 store<bf16>(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const uint32_t quiet = x == x ? 0u : 0x7fc00000u;  // rounding could turn a NaN into something else
  return (bf16)((rounded | quiet) >> 16);
}

template <>
FUSEC_INSTANCE f16 store<f16>(float x) {
  const uint32_t magnitude = bits_of(x) & 0x7fffffffu;
  const uint32_t beyond = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  // From 65520 on, halfway between the largest number and the next step, values are infinite.
  const uint32_t code = magnitude >= 0x477ff000u ? beyond : detail::narrow(magnitude, 10u, 15u);
  return (f16)(code | ((bits_of(x) >> 16) & 0x8000u));
}

template <>
FUSEC_INSTANCE f8e5m2 store<f8e5m2>(float x) {
  const uint32_t magnitude = bits_of(x) & 0x7fffffffu;
  const uint32_t beyond = magnitude > 0x7f800000u ? 0x7fu : 0x7cu;
  const uint32_t code = magnitude >= 0x47700000u ? beyond : detail::narrow(magnitude, 2u, 15u);
  return (f8e5m2)(code | ((bits_of(x) >> 24) & 0x80u));
}

template <>
FUSEC_INSTANCE f8e4m3 store<f8e4m3>(float x) {
  const uint32_t magnitude = bits_of(x) & 0x7fffffffu;
  const uint32_t beyond = magnitude > 0x7f800000u ? 0x7fu : (uint32_t)FUSEC_E4M3_OVERFLOW;
  // 464 is halfway between 448 and what would be 480, and ties to 448.
  const uint32_t code = magnitude > 0x43e80000u ? beyond : detail::narrow(magnitude, 3u, 7u);
  return (f8e4m3)(code | ((bits_of(x) >> 24) & 0x80u));
}

template <>
FUSEC_INSTANCE float store<float>(float x) {
  return x;
}
template <>
FUSEC_INSTANCE double store<double>(float x) {
  return (double)x;
}
template <>
FUSEC_INSTANCE double store<double>(double x) {
  return x;
}
// From double to a 16 or 8-bit type torch goes through float, rounding twice; so do we.
template <class T>
FUSEC_INLINE T store(double x) {
  return store<T>((float)x);
}

// GCC up to 12 turns (float)(int)x into trunc(x), whose zero may be negative: what truncates to zero
// is made a positive zero first.
template <class F>
FUSEC_INLINE F flush_fraction(F x) {
  return (x > (F)-1) & (x < (F)1) ? (F)0 : x;
}

// Casts from float and double to integers: truncated, and out of range or NaN (undefined in C++)
// what x86 conversions and torch's CPU kernels give: the most negative int32 or int64. Narrower
// types and uint32 then keep the low bits, so uint8(-2.0) is 254. bool is "not zero".
template <class T, class F>
FUSEC_INLINE T cast(F x) {
  return (T)x;
}

#define FUSEC_CASTS(F)                                                          \
  template <>                                                                   \
  FUSEC_INSTANCE int32_t cast<int32_t, F>(F x) {                                \
    const bool fits = (x >= (F)-0x1p31) & (x < (F)0x1p31);                      \
    return (int32_t)(fits ? flush_fraction(x) : (F)-0x1p31);                    \
  }                                                                             \
  template <>                                                                   \
  FUSEC_INSTANCE int64_t cast<int64_t, F>(F x) {                                \
    const bool fits = (x >= (F)-0x1p63) & (x < (F)0x1p63);                      \
    return (int64_t)(fits ? flush_fraction(x) : (F)-0x1p63);                    \
  }                                                                             \
  template <>                                                                   \
  FUSEC_INSTANCE uint64_t cast<uint64_t, F>(F x) {                              \
    const bool upper = x >= (F)0x1p63;                                          \
    const uint64_t low = (uint64_t)cast<int64_t, F>(upper ? x - (F)0x1p63 : x); \
    return low ^ (upper ? (uint64_t)1 << 63 : (uint64_t)0);                     \
  }                                                                             \
  template <>                                                                   \
  FUSEC_INSTANCE uint32_t cast<uint32_t, F>(F x) {                              \
    return (uint32_t)cast<int64_t, F>(x);                                       \
  }                                                                             \
  template <>                                                                   \
  FUSEC_INSTANCE int16_t cast<int16_t, F>(F x) {                                \
    return (int16_t)cast<int32_t, F>(x);                                        \
  }                                                                             \
  template <>                                                                   \
  FUSEC_INSTANCE uint16_t cast<uint16_t, F>(F x) {                              \
    return (uint16_t)cast<int32_t, F>(x);                                       \
  }                                                                             \
  template <>                                                                   \
  FUSEC_INSTANCE int8_t cast<int8_t, F>(F x) {                                  \
    return (int8_t)cast<int32_t, F>(x);                                         \
  }                                                                             \
  template <>                                                                   \
  FUSEC_INSTANCE uint8_t cast<uint8_t, F>(F x) {                                \
    return (uint8_t)cast<int32_t, F>(x);                                        \
  }                                                                             \
  template <>                                                                   \
  FUSEC_INSTANCE bool cast<bool, F>(F x) {                                      \
    return x != (F)0;                                                           \
  }
FUSEC_CASTS(float)
FUSEC_CASTS(double)
#undef FUSEC_CASTS

}  // namespace fusec

#endif
