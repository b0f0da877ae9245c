// Small matrix products on tiles in cache: C += A·B, the only place where numbers are multiplied by the thousand.
//
// A is read by broadcast, so it may have any strides and a transposed A costs nothing; B is read by whole vectors, so
// rows of B and C are padded to whole vectors and what stands in the padding of C is whatever the padding of B gives
// (zeros, where B is padded with zeros).
//
// A `Product` says what is multiplied:
//   FloatProduct  one fp32 number; exact on any instruction set that at::vec knows.
//   PairProduct   two bf16 numbers, neighbours along the reduced axis, in one 32-bit word, summed in fp32 by the
//                 AVX-512 BF16 instruction. Where that does not exist, bf16 tensors are widened and FloatProduct used.
#pragma once

#include <ATen/cpu/vec/vec.h>

#include <algorithm>
#include <cstdint>

namespace smht {

using Vec = at::vec::Vectorized<float>;
constexpr int64_t kLanes = Vec::size();

struct FloatProduct {
  using Element = float;
  static constexpr int64_t kStep = 1;  // numbers of the reduced axis in one element
  using Left = Vec;
  using Right = Vec;
  static Left broadcast(const Element* a) { return Vec(*a); }
  static Right load(const Element* b) { return Vec::loadu(b); }
  static Vec multiply_add(Left a, Right b, Vec c) { return at::vec::fmadd(a, b, c); }
};

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__)
#define SMHT_HAS_PAIRS 1
struct PairProduct {
  using Element = uint32_t;
  static constexpr int64_t kStep = 2;
  using Left = __m512i;
  using Right = __m512i;
  static Left broadcast(const Element* a) { return _mm512_set1_epi32(static_cast<int>(*a)); }
  static Right load(const Element* b) { return _mm512_loadu_si512(b); }
  static Vec multiply_add(Left a, Right b, Vec c) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};
#endif

// A of a product: element (i, k) is data[i * row + k * depth].
template <class Element>
struct Left {
  const Element* data;
  int64_t row, depth;
  Left from(int64_t i, int64_t k) const { return {data + i * row + k * depth, row, depth}; }
};

// B of a product: row k begins at data + k * stride, padded to whole vectors.
template <class Element>
struct Right {
  const Element* data;
  int64_t stride;
  Right from(int64_t k) const { return {data + k * stride, stride}; }
  Right from_column(int64_t j) const { return {data + j, stride}; }
};

// Columns of C that are computed together. What is done to them next finds them in L1, if it is done before the others.
constexpr int64_t kPanel = (kLanes == 8 ? 2 : 4) * kLanes;

// Calls work(first, count) for each panel.
template <class Work>
void for_each_panel(int64_t columns, Work work) {
  for (int64_t j = 0; j < columns; j += kPanel) work(j, std::min(kPanel, columns - j));
}

// C[rows, columns] = A·B, or C += A·B. `columns` is rounded up to whole vectors; `depth` counts elements, of which
// there is at least one, or C is left as it is.
template <class Product>
void multiply(int64_t rows, int64_t columns, int64_t depth, Left<typename Product::Element> a,
              Right<typename Product::Element> b, float* c, int64_t c_stride, bool add);

}  // namespace smht
