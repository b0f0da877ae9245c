// split_decode on CPU: one new token of each sequence through all blocks of a decoder.
//
// Such a token's time is that of reading weights and cache, each number once. A block is two passes over (head,
// sequence), each shared out among threads: attention, then feed-forward. A pass reads one copy of the residual stream
// and writes another, so that every head can read all channels for its norm while others write theirs.
#include "decode.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <limits>

#include "activation.h"
#include "operators.h"
#include "partition.h"

namespace smht {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Mean and 1/deviation of `count` numbers.
struct Moments {
  float mean, factor;
  Moments(const float* x, int64_t count, float eps) {
    const auto sum_of = [&](auto term) {
      Vec sum(0.f);
      int64_t j = 0;
      for (; j + kLanes <= count; j += kLanes) sum = sum + term(Vec::loadu(x + j));
      float total = sum_of_lanes(sum);
      for (; j < count; ++j) {
        float lane[kLanes];
        term(Vec(x[j])).store(lane);
        total += lane[0];
      }
      return total;
    };
    mean = sum_of([](Vec x) { return x; }) / static_cast<float>(count);
    const float squares = sum_of([&](Vec x) { return (x - Vec(mean)) * (x - Vec(mean)); });
    factor = 1 / std::sqrt(squares / static_cast<float>(count) + eps);
  }
};

template <class Number>
void normalise(const DecodeCall<Number>& call, const Norm<Number>& norm, const float* x, float* y) {
  const int64_t groups = call.norm_per_head ? call.heads : 1, count = call.size / groups;
  Workspace workspace;
  float* gathered = workspace.take(count);
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t first = group * count;
    const int64_t* order = norm.order ? norm.order + first : nullptr;
    const float* source = x + first;
    if (order) {
      for (int64_t j = 0; j < count; ++j) gathered[j] = x[order[j]];
      source = gathered;
    }
    const Moments moments(source, count, call.eps);
    for (int64_t j = 0; j < count; ++j) {
      const int64_t channel = order ? order[j] : first + j;
      const float normal = (source[j] - moments.mean) * moments.factor;
      y[channel] = normal * static_cast<float>(norm.weight[channel]) + static_cast<float>(norm.bias[channel]);
    }
  }
}

// The rows of the residual stream [B, D] after a norm, each computed when it is first asked for; as they are without
// one.
template <class Number>
class NormedRows {
 public:
  NormedRows(Workspace& workspace, const DecodeCall<Number>& call, const Norm<Number>* norm, const float* x)
      : call_(call), norm_(norm), x_(x) {
    if (!norm) return;
    rows_ = workspace.take(call.batch * call.size);
    is_there_ = workspace.take(call.batch);
    clear(is_there_, call.batch);
  }
  const float* operator[](int64_t sequence) {
    if (!norm_) return x_ + sequence * call_.size;
    float* row = rows_ + sequence * call_.size;
    if (is_there_[sequence] == 0) normalise(call_, *norm_, x_ + sequence * call_.size, row);
    is_there_[sequence] = 1;
    return row;
  }

 private:
  const DecodeCall<Number>& call_;
  const Norm<Number>* norm_;
  const float* x_;
  float *rows_ = nullptr, *is_there_ = nullptr;
};

// y[out] = x[in]·W[h] + bias[h]
template <class Number>
void project(const float* x, int64_t in, const Number* weight, const Number* bias, int64_t head, int64_t out,
             float* y) {
  if (bias) load_row(bias + head * out, out, y);
  multiply_row<Number>(x, in, {weight + head * in * out, out}, out, y, bias != nullptr);
}

// Turns channel i with channel i + K/2.
inline void rotate(float* x, int64_t width, const float* cosines, const float* sines) {
  float *first = x, *second = x + width / 2;
  for (int64_t i = 0; i < width / 2; ++i) {
    const float a = first[i], b = second[i];
    first[i] = a * cosines[i] - b * sines[i];
    second[i] = b * cosines[i] + a * sines[i];
  }
}

// Calls run(first, last) for each stretch of allowed tokens among the first `count`.
template <class Run>
void for_each_run(const bool* mask, int64_t count, Run run) {
  if (!mask) return run(0, count);
  for (int64_t s = 0; s < count;) {
    const bool* first = std::find(mask + s, mask + count, true);
    const bool* last = std::find(first, mask + count, false);
    if (first != last) run(first - mask, last - mask);
    s = last - mask;
  }
}

// Scores become e^(score - maximum), zero in the padding. Returns 1 over their sum, or 0 where nothing is allowed.
inline float exponentiate(float* scores, int64_t count) {
  std::fill(scores + count, scores + padded(count), kNothing);
  Vec highest(kNothing), sum(0.f);
  for (int64_t j = 0; j < count; j += kLanes) highest = at::vec::maximum(highest, Vec::loadu(scores + j));
  const float maximum = at::vec::vec_reduce_all([](Vec& a, Vec& b) { return at::vec::maximum(a, b); }, highest);
  if (maximum == kNothing) return 0;
  for (int64_t j = 0; j < count; j += kLanes) {
    const Vec weight = exponential(Vec::loadu(scores + j) - Vec(maximum));
    weight.store(scores + j);
    sum = sum + weight;
  }
  return 1 / sum_of_lanes(sum);
}

