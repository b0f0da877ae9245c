// split_feed_forward on CPU: up, activation and down in one pass over (tokens, head), the hidden tile never leaves
// cache.
//
// Backward keeps nothing but the inputs and computes the hidden tile again: that is one product in seven, where keeping
// it would write and read F numbers a token.
#include <ATen/ops/empty.h>

#include <optional>
#include <tuple>

#include "activation.h"
#include "operators.h"
#include "partition.h"

namespace smht {
namespace {

constexpr int64_t kTokens = 48;          // rows of a tile: a multiple of the micro-kernel's rows
constexpr int64_t kBackwardTokens = 96;  // more, as each tile adds into the weights' gradients
constexpr int64_t kSlice = 256;          // hidden channels at a time
constexpr int64_t kLeastChunk = 480, kMostChunks = 16;

struct Shape {
  int64_t tokens, heads, width, hidden;  // M, H, K, G
  Chunks chunks;
  Shape(const Tensor& x, const Tensor& up)
      : tokens(x.size(0)),
        heads(up.size(0)),
        width(up.size(1)),
        hidden(up.size(2)),
        chunks(tokens, kBackwardTokens, kLeastChunk, kMostChunks) {}
};

template <class Number>
const Number* head_of(const std::optional<Tensor>& bias, int64_t head, int64_t width) {
  return bias ? bias->const_data_ptr<Number>() + head * width : nullptr;
}

// `tile` becomes the activation of itself and the bias, a row of fp32 numbers in whole vectors.
template <class Activation>
void activate(float* tile, int64_t stride, int64_t rows, int64_t columns, const float* bias) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; j += kLanes) {
      float* at = tile + i * stride + j;
      Activation::value(Vec::loadu(at) + Vec::loadu(bias + j)).store(at);
    }
}

// The same of `hidden`; `gradient` is multiplied by the slope there.
template <class Activation>
void activate_with_slope(float* hidden, float* gradient, int64_t stride, int64_t rows, int64_t columns,
                         const float* bias) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; j += kLanes) {
      const int64_t at = i * stride + j;
      const auto result = Activation::both(Vec::loadu(hidden + at) + Vec::loadu(bias + j));
      result.value.store(hidden + at);
      (Vec::loadu(gradient + at) * result.slope).store(gradient + at);
    }
}

// The two loops for one activation.
struct ActivationLoops {
  void (*value)(float* tile, int64_t stride, int64_t rows, int64_t columns, const float* bias);
  void (*value_and_slope)(float* hidden, float* gradient, int64_t stride, int64_t rows, int64_t columns,
                          const float* bias);
};

ActivationLoops loops_of(std::string_view name) {
  ActivationLoops loops{};
  with_activation(
      name, [&](auto function) { loops = {activate<decltype(function)>, activate_with_slope<decltype(function)>}; });
  return loops;
}

