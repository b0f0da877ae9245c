// The arguments of split_decode, checked, as the loops want them.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <vector>

#include "row.h"

namespace smht {

constexpr int64_t kProjections = 6;  // of a block: q, k, v, o, up, down
enum Projection { kQuery, kKey, kValue, kOutput, kUp, kDown };

// What the op is given; see its schema.
struct DecodeArguments {
  const at::Tensor& x;
  at::TensorList projections, biases, norm_weights, norm_biases, orders, keys, values;
  int64_t past;
  const std::optional<at::Tensor>&mask, &cosines, &sines;
  double eps;
  bool norm_per_head, norm_after;
  double scale;
};

// Keys or values of one layer, [B, H, S, K] with any strides but the last.
template <class Number>
struct CacheRows {
  Number* data;
  int64_t sequence, head, token;  // strides
  CacheRows(const at::Tensor& cache)
      : data(cache.mutable_data_ptr<Number>()),
        sequence(cache.stride(0)),
        head(cache.stride(1)),
        token(cache.stride(2)) {}
  Number* at(int64_t b, int64_t h, int64_t s) const { return data + b * sequence + h * head + s * token; }
};

template <class Number>
struct BlockWeights {
  const Number* projections[kProjections];
  const Number* biases[kProjections];  // null where there is none
  const int64_t* order;                // of the block's channels, null for the residual order
  CacheRows<Number> keys, values;
};

// LayerNorm over all of a row, or over each head's channels in the order given.
template <class Number>
struct Norm {
  const Number *weight, *bias;
  const int64_t* order;
};

// Everything that the loops read. Holds contiguous copies of what was not contiguous.
template <class Number>
class DecodeCall {
 public:
  explicit DecodeCall(const DecodeArguments& given)
      : batch(given.x.size(0)),
        size(given.x.size(1)),
        past(given.past),
        norm_per_head(given.norm_per_head),
        norm_after(given.norm_after),
        eps(static_cast<float>(given.eps)),
        scale(static_cast<float>(given.scale)) {
    const int64_t num_blocks = static_cast<int64_t>(given.keys.size());
    TORCH_CHECK_VALUE(num_blocks > 0, "split_decode: there are no blocks");
    check_count("projections", given.projections, kProjections * num_blocks);
    if (!given.biases.empty()) check_count("biases", given.biases, kProjections * num_blocks);
    if (!given.orders.empty()) check_count("orders", given.orders, num_blocks);
    check_count("values", given.values, num_blocks);
    check_count("norm_weights", given.norm_weights, 2 * num_blocks + (norm_after ? 0 : 1));
    check_count("norm_biases", given.norm_biases, static_cast<int64_t>(given.norm_weights.size()));
    TORCH_CHECK_VALUE(given.projections[kUp].dim() == 3, "split_decode: a projection must have three axes");
    heads = given.projections[kUp].size(0);
    width = given.projections[kUp].size(1);
    hidden = given.projections[kUp].size(2);
    TORCH_CHECK_VALUE(heads * width == size, "split_decode: ", heads, " heads of ", width, " channels make no row of ",
                      size);
    for (int64_t i = 0; i < num_blocks; ++i) add_block(given, i);
    for (size_t i = 0; i < given.norm_weights.size(); ++i) {
      const size_t block = i / 2;  // the norm after all blocks is in residual order
      norms.push_back({numbers(given.norm_weights[i], {size}), numbers(given.norm_biases[i], {size}),
                       norm_per_head && block < blocks.size() ? blocks[block].order : nullptr});
    }
    if (given.mask) {
      const at::Tensor& held = hold(*given.mask);
      TORCH_CHECK_VALUE(
          held.scalar_type() == at::kBool && held.dim() == 2 && held.size(0) == batch && held.size(1) > past,
          "split_decode: the mask must be boolean, [B, S] with S > ", past);
      mask_ = held.const_data_ptr<bool>();
      mask_stride_ = held.stride(0);
    }
    if (given.cosines) add_rotation(*given.cosines, given.sines.value());
  }

  // Which cached tokens a sequence may attend to; null for all.
  const bool* mask(int64_t sequence) const { return mask_ ? mask_ + sequence * mask_stride_ : nullptr; }
  // Cosines and sines of a sequence, [K / 2] each; null where nothing is turned.
  const float* cosines(int64_t sequence) const { return cosines_ ? cosines_ + sequence * rotation_stride_ : nullptr; }
  const float* sines(int64_t sequence) const { return sines_ + sequence * rotation_stride_; }

