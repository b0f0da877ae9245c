// One row times a matrix as it stands in a tensor, fp32 or bf16: what a single token does, for which every weight is
// read once. Nothing is copied into tiles, sums stay in registers, and memory is read in the order in which it lies.
#pragma once

#include <ATen/cpu/vec/functional.h>

#include "tile.h"

namespace smht {

inline Vec load_vector(const float* source) { return Vec::loadu(source); }

inline Vec load_vector(const c10::BFloat16* source) {
  Vec numbers;
  at::vec::load_fp32_from_bf16(source, numbers);
  return numbers;
}

// The first `count` lanes, zeros in the others.
template <class Number>
Vec load_vector(const Number* source, int64_t count) {
  float numbers[kLanes] = {};
  load_row(source, count, numbers);
  return Vec::loadu(numbers);
}

inline float sum_of_lanes(Vec x) {
  return at::vec::vec_reduce_all([](Vec& a, Vec& b) { return a + b; }, x);
}

// Σ_j a[j] · b[j]
template <class Number>
float dot(const float* a, const Number* b, int64_t count) {
  Vec sum(0.f);
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) sum = at::vec::fmadd(Vec::loadu(a + j), load_vector(b + j), sum);
  if (j < count) sum = at::vec::fmadd(load_vector(a + j, count - j), load_vector(b + j, count - j), sum);
  return sum_of_lanes(sum);
}

// A matrix [depth, columns] in memory, rows `stride` numbers apart.
template <class Number>
struct Matrix {
  const Number* data;
  int64_t stride;
  Matrix from_column(int64_t j) const { return {data + j, stride}; }
};

// Sums held at once: what 32 (AVX-512, NEON) or 16 vector registers hold beside what is multiplied.
constexpr int kSums = kLanes == 8 ? 8 : 16;

// sums += x·W for as many columns as kVectors vectors have. Rows of W are taken in turns by independent sums: one sum
// alone would wait for each of its additions.
template <int kVectors, class Number>
void add_products(const float* x, int64_t depth, Matrix<Number> w, Vec (&sums)[kVectors]) {
  constexpr int kTurns = kSums / kVectors;
  Vec others[kTurns][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kTurns; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) others[i][j] = Vec(0.f);
  const Number* row = w.data;
  int64_t k = 0;
  for (; k + kTurns <= depth; k += kTurns)
#pragma GCC unroll 16
    for (int i = 0; i < kTurns; ++i, row += w.stride) {
      const Vec factor(x[k + i]);
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j)
        others[i][j] = at::vec::fmadd(factor, load_vector(row + j * kLanes), others[i][j]);
    }
  for (; k < depth; ++k, row += w.stride) {
    const Vec factor(x[k]);
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j)
      others[0][j] = at::vec::fmadd(factor, load_vector(row + j * kLanes), others[0][j]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kTurns; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) sums[j] = sums[j] + others[i][j];
}

// y = x·W, or y += x·W, for as many columns as kVectors vectors have.
template <int kVectors, class Number>
void multiply_columns(const float* x, int64_t depth, Matrix<Number> w, float* y, bool add) {
  Vec sums[kVectors];
#pragma GCC unroll 16
  for (int j = 0; j < kVectors; ++j) sums[j] = add ? Vec::loadu(y + j * kLanes) : Vec(0.f);
  add_products(x, depth, w, sums);
#pragma GCC unroll 16
  for (int j = 0; j < kVectors; ++j) sums[j].store(y + j * kLanes);
}

// The same for the last columns, fewer than a vector has lanes. Whole vectors are read as long as they end within W,
// since what the other lanes hold is not kept.
template <class Number>
void multiply_last_columns(const float* x, int64_t depth, Matrix<Number> w, int64_t columns, float* y, bool add) {
  Vec sums[] = {add ? load_vector(y, columns) : Vec(0.f)};
  const int64_t past_end = kLanes - columns, whole = std::max<int64_t>(0, depth - (past_end + w.stride - 1) / w.stride);
  add_products(x, whole, w, sums);
  for (int64_t k = whole; k < depth; ++k)
    sums[0] = at::vec::fmadd(Vec(x[k]), load_vector(w.data + k * w.stride, columns), sums[0]);
  sums[0].store(y, static_cast<int>(columns));
}

// y[columns] = x[depth]·W, or y += x·W.
template <class Number>
void multiply_row(const float* x, int64_t depth, Matrix<Number> w, int64_t columns, float* y, bool add) {
  int64_t j = 0;
  const auto take = [&](auto vectors) {
    constexpr int kVectors = decltype(vectors)::value;
    for (; j + kVectors * kLanes <= columns; j += kVectors * kLanes)
      multiply_columns<kVectors>(x, depth, w.from_column(j), y + j, add);
  };
  if constexpr (kSums >= 16) take(std::integral_constant<int, 16>());
  take(std::integral_constant<int, 8>());
  take(std::integral_constant<int, 4>());
  take(std::integral_constant<int, 2>());
  take(std::integral_constant<int, 1>());
  if (j < columns) multiply_last_columns(x, depth, w.from_column(j), columns - j, y + j, add);
}

}  // namespace smht
