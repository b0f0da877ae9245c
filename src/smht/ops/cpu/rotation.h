// Turning queries and keys by the positions of their tokens (arXiv:2104.09864).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "tile.h"

namespace smht {

// Cosines and sines [B|1, T, K/2] of the angles by which each token's channels j and j + K/2 are turned; or nothing.
class Rotation {
 public:
  Rotation(const std::optional<at::Tensor>& cosines, const std::optional<at::Tensor>& sines) {
    if (!cosines || !sines) return;
    cosines_ = cosines->to(at::kFloat).contiguous();
    sines_ = sines->to(at::kFloat).contiguous();
    half_ = cosines_.size(2);
    sequence_stride_ = cosines_.size(0) == 1 ? 0 : cosines_.size(1) * half_;
  }

  explicit operator bool() const { return cosines_.defined(); }

  // Turns the rows of one sequence's head, a tile [T, K], and multiplies them by `factor`.
  void apply(int64_t sequence, float* tile, int64_t stride, int64_t tokens, float factor) const {
    turn(sequence, tile, stride, tokens, factor, factor);
  }

  // The same by the opposite angles: what takes gradients of turned rows to gradients of the rows before.
  void apply_back(int64_t sequence, float* tile, int64_t stride, int64_t tokens, float factor) const {
    turn(sequence, tile, stride, tokens, factor, -factor);
  }

 private:
  void turn(int64_t sequence, float* tile, int64_t stride, int64_t tokens, float of_cosines, float of_sines) const {
    const float* cosines = cosines_.const_data_ptr<float>() + sequence * sequence_stride_;
    const float* sines = sines_.const_data_ptr<float>() + sequence * sequence_stride_;
    for (int64_t t = 0; t < tokens; ++t) {
      float *first = tile + t * stride, *second = first + half_;
      for (int64_t j = 0; j < half_; j += kLanes) {
        const int64_t count = std::min(kLanes, half_ - j);  // no more: the second half begins there
        const Vec cosine = Vec::loadu(cosines + t * half_ + j, count) * Vec(of_cosines);
        const Vec sine = Vec::loadu(sines + t * half_ + j, count) * Vec(of_sines);
        const Vec x = Vec::loadu(first + j, count), y = Vec::loadu(second + j, count);
        (x * cosine - y * sine).store(first + j, count);
        (y * cosine + x * sine).store(second + j, count);
      }
    }
  }

  at::Tensor cosines_, sines_;  // fp32
  int64_t half_ = 0, sequence_stride_ = 0;
};

}  // namespace smht
