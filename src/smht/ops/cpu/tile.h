// Tiles: small matrices in cache. A tile has fp32 numbers in rows, each row padded with zeros to whole vectors.
//
// Tensors are read into tiles and tiles written back here, so nothing else knows of bf16, strides or odd widths. What a
// product needs beyond that is made by `Operands`: for fp32 products the tile itself, for pair products (matmul.h) a
// copy rounded to bf16 with two numbers of the reduced axis in each word.
#pragma once

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "matmul.h"

namespace smht {

inline int64_t padded(int64_t width) { return (width + kLanes - 1) / kLanes * kLanes; }

// Distance between rows of a tile. Rows at a multiple of 512 bytes would share few cache sets.
inline int64_t row_stride(int64_t width) {
  const int64_t stride = padded(width);
  return stride % 128 == 0 ? stride + kLanes : stride;
}

// Memory of one thread, kept between calls: fresh pages cost more than the work done in them.
class Workspace {
 public:
  Workspace() : first_(taken()) {}
  ~Workspace() { taken() = first_; }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // Room for `count` fp32 numbers or pairs, with whatever was there before; as long as this Workspace lives.
  template <class Element = float>
  Element* take(int64_t count) {
    static_assert(sizeof(Element) == 4);
    auto& blocks = thread_blocks();
    if (taken() == blocks.size()) blocks.emplace_back();
    auto& block = blocks[taken()++];
    if (block.count < count) {
      block.count = 0;  // of what is freed now, should there be no room for more
      // Whole pages and one vector more: what is read as padding after the last row is there.
      block.memory.reset(static_cast<char*>(std::aligned_alloc(64, (count * 4 + 64 + 4095) / 4096 * 4096)));
      if (!block.memory) throw std::bad_alloc();
      block.count = count;
    }
    return reinterpret_cast<Element*>(block.memory.get());
  }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  struct Block {
    std::unique_ptr<char, Free> memory;
    int64_t count = 0;
  };
  static std::vector<Block>& thread_blocks() {
    thread_local std::vector<Block> blocks;
    return blocks;
  }
  static size_t& taken() {
    thread_local size_t count = 0;
    return count;
  }
  size_t first_;
};

// One row of bf16 or fp32 numbers to fp32 and back. Plain loops: compilers turn them into vector code everywhere.
inline void load_row(const float* source, int64_t count, float* row) {
  std::memcpy(row, source, count * sizeof(float));
}

inline void load_row(const c10::BFloat16* source, int64_t count, float* row) {
  for (int64_t j = 0; j < count; ++j) row[j] = std::bit_cast<float>(static_cast<uint32_t>(source[j].x) << 16);
}

inline void store_row(const float* row, int64_t count, float* target) {
  std::memcpy(target, row, count * sizeof(float));
}

// The bits of `value` rounded to bf16, to the nearest, ties to even; NaN stays NaN.
inline uint32_t bf16_bits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded;
}

inline void store_row(const float* row, int64_t count, c10::BFloat16* target) {
  int64_t j = 0;
#ifdef SMHT_HAS_PAIRS
  for (; j + 32 <= count; j += 32)
    _mm512_storeu_si512(target + j, reinterpret_cast<__m512i>(
                                        _mm512_cvtne2ps_pbh(_mm512_loadu_ps(row + j + 16), _mm512_loadu_ps(row + j))));
#endif
  for (; j < count; ++j) target[j].x = static_cast<uint16_t>(bf16_bits(row[j]));
}

template <class Number>
void load_tile(const Number* source, int64_t source_stride, int64_t rows, int64_t columns, float* tile,
               int64_t stride) {
  const int64_t width = padded(columns);
  // A head's rows are D numbers apart, which no processor foresees.
  constexpr int64_t kAhead = 8, kLine = 64 / sizeof(Number);
  for (int64_t i = 0; i < rows; ++i) {
    float* row = tile + i * stride;
    if (i + kAhead < rows)
      for (int64_t j = 0; j < columns; j += kLine) __builtin_prefetch(source + (i + kAhead) * source_stride + j);
    load_row(source + i * source_stride, columns, row);
    std::fill(row + columns, row + width, 0.f);
  }
}

template <class Number>
void store_tile(const float* tile, int64_t stride, int64_t rows, int64_t columns, Number* target,
                int64_t target_stride) {
  for (int64_t i = 0; i < rows; ++i) store_row(tile + i * stride, columns, target + i * target_stride);
}

