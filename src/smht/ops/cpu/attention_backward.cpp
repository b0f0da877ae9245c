// split_attention on CPU, backward: weights recomputed tile by tile from log Σ e^score (arXiv:2205.14135, algorithm 4).
//
// With W the attention weights after dropout and dy the gradient of the output, in the names of attention.h:
//     dS = P ∘ (dP - (dy·y)),  dP = dy·uᵀ ∘ dropout        du = Wᵀ·dy        dq = dS·k        dk = dSᵀ·q
//     dC = xᵀ·du        dW_V = dC·W_Oᵀ        dW_O = W_Vᵀ·dC
// Where scores are folded, k is x, so dk is a part of dx:
//     dx = dk + dq·Aᵀ + du·Cᵀ        dA = xᵀ·dq        dW_Q = scale · dA·W_K        dW_K = scale · dAᵀ·W_Q
// Where they are rotated, with dq' = scale · dq and dk' = dk turned back:
//     dx = dq'·W_Qᵀ + dk'·W_Kᵀ + du·Cᵀ        dW_Q = xᵀ·dq'        dW_K = xᵀ·dk'
#include <ATen/ops/empty.h>

#include <tuple>

#include "attention.h"
#include "operators.h"

namespace smht {
namespace {

// What the gradients add to a head: tensors [T, K] in tiles and operands made of them.
template <class Number>
struct GradientHead {
  using Product = typename Head<Number>::Product;
  using Element = typename Product::Element;
  using Buffer = OperandBuffer<Product>;

  GradientHead(Workspace& workspace, const AttentionCall& call)
      : size(call.tokens * row_stride(call.width)),
        dy(workspace.take(size)),
        dq(workspace.take(size)),
        du(workspace.take(size)),
        dx(workspace.take(size)),
        dk(call.rotation ? workspace.take(size) : dx),
        along(workspace.take(call.tokens)),
        dy_rows(workspace, call.tokens, call.width),
        dy_stack(workspace, call.tokens, call.width),
        x_stack(workspace, call.tokens, call.width),
        q_stack(workspace, call.tokens, call.width),
        k_stack(workspace, call.tokens, call.width),
        u_turned(workspace, call.tokens, call.width, true),
        added_rows(workspace, call.tokens, call.width),
        added_stack(workspace, call.tokens, call.width) {}

  void load(const Head<Number>& head, const Number* gradient, const Number* y, int64_t row) {
    const int64_t tokens = head.tokens, width = head.width, stride = head.stride;
    float* outputs = dx;  // for a moment
    load_tile(gradient, row, tokens, width, dy, stride);
    load_tile(y, row, tokens, width, outputs, stride);
    for (int64_t t = 0; t < tokens; ++t) {
      Vec sum(0.f);
      for (int64_t j = 0; j < width; j += kLanes)
        sum = at::vec::fmadd(Vec::loadu(dy + t * stride + j), Vec::loadu(outputs + t * stride + j), sum);
      along[t] = at::vec::vec_reduce_all([](Vec& a, Vec& b) { return a + b; }, sum);
    }
    for (float* sums : {dq, du, dx}) clear(sums, size);
    if (dk != dx) clear(dk, size);
    dy_left = dy_rows.rows(dy, stride, tokens, width);
    dy_stacked = dy_stack.stacked(dy, stride, tokens, width);
    x_stacked = x_stack.stacked(head.x, stride, tokens, width);
    q_stacked = q_stack.stacked(head.q, stride, tokens, width);
    k_stacked = head.k == head.x ? x_stacked : k_stack.stacked(head.k, stride, tokens, width);
    values = u_turned.transposed(head.u, stride, tokens, width);
  }

  int64_t size;
  float *dy, *dq, *du, *dx, *dk, *along;  // along[t] = dy[t]·y[t]; where scores are folded, dk is dx
  Buffer dy_rows, dy_stack, x_stack, q_stack, k_stack, u_turned, added_rows, added_stack;
  Left<Element> dy_left{};
  Stacked<Element> dy_stacked{}, x_stacked{}, q_stacked{}, k_stacked{};
  Right<Element> values{};
};

// Adds one tile of scores' part to dq, dk and du.
template <class Number>
class TileBackward {
  using Product = typename Head<Number>::Product;
  using Made = Operands<Product>;

 public:
  explicit TileBackward(Workspace& workspace)
      : weights_(workspace.take(kQueries * kStride)),
        slopes_(workspace.take(kQueries * kStride)),
        factors_(workspace.take(kKeys)),
        weight_stack_(workspace, kQueries, kKeys),
        slope_stack_(workspace, kQueries, kKeys),
        slope_rows_(workspace, kQueries, kKeys) {}