template <class Number>
void forward_piece(const Shape& shape, ActivationLoops activation, int64_t head, int64_t chunk, const Tensor& x,
                   const Tensor& up, const Tensor& down, const std::optional<Tensor>& up_bias,
                   const std::optional<Tensor>& down_bias, Tensor& y) {
  using Product = typename ProductOf<Number>::type;
  using Made = Operands<Product>;
  const int64_t width = shape.width, hidden = shape.hidden, all = shape.heads * width;
  const int64_t slice_width = std::min(kSlice, hidden);
  const int64_t x_stride = row_stride(width), h_stride = row_stride(slice_width), g_stride = row_stride(hidden);
  Workspace workspace;
  float* up_tile = workspace.take(width * g_stride);
  float* down_tile = workspace.take(hidden * x_stride);
  load_tile(up.const_data_ptr<Number>() + head * width * hidden, hidden, width, hidden, up_tile, g_stride);
  load_tile(down.const_data_ptr<Number>() + head * width * hidden, width, hidden, width, down_tile, x_stride);
  OperandBuffer<Product> up_buffer(workspace, width, hidden), down_buffer(workspace, hidden, width);
  const auto up_right = up_buffer.stacked(up_tile, g_stride, width, hidden).right();
  const auto down_right = down_buffer.stacked(down_tile, x_stride, hidden, width).right();

  float* x_tile = workspace.take(kTokens * x_stride);
  float* y_tile = workspace.take(kTokens * x_stride);
  float* h_tile = workspace.take(kTokens * h_stride);
  OperandBuffer<Product> x_buffer(workspace, kTokens, width), h_buffer(workspace, kTokens, slice_width);
  float* up_bias_row = workspace.take(g_stride);
  fill_tile(head_of<Number>(up_bias, head, hidden), 1, hidden, up_bias_row, g_stride);
  const auto* down_bias_row = head_of<Number>(down_bias, head, width);
  for (int64_t token = shape.chunks.first(chunk); token < shape.chunks.last(chunk); token += kTokens) {
    const int64_t rows = std::min(kTokens, shape.chunks.last(chunk) - token);
    const Number* source = x.const_data_ptr<Number>() + token * x.stride(0) + head * width;
    const auto x_left = x_buffer.rows_of(source, x.stride(0), rows, width, x_tile, x_stride);
    if (down_bias_row) fill_tile(down_bias_row, rows, width, y_tile, x_stride);
    for (int64_t first = 0; first < hidden; first += kSlice) {
      const int64_t columns = std::min(kSlice, hidden - first);
      for_each_panel(columns, [&](int64_t at, int64_t panel) {
        multiply<Product>(rows, panel, Made::depth(width), x_left, up_right.from_column(first + at), h_tile + at,
                          h_stride, false);
        activation.value(h_tile + at, h_stride, rows, panel, up_bias_row + first + at);
      });
      multiply<Product>(rows, width, Made::depth(columns), h_buffer.rows(h_tile, h_stride, rows, columns),
                        down_right.from(Made::depth(first)), y_tile, x_stride, first > 0 || down_bias_row != nullptr);
    }
    store_tile(y_tile, x_stride, rows, width, y.mutable_data_ptr<Number>() + token * all + head * width, all);
  }
}

// Where one head's sums begin in its partial buffer.
struct Sums {
  int64_t up_stride, down_stride, down, up_bias, down_bias, size;
  explicit Sums(const Shape& shape) {
    up_stride = row_stride(shape.hidden);
    down_stride = row_stride(shape.width);
    down = shape.width * up_stride;
    up_bias = down + shape.hidden * down_stride;
    down_bias = up_bias + up_stride;
    size = down_bias + down_stride + 4 * kLanes;
  }
};

