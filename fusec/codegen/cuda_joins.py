"""What combines the parts of a reduction, in CUDA.

Texts for ``cuda_helpers``; may import nothing.
"""

from __future__ import annotations

_JOINER = """
struct {name} {{
  template <class T>
  static __device__ T join(T a, T b) {{
    return {joined};
  }}
}};
"""

_ACROSS_LANES = """
// The values of WIDTH neighbouring lanes combined, in every one of them.
template <class Join, int WIDTH, class T>
__device__ T across_lanes(T value) {
#pragma unroll
  for (int distance = WIDTH / 2; distance > 0; distance /= 2) {
    value = Join::join(value, static_cast<T>(__shfl_xor_sync(0xffffffff, value, distance)));
  }
  return value;
}
"""

_ACROSS_BLOCK = """
// The values of all threads of the block combined, in every one of them.
template <class Join, class T>
__device__ T across_block(T value, T (&slots)[WARPS]) {
  value = across_lanes<Join, 32>(value);
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
  __syncthreads();
  return across_lanes<Join, WARPS>(slots[threadIdx.x % WARPS]);
}
"""

_MOST_LANES = """
// The largest power of two of lanes of a warp that so many slots fill.
__device__ constexpr int most_lanes(int slots) {
  int lanes = 1;
  while (lanes < 32 && 2 * lanes <= slots) lanes *= 2;
  return lanes;
}
"""

_OPEN_BARRIER = """
// Makes a barrier at which one thread arrives in each phase.
__device__ void open_barrier(unsigned long long& barrier) {
  const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" : : "r"(place));
  asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}
"""

_EXPECT = """
// Says how many bytes are to come from the blocks of the cluster, before or after they do; one
// thread does.
__device__ void expect(unsigned long long& barrier, unsigned bytes) {
  const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               : : "r"(place), "r"(bytes) : "memory");
}
"""

_SEND = """
// Writes `bits` to the slot of block `rank` of the cluster, and counts them at its barrier.
__device__ void send(unsigned long long& slot, unsigned long long bits,
                     unsigned long long& barrier, int rank) {
  const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(&slot));
  const unsigned counter = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
  asm volatile(
      "{ .reg .b32 there, counter;\\n"
      "mapa.shared::cluster.u32 there, %0, %3;\\n"
      "mapa.shared::cluster.u32 counter, %2, %3;\\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [there], %1, [counter]; }"
      : : "r"(place), "l"(bits), "r"(counter), "r"(rank) : "memory");
}
"""

_RECEIVE = """
// Waits until all that is expected has come.
__device__ void receive(unsigned long long& barrier) {
  const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
  asm volatile(
      "{ .reg .pred done;\\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\\n"
      "@!done bra again; }"
      : : "r"(place) : "memory");
}
"""

_ACROSS_CLUSTER = """
// The values of all threads of the cluster combined, in every one of them: each warp sends its part
// to every block.
template <class Join, class T>
__device__ T across_cluster(T value, unsigned long long (&slots)[CLUSTER * WARPS],
                            unsigned long long& barrier) {
  constexpr int SLOTS = CLUSTER * WARPS, WIDTH = most_lanes(SLOTS);
  value = across_lanes<Join, 32>(value);
  const int lane = threadIdx.x % 32, mine = blockIdx.x % CLUSTER * WARPS + threadIdx.x / 32;
  if (threadIdx.x == 0) expect(barrier, sizeof(slots));
  if (lane < CLUSTER) send(slots[mine], bits_of(value), barrier, lane);
  receive(barrier);
  value = from_bits<T>(slots[lane % WIDTH]);
  for (int k = lane % WIDTH + WIDTH; k < SLOTS; k += WIDTH) {
    value = Join::join(value, from_bits<T>(slots[k]));
  }
  return across_lanes<Join, WIDTH>(value);
}
"""

_RECEIVE_AGAIN = """
// Waits until all that is expected has come, for the second time where `again` is 1, and so on.
__device__ void receive_again(unsigned long long& barrier, int again) {
  const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
  asm volatile(
      "{ .reg .pred done;\\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n"
      "@!done bra again; }"
      : : "r"(place), "r"(again % 2) : "memory");
}
"""

_MEETING = """
// Where the threads of a row meet, turn after turn: while some read what came in one turn, what
// others send in the next lies beside it.
struct Meeting {
  unsigned long long slots[2][CLUSTER * GROUP / 32];
  unsigned long long barrier[2];
};
"""

_OPEN_MEETING = """
__device__ void open_meeting(Meeting& meeting) {
  open_barrier(meeting.barrier[0]);
  open_barrier(meeting.barrier[1]);
}
"""

_ACROSS_CLUSTER_IN_TURN = """
// The values of all threads of a row combined, in every one of them: each warp sends its part to
// every block of the cluster. Nobody is two turns ahead of another.
template <class Join, class T>
__device__ T across_cluster_in_turn(T value, Meeting& meeting, int turn) {
  constexpr int SLOTS = CLUSTER * GROUP / 32, WIDTH = most_lanes(SLOTS);
  auto& slots = meeting.slots[turn % 2];
  auto& barrier = meeting.barrier[turn % 2];
  value = across_lanes<Join, 32>(value);
  const int lane = threadIdx.x % 32;
  const int mine = (blockIdx.x % CLUSTER * GROUP + threadIdx.x % GROUP) / 32;
  if (threadIdx.x % GROUP == 0) expect(barrier, sizeof(slots));
  if (lane < CLUSTER) send(slots[mine], bits_of(value), barrier, lane);
  receive_again(barrier, turn / 2);
  value = from_bits<T>(slots[lane % WIDTH]);
  for (int k = lane % WIDTH + WIDTH; k < SLOTS; k += WIDTH) {
    value = Join::join(value, from_bits<T>(slots[k]));
  }
  return across_lanes<Join, WIDTH>(value);
}
"""

