"""Functions that CUDA lacks, and quick forms of those it has.

Texts for ``cuda_helpers``; may import nothing.
"""

from __future__ import annotations

_MAXIMUM = """
// NaN wins.
template <class T>
__device__ T maximum(T a, T b) {
  return a > b || a != a ? a : b;
}
#if __CUDA_ARCH__ >= 800
template <>
__device__ float maximum(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
#endif
"""

_MINIMUM = """
// NaN wins.
template <class T>
__device__ T minimum(T a, T b) {
  return a < b || a != a ? a : b;
}
#if __CUDA_ARCH__ >= 800
template <>
__device__ float minimum(float a, float b) {
  float smaller;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
  return smaller;
}
#endif
"""

_LARGEST = """
// The largest element of a vector, two at a time. NaN wins.
__device__ float largest_{type}(const Vector<{type}>& vector) {{
#if __CUDA_ARCH__ >= 800
  Vector<{type}> most = vector;
#pragma unroll
  for (int k = 1; k < LANES / 2; ++k) {{
    asm("max.NaN.{pair} %0, %0, %1;" : "+r"(most.word[0]) : "r"(vector.word[k]));
  }}
  return maximum(widen(element(most, 0)), widen(element(most, 1)));
#else
  float most = widen(element(vector, 0));
#pragma unroll
  for (int lane = 1; lane < LANES; ++lane) most = maximum(most, widen(element(vector, lane)));
  return most;
#endif
}}
"""

_QUICK_DIVIDE = """
// Off by 2 ulp at most.
__device__ float quick_divide(float a, float b) {
  float quotient;
  asm("div.full.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a), "f"(b));
  return quotient;
}
"""

_QUICK_EXP = """
// A product and one instruction: good to 2^-17 of the value, and 0 below 1.2e-38.
__device__ float quick_exp(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.442695f));
  return power;
}
"""

_QUICK_TANH = """
__device__ float quick_tanh(float x) {
  // The quotient cancels near 0, where three terms of the series are good to 2e-7.
  const float square = x * x;
  const float near = x * (1.0f - square * (0.33333334f - square * 0.13333334f));
  const float far = 1.0f - quick_divide(2.0f, 1.0f + quick_exp(2.0f * x));
  return fabsf(x) < 0.125f ? near : far;
}
"""

_QUICK_LOG = """
__device__ float quick_log(float x) {
  // The instruction takes subnormal numbers for 0, so they are scaled by 2^24 first.
  const bool small = x < 1.1754944e-38f;
  const float scaled = __logf(small ? x * 16777216.0f : x);
  return small ? scaled - 16.635532f : scaled;
}
"""

_QUICK_LOG1P = """
__device__ float quick_log1p(float x) {
  // The logarithm cancels near 1, where four terms of the series are good to 2e-8.
  const float near = x * (1.0f - x * (0.5f - x * (0.33333334f - x * 0.25f)));
  return fabsf(x) < 0.015625f ? near : __logf(1.0f + x);
}
"""

_LOG1PEXP = """
__device__ float log1pexpf(float x) {
  return x > 20.0f ? x : log1pf(expf(x));
}
"""

_LOG1PEXP_DOUBLE = """
__device__ double log1pexp(double x) {
  return x > 40.0 ? x : log1p(exp(x));
}
"""

_QUICK_LOG1PEXP = """
__device__ float quick_log1pexp(float x) {
  return x > 20.0f ? x : quick_log1p(__expf(x));
}
"""

_QUICK_NDTR = """
__device__ float quick_ndtr(float x) {
  // A logistic curve with a polynomial for its slope: good to 7e-5 of the value where |x| < 4, and
  // beyond to 5e-10. Fitted to log(p / (1 - p)) / x of the normal distribution by minimax.
  const float square = fminf(x * x, 36.0f);
  float power = fmaf(square, -2.9907785e-09f, 2.5614622e-07f);
  power = fmaf(power, square, -8.652716132928617e-06f);
  power = fmaf(power, square, 0.0001309070794377476f);
  power = fmaf(power, square, 0.0002336054021725431f);
  power = fmaf(power, square, -0.10512077063322067f);
  power = fmaf(power, square, -2.3020436763763428f);
  return quick_divide(1.0f, 1.0f + exp2f(x * power));
}
"""

_EXACT_REMAINDER = """
__device__ float exact_remainder(float a, float b) { return fmodf(a, b); }
__device__ double exact_remainder(double a, double b) { return fmod(a, b); }
"""

