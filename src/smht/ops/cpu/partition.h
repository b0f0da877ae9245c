// How work is cut into pieces. Nothing here depends on the number of threads, so results do not either: threads share
// out pieces, and sums over pieces are taken in the pieces' order.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "tile.h"

namespace smht {

// Calls `function` with a number of the type that the tensor holds.
template <class Function>
void with_number(const at::Tensor& tensor, Function function) {
  if (tensor.scalar_type() == at::kFloat) return function(float());
  if (tensor.scalar_type() == at::kBFloat16) return function(c10::BFloat16());
  TORCH_CHECK_TYPE(false, "the CPU kernels take float32 and bfloat16, got ", tensor.scalar_type());
}

// `[..., D]` as rows, [M, D], the last axis contiguous; copied only where no view does.
inline at::Tensor as_rows(const at::Tensor& x) {
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  return rows.stride(1) == 1 || rows.size(1) == 1 ? rows : rows.contiguous();
}

// `total` tokens or sequences in at most `most` chunks of whole multiples of `unit`.
struct Chunks {
  int64_t total, size;
  Chunks(int64_t total, int64_t unit, int64_t least, int64_t most) : total(total) {
    const int64_t wanted = std::max(least, (total + most - 1) / most);
    size = (wanted + unit - 1) / unit * unit;
  }
  int64_t count() const { return (total + size - 1) / size; }
  int64_t first(int64_t chunk) const { return chunk * size; }
  int64_t last(int64_t chunk) const { return std::min(total, (chunk + 1) * size); }
};

// Calls work(outer, inner) for every pair. Each thread has a range of pairs, and when it is done with them takes from
// the others' ranges: a processor that other programs use too may be slower than its neighbour.
template <class Work>
void for_each_piece(int64_t outer, int64_t inner, Work work) {
  const int64_t pieces = outer * inner, ranges = std::min<int64_t>(pieces, at::get_num_threads());
  std::vector<std::atomic<int64_t>> next(ranges);
  const auto first_of = [&](int64_t range) { return range * pieces / ranges; };
  for (int64_t range = 0; range < ranges; ++range) next[range] = first_of(range);
  at::parallel_for(0, ranges, 1, [&](int64_t own, int64_t) {
    for (int64_t i = 0; i < ranges; ++i) {
      const int64_t range = (own + i) % ranges, end = first_of(range + 1);
      for (int64_t piece = next[range]++; piece < end; piece = next[range]++) work(piece / inner, piece % inner);
    }
  });
}

// Sums that each chunk has of its own, fp32 [chunks, heads, size].
class Partials {
 public:
  Partials(int64_t chunks, int64_t heads, int64_t size)
      : chunks_(chunks), heads_(heads), size_(size), numbers_(at::empty({chunks, heads, size}, at::kFloat)) {}
  float* at(int64_t chunk, int64_t head) {
    return numbers_.mutable_data_ptr<float>() + (chunk * heads_ + head) * size_;
  }

  // Puts the sum over chunks of one head's numbers into `result`; zero without chunks.
  void sum(int64_t head, float* result) {
    clear(result, size_);
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const float* addend = at(chunk, head);
      for (int64_t i = 0; i < size_; ++i) result[i] += addend[i];
    }
  }

 private:
  int64_t chunks_, heads_, size_;
  at::Tensor numbers_;
};

}  // namespace smht
