// Makes the operators known to torch, as torch.ops.smht.NAME.
#include "operators.h"

#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(smht, library) {
  library.def("split_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
  // Gradients in the order of the inputs; that of a bias that is not there is empty.
  library.def(
      "split_linear_backward(Tensor gradient, Tensor x, Tensor weight, bool has_bias) -> (Tensor, Tensor, Tensor)");
  library.def(
      "split_feed_forward(Tensor x, Tensor up_weight, Tensor down_weight, str activation, Tensor? up_bias, "
      "Tensor? down_bias) -> Tensor");
  library.def(
      "split_feed_forward_backward(Tensor gradient, Tensor x, Tensor up_weight, Tensor down_weight, str activation, "
      "Tensor? up_bias, bool has_down_bias) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  // y [B, T, D] and log Σ e^score [B, H, T], which backward needs. `seed` is one int64, there if anything is dropped;
  // `cosines` and `sines` [B|1, T, K/2] are there if queries and keys are turned, and take no gradient.
  library.def(
      "split_attention(Tensor x, Tensor q_weight, Tensor k_weight, Tensor v_weight, Tensor o_weight, bool is_causal, "
      "Tensor? mask, float dropout, float scale, Tensor? seed, Tensor? cosines, Tensor? sines) -> (Tensor y, Tensor "
      "log_sums)");
  library.def(
      "split_attention_backward(Tensor gradient, Tensor x, Tensor q_weight, Tensor k_weight, Tensor v_weight, "
      "Tensor o_weight, bool is_causal, Tensor? mask, float dropout, float scale, Tensor? seed, Tensor? cosines, "
      "Tensor? sines, Tensor y, Tensor log_sums) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  // The sum over tokens and its gradients; one that is not wanted is empty.
  library.def(
      "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor labels, int ignore_index, bool wants_hidden, "
      "bool wants_weight) -> (Tensor loss, Tensor hidden_gradient, Tensor weight_gradient)");
  library.def("permute_channels(Tensor x, Tensor order, Tensor inverse) -> Tensor");
  // Of N blocks: 6N projections (q, k, v, o, up, down of each) and as many biases or none; norms in the order in which
  // they are computed, 2N + 1 before sub-layers and at the end, or 2N after them; N channel orders or none. Writes the
  // new keys and values, of token `past`.
  library.def(
      "split_decode(Tensor x, Tensor[] projections, Tensor[] biases, Tensor[] norm_weights, Tensor[] norm_biases, "
      "Tensor[] orders, Tensor(a!)[] keys, Tensor(b!)[] values, int past, Tensor? mask, Tensor? cosines, "
      "Tensor? sines, str activation, float eps, bool norm_per_head, bool norm_after, float scale) -> Tensor");
}

TORCH_LIBRARY_IMPL(smht, CPU, library) {
  library.impl("split_linear", smht::split_linear);
  library.impl("split_linear_backward", smht::split_linear_backward);
  library.impl("split_feed_forward", smht::split_feed_forward);
  library.impl("split_feed_forward_backward", smht::split_feed_forward_backward);
  library.impl("split_attention", smht::split_attention);
  library.impl("split_attention_backward", smht::split_attention_backward);
  library.impl("linear_cross_entropy", smht::linear_cross_entropy);
  library.impl("permute_channels", smht::permute_channels);
  library.impl("split_decode", smht::split_decode);
}

// The gradients of all others are in smht.ops.operators.
TORCH_LIBRARY_IMPL(smht, Autograd, library) { library.impl("permute_channels", smht::permute_channels_differentiably); }