// Every row of a tile made equal to `row` (or zero if there is none): what a product with bias adds to.
template <class Number>
void fill_tile(const Number* row, int64_t rows, int64_t columns, float* tile, int64_t stride) {
  const int64_t width = padded(columns);
  for (int64_t i = 0; i < rows; ++i) {
    float* target = tile + i * stride;
    if (row) load_row(row, columns, target);
    std::fill(target + (row ? columns : 0), target + width, 0.f);
  }
}

inline void clear(float* numbers, int64_t count) { std::memset(numbers, 0, count * sizeof(float)); }

// Adds the sum of each column, few rows at a time so that it rounds little.
inline void add_column_sums(const float* tile, int64_t stride, int64_t rows, int64_t columns, float* sums) {
  constexpr int64_t kTogether = 16;
  for (int64_t first = 0; first < rows; first += kTogether)
    for (int64_t j = 0; j < columns; j += kLanes) {
      Vec sum(0.f);
      for (int64_t i = first; i < std::min(rows, first + kTogether); ++i) sum = sum + Vec::loadu(tile + i * stride + j);
      (Vec::loadu(sums + j) + sum).store(sums + j);
    }
}

// The transpose of a tile of fp32 numbers or pairs, [rows, columns] to [columns, rows], padded with zeros.
template <class Element>
void transpose_tile(const Element* tile, int64_t stride, int64_t rows, int64_t columns, Element* target,
                    int64_t target_stride) {
  constexpr int64_t kBlock = 16;
  const auto* source = reinterpret_cast<const float*>(tile);
  auto* result = reinterpret_cast<float*>(target);
  for (int64_t i = 0; i < rows; i += kBlock)
    for (int64_t j = 0; j < columns; j += kBlock)
      at::vec::transpose_mxn<float>(source + i * stride + j, stride, result + j * target_stride + i, target_stride,
                                    static_cast<int>(std::min(kBlock, rows - i)),
                                    static_cast<int>(std::min(kBlock, columns - j)));
  for (int64_t j = 0; j < columns; ++j)
    std::fill(result + j * target_stride + rows, result + j * target_stride + padded(rows), 0.f);
}

// What stacked() gives: elements [rows / step, columns] that serve as B, or transposed as A, reduced over the rows.
template <class Element>
struct Stacked {
  const Element* data;
  int64_t stride;
  Right<Element> right() const { return {data, stride}; }
  Left<Element> transposed_left() const { return {data, 1, stride}; }
};

template <class Product>
struct Operands;

template <>
struct Operands<FloatProduct> {
  static constexpr bool kCopies = false;
  static int64_t depth(int64_t count) { return count; }
  static Left<float> rows(const float* tile, int64_t stride, int64_t, int64_t, float*) { return {tile, stride, 1}; }
  static Stacked<float> stacked(const float* tile, int64_t stride, int64_t, int64_t, float*) { return {tile, stride}; }
  static Right<float> transposed(const float* tile, int64_t stride, int64_t rows, int64_t columns, float* result) {
    transpose_tile(tile, stride, rows, columns, result, row_stride(rows));
    return {result, row_stride(rows)};
  }
};

#ifdef SMHT_HAS_PAIRS
template <>
struct Operands<PairProduct> {
  static constexpr bool kCopies = true;
  static int64_t depth(int64_t count) { return (count + 1) / 2; }

  // [rows, columns / 2]; relies on the zeros in the padding where `columns` is odd.
  static Left<uint32_t> rows(const float* tile, int64_t stride, int64_t rows, int64_t columns, uint32_t* result) {
    const int64_t result_stride = row_stride(depth(columns));
    for (int64_t i = 0; i < rows; ++i)
      store_row(tile + i * stride, 2 * depth(columns), reinterpret_cast<c10::BFloat16*>(result + i * result_stride));
    return {result, result_stride, 1};
  }