template <class Number>
void backward_piece(const Shape& shape, ActivationLoops activation, int64_t head, int64_t chunk, const Tensor& gradient,
                    const Tensor& x, const Tensor& up, const Tensor& down, const std::optional<Tensor>& up_bias,
                    bool has_down_bias, Tensor& x_gradient, float* sums) {
  using Product = typename ProductOf<Number>::type;
  using Made = Operands<Product>;
  const int64_t width = shape.width, hidden = shape.hidden, all = shape.heads * width;
  const int64_t slice_width = std::min(kSlice, hidden);
  const int64_t x_stride = row_stride(width), h_stride = row_stride(slice_width), g_stride = row_stride(hidden);
  const Sums at(shape);
  clear(sums, at.size);
  Workspace workspace;
  float* up_tile = workspace.take(width * g_stride);
  float* down_tile = workspace.take(hidden * x_stride);
  load_tile(up.const_data_ptr<Number>() + head * width * hidden, hidden, width, hidden, up_tile, g_stride);
  load_tile(down.const_data_ptr<Number>() + head * width * hidden, width, hidden, width, down_tile, x_stride);
  OperandBuffer<Product> up_buffer(workspace, width, hidden), turned_up_buffer(workspace, width, hidden, true);
  OperandBuffer<Product> turned_down_buffer(workspace, hidden, width, true);
  const auto up_right = up_buffer.stacked(up_tile, g_stride, width, hidden).right();
  const auto turned_up = turned_up_buffer.transposed(up_tile, g_stride, width, hidden);        // [G, K]
  const auto turned_down = turned_down_buffer.transposed(down_tile, x_stride, hidden, width);  // [K, G]

  float* x_tile = workspace.take(kBackwardTokens * x_stride);
  float* dy_tile = workspace.take(kBackwardTokens * x_stride);
  float* dx_tile = workspace.take(kBackwardTokens * x_stride);
  float* h_tile = workspace.take(kBackwardTokens * h_stride);
  float* dh_tile = workspace.take(kBackwardTokens * h_stride);
  using Buffer = OperandBuffer<Product>;
  Buffer x_rows(workspace, kBackwardTokens, width), dy_rows(workspace, kBackwardTokens, width);
  Buffer x_stack(workspace, kBackwardTokens, width), dy_stack(workspace, kBackwardTokens, width);
  Buffer h_stack(workspace, kBackwardTokens, slice_width), dh_stack(workspace, kBackwardTokens, slice_width);
  Buffer dh_rows(workspace, kBackwardTokens, slice_width);
  float* up_bias_row = workspace.take(g_stride);
  fill_tile(head_of<Number>(up_bias, head, hidden), 1, hidden, up_bias_row, g_stride);
  for (int64_t token = shape.chunks.first(chunk); token < shape.chunks.last(chunk); token += kBackwardTokens) {
    const int64_t rows = std::min(kBackwardTokens, shape.chunks.last(chunk) - token);
    const Number* x_source = x.const_data_ptr<Number>() + token * x.stride(0) + head * width;
    const Number* dy_source = gradient.const_data_ptr<Number>() + token * gradient.stride(0) + head * width;
    load_tile(x_source, x.stride(0), rows, width, x_tile, x_stride);
    load_tile(dy_source, gradient.stride(0), rows, width, dy_tile, x_stride);
    const auto x_left = x_rows.loaded_rows(x_source, x.stride(0), rows, width, x_tile, x_stride);
    const auto dy_left = dy_rows.loaded_rows(dy_source, gradient.stride(0), rows, width, dy_tile, x_stride);
    const auto x_stacked = x_stack.stacked(x_tile, x_stride, rows, width);
    const auto dy_stacked = dy_stack.stacked(dy_tile, x_stride, rows, width);
    if (has_down_bias) add_column_sums(dy_tile, x_stride, rows, width, sums + at.down_bias);
    for (int64_t first = 0; first < hidden; first += kSlice) {
      const int64_t columns = std::min(kSlice, hidden - first);
      for_each_panel(columns, [&](int64_t j, int64_t panel) {
        multiply<Product>(rows, panel, Made::depth(width), x_left, up_right.from_column(first + j), h_tile + j,
                          h_stride, false);
        multiply<Product>(rows, panel, Made::depth(width), dy_left, turned_down.from_column(first + j), dh_tile + j,
                          h_stride, false);
        activation.value_and_slope(h_tile + j, dh_tile + j, h_stride, rows, panel, up_bias_row + first + j);
      });
      // dW2 += hᵀ·dy, dx += du·W1ᵀ, dW1 += xᵀ·du
      multiply<Product>(columns, width, Made::depth(rows),
                        h_stack.stacked(h_tile, h_stride, rows, columns).transposed_left(), dy_stacked.right(),
                        sums + at.down + first * at.down_stride, at.down_stride, true);
      multiply<Product>(rows, width, Made::depth(columns), dh_rows.rows(dh_tile, h_stride, rows, columns),
                        turned_up.from(Made::depth(first)), dx_tile, x_stride, first > 0);
      multiply<Product>(width, columns, Made::depth(rows), x_stacked.transposed_left(),
                        dh_stack.stacked(dh_tile, h_stride, rows, columns).right(), sums + first, at.up_stride, true);
      if (up_bias) add_column_sums(dh_tile, h_stride, rows, columns, sums + at.up_bias + first);
    }
    store_tile(dx_tile, x_stride, rows, width, x_gradient.mutable_data_ptr<Number>() + token * all + head * width, all);
  }
}

template <class Number>
void write_sums(const Shape& shape, int64_t head, const float* sums, Tensor& up, Tensor& down, Tensor& up_bias,
                Tensor& down_bias) {
  const Sums at(shape);
  const int64_t width = shape.width, hidden = shape.hidden;
  store_tile(sums, at.up_stride, width, hidden, up.mutable_data_ptr<Number>() + head * width * hidden, hidden);
  store_tile(sums + at.down, at.down_stride, hidden, width, down.mutable_data_ptr<Number>() + head * width * hidden,
             width);
  if (up_bias.numel()) store_row(sums + at.up_bias, hidden, up_bias.mutable_data_ptr<Number>() + head * hidden);
  if (down_bias.numel()) store_row(sums + at.down_bias, width, down_bias.mutable_data_ptr<Number>() + head * width);
}

