#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/extension.h>

namespace softmax_f32_kernel_code {

// softmax(x)
//
// reads x f32; writes out f32; 8 bytes per element

constexpr int THREADS = 512;  // threads of a block
constexpr int BLOCKS = 2;  // blocks that the registers of a multiprocessor have to hold
constexpr int WARPS = 16;  // warps of a block
constexpr int GROUP = 512;  // threads of a block that share a row
constexpr int LANES = 4;  // elements of a vector
constexpr int VECTORS = 8;  // vectors that a thread works on at a time

__device__ float infinity() { return __int_as_float(0x7f800000); }

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

template <class T>
__device__ Vector<T> pack(const T (&value)[LANES]) {
  Vector<T> vector{};
#pragma unroll
  for (int lane = 0; lane < LANES; ++lane) put(vector, lane, value[lane]);
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

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) softmax_f32_kernel(
    const float* __restrict__ x_ptr,
    float* __restrict__ out_ptr,
    int cols) {
  const int row = blockIdx.x;
  const int member = threadIdx.x;
  float exp_row[VECTORS][LANES];

  // load
  Vector<float> x_vectors[VECTORS];
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
      const float x = element(x_vectors[vector], lane);
      row_max_part = maximum(row_max_part, x);
    }
  }
  __shared__ float row_max_slots[WARPS];
  const float row_max = across_block<Maximum>(row_max_part, row_max_slots);

  // reduce: row_sum
  float row_sum_part = 0.0f;
  #pragma unroll
  for (int vector = 0; vector < VECTORS; ++vector) {
    #pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
      const float x = element(x_vectors[vector], lane);
      const float t0 = expf(x - row_max);
      exp_row[vector][lane] = t0;
      row_sum_part += t0;
    }
  }
  __shared__ float row_sum_slots[WARPS];
  const float row_sum = across_block<Sum>(row_sum_part, row_sum_slots);
  const float t1 = 1.0f / row_sum;

  // compute and store
  #pragma unroll
  for (int vector = 0; vector < VECTORS; ++vector) {
    const int first = (vector * GROUP + member) * LANES;
    float out_lanes[LANES];
    #pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
      const float t0 = exp_row[vector][lane];
      const float out = t0 * t1;
      out_lanes[lane] = out;
    }
    store_vector(out_ptr + row * cols + first, pack(out_lanes));
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

void softmax_f32_out(torch::Tensor x, torch::Tensor out) {
  check("x", x, torch::kFloat, {x.size(0), x.size(1)});
  check("out", out, torch::kFloat, {x.size(0), x.size(1)});
  if (out.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(x.device());
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  {
    const int64_t rows = x.size(0), cols = x.size(1);
    TORCH_CHECK(rows * cols < int64_t{1} << 31, "offsets do not fit an int");
    TORCH_CHECK(cols <= 16384, "a row has 16384 elements at most");
    TORCH_CHECK(cols == 16384, "another row length");
    const int64_t blocks = rows;
    softmax_f32_kernel_code::softmax_f32_kernel<<<blocks, 512, 0, stream>>>(
        static_cast<const float*>(x.data_ptr()),
        static_cast<float*>(out.data_ptr()),
        static_cast<int>(cols));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

torch::Tensor softmax_f32(torch::Tensor x) {
  torch::Tensor out = torch::empty({x.size(0), x.size(1)}, x.options().dtype(torch::kFloat));
  softmax_f32_out(x, out);
  return out;
}