  // [rows / 2, columns], rows 2k and 2k+1 in one word.
  static Stacked<uint32_t> stacked(const float* tile, int64_t stride, int64_t rows, int64_t columns, uint32_t* result) {
    const int64_t width = padded(columns), result_stride = row_stride(columns);
    for (int64_t k = 0; k < depth(rows); ++k) {
      const float *low = tile + 2 * k * stride, *high = low + stride;
      const bool has_high = 2 * k + 1 < rows;
      for (int64_t j = 0; j < width; j += kLanes) {
        const __m512i below = widened_bits(low + j), above = has_high ? widened_bits(high + j) : _mm512_setzero_si512();
        _mm512_storeu_si512(result + k * result_stride + j, _mm512_or_si512(below, _mm512_slli_epi32(above, 16)));
      }
    }
    return {result, result_stride};
  }

  // [columns / 2, rows]; `result` has room for the pairs by rows before it.
  static Right<uint32_t> transposed(const float* tile, int64_t stride, int64_t rows, int64_t columns,
                                    uint32_t* result) {
    const auto by_rows = Operands::rows(tile, stride, rows, columns, result + transposed_size(rows, columns));
    transpose_tile(by_rows.data, by_rows.row, rows, depth(columns), result, row_stride(rows));
    return {result, row_stride(rows)};
  }

 private:
  // Sixteen numbers rounded to bf16, the bits of each in a word of its own.
  static __m512i widened_bits(const float* numbers) {
    return _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_loadu_ps(numbers))));
  }
  static int64_t transposed_size(int64_t rows, int64_t columns) { return depth(columns) * row_stride(rows); }
};
#endif

// The product that numbers of this type are multiplied by on this machine.
template <class Number>
struct ProductOf {
  using type = FloatProduct;
};
#ifdef SMHT_HAS_PAIRS
template <>
struct ProductOf<c10::BFloat16> {
  using type = PairProduct;
};
#endif

// Rows of a tensor as A of a product of pairs, where they are. None where its numbers are no pairs. Nor are fp32 rows
// read where they are: D numbers apart they share few cache sets, and a tile costs less than what then is missed.
template <class Product, class Number>
std::optional<Left<typename Product::Element>> rows_in_place(const Number* source, int64_t stride, int64_t columns) {
  if constexpr (std::is_same_v<Number, c10::BFloat16> && Product::kStep == 2)
    if (columns % 2 == 0 && stride % 2 == 0 && reinterpret_cast<uintptr_t>(source) % 4 == 0)
      return Left<uint32_t>{reinterpret_cast<const uint32_t*>(source), stride / 2, 1};
  return std::nullopt;
}

// Buffers of an operand, made once and filled tile by tile.
template <class Product>
class OperandBuffer {
  using Element = typename Product::Element;
  using Made = Operands<Product>;

 public:
  OperandBuffer(Workspace& workspace, int64_t rows, int64_t columns, bool transposed = false) {
    if (!Made::kCopies && !transposed) return;
    const int64_t turned = Made::depth(columns) * row_stride(rows), by_rows = rows * row_stride(Made::depth(columns));
    const int64_t by_columns = Made::depth(rows) * row_stride(columns);
    buffer_ =
        workspace.take<Element>(transposed ? turned + (Made::kCopies ? by_rows : 0) : std::max(by_rows, by_columns));
  }
  Left<Element> rows(const float* tile, int64_t stride, int64_t rows, int64_t columns) {
    return Made::rows(tile, stride, rows, columns, buffer_);
  }
  // The same of rows of a tensor that `tile` holds: where they are, if that can be.
  template <class Number>
  Left<Element> loaded_rows(const Number* source, int64_t source_stride, int64_t rows, int64_t columns,
                            const float* tile, int64_t stride) {
    const auto left = rows_in_place<Product>(source, source_stride, columns);
    return left ? *left : Made::rows(tile, stride, rows, columns, buffer_);
  }
  // The same of rows that no tile holds yet.
  template <class Number>
  Left<Element> rows_of(const Number* source, int64_t source_stride, int64_t rows, int64_t columns, float* tile,
                        int64_t stride) {
    if (!rows_in_place<Product>(source, source_stride, columns))
      load_tile(source, source_stride, rows, columns, tile, stride);
    return loaded_rows(source, source_stride, rows, columns, tile, stride);
  }
  Stacked<Element> stacked(const float* tile, int64_t stride, int64_t rows, int64_t columns) {
    return Made::stacked(tile, stride, rows, columns, buffer_);
  }
  Right<Element> transposed(const float* tile, int64_t stride, int64_t rows, int64_t columns) {
    return Made::transposed(tile, stride, rows, columns, buffer_);
  }

 private:
  Element* buffer_ = nullptr;
};

}  // namespace smht
