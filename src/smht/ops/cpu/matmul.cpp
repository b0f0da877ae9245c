// The micro-kernel behind matmul.h: a block of C in registers, a panel of B in L1.
#include "matmul.h"

#include <algorithm>
#include <array>
#include <utility>

namespace smht {
namespace {

// What a panel of B takes of L1, and the most elements summed in one go: sums of sums round less than one long sum.
constexpr int64_t kPanelBytes = 1 << 14, kMostDepth = 256;

template <class Product>
struct Panel {
  int64_t depth, a_row, a_depth, b_stride, c_stride;
  const typename Product::Element* b;
  bool add;
};

template <class Product, int kRows, int kVectors>
void multiply_block(const Panel<Product>& panel, const typename Product::Element* a, float* c) {
  Vec sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sums[i][j] = Vec(0.f);
  const int64_t a_row = panel.a_row, a_depth = panel.a_depth, b_stride = panel.b_stride;
  const auto* b = panel.b;
#pragma GCC unroll 2
  for (int64_t k = panel.depth; k > 0; --k, a += a_depth, b += b_stride) {
    typename Product::Right right[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) right[j] = Product::load(b + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const auto left = Product::broadcast(a + i * a_row);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sums[i][j] = Product::multiply_add(left, right[j], sums[i][j]);
    }
  }
  const int64_t c_stride = panel.c_stride;
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      float* at = c + i * c_stride + j * kLanes;
      (panel.add ? Vec::loadu(at) + sums[i][j] : sums[i][j]).store(at);
    }
}

// Rows of C in registers beside kVectors vectors of B: what 32 (AVX-512, NEON) or 16 vector registers hold.
template <int kVectors>
constexpr int block_rows() {
  constexpr bool many = kLanes != 8;
  if (kVectors == 4) return many ? 6 : 2;
  if (kVectors == 2) return many ? 12 : 6;
  return 12;
}

template <class Product, int kVectors, int... kCounts>
constexpr auto block_table(std::integer_sequence<int, kCounts...>) {
  return std::array{&multiply_block<Product, kCounts + 1, kVectors>...};
}

template <class Product, int kVectors>
void multiply_panel(int64_t rows, int64_t depth, Left<typename Product::Element> a, Right<typename Product::Element> b,
                    float* c, int64_t c_stride, bool add) {
  constexpr int kRows = block_rows<kVectors>();
  constexpr int64_t kDepth = std::min<int64_t>(kMostDepth, kPanelBytes / (kVectors * kLanes * 4));
  static constexpr auto kTable = block_table<Product, kVectors>(std::make_integer_sequence<int, kRows>());
  for (int64_t k = 0; k < depth; k += kDepth) {
    const Panel<Product> panel{std::min(kDepth, depth - k), a.row,       a.depth, b.stride, c_stride,
                               b.data + k * b.stride,       add || k > 0};
    const auto* left = a.data + k * a.depth;
    float* target = c;
    int64_t i = rows;
    for (; i >= kRows; i -= kRows, left += kRows * a.row, target += kRows * c_stride)
      kTable[kRows - 1](panel, left, target);
    if (i > 0) kTable[i - 1](panel, left, target);
  }
}

}  // namespace

template <class Product>
void multiply(int64_t rows, int64_t columns, int64_t depth, Left<typename Product::Element> a,
              Right<typename Product::Element> b, float* c, int64_t c_stride, bool add) {
  constexpr int kWide = kPanel / kLanes;
  int64_t vectors = (columns + kLanes - 1) / kLanes;
  for (; vectors > 0;) {
    int64_t taken;
    if (vectors >= kWide) {
      multiply_panel<Product, kWide>(rows, depth, a, b, c, c_stride, add);
      taken = kWide;
    } else if (vectors >= 2) {
      multiply_panel<Product, 2>(rows, depth, a, b, c, c_stride, add);
      taken = 2;
    } else {
      multiply_panel<Product, 1>(rows, depth, a, b, c, c_stride, add);
      taken = 1;
    }
    b.data += taken * kLanes;
    c += taken * kLanes;
    vectors -= taken;
  }
}

template void multiply<FloatProduct>(int64_t, int64_t, int64_t, Left<float>, Right<float>, float*, int64_t, bool);
#ifdef SMHT_HAS_PAIRS
template void multiply<PairProduct>(int64_t, int64_t, int64_t, Left<uint32_t>, Right<uint32_t>, float*, int64_t, bool);
#endif

}  // namespace smht
