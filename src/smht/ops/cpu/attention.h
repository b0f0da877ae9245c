// What forward and backward of split_attention share: the arguments, the mask, and one head's tensors in tiles.
//
// Within a head, q·kᵀ = x·(W_Q·W_Kᵀ)·xᵀ and v·W_O = x·(W_V·W_O). The products of weights are made once a call, so that
// what attention mixes is already the output, y = softmax(scores)·u, u = x·C, C = W_V·W_O. Scores are of two kinds:
//     folded:   scores = q·xᵀ, q = x·A, A = scale · W_Q·W_Kᵀ. The keys are x itself, so a head has two projections.
//     rotated:  scores = q·kᵀ, q = scale · rotate(x·W_Q), k = rotate(x·W_K). Nothing folds what a rotation separates.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/cpu/vec/functional.h>

#include <limits>
#include <optional>

#include "activation.h"
#include "partition.h"
#include "random.h"
#include "rotation.h"

namespace smht {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kQueries = 48;  // rows of a tile of scores: a multiple of the micro-kernel's rows
constexpr int64_t kKeys = 128;    // columns: a multiple of kKeysDrawn

// A mask [B|1, H|1, T|1, T|1]: booleans, True where attention is allowed, or numbers added to the scores.
struct Mask {
  const void* data = nullptr;
  at::ScalarType type = at::kBool;
  int64_t batch = 0, head = 0, query = 0, key = 0;  // strides

  explicit Mask(const std::optional<at::Tensor>& mask) {
    if (!mask) return;
    data = mask->const_data_ptr();
    type = mask->scalar_type();
    int64_t* strides[] = {&batch, &head, &query, &key};
    for (int axis = 0; axis < 4; ++axis) *strides[axis] = mask->size(axis) == 1 ? 0 : mask->stride(axis);
  }

  // The mask of one sequence's head.
  Mask of(int64_t sequence, int64_t index) const {
    Mask one = *this;
    const int64_t offset = sequence * batch + index * head;
    one.data = static_cast<const char*>(data) + offset * static_cast<int64_t>(c10::elementSize(type));
    return one;
  }

  // Whether a boolean mask allows anything in a tile; numbers are taken to.
  bool allows(int64_t t, int64_t rows, int64_t s, int64_t columns) const {
    if (!data || type != at::kBool) return true;
    const bool* allowed = static_cast<const bool*>(data);
    for (int64_t i = 0; i < (query ? rows : 1); ++i)
      for (int64_t j = 0; j < (key ? columns : 1); ++j)
        if (allowed[(t + i) * query + (s + j) * key]) return true;
    return false;
  }

  // Puts the mask on the scores of query t and the keys from s on.
  void apply(int64_t t, int64_t s, int64_t columns, float* scores) const {
    if (type == at::kBool)
      apply_by(static_cast<const bool*>(data) + t * query + s * key, columns, scores,
               [](float score, bool allowed) { return allowed ? score : -kInfinity; });
    else if (type == at::kFloat)
      apply_by(static_cast<const float*>(data) + t * query + s * key, columns, scores,
               [](float score, float added) { return score + added; });
    else
      apply_by(static_cast<const c10::BFloat16*>(data) + t * query + s * key, columns, scores,
               [](float score, c10::BFloat16 added) { return score + static_cast<float>(added); });
  }

 private:
  template <class Entry, class Combine>
  void apply_by(const Entry* entries, int64_t columns, float* scores, Combine combine) const {
    if (key == 1)
      for (int64_t j = 0; j < columns; ++j) scores[j] = combine(scores[j], entries[j]);
    else
      for (int64_t j = 0; j < columns; ++j) scores[j] = combine(scores[j], entries[j * key]);
  }
};

struct AttentionCall {
  at::Tensor x;  // [B, T, D], the last axis contiguous
  int64_t batch, tokens, heads, width;
  bool is_causal;
  Mask mask;
  Dropout dropout;
  float scale;
  Rotation rotation;  // if any, scores are rotated, else folded

  // Keys that the queries t to t + rows - 1 may see lie before this one.
  int64_t last_key(int64_t t, int64_t rows) const { return is_causal ? std::min(tokens, t + rows) : tokens; }

  // How many of the keys from s on, at most `columns`, the query t may see.
  int64_t visible(int64_t t, int64_t s, int64_t columns) const {
    return is_causal ? std::clamp<int64_t>(t + 1 - s, 0, columns) : columns;
  }

