// split_attention on CPU, backward: weights recomputed tile by tile from log Σ e^score (arXiv:2205.14135, algorithm 4).
//
// With W the attention weights after dropout and dy the gradient of the output, in the names of attention.h:
//     dS = P ∘ (dP - (dy·y)),  dP = dy·uᵀ ∘ dropout        du = Wᵀ·dy        dq = dS·x
//     dx = dSᵀ·q + dq·Aᵀ + du·Cᵀ        dA = xᵀ·dq        dC = xᵀ·du
//     dW_Q = scale · dA·W_K        dW_K = scale · dAᵀ·W_Q        dW_V = dC·W_Oᵀ        dW_O = W_Vᵀ·dC
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
      : size(call.tokens * row_stride(call.width)), dy(workspace.take(size)), dq(workspace.take(size)),
        du(workspace.take(size)), dx(workspace.take(size)), along(workspace.take(call.tokens)),
        dy_rows(workspace, call.tokens, call.width), dy_stack(workspace, call.tokens, call.width),
        x_stack(workspace, call.tokens, call.width), q_stack(workspace, call.tokens, call.width),
        u_turned(workspace, call.tokens, call.width, true), added_rows(workspace, call.tokens, call.width),
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
    dy_left = dy_rows.rows(dy, stride, tokens, width);
    dy_stacked = dy_stack.stacked(dy, stride, tokens, width);
    x_stacked = x_stack.stacked(head.x, stride, tokens, width);
    q_stacked = q_stack.stacked(head.q, stride, tokens, width);
    values = u_turned.transposed(head.u, stride, tokens, width);
  }

  int64_t size;
  float *dy, *dq, *du, *dx, *along;  // along[t] = dy[t]·y[t]
  Buffer dy_rows, dy_stack, x_stack, q_stack, u_turned, added_rows, added_stack;
  Left<Element> dy_left{};
  Stacked<Element> dy_stacked{}, x_stacked{}, q_stacked{};
  Right<Element> values{};
};

// Adds one tile of scores' part to dq, du and dx.
template <class Number>
class TileBackward {
  using Product = typename Head<Number>::Product;
  using Made = Operands<Product>;

 public:
  explicit TileBackward(Workspace& workspace)
      : weights_(workspace.take(kQueries * kStride)), slopes_(workspace.take(kQueries * kStride)),
        factors_(workspace.take(kKeys)), weight_stack_(workspace, kQueries, kKeys),
        slope_stack_(workspace, kQueries, kKeys), slope_rows_(workspace, kQueries, kKeys) {}

  void add(const AttentionCall& call, const Mask& mask, const Head<Number>& head, GradientHead<Number>& given,
           uint64_t first_row, const float* log_sums, int64_t t, int64_t rows, int64_t s, int64_t columns) {
    const int64_t width = head.width, stride = head.stride;
    head.scores(call, mask, t, rows, s, columns, weights_, kStride);
    multiply<Product>(rows, columns, Made::depth(width), given.dy_left.from(t, 0), given.values.from_column(s), slopes_,
                      kStride, false);
    for (int64_t i = 0; i < rows; ++i)
      differentiate_row(call, first_row + t + i, s, columns, log_sums[t + i], given.along[t + i], i);
    const auto weight_left = weight_stack_.stacked(weights_, kStride, rows, columns).transposed_left();
    const auto slope_left = slope_stack_.stacked(slopes_, kStride, rows, columns).transposed_left();
    const int64_t depth = Made::depth(rows), at = Made::depth(t);
    multiply<Product>(columns, width, depth, weight_left, given.dy_stacked.right().from(at), given.du + s * stride, stride,
                      true);
    multiply<Product>(columns, width, depth, slope_left, given.q_stacked.right().from(at), given.dx + s * stride, stride,
                      true);
    multiply<Product>(rows, width, Made::depth(columns), slope_rows_.rows(slopes_, kStride, rows, columns),
                      given.x_stacked.right().from(Made::depth(s)), given.dq + t * stride, stride, true);
  }

