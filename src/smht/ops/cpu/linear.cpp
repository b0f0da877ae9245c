// split_linear on CPU: one product a head, tile of tokens by tile of tokens.
#include <ATen/ops/empty.h>

#include <optional>
#include <tuple>

#include "operators.h"
#include "partition.h"

namespace smht {
namespace {

constexpr int64_t kTokens = 96;  // rows of a tile: a multiple of the micro-kernel's rows
constexpr int64_t kLeastChunk = 480, kMostChunks = 16;

struct Shape {
  int64_t heads, in, out;  // H, I, O
  Chunks chunks;
  Shape(const Tensor& x, const Tensor& weight)
      : heads(weight.size(0)),
        in(weight.size(1)),
        out(weight.size(2)),
        chunks(x.size(0), kTokens, kLeastChunk, kMostChunks) {}
};

template <class Number>
void forward_piece(const Shape& shape, int64_t head, int64_t chunk, const Tensor& x, const Tensor& weight,
                   const std::optional<Tensor>& bias, Tensor& y) {
  using Product = typename ProductOf<Number>::type;
  const int64_t in = shape.in, out = shape.out, x_stride = row_stride(in), y_stride = row_stride(out);
  const int64_t all = shape.heads * out;
  Workspace workspace;
  float *weight_tile = workspace.take(in * y_stride), *x_tile = workspace.take(kTokens * x_stride);
  float* y_tile = workspace.take(kTokens * y_stride);
  OperandBuffer<Product> weight_stack(workspace, in, out), x_rows(workspace, kTokens, in);
  load_tile(weight.const_data_ptr<Number>() + head * in * out, out, in, out, weight_tile, y_stride);
  const auto right = weight_stack.stacked(weight_tile, y_stride, in, out).right();
  const Number* bias_row = bias ? bias->const_data_ptr<Number>() + head * out : nullptr;
  for (int64_t token = shape.chunks.first(chunk); token < shape.chunks.last(chunk); token += kTokens) {
    const int64_t rows = std::min(kTokens, shape.chunks.last(chunk) - token);
    const Number* source = x.const_data_ptr<Number>() + token * x.stride(0) + head * in;
    const auto left = x_rows.rows_of(source, x.stride(0), rows, in, x_tile, x_stride);
    if (bias_row) fill_tile(bias_row, rows, out, y_tile, y_stride);
    multiply<Product>(rows, out, Operands<Product>::depth(in), left, right, y_tile, y_stride, bias_row != nullptr);
    store_tile(y_tile, y_stride, rows, out, y.mutable_data_ptr<Number>() + token * all + head * out, all);
  }
}

// One head's sums over a chunk of tokens: dW as a tile, then the gradient of the bias.
struct Sums {
  int64_t bias, size;
  explicit Sums(const Shape& shape)
      : bias(shape.in * row_stride(shape.out)), size(bias + padded(shape.out) + 4 * kLanes) {}
};

template <class Number>
void backward_piece(const Shape& shape, int64_t head, int64_t chunk, const Tensor& gradient, const Tensor& x,
                    const Tensor& weight, Tensor& x_gradient, float* sums) {
  using Product = typename ProductOf<Number>::type;
  using Made = Operands<Product>;
  const int64_t in = shape.in, out = shape.out, x_stride = row_stride(in), y_stride = row_stride(out);
  const int64_t all = shape.heads * in;
  clear(sums, Sums(shape).size);
  Workspace workspace;
  float *weight_tile = workspace.take(in * y_stride), *x_tile = workspace.take(kTokens * x_stride);
  float *dy_tile = workspace.take(kTokens * y_stride), *dx_tile = workspace.take(kTokens * x_stride);
  OperandBuffer<Product> turned(workspace, in, out, true), dy_rows(workspace, kTokens, out);
  OperandBuffer<Product> dy_stack(workspace, kTokens, out), x_stack(workspace, kTokens, in);
  load_tile(weight.const_data_ptr<Number>() + head * in * out, out, in, out, weight_tile, y_stride);
  const auto weight_back = turned.transposed(weight_tile, y_stride, in, out);
  for (int64_t token = shape.chunks.first(chunk); token < shape.chunks.last(chunk); token += kTokens) {
    const int64_t rows = std::min(kTokens, shape.chunks.last(chunk) - token);
    load_tile(x.const_data_ptr<Number>() + token * x.stride(0) + head * in, x.stride(0), rows, in, x_tile, x_stride);
    load_tile(gradient.const_data_ptr<Number>() + token * gradient.stride(0) + head * out, gradient.stride(0), rows,
              out, dy_tile, y_stride);
    multiply<Product>(rows, in, Made::depth(out), dy_rows.rows(dy_tile, y_stride, rows, out), weight_back, dx_tile,
                      x_stride, false);
    multiply<Product>(in, out, Made::depth(rows), x_stack.stacked(x_tile, x_stride, rows, in).transposed_left(),
                      dy_stack.stacked(dy_tile, y_stride, rows, out).right(), sums, y_stride, true);
    add_column_sums(dy_tile, y_stride, rows, out, sums + Sums(shape).bias);
    store_tile(dx_tile, x_stride, rows, in, x_gradient.mutable_data_ptr<Number>() + token * all + head * in, all);
  }
}

}  // namespace

Tensor split_linear(const Tensor& given, const Tensor& given_weight, const std::optional<Tensor>& bias) {
  auto sizes = given.sizes().vec();
  sizes.back() = given_weight.size(0) * given_weight.size(2);
  Tensor y = at::empty(sizes, given.options());
  if (y.numel() == 0) return y;
  const Tensor x = as_rows(given), weight = given_weight.contiguous();
  const auto bias_row = bias ? std::optional(bias->contiguous()) : std::nullopt;
  const Shape shape(x, weight);
  with_number(x, [&](auto number) {
    for_each_piece(shape.heads, shape.chunks.count(), [&](int64_t head, int64_t chunk) {
      forward_piece<decltype(number)>(shape, head, chunk, x, weight, bias_row, y);
    });
  });
  return y;
}

// Gradients of x, the weight and the bias; a bias that is not there gets an empty one.
std::tuple<Tensor, Tensor, Tensor> split_linear_backward(const Tensor& given_gradient, const Tensor& given,
                                                         const Tensor& given_weight, bool has_bias) {
  const Tensor gradient = as_rows(given_gradient), x = as_rows(given), weight = given_weight.contiguous();
  const Shape shape(x, weight);
  Tensor x_gradient = at::empty(given.sizes(), given.options());
  Tensor weight_gradient = at::empty(weight.sizes(), given.options());
  Tensor bias_gradient = at::empty({has_bias ? shape.heads * shape.out : 0}, given.options());
  Partials partials(shape.chunks.count(), shape.heads, Sums(shape).size);
  with_number(x, [&](auto number) {
    using Number = decltype(number);
    for_each_piece(shape.heads, shape.chunks.count(), [&](int64_t head, int64_t chunk) {
      backward_piece<Number>(shape, head, chunk, gradient, x, weight, x_gradient, partials.at(chunk, head));
    });
    for_each_piece(shape.heads, 1, [&](int64_t head, int64_t) {
      Workspace workspace;
      float* sums = workspace.take(Sums(shape).size);
      partials.sum(head, sums);
      store_tile(sums, row_stride(shape.out), shape.in, shape.out,
                 weight_gradient.mutable_data_ptr<Number>() + head * shape.in * shape.out, shape.out);
      if (has_bias)
        store_row(sums + Sums(shape).bias, shape.out, bias_gradient.mutable_data_ptr<Number>() + head * shape.out);
    });
  });
  return {x_gradient, weight_gradient, bias_gradient};
}

}  // namespace smht
