// The micro-kernel behind matmul.h: a block of C in registers, a panel of B in L1.
#include "matmul.h"

#include <algorithm>
#include <array>
#include <utility>

namespace smht {
namespace {

// Elements summed in one go. Sums of sums round less than one long sum, and a panel of B this deep stays in L1.
constexpr int64_t kDepth = 64;

template <class Product, int kRows, int kVectors>
void multiply_block(int64_t depth, Left<typename Product::Element> a, Right<typename Product::Element> b, float* c,
                    int64_t c_stride, bool add) {
  Vec sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sums[i][j] = Vec(0.f);
  for (int64_t k = 0; k < depth; ++k) {
    typename Product::Right right[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) right[j] = Product::load(b.data + k * b.stride + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const auto left = Product::broadcast(a.data + i * a.row + k * a.depth);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sums[i][j] = Product::multiply_add(left, right[j], sums[i][j]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      float* at = c + i * c_stride + j * kLanes;
      (add ? Vec::loadu(at) + sums[i][j] : sums[i][j]).store(at);
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
  static constexpr auto kTable = block_table<Product, kVectors>(std::make_integer_sequence<int, kRows>());
  for (int64_t k = 0; k < depth; k += kDepth) {
    for (int64_t i = 0; i < rows; i += kRows) {
      const auto count = std::min<int64_t>(kRows, rows - i);
      kTable[count - 1](std::min(kDepth, depth - k), a.from(i, k), b.from(k), c + i * c_stride, c_stride, add || k > 0);
    }
  }
}

}  // namespace

template <class Product>
void multiply(int64_t rows, int64_t columns, int64_t depth, Left<typename Product::Element> a,
              Right<typename Product::Element> b, float* c, int64_t c_stride, bool add) {
  constexpr int kWide = kLanes == 8 ? 2 : 4;
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
