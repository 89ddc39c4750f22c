#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/extension.h>

namespace causal_softmax_kernel_code {

// # position along the last axis: the key; along the one before it: the query
// allowed = index(-1) <= index(-2)
// softmax(where(allowed, scores * scale, -inf))
//
// reads scores f32; writes out f32; 8 bytes per element

constexpr int THREADS = 256;  // threads of a block
constexpr int ROWS = 8;  // rows of a block
constexpr int GROUP = 32;  // threads of a block that share a row
constexpr int LANES = 4;  // elements of a vector
constexpr int VECTORS = 2;  // vectors that a thread works on at a time

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

extern "C" __global__ void __launch_bounds__(THREADS) causal_softmax_kernel(
    const float* __restrict__ scores_ptr,
    float* __restrict__ out_ptr,
    float scale_1,
    int rows,
    int cols,
    int row_size_1,
    int scores_row_stride_0,
    int out_row_stride_0) {
  const int wanted = blockIdx.x * ROWS + threadIdx.x / GROUP;
  const int row = wanted < rows ? wanted : rows - 1;
  const int member = threadIdx.x % GROUP;
  const int row_1 = row % row_size_1;
  const int row_0 = row / row_size_1;
  float exp_row[VECTORS][LANES];

  // load
  Vector<float> scores_vectors[VECTORS];
  #pragma unroll
  for (int vector = 0; vector < VECTORS; ++vector) {
    const int first = (vector * GROUP + member) * LANES;
    scores_vectors[vector] =
        load_vector(scores_ptr + row_0 * scores_row_stride_0 + row_1 * cols + first);
  }

  // reduce: row_max
  float row_max_part = -infinity();
  #pragma unroll
  for (int vector = 0; vector < VECTORS; ++vector) {
    const int first = (vector * GROUP + member) * LANES;
    #pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
      const int col = first + lane;
      const bool allowed = col <= row_1;
      const float scores = element(scores_vectors[vector], lane);
      const float t0 = (allowed ? scores * scale_1 : -infinity());
      row_max_part = maximum(row_max_part, t0);
    }
  }
  const float row_max = across_lanes<Maximum, GROUP>(row_max_part);

  // reduce: row_sum
  float row_sum_part = 0.0f;
  #pragma unroll
  for (int vector = 0; vector < VECTORS; ++vector) {
    const int first = (vector * GROUP + member) * LANES;
    #pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
      const int col = first + lane;
      const bool allowed = col <= row_1;
      const float scores = element(scores_vectors[vector], lane);
      const float t0 = (allowed ? scores * scale_1 : -infinity());
      const float t3 = expf(t0 - row_max);
      exp_row[vector][lane] = t3;
      row_sum_part += t3;
    }
  }
  const float row_sum = across_lanes<Sum, GROUP>(row_sum_part);
  const float t4 = 1.0f / row_sum;

  // compute and store
  #pragma unroll
  for (int vector = 0; vector < VECTORS; ++vector) {
    const int first = (vector * GROUP + member) * LANES;
    float out_lanes[LANES];
    #pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
      const float t3 = exp_row[vector][lane];
      const float out = t3 * t4;
      out_lanes[lane] = out;
    }
    if (wanted < rows) store_vector(out_ptr + row_0 * out_row_stride_0 + row_1 * cols + first, pack(out_lanes));
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

void causal_softmax_out(torch::Tensor scores, double scale, torch::Tensor out) {
  check("scores", scores, torch::kFloat, {scores.size(0), scores.size(1), scores.size(2), scores.size(3)});
  check("out", out, torch::kFloat, {scores.size(0), scores.size(1), scores.size(2), scores.size(3)});
  if (out.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(scores.device());
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  {
    const int64_t rows = scores.size(0) * scores.size(1) * scores.size(2), cols = scores.size(3);
    TORCH_CHECK(rows * cols < int64_t{1} << 31, "offsets do not fit an int");
    TORCH_CHECK(cols <= 256, "a row has 256 elements at most");
    TORCH_CHECK(cols == 256, "another row length");
    const int64_t blocks = (rows + 7) / 8;
    causal_softmax_kernel_code::causal_softmax_kernel<<<blocks, 256, 0, stream>>>(
        static_cast<const float*>(scores.data_ptr()),
        static_cast<float*>(out.data_ptr()),
        static_cast<float>(scale),
        static_cast<int>(rows),
        static_cast<int>(cols),
        static_cast<int>(scores.size(2)),
        static_cast<int>(scores.size(2) * scores.size(3)),
        static_cast<int>(scores.size(2) * scores.size(3)));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

torch::Tensor causal_softmax(torch::Tensor scores, double scale) {
  torch::Tensor out = torch::empty({scores.size(0), scores.size(1), scores.size(2), scores.size(3)}, scores.options().dtype(torch::kFloat));
  causal_softmax_out(scores, scale, out);
  return out;
}
