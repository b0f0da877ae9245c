// split_attention on CPU, forward: one pass over (sequence, head), softmax online over tiles of keys
// (arXiv:2205.14135).
#include "attention.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <tuple>

#include "operators.h"

namespace smht {
namespace {

// Softmax of a tile of queries, as far as its keys have been seen.
struct OnlineSoftmax {
  float maximum[kQueries];
  float sums[kQueries * kLanes];  // a vector each, added up at the end

  void reset(int64_t rows) {
    std::fill(maximum, maximum + rows, -kInfinity);
    clear(sums, rows * kLanes);
  }

  // Scores of one query become e^(score - maximum); what was summed up so far is brought to the new maximum.
  void take(int64_t i, float* scores, int64_t columns, float* output, int64_t width) {
    if (columns == 0) return;
    Vec highest = Vec::loadu(scores);
    for (int64_t j = kLanes; j < columns; j += kLanes) highest = at::vec::maximum(highest, Vec::loadu(scores + j));
    const float before = maximum[i];
    const float seen = at::vec::vec_reduce_all([](Vec& a, Vec& b) { return at::vec::maximum(a, b); }, highest);
    const float now = before > seen ? before : seen;  // NaN, if that is among them
    if (now == -kInfinity) {                          // nothing allowed yet
      clear(scores, padded(columns));
      return;
    }
    Vec sum = Vec::loadu(sums + i * kLanes);
    if (now != before) {
      maximum[i] = now;
      const Vec factor = exponential(Vec(before - now));
      sum = sum * factor;
      for (int64_t j = 0; j < width; j += kLanes) (Vec::loadu(output + j) * factor).store(output + j);
    }
    for (int64_t j = 0; j < columns; j += kLanes) {
      const Vec weight = exponential(Vec::loadu(scores + j) - Vec(now));
      weight.store(scores + j);
      sum = sum + weight;
    }
    sum.store(sums + i * kLanes);
  }

  // Divides by the sum of weights. Returns log Σ e^score, or +inf for a query that saw nothing, whose output is zero.
  float finish(int64_t i, float* output, int64_t width) const {
    float sum = 0;
    for (int64_t lane = 0; lane < kLanes; ++lane) sum += sums[i * kLanes + lane];
    const bool saw_nothing = maximum[i] == -kInfinity;
    const Vec factor(saw_nothing ? 0.f : 1 / sum);
    for (int64_t j = 0; j < width; j += kLanes) (Vec::loadu(output + j) * factor).store(output + j);
    return saw_nothing ? kInfinity : maximum[i] + std::log(sum);
  }
};

template <class Number>
void forward_piece(const AttentionCall& call, const HeadWeights& weights, int64_t sequence, int64_t index, Tensor& y,
                   Tensor& log_sums) {
  using Product = typename Head<Number>::Product;
  using Made = Operands<Product>;
  Workspace workspace;
  Head<Number> head(workspace, call, weights, index);
  head.load(call, sequence, index);
  const int64_t tokens = call.tokens, width = call.width, stride = head.stride, tile_stride = kKeys + kLanes;
  OperandBuffer<Product> u_stack(workspace, tokens, width), weight_rows(workspace, kQueries, kKeys);
  const auto values = u_stack.stacked(head.u, stride, tokens, width).right();
  float* tile = workspace.take(kQueries * tile_stride);
  float* output = workspace.take(kQueries * stride);
  float* factors = workspace.take(kKeys);
  const Mask mask = call.mask.of(sequence, index);
  const uint64_t first_row = (sequence * call.heads + index) * tokens;
  float* log_sum = log_sums.mutable_data_ptr<float>() + first_row;
  Number* target = y.mutable_data_ptr<Number>() + sequence * tokens * call.heads * width + index * width;
  OnlineSoftmax softmax;
  for (int64_t t = 0; t < tokens; t += kQueries) {
    const int64_t rows = std::min(kQueries, tokens - t), last = call.last_key(t, rows);
    softmax.reset(rows);
    clear(output, rows * stride);
    for (int64_t s = 0; s < last; s += kKeys) {
      const int64_t columns = std::min(kKeys, last - s);
      if (!mask.allows(t, rows, s, columns)) continue;
      head.scores(call, mask, t, rows, s, columns, tile, tile_stride);
      for (int64_t i = 0; i < rows; ++i) {
        float* row = tile + i * tile_stride;
        const int64_t visible = call.visible(t + i, s, columns);
        softmax.take(i, row, visible, output + i * stride, width);
        if (call.dropout.active) {
          call.dropout.factors(first_row + t + i, s, visible, factors);
          for (int64_t j = 0; j < visible; ++j) row[j] *= factors[j];
        }
        clear(row + padded(visible), padded(columns) - padded(visible));
      }
      add_over_keys<Product>(call, t, rows, s, columns, width, weight_rows.rows(tile, tile_stride, rows, columns),
                             values, output, stride);
    }
    for (int64_t i = 0; i < rows; ++i) log_sum[t + i] = softmax.finish(i, output + i * stride, width);
    store_tile(output, stride, rows, width, target + t * call.heads * width, call.heads * width);
  }
}

}  // namespace

// y [B, T, D] and log Σ e^score [B, H, T], which backward needs.
std::tuple<Tensor, Tensor> split_attention(const Tensor& given, const Tensor& q, const Tensor& k, const Tensor& v,
                                           const Tensor& o, bool is_causal, const std::optional<Tensor>& mask,
                                           double dropout, double scale, const std::optional<Tensor>& seed,
                                           const std::optional<Tensor>& cosines, const std::optional<Tensor>& sines) {
  const int64_t batch = given.size(0), tokens = given.size(1), heads = q.size(0);
  Tensor y = at::empty(given.sizes(), given.options());
  Tensor log_sums = at::empty({batch, heads, tokens}, given.options().dtype(at::kFloat));
  if (given.numel() == 0) return {y, log_sums};
  const auto call = attention_call(given, heads, is_causal, mask, dropout, scale, seed, cosines, sines);
  with_number(given, [&](auto number) {
    using Number = decltype(number);
    const auto weights =
        HeadWeights::make<Number>(q.contiguous(), k.contiguous(), v.contiguous(), o.contiguous(), call);
    for_each_piece(batch, heads, [&](int64_t sequence, int64_t head) {
      forward_piece<Number>(call, weights, sequence, head, y, log_sums);
    });
  });
  return {y, log_sums};
}

}  // namespace smht