  // The first of the queries from t on, at most `rows`, that may see the key s.
  int64_t first_seeing(int64_t s, int64_t t, int64_t rows) const {
    return is_causal ? std::clamp<int64_t>(s - t, 0, rows) : 0;
  }

  // How many of `Projection` a head has.
  int64_t projections() const { return rotation ? 3 : 2; }
};

inline AttentionCall attention_call(const at::Tensor& x, int64_t heads, bool is_causal,
                                    const std::optional<at::Tensor>& mask, double dropout, double scale,
                                    const std::optional<at::Tensor>& seed, const std::optional<at::Tensor>& cosines,
                                    const std::optional<at::Tensor>& sines) {
  return {x.stride(2) == 1 || x.size(2) == 1 ? x : x.contiguous(),
          x.size(0),
          x.size(1),
          heads,
          x.size(2) / heads,
          is_causal,
          Mask(mask),
          Dropout(dropout, seed ? seed->const_data_ptr<int64_t>() : nullptr),
          static_cast<float>(scale),
          Rotation(cosines, sines)};
}

// Weights [H, K, K] of one head as a tile.
template <class Number>
void load_head(const at::Tensor& weight, int64_t head, float* tile) {
  const int64_t width = weight.size(1);
  load_tile(weight.const_data_ptr<Number>() + head * width * width, width, width, width, tile, row_stride(width));
}

// What a head makes of x; keys only where they are rotated.
enum Projection { kToQueries, kToValues, kToKeys };

// The matrix of each projection of every head, fp32 tiles: A and C, or W_Q, C and W_K.
class HeadWeights {
 public:
  template <class Number>
  static HeadWeights make(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& o,
                          const AttentionCall& call) {
    HeadWeights made(call.heads, call.width, call.projections());
    const int64_t width = call.width, stride = row_stride(width), size = width * stride;
    for_each_piece(call.heads, 1, [&](int64_t head, int64_t) {
      Workspace workspace;
      float *left = workspace.take(size), *right = workspace.take(size), *turned = workspace.take(size);
      const auto fold = [&](const float* by, Projection which) {
        float* product = made.mutable_tile(head, which);
        multiply<FloatProduct>(width, width, width, {left, stride, 1}, {by, stride}, product, stride, false);
      };
      if (call.rotation) {
        load_head<Number>(q, head, made.mutable_tile(head, kToQueries));
        load_head<Number>(k, head, made.mutable_tile(head, kToKeys));
      } else {
        load_head<Number>(q, head, left);
        for (int64_t i = 0; i < size; ++i) left[i] *= call.scale;
        load_head<Number>(k, head, right);
        transpose_tile(right, stride, width, width, turned, stride);
        fold(turned, kToQueries);
      }
      load_head<Number>(v, head, left);
      load_head<Number>(o, head, right);
      fold(right, kToValues);
    });
    return made;
  }

  const float* tile(int64_t head, int64_t which) const {
    return numbers_.const_data_ptr<float>() + head * numbers_.stride(0) + which * size_;
  }

