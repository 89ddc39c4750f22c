#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/extension.h>

namespace softmax_kernel_code {

// softmax(x)
//
// reads x bf16; writes out bf16; 4 bytes per element

constexpr int THREADS = 64;  // threads of a block
constexpr int BLOCKS = 16;  // blocks that the registers of a multiprocessor have to hold
constexpr int WARPS = 2;  // warps of a block
constexpr int GROUP = 64;  // threads of a block that share a row
constexpr int LANES = 8;  // elements of a vector
constexpr int VECTORS = 8;  // vectors that a thread works on at a time

__device__ float infinity() { return __int_as_float(0x7f800000); }

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

// The vector as it is, but the compiler has to think it new: what was made of it is made again, and
// does not wait in registers.
template <class T>
__device__ void forget(Vector<T>& vector) {
#pragma unroll
  for (unsigned& word : vector.word) asm volatile("" : "+r"(word));
}

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

struct Sum {
  template <class T>
  static __device__ T join(T a, T b) {
    return static_cast<T>(a + b);
  }
};

struct Maximum {
  template <class T>
  static __device__ T join(T a, T b) {
    return maximum(a, b);
  }
};

// The values of WIDTH neighbouring lanes combined, in every one of them.
template <class Join, int WIDTH, class T>
__device__ T across_lanes(T value) {
#pragma unroll
  for (int distance = WIDTH / 2; distance > 0; distance /= 2) {
    value = Join::join(value, static_cast<T>(__shfl_xor_sync(0xffffffff, value, distance)));
  }
  return value;
}

// The values of all threads of the block combined, in every one of them.
template <class Join, class T>
__device__ T across_block(T value, T (&slots)[WARPS]) {
  value = across_lanes<Join, 32>(value);
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
  __syncthreads();
  return across_lanes<Join, WARPS>(slots[threadIdx.x % WARPS]);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) softmax_kernel(
    const bfloat16* __restrict__ x_ptr,
    bfloat16* __restrict__ out_ptr,
    int cols) {
  const int row = blockIdx.x;
  const int member = threadIdx.x;

  // load
  Vector<bfloat16> x_vectors[VECTORS];
  #pragma unroll
  for (int vector = 0; vector < VECTORS; ++vector) {
    const int first = (vector * GROUP + member) * LANES;
    x_vectors[vector] = load_vector(x_ptr + row * cols + first);
  }

  // reduce: row_max
  float row_max_part = -infinity();
  #pragma unroll
  for (int vector = 0; vector < VECTORS; ++vector) {
    #pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
      const float x = widen(element(x_vectors[vector], lane));
      row_max_part = maximum(row_max_part, x);
    }
  }
  __shared__ float row_max_slots[WARPS];
  const float row_max = across_block<Maximum>(row_max_part, row_max_slots);
  #pragma unroll
  for (int vector = 0; vector < VECTORS; ++vector) {
    forget(x_vectors[vector]);
  }

  // reduce: row_sum
  float row_sum_part = 0.0f;
  #pragma unroll
  for (int vector = 0; vector < VECTORS; ++vector) {
    #pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
      const float x = widen(element(x_vectors[vector], lane));
      const float t0 = quick_exp(x - row_max);
      row_sum_part += t0;
    }
  }
  __shared__ float row_sum_slots[WARPS];
  const float row_sum = across_block<Sum>(row_sum_part, row_sum_slots);
  const float t2 = quick_divide(1.0f, row_sum);
  #pragma unroll
  for (int vector = 0; vector < VECTORS; ++vector) {
    forget(x_vectors[vector]);
  }

  // compute and store
  #pragma unroll
  for (int vector = 0; vector < VECTORS; ++vector) {
    const int first = (vector * GROUP + member) * LANES;
    float out_lanes[LANES];
    #pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
      const float x = widen(element(x_vectors[vector], lane));
      const float t0 = quick_exp(x - row_max);
      const float out = t0 * t2;
      out_lanes[lane] = out;
    }
    store_vector(out_ptr + row * cols + first, pack_bfloat16(out_lanes));
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

void softmax_out(torch::Tensor x, torch::Tensor out) {
  check("x", x, torch::kBFloat16, {x.size(0), x.size(1)});
  check("out", out, torch::kBFloat16, {x.size(0), x.size(1)});
  if (out.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(x.device());
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  {
    const int64_t rows = x.size(0), cols = x.size(1);
    TORCH_CHECK(rows * cols < int64_t{1} << 31, "offsets do not fit an int");
    TORCH_CHECK(cols <= 4096, "a row has 4096 elements at most");
    TORCH_CHECK(cols == 4096, "another row length");
    const int64_t blocks = rows;
    softmax_kernel_code::softmax_kernel<<<blocks, 64, 0, stream>>>(
        static_cast<const softmax_kernel_code::bfloat16*>(x.data_ptr()),
        static_cast<softmax_kernel_code::bfloat16*>(out.data_ptr()),
        static_cast<int>(cols));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

torch::Tensor softmax(torch::Tensor x) {
  torch::Tensor out = torch::empty({x.size(0), x.size(1)}, x.options().dtype(torch::kBFloat16));
  softmax_out(x, out);
  return out;
}
