// Tiles of operands that run along the rows, turned on their way from memory.
#ifndef FUSEC_TURN_H
#define FUSEC_TURN_H

#include "fusec_base.h"
#include "fusec_rows.h"

namespace fusec {

namespace detail {

// Squares of elements that vectors turn, of N bytes each; others are copied one by one.
template <size_t N>
struct Square {
  static constexpr int64_t SIDE = 0;
  FUSEC_INSTANCE static void turn(const void*, int64_t, void*) {}
};

#if defined(__AVX512F__) && defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)

// Each step interleaves row k with the one half a square below it; as many as the side has bits
// turn the square.
#define FUSEC_SQUARE(bytes, element, side, steps, LOW, HIGH)                           \
  template <>                                                                          \
  struct Square<bytes> {                                                               \
    static constexpr int64_t SIDE = side;                                              \
    typedef element Line __attribute__((vector_size(side * bytes)));                   \
    FUSEC_INSTANCE static void turn(const void* from, int64_t stride, void* to) {      \
      Line lines[side], next[side];                                                    \
      for (int k = 0; k < side; ++k) {                                                 \
        __builtin_memcpy(&lines[k], (const element*)from + k * stride, sizeof(Line));  \
      }                                                                                \
      for (int step = 0; step < steps; ++step) {                                       \
        for (int k = 0; k < side / 2; ++k) {                                           \
          next[2 * k] = __builtin_shufflevector(lines[k], lines[k + side / 2], LOW);   \
          next[2 * k + 1] = __builtin_shufflevector(lines[k], lines[k + side / 2], HIGH); \
        }                                                                              \
        for (int k = 0; k < side; ++k) lines[k] = next[k];                             \
      }                                                                                \
      for (int k = 0; k < side; ++k) {                                                 \
        __builtin_memcpy((element*)to + k * TILE, &lines[k], sizeof(Line));            \
      }                                                                                \
    }                                                                                  \
  };
#define FUSEC_LOW_8 0, 8, 1, 9, 2, 10, 3, 11
#define FUSEC_HIGH_8 4, 12, 5, 13, 6, 14, 7, 15
#define FUSEC_LOW_16 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define FUSEC_HIGH_16 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
FUSEC_SQUARE(2, uint16_t, 8, 3, FUSEC_LOW_8, FUSEC_HIGH_8)
FUSEC_SQUARE(4, uint32_t, 16, 4, FUSEC_LOW_16, FUSEC_HIGH_16)
FUSEC_SQUARE(8, uint64_t, 8, 3, FUSEC_LOW_8, FUSEC_HIGH_8)

#endif
#endif

}  // namespace detail

// Fills a strip of a tile from columns that lie `stride` elements apart, and asks for the next one.
template <class T>
FUSEC_INLINE void turn_strip(const T* from, int64_t stride, int64_t rows, int64_t cols, T* strip) {
  typedef detail::Square<sizeof(T)> Square;
  constexpr int64_t side = Square::SIDE ? Square::SIDE : 1;
  const int64_t whole_rows = Square::SIDE ? rows / side * side : 0;
  const int64_t whole_cols = Square::SIDE ? cols / side * side : 0;
  for (int64_t col = 0; col < cols; col += side) {
    const int64_t end = minimum(col + side, cols);
    for (int64_t k = col; k < end; ++k) prefetch<TILE>(&from[(k + TILE) * stride]);
    const int64_t turned = col < whole_cols ? whole_rows : 0;
    for (int64_t row = 0; row < turned; row += side) {
      Square::turn(&from[col * stride + row], stride, &strip[row * TILE + col]);
    }
    for (int64_t k = col; k < end; ++k) {
      for (int64_t row = turned; row < rows; ++row) strip[row * TILE + k] = from[k * stride + row];
    }
  }
}

// Fills a tile, strip by strip.
template <class T>
FUSEC_INLINE void turn(const T* from, int64_t stride, int64_t rows, int64_t cols, T* tile) {
  for (int64_t col = 0; col < cols; col += TILE) {
    turn_strip(&from[col * stride], stride, rows, minimum(TILE, cols - col), &tile[col * TILE]);
  }
}

}  // namespace fusec

#endif