  void add(const AttentionCall& call, const Mask& mask, const Head<Number>& head, GradientHead<Number>& given,
           uint64_t first_row, const float* log_sums, int64_t t, int64_t rows, int64_t s, int64_t columns) {
    const int64_t width = head.width, stride = head.stride;
    head.scores(call, mask, t, rows, s, columns, weights_, kStride);
    multiply_visible<Product>(call, t, rows, s, columns, Made::depth(width), given.dy_left, given.values, slopes_,
                              kStride);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t visible = call.visible(t + i, s, columns), rest = padded(columns) - padded(visible);
      differentiate_row(call, first_row + t + i, s, visible, log_sums[t + i], given.along[t + i], i);
      for (float* tile : {weights_, slopes_}) clear(tile + i * kStride + padded(visible), rest);
    }
    const auto weight_left = weight_stack_.stacked(weights_, kStride, rows, columns).transposed_left();
    const auto slope_left = slope_stack_.stacked(slopes_, kStride, rows, columns).transposed_left();
    add_over_queries<Product>(call, t, rows, s, columns, width, weight_left, given.dy_stacked.right(),
                              given.du + s * stride, stride);
    add_over_queries<Product>(call, t, rows, s, columns, width, slope_left, given.q_stacked.right(),
                              given.dk + s * stride, stride);
    add_over_keys<Product>(call, t, rows, s, columns, width, slope_rows_.rows(slopes_, kStride, rows, columns),
                           given.k_stacked.right(), given.dq + t * stride, stride);
  }

 private:
  // Scores become weights, after dropout, and gradients of weights those of scores.
  void differentiate_row(const AttentionCall& call, uint64_t row, int64_t s, int64_t columns, float log_sum,
                         float along, int64_t i) {
    float *weights = weights_ + i * kStride, *slopes = slopes_ + i * kStride;
    const Vec shift(log_sum), mean(along);
    if (!call.dropout.active) {
      for (int64_t j = 0; j < columns; j += kLanes) {
        const Vec weight = exponential(Vec::loadu(weights + j) - shift);
        weight.store(weights + j);
        (weight * (Vec::loadu(slopes + j) - mean)).store(slopes + j);
      }
      return;
    }
    call.dropout.factors(row, s, columns, factors_);
    for (int64_t j = 0; j < columns; j += kLanes) {
      const Vec weight = exponential(Vec::loadu(weights + j) - shift), factor = Vec::loadu(factors_ + j);
      (weight * factor).store(weights + j);
      (weight * (Vec::loadu(slopes + j) * factor - mean)).store(slopes + j);
    }
  }