  int64_t batch, size, heads = 0, width = 0, hidden = 0, past;  // B, D, H, K, G, cached tokens
  bool norm_per_head, norm_after;
  float eps, scale;
  std::vector<BlockWeights<Number>> blocks;
  std::vector<Norm<Number>> norms;  // in the order in which they are computed

 private:
  static void check_count(const char* name, at::TensorList list, int64_t count) {
    TORCH_CHECK_VALUE(static_cast<int64_t>(list.size()) == count, "split_decode: ", name, " must be ", count,
                      " tensors, got ", list.size());
  }

  const at::Tensor& hold(const at::Tensor& tensor) { return held_.emplace_back(tensor.contiguous()); }

  const Number* numbers(const at::Tensor& tensor, at::IntArrayRef shape) {
    TORCH_CHECK_VALUE(tensor.sizes() == shape, "split_decode: a weight must be ", shape, ", got ", tensor.sizes());
    TORCH_CHECK_TYPE(tensor.scalar_type() == c10::CppTypeToScalarType<Number>::value,
                     "split_decode: all numbers must be of one type, got ", tensor.scalar_type());
    // Most are contiguous, and there are many.
    return (tensor.is_contiguous() ? tensor : hold(tensor)).template const_data_ptr<Number>();
  }

  void add_block(const DecodeArguments& given, int64_t i) {
    BlockWeights<Number> block{.order = nullptr, .keys = cache(given.keys[i]), .values = cache(given.values[i])};
    for (int64_t j = 0; j < kProjections; ++j) {
      const int64_t at = kProjections * i + j, in = j == kDown ? hidden : width, out = j == kUp ? hidden : width;
      block.projections[j] = numbers(given.projections[at], {heads, in, out});
      block.biases[j] = given.biases.empty() ? nullptr : numbers(given.biases[at], {heads * out});
    }
    if (!given.orders.empty()) {
      const at::Tensor& order = hold(given.orders[i]);
      TORCH_CHECK_VALUE(order.scalar_type() == at::kLong && order.dim() == 1 && order.size(0) == size,
                        "split_decode: a channel order must be ", size, " whole numbers");
      block.order = order.const_data_ptr<int64_t>();
      const auto [least, most] = std::minmax_element(block.order, block.order + size);
      TORCH_CHECK_VALUE(*least >= 0 && *most < size, "split_decode: a channel order names a channel that is not there");
    }
    blocks.push_back(block);
  }

  CacheRows<Number> cache(const at::Tensor& cache) const {
    TORCH_CHECK_VALUE(cache.dim() == 4 && cache.size(0) == batch && cache.size(1) == heads && cache.size(3) == width,
                      "split_decode: a cache must be [B, H, S, K] = [", batch, ", ", heads, ", S, ", width, "], got ",
                      cache.sizes());
    TORCH_CHECK_VALUE(cache.stride(3) == 1 || width == 1,
                      "split_decode: the channels of a cache must lie side by side, got strides ", cache.strides());
    for (int64_t axis = 0; axis < 3; ++axis)
      TORCH_CHECK_VALUE(cache.stride(axis) > 0 || cache.size(axis) == 1,
                        "split_decode: a cache that is written must not be expanded, got strides ", cache.strides());
    TORCH_CHECK_VALUE(0 <= past && past < cache.size(2), "split_decode: a cache of ", cache.size(2),
                      " tokens has no place for token ", past);
    TORCH_CHECK_TYPE(cache.scalar_type() == c10::CppTypeToScalarType<Number>::value,
                     "split_decode: all numbers must be of one type, got ", cache.scalar_type());
    return CacheRows<Number>(cache);
  }

  void add_rotation(const at::Tensor& cosines, const at::Tensor& sines) {
    for (const at::Tensor* angles : {&cosines, &sines})
      TORCH_CHECK_VALUE(width % 2 == 0 && angles->dim() == 2 && angles->size(1) == width / 2 &&
                            (angles->size(0) == batch || angles->size(0) == 1),
                        "split_decode: cosines and sines must be [B, K/2] or [1, K/2]");
    rotation_stride_ = cosines.size(0) == 1 ? 0 : width / 2;
    cosines_ = hold(cosines.to(at::kFloat)).template const_data_ptr<float>();
    sines_ = hold(sines.to(at::kFloat)).template const_data_ptr<float>();
  }

  std::vector<at::Tensor> held_;
  const bool* mask_ = nullptr;
  int64_t mask_stride_ = 0, rotation_stride_ = 0;
  const float *cosines_ = nullptr, *sines_ = nullptr;
};

}  // namespace smht
