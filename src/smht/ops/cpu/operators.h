// The operators that this library adds to torch. Kept apart from torch/library.h, which is slow to compile.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <tuple>

namespace smht {

using at::Tensor;

Tensor split_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias);

std::tuple<Tensor, Tensor, Tensor> split_linear_backward(const Tensor& gradient, const Tensor& x, const Tensor& weight,
                                                         bool has_bias);

Tensor split_feed_forward(const Tensor& x, const Tensor& up_weight, const Tensor& down_weight,
                          std::string_view activation, const std::optional<Tensor>& up_bias,
                          const std::optional<Tensor>& down_bias);

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> split_feed_forward_backward(
    const Tensor& gradient, const Tensor& x, const Tensor& up_weight, const Tensor& down_weight,
    std::string_view activation, const std::optional<Tensor>& up_bias, bool has_down_bias);

std::tuple<Tensor, Tensor> split_attention(const Tensor& x, const Tensor& q_weight, const Tensor& k_weight,
                                           const Tensor& v_weight, const Tensor& o_weight, bool is_causal,
                                           const std::optional<Tensor>& mask, double dropout, double scale,
                                           const std::optional<Tensor>& seed, const std::optional<Tensor>& cosines,
                                           const std::optional<Tensor>& sines);

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> split_attention_backward(
    const Tensor& gradient, const Tensor& x, const Tensor& q_weight, const Tensor& k_weight, const Tensor& v_weight,
    const Tensor& o_weight, bool is_causal, const std::optional<Tensor>& mask, double dropout, double scale,
    const std::optional<Tensor>& seed, const std::optional<Tensor>& cosines, const std::optional<Tensor>& sines,
    const Tensor& y, const Tensor& log_sums);

std::tuple<Tensor, Tensor, Tensor> linear_cross_entropy(const Tensor& hidden, const Tensor& weight,
                                                        const Tensor& labels, int64_t ignore_index, bool wants_hidden,
                                                        bool wants_weight);

Tensor permute_channels(const Tensor& x, const Tensor& order, const Tensor& inverse);
Tensor permute_channels_differentiably(const Tensor& x, const Tensor& order, const Tensor& inverse);

Tensor split_decode(const Tensor& x, at::TensorList projections, at::TensorList biases, at::TensorList norm_weights,
                    at::TensorList norm_biases, at::TensorList orders, at::TensorList keys, at::TensorList values,
                    int64_t past, const std::optional<Tensor>& mask, const std::optional<Tensor>& cosines,
                    const std::optional<Tensor>& sines, std::string_view activation, double eps, bool norm_per_head,
                    bool norm_after, double scale);

}  // namespace smht