template <class Number>
void run_backward(const Shape& shape, ActivationLoops activation, const Tensor& gradient, const Tensor& x,
                  const Tensor& up, const Tensor& down, const std::optional<Tensor>& up_bias, Tensor& x_gradient,
                  Tensor& up_gradient, Tensor& down_gradient, Tensor& up_bias_gradient, Tensor& down_bias_gradient) {
  const int64_t chunks = shape.chunks.count();
  const auto piece = [&](int64_t head, int64_t chunk, float* sums) {
    backward_piece<Number>(shape, activation, head, chunk, gradient, x, up, down, up_bias,
                           down_bias_gradient.numel() > 0, x_gradient, sums);
  };
  if (chunks == 1) {  // no partial sums to keep
    for_each_piece(shape.heads, 1, [&](int64_t head, int64_t chunk) {
      Workspace workspace;
      float* sums = workspace.take(Sums(shape).size);
      piece(head, chunk, sums);
      write_sums<Number>(shape, head, sums, up_gradient, down_gradient, up_bias_gradient, down_bias_gradient);
    });
    return;
  }
  Partials partials(chunks, shape.heads, Sums(shape).size);
  for_each_piece(shape.heads, chunks,
                 [&](int64_t head, int64_t chunk) { piece(head, chunk, partials.at(chunk, head)); });
  for_each_piece(shape.heads, 1, [&](int64_t head, int64_t) {
    Workspace workspace;
    float* sums = workspace.take(Sums(shape).size);
    partials.sum(head, sums);
    write_sums<Number>(shape, head, sums, up_gradient, down_gradient, up_bias_gradient, down_bias_gradient);
  });
}

}  // namespace

Tensor split_feed_forward(const Tensor& given, const Tensor& given_up, const Tensor& given_down,
                          std::string_view activation, const std::optional<Tensor>& up_bias,
                          const std::optional<Tensor>& down_bias) {
  Tensor y = at::empty(given.sizes(), given.options());
  if (given.numel() == 0) return y;
  const Tensor x = as_rows(given), up = given_up.contiguous(), down = given_down.contiguous();
  const auto up_row = up_bias ? std::optional(up_bias->contiguous()) : std::nullopt;
  const auto down_row = down_bias ? std::optional(down_bias->contiguous()) : std::nullopt;
  const Shape shape(x, up);
  const auto loops = loops_of(activation);
  with_number(x, [&](auto number) {
    for_each_piece(shape.heads, shape.chunks.count(), [&](int64_t head, int64_t chunk) {
      forward_piece<decltype(number)>(shape, loops, head, chunk, x, up, down, up_row, down_row, y);
    });
  });
  return y;
}

// Gradients of x, W1, W2 and the biases; a bias that is not there gets an empty one.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> split_feed_forward_backward(
    const Tensor& given_gradient, const Tensor& given, const Tensor& given_up, const Tensor& given_down,
    std::string_view activation, const std::optional<Tensor>& up_bias, bool has_down_bias) {
  const Tensor gradient = as_rows(given_gradient), x = as_rows(given);
  const Tensor up = given_up.contiguous(), down = given_down.contiguous();
  const auto up_row = up_bias ? std::optional(up_bias->contiguous()) : std::nullopt;
  const Shape shape(x, up);
  const auto options = given.options();
  Tensor x_gradient = at::empty(given.sizes(), options);
  Tensor up_gradient = at::empty(up.sizes(), options), down_gradient = at::empty(down.sizes(), options);
  Tensor up_bias_gradient = at::empty({up_bias ? shape.heads * shape.hidden : 0}, options);
  Tensor down_bias_gradient = at::empty({has_down_bias ? shape.heads * shape.width : 0}, options);
  with_number(x, [&](auto number) {
    run_backward<decltype(number)>(shape, loops_of(activation), gradient, x, up, down, up_row, x_gradient, up_gradient,
                                   down_gradient, up_bias_gradient, down_bias_gradient);
  });
  return {x_gradient, up_gradient, down_gradient, up_bias_gradient, down_bias_gradient};
}

}  // namespace smht