 private:
  // Scores become weights, after dropout, and gradients of weights those of scores.
  void differentiate_row(const AttentionCall& call, uint64_t row, int64_t s, int64_t columns, float log_sum, float along,
                         int64_t i) {
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

// Sums of one head over a chunk of sequences: dA, then dC, as tiles.
struct WeightSums {
  int64_t values, size;
  explicit WeightSums(int64_t width) : values(width * row_stride(width)), size(2 * values + kLanes) {}
};

template <class Number>
void backward_piece(const AttentionCall& call, const FoldedWeights& weights, const Chunks& chunks, int64_t chunk,
                    int64_t index, const Tensor& gradient, const Tensor& y, const Tensor& log_sums, Tensor& x_gradient,
                    float* sums) {
  using Product = typename Head<Number>::Product;
  using Made = Operands<Product>;
  Workspace workspace;
  Head<Number> head(workspace, call);
  GradientHead<Number> given(workspace, call);
  TileBackward<Number> tile(workspace);
  const int64_t tokens = call.tokens, width = call.width, stride = head.stride, row = call.heads * width;
  OperandBuffer<Product> turned_scores(workspace, width, width, true), turned_values(workspace, width, width, true);
  const auto scores_back = turned_scores.transposed(weights.scores(index), stride, width, width);
  const auto values_back = turned_values.transposed(weights.values(index), stride, width, width);
  head.set_weights(weights, index);
  clear(sums, WeightSums(width).size);
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
          tile.add(call, mask, head, given, first_row, log_sums.const_data_ptr<float>() + first_row, t, rows, s, columns);
      }
    }
    const auto x_back = given.x_stacked.transposed_left();
    for (const bool of_values : {false, true}) {
      const float* added = of_values ? given.du : given.dq;
      multiply<Product>(tokens, width, Made::depth(width), given.added_rows.rows(added, stride, tokens, width),
                        of_values ? values_back : scores_back, given.dx, stride, true);
      multiply<Product>(width, width, Made::depth(tokens), x_back,
                        given.added_stack.stacked(added, stride, tokens, width).right(),
                        sums + (of_values ? WeightSums(width).values : 0), stride, true);
    }
    store_tile(given.dx, stride, tokens, width, x_gradient.mutable_data_ptr<Number>() + place, row);
  }
}

// From dA and dC of one head to the gradients of its four weights.
template <class Number>
void unfold(const float* sums, float scale, int64_t head, const Tensor (&weights)[4], Tensor (&gradients)[4]) {
  const int64_t width = weights[0].size(1), stride = row_stride(width), size = width * stride;
  Workspace workspace;
  float *weight = workspace.take(size), *turned = workspace.take(size), *result = workspace.take(size);
  const float* values = sums + WeightSums(width).values;
  const auto write = [&](int64_t which, Left<float> left, const float* right, float factor) {
    multiply<FloatProduct>(width, width, width, left, {right, stride}, result, stride, false);
    for (int64_t i = 0; i < size; ++i) result[i] *= factor;
    store_tile(result, stride, width, width, gradients[which].mutable_data_ptr<Number>() + head * width * width, width);
  };
  load_head<Number>(weights[1], head, weight);
  write(0, {sums, stride, 1}, weight, scale);
  load_head<Number>(weights[0], head, weight);
  write(1, {sums, 1, stride}, weight, scale);
  load_head<Number>(weights[3], head, weight);
  transpose_tile(weight, stride, width, width, turned, stride);
  write(2, {values, stride, 1}, turned, 1);
  load_head<Number>(weights[2], head, weight);
  write(3, {weight, 1, stride}, values, 1);
}

}  // namespace

// Gradients of x and of the weights of q, k, v and o.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> split_attention_backward(const Tensor& given_gradient, const Tensor& given,
                                                            const Tensor& q, const Tensor& k, const Tensor& v,
                                                            const Tensor& o, bool is_causal,
                                                            const std::optional<Tensor>& mask, double dropout,
                                                            double scale, const std::optional<Tensor>& seed,
                                                            const Tensor& given_y, const Tensor& log_sums) {
  const int64_t batch = given.size(0), heads = q.size(0), width = q.size(1);
  const Tensor weights[4] = {q.contiguous(), k.contiguous(), v.contiguous(), o.contiguous()};
  const Tensor gradient = given_gradient.contiguous(), y = given_y.contiguous();
  Tensor x_gradient = at::empty(given.sizes(), given.options());
  Tensor gradients[4];
  for (int i = 0; i < 4; ++i) gradients[i] = at::empty(weights[i].sizes(), given.options());
  const Chunks chunks(given.numel() ? batch : 0, 1, 1, 16);
  Partials partials(chunks.count(), heads, WeightSums(width).size);
  const auto call = attention_call(given, heads, is_causal, mask, dropout, scale, seed);
  with_number(given, [&](auto number) {
    using Number = decltype(number);
    const auto folded = FoldedWeights::make<Number>(weights[0], weights[1], weights[2], weights[3], call.scale);
    for_each_piece(chunks.count(), heads, [&](int64_t chunk, int64_t head) {
      backward_piece<Number>(call, folded, chunks, chunk, head, gradient, y, log_sums, x_gradient, partials.at(chunk, head));
    });
    for_each_piece(heads, 1, [&](int64_t head, int64_t) {
      Workspace workspace;
      float* sums = workspace.take(WeightSums(width).size);
      partials.sum(head, sums);
      unfold<Number>(sums, call.scale, head, weights, gradients);
    });
  });
  return {x_gradient, gradients[0], gradients[1], gradients[2], gradients[3]};
}

}  // namespace smht
