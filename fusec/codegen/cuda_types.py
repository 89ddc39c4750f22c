"""Element types and vectors of them, in CUDA.

Texts for ``cuda_helpers``; may import nothing.
"""

from __future__ import annotations

_INFINITY = """
__device__ float infinity() { return __int_as_float(0x7f800000); }
"""

_NOT_A_NUMBER = """
__device__ float not_a_number() { return __int_as_float(0x7fc00000); }
"""

_BFLOAT16 = """
// The upper half of a float.
enum class bfloat16 : unsigned short {};

__device__ float widen(bfloat16 x) {
  return __uint_as_float(static_cast<unsigned>(x) << 16);
}
"""

_FLOAT16 = """
enum class float16 : unsigned short {};

__device__ float widen(float16 x) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<unsigned short>(x)));
  return value;
}
"""

_FLOAT8_E4M3 = """
// Four bits of exponent, three of fraction, no infinity.
enum class float8_e4m3 : unsigned char {};

__device__ float widen(float8_e4m3 x) {
  const unsigned bits = static_cast<unsigned>(x);
  const float size = __uint_as_float((bits & 0x7f) << 20) * 0x1p120f;
  const unsigned special = (bits & 0x7f) == 0x7f ? 0x7fc00000 : __float_as_uint(size);
  return __uint_as_float(special | (bits & 0x80) << 24);
}
"""

_FLOAT8_E5M2 = """
// Five bits of exponent, two of fraction.
enum class float8_e5m2 : unsigned char {};

__device__ float widen(float8_e5m2 x) {
  const unsigned bits = static_cast<unsigned>(x);
  const unsigned size = (bits & 0x7f) << 21;
  const unsigned special = size >= 0x0f800000 ? size | 0x7f800000 : 0;
  const unsigned normal = __float_as_uint(__uint_as_float(size) * 0x1p112f);
  return __uint_as_float((special ? special : normal) | (bits & 0x80) << 24);
}
"""

_BFLOAT16_PAIR = """
// Two values rounded to bfloat16: to nearest, ties to even.
__device__ unsigned bfloat16_pair(float low, float high) {
#if __CUDA_ARCH__ >= 800
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  const unsigned a = __float_as_uint(low), b = __float_as_uint(high);
  const unsigned first = low != low ? 0x7fff : (a + 0x7fff + (a >> 16 & 1)) >> 16;
  const unsigned second = high != high ? 0x7fff : (b + 0x7fff + (b >> 16 & 1)) >> 16;
  return first | second << 16;
#endif
}
"""

_NARROW_BITS = """
// |x| in a format of FRACTION bits and a smallest normal number of 2^(1 - BIAS): to nearest, ties
// to even. Right below the overflow of the format; beyond it the caller selects.
template <int FRACTION, int BIAS>
__device__ unsigned narrow_bits(unsigned size) {
  constexpr int DROP = 23 - FRACTION;
  constexpr unsigned STEP = (127 - BIAS + DROP + 1) << 23;
  const unsigned rounded = size + ((1u << (DROP - 1)) - 1) + (size >> DROP & 1);
  const unsigned normal = (rounded - ((127u - BIAS) << 23)) >> DROP;
  // Adding a float whose last bit weighs one subnormal step makes the adder do the rounding.
  const unsigned tiny = __float_as_uint(__uint_as_float(size) + __uint_as_float(STEP)) - STEP;
  return size < ((128u - BIAS) << 23) ? tiny : normal;
}
"""

_NARROW_BFLOAT16 = """
__device__ bfloat16 narrow_bfloat16(float x) {
  return static_cast<bfloat16>(bfloat16_pair(x, 0.0f));
}
"""

_NARROW_FLOAT16 = """
__device__ float16 narrow_float16(float x) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return static_cast<float16>(bits);
}
"""

_NARROW_FLOAT8_E4M3 = """
// Beyond the largest number lies itself.
__device__ float8_e4m3 narrow_float8_e4m3(float x) {
  const unsigned bits = __float_as_uint(x), size = bits & 0x7fffffff;
  const unsigned code = size > 0x43e80000 ? 0x7e : narrow_bits<3, 7>(size);
  return static_cast<float8_e4m3>((x != x ? 0x7f : code) | (bits >> 24 & 0x80));
}
"""

_NARROW_FLOAT8_E5M2 = """
__device__ float8_e5m2 narrow_float8_e5m2(float x) {
  const unsigned bits = __float_as_uint(x), size = bits & 0x7fffffff;
  const unsigned code = size >= 0x47700000 ? 0x7c : narrow_bits<2, 15>(size);
  return static_cast<float8_e5m2>((x != x ? 0x7f : code) | (bits >> 24 & 0x80));
}
"""

_FROM_BITS = """
template <class T, class Bits>
__device__ T from_bits(Bits bits) {
  T value;
  memcpy(&value, &bits, sizeof(T));
  return value;
}
"""

