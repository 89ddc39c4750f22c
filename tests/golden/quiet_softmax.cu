#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/extension.h>

namespace quiet_softmax_kernel_code {

// # softmax with one more place in the sum, worth exp(0): a head may attend to nothing
// scaled = scores / temperature
// top = maximum(max(scaled), 0)
// e = exp(scaled - top)
// nothing = exp(-top)
// total = sum(e) + nothing
// e / total, nothing / total
//
// reads scores f32; writes out f32, out_1 f32; 8 bytes per element

constexpr int THREADS = 256;  // threads of a block
constexpr int ROWS = 8;  // rows of a block
constexpr int GROUP = 32;  // threads of a block that share a row
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

// A vector that is inside a row of `length` or beyond it.
template <class T, class Index>
__device__ Vector<T> load_whole(const T* from, Index first, Index length) {
  Vector<T> vector{};
  if (first < length) vector = load_vector(from);
  return vector;
}

template <class T, class Index>
__device__ void store_whole(T* to, const Vector<T>& vector, Index first, Index length) {
  if (first < length) store_vector(to, vector);
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

extern "C" __global__ void __launch_bounds__(THREADS) quiet_softmax_kernel(
    const float* __restrict__ scores_ptr,
    float* __restrict__ out_ptr,
    float* __restrict__ out_1_ptr,
    float temperature,
    int rows,
    int cols) {
  const int row = blockIdx.x * ROWS + threadIdx.x / GROUP;
  const int member = threadIdx.x % GROUP;
  const int length = row < rows ? cols : 0;
  float e_row[VECTORS][LANES];

  // load
  Vector<float> scores_vectors[VECTORS];
  #pragma unroll
  for (int vector = 0; vector < VECTORS; ++vector) {
    const int first = (vector * GROUP + member) * LANES;
    scores_vectors[vector] = load_whole(scores_ptr + row * cols + first, first, length);
  }

  // reduce: row_max
  float row_max_part = -infinity();
  #pragma unroll
  for (int vector = 0; vector < VECTORS; ++vector) {
    const int first = (vector * GROUP + member) * LANES;
    const bool inside = first < length;
    #pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
      const float scores = element(scores_vectors[vector], lane);
      const float scaled = scores / temperature;
      row_max_part = maximum(row_max_part, (inside ? scaled : -infinity()));
    }
  }
  const float row_max = across_lanes<Maximum, GROUP>(row_max_part);
  const float top = maximum(row_max, 0.0f);
  const float nothing = expf(-top);

  // reduce: row_sum
  float row_sum_part = 0.0f;
  #pragma unroll
  for (int vector = 0; vector < VECTORS; ++vector) {
    const int first = (vector * GROUP + member) * LANES;
    const bool inside = first < length;
    #pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
      const float scores = element(scores_vectors[vector], lane);
      const float scaled = scores / temperature;
      const float e = expf(scaled - top);
      e_row[vector][lane] = e;
      row_sum_part += (inside ? e : 0.0f);
    }
  }
  const float row_sum = across_lanes<Sum, GROUP>(row_sum_part);
  const float total = row_sum + nothing;

  // compute and store
  #pragma unroll
  for (int vector = 0; vector < VECTORS; ++vector) {
    const int first = (vector * GROUP + member) * LANES;
    float out_lanes[LANES];
    #pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
      const float e = e_row[vector][lane];
      const float out = e / total;
      out_lanes[lane] = out;
    }
    store_whole(out_ptr + row * cols + first, pack(out_lanes), first, length);
  }

  // compute
  const float out_1 = nothing / total;

  // store
  if (member == 0 && row < rows) out_1_ptr[row] = out_1;
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

void quiet_softmax_out(torch::Tensor scores, double temperature, torch::Tensor out, torch::Tensor out_1) {
  check("scores", scores, torch::kFloat, {scores.size(0), scores.size(1)});
  check("out", out, torch::kFloat, {scores.size(0), scores.size(1)});
  check("out_1", out_1, torch::kFloat, {scores.size(0)});
  if (out.numel() == 0 && out_1.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(scores.device());
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  {
    const int64_t rows = scores.size(0), cols = scores.size(1);
    TORCH_CHECK(rows * cols < int64_t{1} << 31, "offsets do not fit an int");
    TORCH_CHECK(cols <= 1024, "a row has 1024 elements at most");
    TORCH_CHECK(cols % 4 == 0, "rows are multiples of 4");
    const int64_t blocks = (rows + 7) / 8;
    quiet_softmax_kernel_code::quiet_softmax_kernel<<<blocks, 256, 0, stream>>>(
        static_cast<const float*>(scores.data_ptr()),
        static_cast<float*>(out.data_ptr()),
        static_cast<float*>(out_1.data_ptr()),
        static_cast<float>(temperature),
        static_cast<int>(rows),
        static_cast<int>(cols));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

std::vector<torch::Tensor> quiet_softmax(torch::Tensor scores, double temperature) {
  torch::Tensor out = torch::empty({scores.size(0), scores.size(1)}, scores.options().dtype(torch::kFloat));
  torch::Tensor out_1 = torch::empty({scores.size(0)}, scores.options().dtype(torch::kFloat));
  quiet_softmax_out(scores, temperature, out, out_1);
  return {out, out_1};
}