template <class Number>
void attend(const DecodeCall<Number>& call, const BlockWeights<Number>& block, int64_t head, int64_t sequence,
            const float* x, float* y) {
  const int64_t width = call.width, tokens = call.past + 1;
  Workspace workspace;
  float* rows[] = {workspace.take(width), workspace.take(width), workspace.take(width)};
  for (const int i : {kQuery, kKey, kValue})
    project(x, width, block.projections[i], block.biases[i], head, width, rows[i]);
  if (const float* cosines = call.cosines(sequence))
    for (const int i : {kQuery, kKey}) rotate(rows[i], width, cosines, call.sines(sequence));
  store_row(rows[kKey], width, block.keys.at(sequence, head, call.past));
  store_row(rows[kValue], width, block.values.at(sequence, head, call.past));
  float *query = rows[kQuery], *scores = workspace.take(padded(tokens)), *mixed = rows[kKey];
  for (int64_t j = 0; j < width; ++j) query[j] *= call.scale;
  const bool* mask = call.mask(sequence);
  if (mask) std::fill(scores, scores + tokens, kNothing);
  for_each_run(mask, tokens, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) scores[s] = dot(query, block.keys.at(sequence, head, s), width);
  });
  const float factor = exponentiate(scores, tokens);
  clear(mixed, width);
  for_each_run(mask, tokens, [&](int64_t first, int64_t last) {
    const Matrix<Number> values{block.values.at(sequence, head, first), block.values.token};
    multiply_row(scores + first, last - first, values, width, mixed, true);
  });
  for (int64_t j = 0; j < width; ++j) mixed[j] *= factor;
  project(mixed, width, block.projections[kOutput], block.biases[kOutput], head, width, y);
}

template <class Activation>
void activate(float* x, int64_t count) {
  for (int64_t j = 0; j < count; j += kLanes) Activation::value(Vec::loadu(x + j)).store(x + j);
}

template <class Number>
class Decoder {
 public:
  Decoder(const DecodeCall<Number>& call, std::string_view activation) : call_(call) {
    with_activation(activation, [&](auto function) { activate_ = activate<decltype(function)>; });
  }

  // x [B, D] to y [B, D]
  void run(const Number* x, Number* y) {
    const int64_t count = call_.batch * call_.size;
    Workspace workspace;
    float *stream = workspace.take(count), *next = workspace.take(count);
    load_row(x, count, stream);
    for (const auto& block : call_.blocks) {
      pass(block, stream, next, [&](int64_t head, int64_t sequence, const float* input, float* output) {
        attend(call_, block, head, sequence, input, output);
      });
      pass(block, next, stream, [&](int64_t head, int64_t sequence, const float* input, float* output) {
        feed_forward(block, head, input, output);
      });
    }
    NormedRows<Number> rows(workspace, call_, &call_.norms.back(), stream);
    for (int64_t sequence = 0; sequence < call_.batch; ++sequence)
      store_row(rows[sequence], call_.size, y + sequence * call_.size);
  }

 private:
  // One sub-layer with its residual connection, x to y, both [B, D]. A norm after a sub-layer is computed by the next
  // one.
  template <class Work>
  void pass(const BlockWeights<Number>& block, const float* x, float* y, Work work) {
    const int64_t place = passed_++ - (call_.norm_after ? 1 : 0), batch = call_.batch, width = call_.width;
    const Norm<Number>* norm = place < 0 ? nullptr : &call_.norms[place];
    at::parallel_for(0, call_.heads * batch, 1, [&](int64_t begin, int64_t end) {
      Workspace workspace;
      NormedRows<Number> rows(workspace, call_, norm, x);
      float *input = workspace.take(width), *output = workspace.take(width);
      for (int64_t piece = begin; piece < end; ++piece) {
        // Sequences in the inner place: a head's weights stay in cache for all of them.
        const int64_t head = piece / batch, sequence = piece % batch, first = head * width;
        const float* row = rows[sequence];
        const float* residual = call_.norm_after ? row : x + sequence * call_.size;
        float* target = y + sequence * call_.size;
        if (!block.order) {
          work(head, sequence, row + first, output);
          for (int64_t j = 0; j < width; ++j) target[first + j] = residual[first + j] + output[j];
          continue;
        }
        const int64_t* order = block.order + first;
        for (int64_t j = 0; j < width; ++j) input[j] = row[order[j]];
        work(head, sequence, input, output);
        for (int64_t j = 0; j < width; ++j) target[order[j]] = residual[order[j]] + output[j];
      }
    });
  }

  void feed_forward(const BlockWeights<Number>& block, int64_t head, const float* x, float* y) {
    Workspace workspace;
    float* tile = workspace.take(padded(call_.hidden));
    project(x, call_.width, block.projections[kUp], block.biases[kUp], head, call_.hidden, tile);
    activate_(tile, call_.hidden);
    project(tile, call_.hidden, block.projections[kDown], block.biases[kDown], head, call_.width, y);
  }

  const DecodeCall<Number>& call_;
  void (*activate_)(float* x, int64_t count) = nullptr;
  int64_t passed_ = 0;
};

}  // namespace

Tensor split_decode(const Tensor& given, at::TensorList projections, at::TensorList biases, at::TensorList norm_weights,
                    at::TensorList norm_biases, at::TensorList orders, at::TensorList keys, at::TensorList values,
                    int64_t past, const std::optional<Tensor>& mask, const std::optional<Tensor>& cosines,
                    const std::optional<Tensor>& sines, std::string_view activation, double eps, bool norm_per_head,
                    bool norm_after, double scale) {
  TORCH_CHECK_VALUE(given.dim() == 2, "split_decode: x must be [B, D], got ", given.sizes());
  const Tensor x = given.contiguous();
  Tensor y = at::empty(x.sizes(), x.options());
  with_number(x, [&](auto number) {
    using Number = decltype(number);
    const DecodeCall<Number> call({x, projections, biases, norm_weights, norm_biases, orders, keys, values, past, mask,
                                   cosines, sines, eps, norm_per_head, norm_after, scale});
    Decoder<Number>(call, activation).run(x.const_data_ptr<Number>(), y.mutable_data_ptr<Number>());
  });
  return y;
}

}  // namespace smht