_BITS_OF = """
template <class T>
__device__ unsigned long long bits_of(T value) {
  unsigned long long bits = 0;
  memcpy(&bits, &value, sizeof(T));
  return bits;
}
"""

_VECTOR = """
// LANES elements that move together, 16 bytes at a time.
template <class T>
struct alignas(LANES * sizeof(T) < 16 ? LANES * sizeof(T) : 16) Vector {
  unsigned word[LANES * sizeof(T) / 4];
};
"""

_ELEMENT = """
template <class T>
__device__ T element(const Vector<T>& vector, int lane) {
  if constexpr (sizeof(T) == 8) {
    const unsigned long long high = vector.word[2 * lane + 1];
    return from_bits<T>(high << 32 | vector.word[2 * lane]);
  } else {
    constexpr int PER_WORD = 4 / sizeof(T);
    return from_bits<T>(vector.word[lane / PER_WORD] >> lane % PER_WORD * 8 * sizeof(T));
  }
}
"""

_PUT = """
// Puts an element into a vector of zeros.
template <class T>
__device__ void put(Vector<T>& vector, int lane, T value) {
  const unsigned long long bits = bits_of(value);
  if constexpr (sizeof(T) == 8) {
    vector.word[2 * lane] = static_cast<unsigned>(bits);
    vector.word[2 * lane + 1] = static_cast<unsigned>(bits >> 32);
  } else {
    constexpr int PER_WORD = 4 / sizeof(T);
    vector.word[lane / PER_WORD] |= static_cast<unsigned>(bits)
                                    << lane % PER_WORD * 8 * sizeof(T);
  }
}
"""

_PACK = """
template <class T>
__device__ Vector<T> pack(const T (&value)[LANES]) {
  Vector<T> vector{};
#pragma unroll
  for (int lane = 0; lane < LANES; ++lane) put(vector, lane, value[lane]);
  return vector;
}
"""

_PACK_BFLOAT16 = """
__device__ Vector<bfloat16> pack_bfloat16(const float (&value)[LANES]) {
  Vector<bfloat16> vector;
#pragma unroll
  for (int lane = 0; lane < LANES; lane += 2) {
    vector.word[lane / 2] = bfloat16_pair(value[lane], value[lane + 1]);
  }
  return vector;
}
"""

_PACK_NARROW = """
__device__ Vector<{type}> pack_{type}(const float (&value)[LANES]) {{
  Vector<{type}> vector{{}};
#pragma unroll
  for (int lane = 0; lane < LANES; ++lane) put(vector, lane, narrow_{type}(value[lane]));
  return vector;
}}
"""

_LOAD_VECTOR = """
template <class T>
__device__ Vector<T> load_vector(const T* from) {
  return *reinterpret_cast<const Vector<T>*>(from);
}
"""

_LOAD_EARLY = """
// The same, by an instruction that the compiler leaves where it is: ahead of a wait for others.
template <class T>
__device__ Vector<T> load_early(const T* from) {
  constexpr int WORDS = LANES * sizeof(T) / 4;
  const unsigned* words = reinterpret_cast<const unsigned*>(from);
  Vector<T> vector;
#pragma unroll
  for (int k = 0; k < WORDS; k += WORDS < 4 ? 1 : 4) {
    unsigned* to = &vector.word[k];
    if constexpr (WORDS < 4) {
      asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(to[0]) : "l"(words + k));
    } else {
      asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(words + k));
    }
  }
  return vector;
}
"""

_EARLY_WHOLE = """
// A vector that is inside a row of `length` or beyond it.
template <class T, class Index>
__device__ Vector<T> early_whole(const T* from, Index first, Index length) {
  Vector<T> vector{};
  if (first < length) vector = load_early(from);
  return vector;
}
"""

_COPY_AHEAD = """
// Begins to copy a vector into shared memory, or where it is not `inside` a row, zeros.
template <class T>
__device__ void copy_ahead(Vector<T>& to, const T* from, bool inside) {
  constexpr int BYTES = LANES * sizeof(T), EACH = BYTES < 16 ? BYTES : 16;
  const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(&to));
  const char* bytes = reinterpret_cast<const char*>(from);
  const int count = inside ? EACH : 0;
#pragma unroll
  for (int k = 0; k < BYTES; k += EACH) {
    if constexpr (EACH < 16) {
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                   : : "r"(place + k), "l"(bytes + k), "n"(EACH), "r"(count) : "memory");
    } else {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                   : : "r"(place + k), "l"(bytes + k), "r"(count) : "memory");
    }
  }
}
"""

_COPIED = """
// Waits for what this thread has begun to copy.
__device__ void copied() { asm volatile("cp.async.wait_all;" : : : "memory"); }
"""