_FINITE_BASE = """
// What exponents are taken against: not -inf, since -inf less itself is no number.
template <class T>
__device__ T finite_base(T largest) {
  return largest == -infinity() ? T(0) : largest;
}
"""

_FINITE_GAP = """
// How far a maximum lies below the base of a larger one, finite even if it is -inf: the sum below
// that is 0, and 0 times this is 0.
template <class T>
__device__ T finite_gap(T largest, T base) {
  const T gap = largest - base, least = T(-3.4028235e38);
  return gap < least ? least : gap;
}
"""

_ONLINE_ACROSS_CLUSTER = """
// A maximum, and a sum of exponentials below it, of all threads of the cluster, in every one of
// them. The blocks meet once.
template <class T, class Exp>
__device__ void online_across_cluster(T& largest, T& total,
                                      unsigned long long (&largest_slots)[CLUSTER * WARPS],
                                      unsigned long long& largest_barrier,
                                      unsigned long long (&total_slots)[CLUSTER * WARPS],
                                      unsigned long long& total_barrier, Exp exponential) {
  constexpr int SLOTS = CLUSTER * WARPS, WIDTH = most_lanes(SLOTS);
  const T peak = across_lanes<Maximum, 32>(largest);
  total = across_lanes<Sum, 32>(total * exponential(largest - finite_base(peak)));
  const int lane = threadIdx.x % 32, mine = blockIdx.x % CLUSTER * WARPS + threadIdx.x / 32;
  if (threadIdx.x == 0) {
    expect(largest_barrier, sizeof(largest_slots));
    expect(total_barrier, sizeof(total_slots));
  }
  if (lane < CLUSTER) {
    send(largest_slots[mine], bits_of(peak), largest_barrier, lane);
    send(total_slots[mine], bits_of(total), total_barrier, lane);
  }
  receive(largest_barrier);
  receive(total_barrier);
  largest = from_bits<T>(largest_slots[lane % WIDTH]);
  for (int k = lane % WIDTH + WIDTH; k < SLOTS; k += WIDTH) {
    largest = maximum(largest, from_bits<T>(largest_slots[k]));
  }
  largest = across_lanes<Maximum, WIDTH>(largest);
  total = T(0);
  for (int k = lane % WIDTH; k < SLOTS; k += WIDTH) {
    const T below = from_bits<T>(largest_slots[k]) - finite_base(largest);
    total += from_bits<T>(total_slots[k]) * exponential(below);
  }
  total = across_lanes<Sum, WIDTH>(total);
}
"""

_ACROSS_GROUP = """
// The values of the threads that share a row combined, in every one of them: the rows lie side by
// side along threadIdx.x.
template <class Join, class T>
__device__ T across_group(T value, T (&slots)[GROUP][ROWS]) {
  const int row = threadIdx.x % ROWS, member = threadIdx.x / ROWS;
  slots[member][row] = value;
#pragma unroll
  for (int half = GROUP / 2; half > 0; half /= 2) {
    __syncthreads();
    if (member < half) {
      slots[member][row] = Join::join(slots[member][row], slots[member + half][row]);
    }
  }
  __syncthreads();
  return slots[0][row];
}
"""

_MEAN_SCALE = """
// A power of two that keeps a sum of `count` values in range wherever their mean is.
template <class T>
__device__ T mean_scale(long long count) {
  const int bits = count > 1 ? 64 - __clzll(count - 1) : 0;
  return static_cast<T>(__uint_as_float((127u - bits) << 23));
}
"""

JOINS: dict[str, str] = {
    "Sum": _JOINER.format(name="Sum", joined="static_cast<T>(a + b)"),
    "Product": _JOINER.format(name="Product", joined="static_cast<T>(a * b)"),
    "WrappingSum": _JOINER.format(name="WrappingSum", joined="wrapping_add(a, b)"),
    "WrappingProduct": _JOINER.format(name="WrappingProduct", joined="wrapping_mul(a, b)"),
    "Maximum": _JOINER.format(name="Maximum", joined="maximum(a, b)"),
    "Minimum": _JOINER.format(name="Minimum", joined="minimum(a, b)"),
    "across_lanes": _ACROSS_LANES,
    "across_block": _ACROSS_BLOCK,
    "most_lanes": _MOST_LANES,
    "open_barrier": _OPEN_BARRIER,
    "expect": _EXPECT,
    "send": _SEND,
    "receive": _RECEIVE,
    "across_cluster": _ACROSS_CLUSTER,
    "receive_again": _RECEIVE_AGAIN,
    "Meeting": _MEETING,
    "open_meeting": _OPEN_MEETING,
    "across_cluster_in_turn": _ACROSS_CLUSTER_IN_TURN,
    "finite_base": _FINITE_BASE,
    "finite_gap": _FINITE_GAP,
    "online_across_cluster": _ONLINE_ACROSS_CLUSTER,
    "across_group": _ACROSS_GROUP,
    "mean_scale": _MEAN_SCALE,
}
