// What generated CUDA needs to run on a CPU: every CUDA thread is a fiber, and a barrier or a shuffle
// is where fibers wait for each other. One cluster of blocks runs at a time, on one thread of the
// machine. Made to check results, not to be fast.
#ifndef FUSEC_CUDA_ON_CPU_H
#define FUSEC_CUDA_ON_CPU_H

#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

// The C library's functions, without <math.h>: in C++ that is <cmath>, which takes longer than a kernel.
#define FUSEC_UNARY(name)  \
  double name(double);     \
  float name##f(float);
#define FUSEC_BINARY(name)      \
  double name(double, double);  \
  float name##f(float, float);
extern "C" {
FUSEC_UNARY(exp)
FUSEC_UNARY(exp2)
FUSEC_UNARY(expm1)
FUSEC_UNARY(log)
FUSEC_UNARY(log2)
FUSEC_UNARY(log10)
FUSEC_UNARY(log1p)
FUSEC_UNARY(sqrt)
FUSEC_UNARY(sin)
FUSEC_UNARY(cos)
FUSEC_UNARY(tan)
FUSEC_UNARY(asin)
FUSEC_UNARY(acos)
FUSEC_UNARY(atan)
FUSEC_UNARY(sinh)
FUSEC_UNARY(cosh)
FUSEC_UNARY(tanh)
FUSEC_UNARY(asinh)
FUSEC_UNARY(acosh)
FUSEC_UNARY(atanh)
FUSEC_UNARY(erf)
FUSEC_UNARY(erfc)
FUSEC_UNARY(lgamma)
FUSEC_UNARY(floor)
FUSEC_UNARY(ceil)
FUSEC_UNARY(trunc)
FUSEC_UNARY(rint)
FUSEC_UNARY(fabs)
FUSEC_BINARY(fmod)
FUSEC_BINARY(pow)
FUSEC_BINARY(atan2)
FUSEC_BINARY(copysign)
FUSEC_BINARY(fmin)
double fma(double, double, double);
float fmaf(float, float, float);
}
#undef FUSEC_UNARY
#undef FUSEC_BINARY

#define __global__
#define __device__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __cluster_dims__(blocks)