_LOAD_ACROSS = """
// A vector that begins `past` elements behind a whole vector of memory: two of those, joined.
template <class T, class Index>
__device__ Vector<T> load_across(const T* from, int past, Index first, Index length) {
  Vector<T> vector{};
  if (first >= length) return vector;
  if (past == 0) return load_vector(from);
  constexpr int WORDS = LANES * sizeof(T) / 4;
  const Vector<T> low = load_vector(from - past), high = load_vector(from - past + LANES);
  const int words = past * static_cast<int>(sizeof(T)) / 4;
  const int bits = past * static_cast<int>(sizeof(T)) % 4 * 8;
  unsigned word[2 * WORDS];
#pragma unroll
  for (int k = 0; k < WORDS; ++k) {
    word[k] = low.word[k];
    word[k + WORDS] = high.word[k];
  }
#pragma unroll
  for (int step = WORDS / 2; step > 0; step /= 2) {
#pragma unroll
    for (int k = 0; k + step < 2 * WORDS; ++k) word[k] = words & step ? word[k + step] : word[k];
  }
#pragma unroll
  for (int k = 0; k < WORDS; ++k) vector.word[k] = __funnelshift_r(word[k], word[k + 1], bits);
  return vector;
}
"""

_STORE_VECTOR = """
template <class T>
__device__ void store_vector(T* to, const Vector<T>& vector) {
  *reinterpret_cast<Vector<T>*>(to) = vector;
}
"""

_LOAD_WHOLE = """
// A vector that is inside a row of `length` or beyond it.
template <class T, class Index>
__device__ Vector<T> load_whole(const T* from, Index first, Index length) {
  Vector<T> vector{};
  if (first < length) vector = load_vector(from);
  return vector;
}
"""

_STORE_WHOLE = """
template <class T, class Index>
__device__ void store_whole(T* to, const Vector<T>& vector, Index first, Index length) {
  if (first < length) store_vector(to, vector);
}
"""

_LOAD_INSIDE = """
// The elements of a vector that are inside a row of `length`; its first has the position `first`.
template <class T, class Index>
__device__ Vector<T> load_inside(const T* from, Index first, Index length) {
  if (first >= 0 && first + LANES <= length) return load_vector(from);
  Vector<T> vector{};
#pragma unroll
  for (int lane = 0; lane < LANES; ++lane) {
    if (first + lane >= 0 && first + lane < length) put(vector, lane, from[lane]);
  }
  return vector;
}
"""

_STORE_INSIDE = """
template <class T, class Index>
__device__ void store_inside(T* to, const Vector<T>& vector, Index first, Index length) {
  if (first >= 0 && first + LANES <= length) return store_vector(to, vector);
#pragma unroll
  for (int lane = 0; lane < LANES; ++lane) {
    if (first + lane >= 0 && first + lane < length) to[lane] = element(vector, lane);
  }
}
"""

_FORGET = """
// The vector as it is, but the compiler has to think it new: what was made of it is made again, and
// does not wait in registers.
template <class T>
__device__ void forget(Vector<T>& vector) {
#pragma unroll
  for (unsigned& word : vector.word) asm volatile("" : "+r"(word));
}
"""

_RENEW = """
// The number as it is, but what a loop makes of it is made again in each of its turns.
__device__ void renew(int& number) { asm volatile("" : "+r"(number)); }
"""

TYPES: dict[str, str] = {
    "infinity": _INFINITY,
    "not_a_number": _NOT_A_NUMBER,
    "bfloat16": _BFLOAT16,
    "float16": _FLOAT16,
    "float8_e4m3": _FLOAT8_E4M3,
    "float8_e5m2": _FLOAT8_E5M2,
    "bfloat16_pair": _BFLOAT16_PAIR,
    "narrow_bits": _NARROW_BITS,
    "narrow_bfloat16": _NARROW_BFLOAT16,
    "narrow_float16": _NARROW_FLOAT16,
    "narrow_float8_e4m3": _NARROW_FLOAT8_E4M3,
    "narrow_float8_e5m2": _NARROW_FLOAT8_E5M2,
    "from_bits": _FROM_BITS,
    "bits_of": _BITS_OF,
    "Vector": _VECTOR,
    "element": _ELEMENT,
    "put": _PUT,
    "pack": _PACK,
    "pack_bfloat16": _PACK_BFLOAT16,
    "pack_float16": _PACK_NARROW.format(type="float16"),
    "pack_float8_e4m3": _PACK_NARROW.format(type="float8_e4m3"),
    "pack_float8_e5m2": _PACK_NARROW.format(type="float8_e5m2"),
    "load_vector": _LOAD_VECTOR,
    "load_early": _LOAD_EARLY,
    "early_whole": _EARLY_WHOLE,
    "copy_ahead": _COPY_AHEAD,
    "copied": _COPIED,
    "load_across": _LOAD_ACROSS,
    "store_vector": _STORE_VECTOR,
    "load_whole": _LOAD_WHOLE,
    "store_whole": _STORE_WHOLE,
    "load_inside": _LOAD_INSIDE,
    "store_inside": _STORE_INSIDE,
    "forget": _FORGET,
    "renew": _RENEW,
}
