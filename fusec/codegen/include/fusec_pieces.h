// Two reductions of a row in pieces that stay in a core's caches: each piece is read from memory once,
// for the first of them, and again from a cache for the second, which is around that. Then pieces are
// joined.
#ifndef FUSEC_PIECES_H
#define FUSEC_PIECES_H

#include "fusec_arith.h"
#include "fusec_base.h"
#include "fusec_math.h"

namespace fusec {

// Columns of a piece: 16 KiB of float32, half of a small first cache. Parts are made of whole pieces.
constexpr int64_t PIECE = 4096;

// The sum of a stretch of a row, and the squares of its distances from `middle`: from its mean, as
// that is rounded in T.
template <class T>
struct Spread {
  double count = 0, sum = 0, squares = 0;
  T middle = 0;

  Spread() = default;
  FUSEC_INSTANCE Spread(const double* sums, int64_t length)
      : count((double)length), sum(finish_sum(sums)), middle((T)(sum / count)) {}

  FUSEC_INSTANCE T base() const { return middle; }
  FUSEC_INSTANCE void add(const double* lanes) { squares = finish_sum(lanes); }

  // How far the sum is from what it would be if `middle` were the mean.
  FUSEC_INSTANCE double rest() const { return sum - count * (double)middle; }

  // The squares of the distances from the mean itself.
  FUSEC_INSTANCE double variation() const {
    if (middle - middle != 0) return squares;
    return maximum(squares - rest() / count * rest(), 0.0);
  }
  FUSEC_INSTANCE double variance() const { return variation() / count; }

  // The squares of the distances from `other`. Rounding may leave less than nothing of them. Around
  // what is not finite they are not finite, wherever else they are taken around.
  FUSEC_INSTANCE double around(T other) const {
    if ((count == 0) | (middle - middle != 0)) return squares;
    const double apart = (double)middle - (double)other;
    return maximum(squares + apart * (2 * rest() + count * apart), 0.0);
  }

  FUSEC_INSTANCE void join(const Spread& other) {
    const double total = sum + other.sum;
    const T mean = (T)(total / (count + other.count));
    squares = around(mean) + other.around(mean);
    sum = total;
    count += other.count;
    middle = mean;
  }
};

// The maximum of a stretch of a row, the sum of the exponentials of what its elements are below
// base(), and of those times their exponents. The base is the maximum, or 0 if that is infinite.
template <class T>
struct Peak {
  T largest = -(T)infinity;
  double sum = 0, weighted = 0;

  Peak() = default;
  FUSEC_INSTANCE explicit Peak(const T* lanes) : largest(finish_max(lanes)) {}

  FUSEC_INSTANCE static T base_of(T peak) { return abs(peak) == (T)infinity ? (T)0 : peak; }
  FUSEC_INSTANCE T base() const { return base_of(largest); }
  FUSEC_INSTANCE void add(const double* lanes) { sum = finish_sum(lanes); }
  FUSEC_INSTANCE void add(const double* lanes, const double* times) {
    sum = finish_sum(lanes);
    weighted = finish_sum(times);
  }

  // The same sums below another base.
  FUSEC_INSTANCE void rebase(T other) {
    if (base() == other) return;
    if (largest == -(T)infinity) {  // they have no terms that count, or are no numbers
      sum *= 0.0;
      weighted *= 0.0;
      return;
    }
    const double apart = (double)base() - (double)other;
    const double factor = exp(apart);
    weighted = factor * (weighted + apart * sum);
    sum *= factor;
  }

  FUSEC_INSTANCE void join(Peak other) {
    const T peak = maximum(largest, other.largest);
    rebase(base_of(peak));
    other.rebase(base_of(peak));
    largest = peak;
    sum += other.sum;
    weighted += other.weighted;
  }
};

// What the parts of a row come to, joined in their order.
template <class Joint>
FUSEC_INLINE Joint joined(const Joint* parts, int64_t count) {
  Joint whole = parts[0];
  for (int64_t part = 1; part < count; ++part) whole.join(parts[part]);
  return whole;
}

}  // namespace fusec

#endif