  static constexpr int64_t kStride = kKeys + kLanes;
  float *weights_, *slopes_, *factors_;
  OperandBuffer<Product> weight_stack_, slope_stack_, slope_rows_;
};

// Sums of one head over a chunk of sequences: the gradient of each of `HeadWeights`, as tiles.
struct WeightSums {
  int64_t tile, size;
  explicit WeightSums(const AttentionCall& call)
      : tile(call.width * row_stride(call.width)), size(call.projections() * tile + kLanes) {}
};

template <class Number>
void backward_piece(const AttentionCall& call, const HeadWeights& weights, const Chunks& chunks, int64_t chunk,
                    int64_t index, const Tensor& gradient, const Tensor& y, const Tensor& log_sums, Tensor& x_gradient,
                    float* sums) {
  using Product = typename Head<Number>::Product;
  using Made = Operands<Product>;
  Workspace workspace;
  Head<Number> head(workspace, call, weights, index);
  GradientHead<Number> given(workspace, call);
  TileBackward<Number> tile(workspace);
  const int64_t tokens = call.tokens, width = call.width, stride = head.stride, row = call.heads * width;
  Right<typename Product::Element> weights_back[3]{};
  for (int64_t which = 0; which < call.projections(); ++which)
    weights_back[which] = OperandBuffer<Product>(workspace, width, width, true)
                              .transposed(weights.tile(index, which), stride, width, width);
  const float* projected[] = {given.dq, given.du, given.dk};  // gradients in the order of Projection
  clear(sums, WeightSums(call).size);
  for (int64_t sequence = chunks.first(chunk); sequence < chunks.last(chunk); ++sequence) {
    const int64_t place = sequence * tokens * row + index * width;
    head.load(call, sequence, index);
    given.load(head, gradient.const_data_ptr<Number>() + place, y.const_data_ptr<Number>() + place, row);
    const Mask mask = call.mask.of(sequence, index);
    const uint64_t first_row = (sequence * call.heads + index) * tokens;
    for (int64_t t = 0; t < tokens; t += kQueries) {
      const int64_t rows = std::min(kQueries, tokens - t), last = call.last_key(t, rows);
      for (int64_t s = 0; s < last; s += kKeys) {
        const int64_t columns = std::min(kKeys, last - s);
        if (mask.allows(t, rows, s, columns))
          tile.add(call, mask, head, given, first_row, log_sums.const_data_ptr<float>() + first_row, t, rows, s,
                   columns);
      }
    }
    if (call.rotation) {
      call.rotation.apply_back(sequence, given.dq, stride, tokens, call.scale);
      call.rotation.apply_back(sequence, given.dk, stride, tokens, 1);
    }
    const auto x_back = given.x_stacked.transposed_left();
    for (int64_t which = 0; which < call.projections(); ++which) {
      const float* added = projected[which];
      multiply<Product>(tokens, width, Made::depth(width), given.added_rows.rows(added, stride, tokens, width),
                        weights_back[which], given.dx, stride, true);
      multiply<Product>(width, width, Made::depth(tokens), x_back,
                        given.added_stack.stacked(added, stride, tokens, width).right(),
                        sums + which * WeightSums(call).tile, stride, true);
    }
    store_tile(given.dx, stride, tokens, width, x_gradient.mutable_data_ptr<Number>() + place, row);
  }
}

// From the sums of one head to the gradients of its four weights.
template <class Number>
void unfold(const AttentionCall& call, const float* sums, int64_t head, const Tensor (&weights)[4],
            Tensor (&gradients)[4]) {
  const int64_t width = call.width, stride = row_stride(width), size = width * stride;
  Workspace workspace;
  float *weight = workspace.take(size), *turned = workspace.take(size), *result = workspace.take(size);
  const auto sum = [&](Projection which) { return sums + which * WeightSums(call).tile; };
  const auto write = [&](int64_t which, const float* tile) {
    store_tile(tile, stride, width, width, gradients[which].mutable_data_ptr<Number>() + head * width * width, width);
  };
  const auto write_product = [&](int64_t which, Left<float> left, const float* right, float factor) {
    multiply<FloatProduct>(width, width, width, left, {right, stride}, result, stride, false);
    for (int64_t i = 0; i < size; ++i) result[i] *= factor;
    write(which, result);
  };
  if (call.rotation) {
    write(0, sum(kToQueries));
    write(1, sum(kToKeys));
  } else {
    load_head<Number>(weights[1], head, weight);
    write_product(0, {sum(kToQueries), stride, 1}, weight, call.scale);
    load_head<Number>(weights[0], head, weight);
    write_product(1, {sum(kToQueries), 1, stride}, weight, call.scale);
  }
  load_head<Number>(weights[3], head, weight);
  transpose_tile(weight, stride, width, width, turned, stride);
  write_product(2, {sum(kToValues), stride, 1}, turned, 1);
  load_head<Number>(weights[2], head, weight);
  write_product(3, {weight, 1, stride}, sum(kToValues), 1);
}

}  // namespace

// Gradients of x and of the weights of q, k, v and o.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> split_attention_backward(
    const Tensor& given_gradient, const Tensor& given, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& o, bool is_causal, const std::optional<Tensor>& mask, double dropout, double scale,
    const std::optional<Tensor>& seed, const std::optional<Tensor>& cosines, const std::optional<Tensor>& sines,
    const Tensor& given_y, const Tensor& log_sums) {
  const int64_t batch = given.size(0), heads = q.size(0);
  const Tensor weights[4] = {q.contiguous(), k.contiguous(), v.contiguous(), o.contiguous()};
  const Tensor gradient = given_gradient.contiguous(), y = given_y.contiguous();
  Tensor x_gradient = at::empty(given.sizes(), given.options());
  Tensor gradients[4];
  for (int i = 0; i < 4; ++i) gradients[i] = at::empty(weights[i].sizes(), given.options());
  const Chunks chunks(given.numel() ? batch : 0, 1, 1, 16);
  const auto call = attention_call(given, heads, is_causal, mask, dropout, scale, seed, cosines, sines);
  Partials partials(chunks.count(), heads, WeightSums(call).size);
  with_number(given, [&](auto number) {
    using Number = decltype(number);
    const auto tiles = HeadWeights::make<Number>(weights[0], weights[1], weights[2], weights[3], call);
    for_each_piece(chunks.count(), heads, [&](int64_t chunk, int64_t head) {
      float* sums = partials.at(chunk, head);
      backward_piece<Number>(call, tiles, chunks, chunk, head, gradient, y, log_sums, x_gradient, sums);
    });
    for_each_piece(heads, 1, [&](int64_t head, int64_t) {
      Workspace workspace;
      float* sums = workspace.take(WeightSums(call).size);
      partials.sum(head, sums);
      unfold<Number>(call, sums, head, weights, gradients);
    });
  });
  return {x_gradient, gradients[0], gradients[1], gradients[2], gradients[3]};
}

}  // namespace smht
