#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/extension.h>

namespace swiglu_kernel_code {

// silu(gate) * up
//
// reads gate bf16, up bf16; writes out bf16; 6 bytes per element

constexpr int THREADS = 128;  // threads of a block
constexpr int LANES = 8;  // elements of a vector
constexpr int VECTORS = 2;  // vectors that a thread works on at a time

// The upper half of a float.
enum class bfloat16 : unsigned short {};

__device__ float widen(bfloat16 x) {
  return __uint_as_float(static_cast<unsigned>(x) << 16);
}

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

template <class T, class Bits>
__device__ T from_bits(Bits bits) {
  T value;
  memcpy(&value, &bits, sizeof(T));
  return value;
}

template <class T>
__device__ unsigned long long bits_of(T value) {
  unsigned long long bits = 0;
  memcpy(&bits, &value, sizeof(T));
  return bits;
}

// LANES elements that move together, 16 bytes at a time.
template <class T>
struct alignas(LANES * sizeof(T) < 16 ? LANES * sizeof(T) : 16) Vector {
  unsigned word[LANES * sizeof(T) / 4];
};

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

__device__ Vector<bfloat16> pack_bfloat16(const float (&value)[LANES]) {
  Vector<bfloat16> vector;
#pragma unroll
  for (int lane = 0; lane < LANES; lane += 2) {
    vector.word[lane / 2] = bfloat16_pair(value[lane], value[lane + 1]);
  }
  return vector;
}

template <class T>
__device__ Vector<T> load_vector(const T* from) {
  return *reinterpret_cast<const Vector<T>*>(from);
}

template <class T>
__device__ void store_vector(T* to, const Vector<T>& vector) {
  *reinterpret_cast<Vector<T>*>(to) = vector;
}

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

template <class T, class Index>
__device__ void store_inside(T* to, const Vector<T>& vector, Index first, Index length) {
  if (first >= 0 && first + LANES <= length) return store_vector(to, vector);
#pragma unroll
  for (int lane = 0; lane < LANES; ++lane) {
    if (first + lane >= 0 && first + lane < length) to[lane] = element(vector, lane);
  }
}

// Off by 2 ulp at most.
__device__ float quick_divide(float a, float b) {
  float quotient;
  asm("div.full.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a), "f"(b));
  return quotient;
}

// A product and one instruction: good to 2^-17 of the value, and 0 below 1.2e-38.
__device__ float quick_exp(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.442695f));
  return power;
}

extern "C" __global__ void __launch_bounds__(THREADS) swiglu_kernel(
    const bfloat16* __restrict__ gate_ptr,
    const bfloat16* __restrict__ up_ptr,
    bfloat16* __restrict__ out_ptr,
    int n) {
  const int block = blockIdx.x;

  // load
  Vector<bfloat16> gate_vectors[VECTORS];
  #pragma unroll
  for (int vector = 0; vector < VECTORS; ++vector) {
    const int first = ((block * VECTORS + vector) * THREADS + threadIdx.x) * LANES;
    gate_vectors[vector] = load_inside(gate_ptr + first, first, n);
  }
  Vector<bfloat16> up_vectors[VECTORS];
  #pragma unroll
  for (int vector = 0; vector < VECTORS; ++vector) {
    const int first = ((block * VECTORS + vector) * THREADS + threadIdx.x) * LANES;
    up_vectors[vector] = load_inside(up_ptr + first, first, n);
  }

  // compute and store
  #pragma unroll
  for (int vector = 0; vector < VECTORS; ++vector) {
    const int first = ((block * VECTORS + vector) * THREADS + threadIdx.x) * LANES;
    float out_lanes[LANES];
    #pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
      const float gate = widen(element(gate_vectors[vector], lane));
      const float up = widen(element(up_vectors[vector], lane));
      const float out = quick_divide(gate, 1.0f + quick_exp(-gate)) * up;
      out_lanes[lane] = out;
    }
    store_inside(out_ptr + first, pack_bfloat16(out_lanes), first, n);
  }
}

}

// What the kernels take for granted of a tensor.
static void check(const char* name, const torch::Tensor& tensor, torch::ScalarType type,
                  std::initializer_list<int64_t> sizes) {
  TORCH_CHECK(tensor.is_cuda(), name, " has to be on a GPU");
  TORCH_CHECK(tensor.scalar_type() == type, name, " has to be of type ", type);
  TORCH_CHECK(tensor.sizes() == torch::IntArrayRef(sizes), name, " has another shape");
  TORCH_CHECK(tensor.is_contiguous(), name, " has to be contiguous");
  TORCH_CHECK(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 == 0,
              name, " has to begin at a multiple of 16 bytes");
}

void swiglu_out(torch::Tensor gate, torch::Tensor up, torch::Tensor out) {
  check("gate", gate, torch::kBFloat16, {gate.size(0), gate.size(1)});
  check("up", up, torch::kBFloat16, {up.size(0), up.size(1)});
  TORCH_CHECK(gate.size(0) == up.size(0), "gate.0 and up.0 differ in length");
  TORCH_CHECK(gate.size(1) == up.size(1), "gate.1 and up.1 differ in length");
  check("out", out, torch::kBFloat16, {gate.size(0), gate.size(1)});
  if (out.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(gate.device());
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  {
    const int64_t rows = 1, cols = gate.size(0) * gate.size(1);
    TORCH_CHECK(rows * cols < int64_t{1} << 31, "offsets do not fit an int");
    const int64_t blocks = (cols + 2047) / 2048;
    swiglu_kernel_code::swiglu_kernel<<<blocks, 128, 0, stream>>>(
        static_cast<const swiglu_kernel_code::bfloat16*>(gate.data_ptr()),
        static_cast<const swiglu_kernel_code::bfloat16*>(up.data_ptr()),
        static_cast<swiglu_kernel_code::bfloat16*>(out.data_ptr()),
        static_cast<int>(cols));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

torch::Tensor swiglu(torch::Tensor gate, torch::Tensor up) {
  torch::Tensor out = torch::empty({gate.size(0), gate.size(1)}, gate.options().dtype(torch::kBFloat16));
  swiglu_out(gate, up, out);
  return out;
}