// Nothing here may be shared between kernels that one process loads.
namespace cuda_on_cpu {
namespace {

constexpr int WARP = 32, MOST_BLOCKS = 16, MOST_THREADS = 1024, MOST_SHARED = 256;
constexpr size_t STACK = 128 * 1024;  // bytes of a fiber
constexpr unsigned char POISON = 0xcd;  // what memory holds before a kernel writes to it

struct Index {
  unsigned x;
};

// Fibers wait until `count` of them have arrived.
struct Barrier {
  int count, arrived;
  long generation;
  void reset(int threads) {
    count = threads;
    arrived = 0;
    generation = 0;
  }
  long arrive() {
    const long mine = generation;
    if (++arrived == count) {
      arrived = 0;
      ++generation;
    }
    return mine;
  }
};

struct Fiber {
  ucontext_t first;
  jmp_buf place;
  bool started, done;
  int block, thread;
  long cluster_phase;
  bool in_cluster_barrier;  // arrived, and has not waited yet
};

struct SharedArray {
  char* memory;
  size_t size;  // bytes for each block
};

static Fiber fibers[MOST_BLOCKS * MOST_THREADS];
static Barrier block_barriers[MOST_BLOCKS], cluster_barrier;
static Barrier warp_barriers[MOST_BLOCKS][MOST_THREADS / WARP];
static uint64_t exchanged[MOST_BLOCKS][MOST_THREADS];
static SharedArray shared_arrays[MOST_SHARED];
static int shared_count;
static Fiber* current;
static jmp_buf scheduler;
static bool progress;
static unsigned first_block;
static void (*body)(void*);
static void* body_data;
static Index thread_index, block_index, grid_size;

inline void yield() {
  if (_setjmp(current->place) == 0) _longjmp(scheduler, 1);
}

inline void wait(Barrier& barrier, long phase) {
  while (barrier.generation == phase) yield();
}

inline void meet(Barrier& barrier) {
  const long before = barrier.generation;
  const long phase = barrier.arrive();
  if (barrier.generation != before) progress = true;
  wait(barrier, phase);
}

inline void enter() {
  body(body_data);
  current->done = true;
  progress = true;
  _longjmp(scheduler, 1);
}

inline void resume(Fiber& fiber) {
  current = &fiber;
  thread_index.x = static_cast<unsigned>(fiber.thread);
  block_index.x = first_block + static_cast<unsigned>(fiber.block);
  if (_setjmp(scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  progress = true;
  setcontext(&fiber.first);
}

// An array of a block, full of poison when the block begins.
template <class T, int ID>
T& shared() {
  alignas(16) static char memory[MOST_BLOCKS][sizeof(T)];
  static bool known = false;
  if (!known) {
    known = true;
    memset(memory, POISON, sizeof(memory));
    shared_arrays[shared_count++] = {&memory[0][0], sizeof(memory)};
  }
  return *reinterpret_cast<T*>(memory[current->block]);
}

// The same place in the shared memory of another block.
inline void* of_block(void* place, int rank) {
  for (int k = 0; k < shared_count; ++k) {
    char* memory = shared_arrays[k].memory;
    const size_t size = shared_arrays[k].size, each = size / MOST_BLOCKS;
    char* where = static_cast<char*>(place);
    if (where >= memory && where < memory + size) return where + (rank - current->block) * static_cast<long>(each);
  }
  __builtin_trap();
}

// An mbarrier that one thread arrives at in each phase, with the bytes that are to come in it.
struct Counter {
  int pending;  // bytes; below 0 when they come before the thread
  bool arrived, phase;
  void complete(int bytes) {
    pending -= bytes;
    turn();
  }
  void arrive(int bytes) {
    if (arrived) __builtin_trap();
    arrived = true;
    pending += bytes;
    turn();
  }
  void turn() {
    if (!arrived || pending != 0) return;
    arrived = false;
    phase = !phase;
    progress = true;
  }
};

inline Counter& counter(void* barrier) {
  static_assert(sizeof(Counter) == sizeof(unsigned long long));
  return *static_cast<Counter*>(barrier);
}
inline Counter& counter(unsigned long long& barrier) { return counter(static_cast<void*>(&barrier)); }

inline void start(Fiber& fiber, char* stack) {
  fiber.started = fiber.done = fiber.in_cluster_barrier = false;
  getcontext(&fiber.first);
  fiber.first.uc_stack.ss_sp = stack;
  fiber.first.uc_stack.ss_size = STACK;
  fiber.first.uc_link = nullptr;
  makecontext(&fiber.first, enter, 0);
}

// Runs one cluster; false when its threads wait for each other for ever.
inline bool run_cluster(int threads, int cluster, char* stacks, bool backwards) {
  const int count = threads * cluster;
  for (int k = 0; k < shared_count; ++k) {
    memset(shared_arrays[k].memory, POISON, shared_arrays[k].size);
  }
  cluster_barrier.reset(count);
  for (int block = 0; block < cluster; ++block) {
    block_barriers[block].reset(threads);
    for (Barrier& barrier : warp_barriers[block]) barrier.reset(WARP);
  }
  for (int k = 0; k < count; ++k) {
    fibers[k].block = k / threads;
    fibers[k].thread = k % threads;
    start(fibers[k], stacks + static_cast<size_t>(k) * STACK);
  }
  for (int left = count; left > 0;) {
    progress = false;
    left = 0;
    for (int k = 0; k < count; ++k) {
      Fiber& fiber = fibers[backwards ? count - 1 - k : k];
      if (!fiber.done) resume(fiber);
      left += !fiber.done;
    }
    if (left > 0 && !progress) return false;
  }
  return true;
}

// Runs `kernel` as a grid of blocks, the threads of every other cluster in reverse order. Returns 0,
// 1 where threads wait for ever, 2 where there is no memory for their stacks.
template <class Kernel>
int launch(unsigned grid, int threads, int cluster, Kernel kernel) {
  const size_t size = static_cast<size_t>(threads) * cluster * STACK;
  char* stacks = static_cast<char*>(mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (stacks == MAP_FAILED) return 2;
  body = [](void* data) { (*static_cast<Kernel*>(data))(); };
  body_data = &kernel;
  grid_size.x = grid;
  bool well = true;
  for (unsigned block = 0; block < grid && well; block += static_cast<unsigned>(cluster)) {
    first_block = block;
    well = run_cluster(threads, cluster, stacks, block / cluster % 2 != 0);
  }
  munmap(stacks, size);
  return well ? 0 : 1;
}

}  // namespace
}  // namespace cuda_on_cpu

#define threadIdx cuda_on_cpu::thread_index
#define blockIdx cuda_on_cpu::block_index
#define gridDim cuda_on_cpu::grid_size

inline void __syncthreads() { cuda_on_cpu::meet(cuda_on_cpu::block_barriers[cuda_on_cpu::current->block]); }

template <class T>
T __shfl_xor_sync(unsigned, T value, int distance) {
  using namespace cuda_on_cpu;
  const int block = current->block, thread = current->thread;
  Barrier& warp = warp_barriers[block][thread / WARP];
  memcpy(&exchanged[block][thread], &value, sizeof(T));
  meet(warp);
  T other;
  memcpy(&other, &exchanged[block][thread ^ distance], sizeof(T));
  meet(warp);
  return other;
}

inline void __cluster_barrier_arrive() {
  using namespace cuda_on_cpu;
  if (current->in_cluster_barrier) __builtin_trap();
  current->in_cluster_barrier = true;
  const long before = cluster_barrier.generation;
  current->cluster_phase = cluster_barrier.arrive();
  if (cluster_barrier.generation != before) progress = true;
}
inline void __cluster_barrier_arrive_relaxed() { __cluster_barrier_arrive(); }
inline void __cluster_barrier_wait() {
  if (!cuda_on_cpu::current->in_cluster_barrier) __builtin_trap();
  cuda_on_cpu::current->in_cluster_barrier = false;
  cuda_on_cpu::wait(cuda_on_cpu::cluster_barrier, cuda_on_cpu::current->cluster_phase);
}

inline float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
inline float __int_as_float(int bits) { return __builtin_bit_cast(float, bits); }
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
inline float floor(float x) { return floorf(x); }
inline float copysign(float a, float b) { return copysignf(a, b); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline double normcdf(double x) { return 0.5 * erfc(-0.70710678118654752440 * x); }
inline float normcdff(float x) { return static_cast<float>(normcdf(static_cast<double>(x))); }

#endif