_FLOOR_REMAINDER = """
// The remainder with the sign of b.
template <class T>
__device__ T floor_remainder(T a, T b) {
  const T rest = exact_remainder(a, b);
  return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}
"""

_FLOOR_DIVIDE = """
// The quotient of what the remainder leaves is nearly whole, so rounding it cannot land on the
// wrong side.
template <class T>
__device__ T floor_divide(T a, T b) {
  const T rest = exact_remainder(a, b);
  const T exact = (a - rest) / b;
  const T lower = rest != 0 && (b < 0) != (rest < 0) ? exact - 1 : exact;
  const T below = static_cast<T>(floor(lower));
  const T whole = lower - below > static_cast<T>(0.5) ? below + 1 : below;
  if (b == 0) return a / b;
  return lower != 0 ? whole : static_cast<T>(copysign(static_cast<T>(0), a / b));
}
"""

_WRAPPING = """
// a {symbol} b, which wraps: overflow is undefined for signed integers only.
template <class T>
__device__ T wrapping_{name}(T a, T b) {{
  using Bits = unsigned long long;
  return static_cast<T>(static_cast<Bits>(a) {symbol} static_cast<Bits>(b));
}}
"""

_NEGATED = """
// -x, which wraps.
template <class T>
__device__ T negated(T x) {
  return static_cast<T>(0ULL - static_cast<unsigned long long>(x));
}
"""

_ABSOLUTE = """
template <class T>
__device__ T absolute(T x) {
  return x < T(0) ? negated(x) : x;
}
"""

_FLOOR_DIVIDE_INT = """
// Division by zero gives 0; the quotient by -1 wraps.
template <class T>
__device__ T floor_divide_int(T a, T b) {
  if (b == 0) return 0;
  if (b == static_cast<T>(-1) && b < 0) return negated(a);
  const T quotient = a / b;
  const T rest = a % b;
  return static_cast<T>(quotient - (rest != 0 && (rest < 0) != (b < 0)));
}
"""

_TRUNC_REMAINDER = """
// The remainder with the sign of a; by zero it is 0.
template <class T>
__device__ T trunc_remainder(T a, T b) {
  const bool whole = b == 0 || (b == static_cast<T>(-1) && b < 0);
  return whole ? static_cast<T>(0) : static_cast<T>(a % b);
}
"""

_FLOOR_REMAINDER_INT = """
template <class T>
__device__ T floor_remainder_int(T a, T b) {
  const T rest = trunc_remainder(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? static_cast<T>(rest + b) : rest;
}
"""

_INTEGER_POWER = """
// Square and multiply; a negative exponent leaves only 1 and -1 (and 0 for the rest).
template <class T>
__device__ T integer_power(T a, T b) {
  if (b < 0) return a == 1 ? T(1) : a == static_cast<T>(-1) ? (b & 1 ? a : T(1)) : T(0);
  unsigned long long result = 1, square = static_cast<unsigned long long>(a);
  for (unsigned long long left = b; left != 0; left >>= 1) {
    if (left & 1) result *= square;
    square *= square;
  }
  return static_cast<T>(result);
}
"""

FUNCTIONS: dict[str, str] = {
    "wrapping_add": _WRAPPING.format(name="add", symbol="+"),
    "wrapping_sub": _WRAPPING.format(name="sub", symbol="-"),
    "wrapping_mul": _WRAPPING.format(name="mul", symbol="*"),
    "maximum": _MAXIMUM,
    "minimum": _MINIMUM,
    "largest_bfloat16": _LARGEST.format(type="bfloat16", pair="bf16x2"),
    "largest_float16": _LARGEST.format(type="float16", pair="f16x2"),
    "quick_divide": _QUICK_DIVIDE,
    "quick_exp": _QUICK_EXP,
    "quick_tanh": _QUICK_TANH,
    "quick_log": _QUICK_LOG,
    "quick_log1p": _QUICK_LOG1P,
    "log1pexpf": _LOG1PEXP,
    "log1pexp": _LOG1PEXP_DOUBLE,
    "quick_log1pexp": _QUICK_LOG1PEXP,
    "quick_ndtr": _QUICK_NDTR,
    "exact_remainder": _EXACT_REMAINDER,
    "floor_remainder": _FLOOR_REMAINDER,
    "floor_divide": _FLOOR_DIVIDE,
    "negated": _NEGATED,
    "absolute": _ABSOLUTE,
    "floor_divide_int": _FLOOR_DIVIDE_INT,
    "trunc_remainder": _TRUNC_REMAINDER,
    "floor_remainder_int": _FLOOR_REMAINDER_INT,
    "integer_power": _INTEGER_POWER,
}
