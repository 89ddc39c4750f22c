// Sine, cosine and tangent for float: branch-free and accurate over all inputs, 1e30 included.
//
// x 2/pi counts quarter turns; only its value modulo 4 matters. For |x| < 2^50 a 2/pi of 111 bits
// is enough. For larger x its leading bits only ever make whole turns, so three more constants
// leave them out: 2/pi with the multiples of 4 2^-26j dropped, for x from 2^(24 + 26j) on.
// Each comes in three parts, two of 29 bits that a float multiplies exactly in double, and the rest.
#ifndef FUSEC_TRIG_H
#define FUSEC_TRIG_H

#include "fusec_base.h"
#include "fusec_math.h"

namespace fusec {
namespace detail {

// An integer plus what is left of p, |left| <= 1/2. The low bits of the double hold the integer.
struct Whole {
  uint64_t bits;
  double left;
};

FUSEC_INLINE Whole split_whole(double p) {
  const double z = p + round_magic_wide;  // |p| < 2^51
  return {bits_of(z), p - (z - round_magic_wide)};
}

// Quarter turns taken off (modulo 4) and the angle that is left, |angle| <= pi/4.
struct Turns {
  uint32_t quarter;
  double angle;
};

FUSEC_INLINE Turns split_turns(float x) {
  const double wide = (double)x;
  const float a = abs(x);
  const double to_76 = a < 0x1p50f ? 0x1.45f306dp-1 : 0x1.b939105p-26;
  const double to_102 = a < 0x1p76f ? to_76 : 0x1.529fc27p-52;
  const double high = a < 0x1p102f ? to_102 : 0x1.d5f47d4p-78;
  const double middle_76 = a < 0x1p50f ? 0x1.9391054p-30 : 0x1.29fc275p-56;
  const double middle_102 = a < 0x1p76f ? middle_76 : 0x1.5f47d4dp-82;
  const double middle = a < 0x1p102f ? middle_102 : 0x1.a6ee06dp-107;
  const double low_76 = a < 0x1p50f ? 0x1.4fe13abe8fa9ap-59 : 0x1.f47d4d377036ep-86;
  const double low_102 = a < 0x1p76f ? low_76 : 0x1.bb81b6c52b328p-113;
  const double low = a < 0x1p102f ? low_102 : 0x1.6295993c43904p-136;
  const Whole first = split_whole(wide * high);
  const Whole second = split_whole(wide * middle);
  const Whole third = split_whole((first.left + second.left) + wide * low);
  const uint32_t quarter = (uint32_t)first.bits + (uint32_t)second.bits + (uint32_t)third.bits;
  return {quarter, third.left * 0x1.921fb54442d18p0};  // pi/2
}

// sin(angle), or cos(angle) when bit 0 of quarter is set, negated when bit 1 is. The polynomials
// run in float; what rounding the angle to float leaves over enters to first order.
FUSEC_INLINE float sine_or_cosine(double angle, uint32_t quarter) {
  const float r = (float)angle;
  const float rest = (float)(angle - (double)r);
  const float u = r * r;
  // (sin(r) / r - 1) / r^2, in r^2
  float s = -0x1.9ac96cp-13f;
  s = fma(s, u, 0x1.110c28p-7f);
  s = fma(s, u, -0x1.555552p-3f);
  const float sine = r + fma(s * u, r, rest);
  // (cos(r) - 1 + r^2/2) / r^4, in r^2
  float c = 0x1.9bd864p-16f;
  c = fma(c, u, -0x1.6c12d2p-10f);
  c = fma(c, u, 0x1.555554p-5f);
  const float near_one = fma(u, -0.5f, 1.0f);
  const float lost = fma(u, -0.5f, 1.0f - near_one);
  const float cosine = near_one + fma(c * u, u, fma(-rest, r, lost));
  return float_from(bits_of(quarter & 1u ? cosine : sine) ^ ((quarter & 2u) << 30));
}

}  // namespace detail

FUSEC_INLINE float sin(float x) {
  const detail::Turns turns = detail::split_turns(x);
  const float value = detail::sine_or_cosine(turns.angle, turns.quarter);
  return x == 0.0f ? x : value;
}

FUSEC_INLINE float cos(float x) {
  const detail::Turns turns = detail::split_turns(x);
  return detail::sine_or_cosine(turns.angle, turns.quarter + 1u);
}

FUSEC_INLINE float tan(float x) {
  const detail::Turns turns = detail::split_turns(x);
  const double r = turns.angle;
  const double u = r * r;
  double s = 0x1.6dbdd26f56d2dp-19;
  s = fma(s, u, -0x1.a013a6edc8f34p-13);
  s = fma(s, u, 0x1.11110deeb33b2p-7);
  s = fma(s, u, -0x1.555555545dd83p-3);
  double c = -0x1.25242a3a17327p-22;
  c = fma(c, u, 0x1.a015c40ec65ecp-16);
  c = fma(c, u, -0x1.6c16bf5495185p-10);
  c = fma(c, u, 0x1.5555555502be6p-5);
  const double sine = fma(s * u, r, r);
  const double cosine = fma(c * u, u, fma(u, -0.5, 1.0));
  const bool odd = turns.quarter & 1u;
  const double value = (odd ? -cosine : sine) / (odd ? sine : cosine);
  return x == 0.0f ? x : (float)value;
}

FUSEC_INLINE double sin(double x) { return __builtin_sin(x); }
FUSEC_INLINE double cos(double x) { return __builtin_cos(x); }
FUSEC_INLINE double tan(double x) { return __builtin_tan(x); }

}  // namespace fusec

#endif