 private:
  HeadWeights(int64_t heads, int64_t width, int64_t projections)
      : size_(width * row_stride(width)), numbers_(at::empty({heads, projections * size_ + kLanes}, at::kFloat)) {}
  float* mutable_tile(int64_t head, Projection which) { return const_cast<float*>(tile(head, which)); }
  int64_t size_;
  at::Tensor numbers_;
};

// The products of attention with what lies above the diagonal left out, panel by panel or group by group.
//
// C[query, key] = A[query]·B[key] of the queries from t on and the keys from s on; C is a tile that begins at (t, s).
template <class Product>
void multiply_visible(const AttentionCall& call, int64_t t, int64_t rows, int64_t s, int64_t columns, int64_t depth,
                      Left<typename Product::Element> a, Right<typename Product::Element> b, float* c, int64_t stride) {
  for_each_panel(columns, [&](int64_t j, int64_t panel) {
    const int64_t first = call.first_seeing(s + j, t, rows);
    multiply<Product>(rows - first, panel, depth, a.from(t + first, 0), b.from_column(s + j), c + first * stride + j,
                      stride, false);
  });
}

constexpr int64_t kGroup = 12;  // rows: even, and a multiple of the micro-kernel's rows

// C[query] += Σ_key A[query, key]·B[key]; A and C begin at t, and A at s.
template <class Product>
void add_over_keys(const AttentionCall& call, int64_t t, int64_t rows, int64_t s, int64_t columns, int64_t width,
                   Left<typename Product::Element> a, Right<typename Product::Element> b, float* c, int64_t stride) {
  using Made = Operands<Product>;
  const int64_t group = call.visible(t, s, columns) < columns ? kGroup : rows;
  for (int64_t i = 0; i < rows; i += group) {
    const int64_t count = std::min(group, rows - i), seen = call.visible(t + i + count - 1, s, columns);
    multiply<Product>(count, width, Made::depth(seen), a.from(i, 0), b.from(Made::depth(s)), c + i * stride, stride,
                      true);
  }
}

// C[key] += Σ_query A[key, query]·B[query]; A and C begin at s, and A at t.
template <class Product>
void add_over_queries(const AttentionCall& call, int64_t t, int64_t rows, int64_t s, int64_t columns, int64_t width,
                      Left<typename Product::Element> a, Right<typename Product::Element> b, float* c, int64_t stride) {
  using Made = Operands<Product>;
  const int64_t group = call.visible(t, s, columns) < columns ? kGroup : columns;
  for (int64_t j = 0; j < columns; j += group) {
    const int64_t first = call.first_seeing(s + j, t, rows) / 2 * 2, at = Made::depth(first);
    multiply<Product>(std::min(group, columns - j), width, Made::depth(rows - first), a.from(j, at),
                      b.from(Made::depth(t) + at), c + j * stride, stride, true);
  }
}

// One sequence's head: x, and what forward and backward both compute from it.
template <class Number>
class Head {
 public:
  using Product = typename ProductOf<Number>::type;
  using Made = Operands<Product>;
  using Element = typename Product::Element;
  using Buffer = OperandBuffer<Product>;

  Head(Workspace& workspace, const AttentionCall& call, const HeadWeights& weights, int64_t index)
      : tokens(call.tokens),
        width(call.width),
        stride(row_stride(call.width)),
        x(workspace.take(tokens * stride)),
        q(workspace.take(tokens * stride)),
        u(workspace.take(tokens * stride)),
        k(call.rotation ? workspace.take(tokens * stride) : x),
        x_rows_(workspace, tokens, width),
        q_rows_(workspace, tokens, width),
        k_turned_(workspace, tokens, width, true) {
    for (int64_t which = 0; which < call.projections(); ++which)
      weights_[which] =
          Buffer(workspace, width, width).stacked(weights.tile(index, which), stride, width, width).right();
  }

  void load(const AttentionCall& call, int64_t sequence, int64_t head) {
    const Number* source = call.x.const_data_ptr<Number>() + sequence * call.x.stride(0) + head * width;
    load_tile(source, call.x.stride(1), tokens, width, x, stride);
    x_left = x_rows_.rows(x, stride, tokens, width);
    project(kToQueries, q);
    project(kToValues, u);
    if (call.rotation) {
      project(kToKeys, k);
      call.rotation.apply(sequence, q, stride, tokens, call.scale);
      call.rotation.apply(sequence, k, stride, tokens, 1);
    }
    keys = k_turned_.transposed(k, stride, tokens, width);
    q_left = q_rows_.rows(q, stride, tokens, width);
  }

  // Scores of the queries from t on and the keys from s on, masked; of keys that a query may not see only what fills
  // its last vector, -inf.
  void scores(const AttentionCall& call, const Mask& mask, int64_t t, int64_t rows, int64_t s, int64_t columns,
              float* tile, int64_t tile_stride) const {
    multiply_visible<Product>(call, t, rows, s, columns, Made::depth(width), q_left, keys, tile, tile_stride);
    for (int64_t i = 0; i < rows; ++i) {
      float* row = tile + i * tile_stride;
      const int64_t visible = call.visible(t + i, s, columns);
      if (mask.data) mask.apply(t + i, s, visible, row);
      std::fill(row + visible, row + padded(visible), -kInfinity);
    }
  }

  int64_t tokens, width, stride;
  float *x, *q, *u, *k;  // [T, K]; where scores are folded, k is x
  Left<Element> x_left{}, q_left{};
  Right<Element> keys{};

 private:
  void project(Projection which, float* result) const {
    multiply<Product>(tokens, width, Made::depth(width), x_left, weights_[which], result, stride, false);
  }

  Right<Element> weights_[3]{};
  Buffer x_rows_, q_rows_, k_turned_;
};

}  // namespace smht
