// linear_cross_entropy on CPU: the logits of one block of tokens at a time, and the gradients right there.
//
// The loss is a sum, so its gradients are known up to a factor before anyone asks for them: three products in all,
// where backward would have to compute the logits again. Tokens stand in the lanes: a tile of logits is [V, kTokens],
// so softmax sums over rows, and neither the weight nor the logits are ever transposed.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "activation.h"
#include "operators.h"
#include "partition.h"

namespace smht {
namespace {

constexpr int64_t kTokens = 64;  // of a tile
constexpr int64_t kWords = 96;   // of a slice of the vocabulary: a multiple of the micro-kernel's rows
constexpr int64_t kLeastBlock = 512, kBlockLogits = 1 << 20;

// Softmax of the tokens of a tile over the words seen so far, slice by slice.
struct Softmax {
  alignas(64) float maximum[kTokens], sum[kTokens];
  Softmax() {
    std::fill_n(maximum, kTokens, -std::numeric_limits<float>::infinity());
    std::fill_n(sum, kTokens, 0.f);
  }
  // Logits of a slice become exponentials above the largest so far, which is put into `largest_yet`.
  void add(float* logits, int64_t words, int64_t columns, float* largest_yet) {
    for (int64_t j = 0; j < columns; j += kLanes) {
      const Vec before = Vec::loadu(maximum + j);
      Vec largest = before;
      for (int64_t i = 0; i < words; ++i) largest = at::vec::maximum(largest, Vec::loadu(logits + i * kTokens + j));
      // Where all logits so far are -inf, none is e^(-inf + inf).
      const Vec shift = Vec::blendv(largest, Vec(0.f), largest == Vec(-std::numeric_limits<float>::infinity()));
      Vec total = Vec::loadu(sum + j) * exponential(before - shift);
      for (int64_t i = 0; i < words; ++i) {
        float* at = logits + i * kTokens + j;
        const Vec above = exponential(Vec::loadu(at) - shift);
        above.store(at);
        total = total + above;
      }
      largest.store(maximum + j);
      shift.store(largest_yet + j);
      total.store(sum + j);
    }
  }
  // What `add` left of a slice becomes probabilities; zero in the lanes from `tokens` on.
  void normalise(float* exponentials, int64_t words, int64_t tokens, const float* largest_yet) const {
    for (int64_t j = 0; j < tokens; j += kLanes) {
      const Vec in_use = Vec::set(Vec(0.f), Vec(1.f), std::min(kLanes, tokens - j));
      const Vec scale = exponential(Vec::loadu(largest_yet + j) - Vec::loadu(maximum + j));
      const Vec factor = in_use * scale / Vec::loadu(sum + j);
      for (int64_t i = 0; i < words; ++i) {
        float* at = exponentials + i * kTokens + j;
        (Vec::loadu(at) * factor).store(at);
      }
    }
  }
};

struct Wanted {
  bool hidden, weight;
  bool any() const { return hidden || weight; }
};

// One call. Tokens are counted without those whose label is ignored; `places` says where they stand.
template <class Number>
class CrossEntropy {
  using Product = typename ProductOf<Number>::type;
  using Element = typename Product::Element;
  using Made = Operands<Product>;

 public:
  CrossEntropy(const Tensor& hidden, const Tensor& weight, const int64_t* labels, const std::vector<int64_t>& places,
               Wanted wanted, Tensor& hidden_gradient, Tensor& weight_sums)
      : hidden_(hidden),
        weight_(weight),
        labels_(labels),
        places_(places),
        wanted_(wanted),
        hidden_gradient_(hidden_gradient),
        weight_sums_(weight_sums),
        tokens_(places.size()),
        width_(weight.size(1)),
        words_(weight.size(0)),
        stride_(row_stride(width_)),
        losses_(places.size()) {
    const int64_t fitting = std::max(kLeastBlock, kBlockLogits / words_);
    block_ = std::min((fitting + kTokens - 1) / kTokens, (tokens_ + kTokens - 1) / kTokens);  // tiles
    if (!wanted.any()) return;
    logits_ = at::empty({block_ * words_ * kTokens}, at::kFloat);
    if (wanted.weight) rows_ = at::empty({block_ * kTokens * stride_}, at::kFloat);
  }

  double run() {
    const int64_t tiles = (tokens_ + kTokens - 1) / kTokens;
    for (int64_t first = 0; first < tiles; first += block_) {
      const int64_t count = std::min(block_, tiles - first);
      for_each_piece(count, 1, [&](int64_t tile, int64_t) { compute_tokens(first + tile, tile); });
      if (wanted_.weight)
        for_each_piece((words_ + kWords - 1) / kWords, 1,
                       [&](int64_t slice, int64_t) { add_to_weight(first, count, slice * kWords); });
    }
    double sum = 0;
    for (const double loss : losses_) sum += loss;
    return sum;
  }

 private:
  int64_t tokens_of(int64_t tile) const { return std::min(kTokens, tokens_ - tile * kTokens); }
  float* logits_of(int64_t slot) { return logits_.mutable_data_ptr<float>() + slot * words_ * kTokens; }
  Element* rows_of(int64_t slot) {
    return reinterpret_cast<Element*>(rows_.mutable_data_ptr<float>()) + slot * kTokens * stride_;
  }
  const Number* weight_row(int64_t word) const { return weight_.const_data_ptr<Number>() + word * weight_.stride(0); }

  // Losses of a tile of tokens, what their logits push back, and the gradient of their hidden states.
  void compute_tokens(int64_t tile, int64_t slot) {
    const int64_t count = tokens_of(tile);
    const int64_t* places = places_.data() + tile * kTokens;
    Workspace workspace;
    const bool keeps_rows = wanted_.weight && !Made::kCopies;
    float* hidden = keeps_rows ? reinterpret_cast<float*>(rows_of(slot)) : workspace.take(kTokens * stride_);
    for (int64_t i = 0; i < count; ++i)
      load_tile(hidden_.const_data_ptr<Number>() + places[i] * hidden_.stride(0), 0, 1, width_, hidden + i * stride_,
                stride_);
    if (wanted_.weight && Made::kCopies) Made::stacked(hidden, stride_, count, width_, rows_of(slot));

    OperandBuffer<Product> turned(workspace, kTokens, width_, true), weight_rows(workspace, kWords, width_);
    const auto right = turned.transposed(hidden, stride_, count, width_);
    float* weight_tile = workspace.take(kWords * stride_);
    float* logits = wanted_.any() ? logits_of(slot) : workspace.take(kWords * kTokens);
    float* largest_yet = workspace.take((words_ + kWords - 1) / kWords * kTokens);  // of each slice
    Softmax softmax;
    float labelled[kTokens];
    for (int64_t first = 0; first < words_; first += kWords) {
      const int64_t words = std::min(kWords, words_ - first);
      float* slice = wanted_.any() ? logits + first * kTokens : logits;
      const auto left = weight_left(first, words, weight_tile, weight_rows);
      multiply<Product>(words, count, Made::depth(width_), left, right, slice, kTokens, false);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t word = labels_[places[i]] - first;
        if (word >= 0 && word < words) labelled[i] = slice[word * kTokens + i];
      }
      softmax.add(slice, words, count, largest_yet + first / kWords * kTokens);
    }
    for (int64_t i = 0; i < count; ++i)
      losses_[tile * kTokens + i] = std::log(double(softmax.sum[i])) - (double(labelled[i]) - softmax.maximum[i]);
    if (!wanted_.any()) return;
    for (int64_t first = 0; first < words_; first += kWords)
      softmax.normalise(logits + first * kTokens, std::min(kWords, words_ - first), count,
                        largest_yet + first / kWords * kTokens);
    for (int64_t i = 0; i < count; ++i) logits[labels_[places[i]] * kTokens + i] -= 1.f;
    if (wanted_.hidden) compute_hidden_gradient(places, count, logits);
  }

  // dh = dlogits · W
  void compute_hidden_gradient(const int64_t* places, int64_t count, const float* pushed) {
    Workspace workspace;
    float *weight_tile = workspace.take(kWords * stride_), *gradient = workspace.take(kTokens * stride_);
    OperandBuffer<Product> weight_stack(workspace, kWords, width_), pushed_stack(workspace, kWords, kTokens);
    for (int64_t first = 0; first < words_; first += kWords) {
      const int64_t words = std::min(kWords, words_ - first);
      const auto left = pushed_stack.stacked(pushed + first * kTokens, kTokens, words, count).transposed_left();
      const auto right = weight_right(first, words, weight_tile, weight_stack);
      multiply<Product>(count, width_, Made::depth(words), left, right, gradient, stride_, first > 0);
    }
    for (int64_t i = 0; i < count; ++i)
      store_row(gradient + i * stride_, width_, hidden_gradient_.mutable_data_ptr<Number>() + places[i] * width_);
  }

  // Rows of the weight as the left side of a product, where they are, if they are numbers of the product.
  Left<Element> weight_left(int64_t word, int64_t words, float* tile, OperandBuffer<Product>& buffer) {
    if constexpr (std::is_same_v<Number, Element>)
      return {weight_row(word), weight_.stride(0), 1};
    else
      return buffer.rows_of(weight_row(word), weight_.stride(0), words, width_, tile, stride_);
  }

  // Rows of the weight as the right side of a product: where they are, if they are whole vectors.
  Right<Element> weight_right(int64_t word, int64_t words, float* tile, OperandBuffer<Product>& buffer) {
    if constexpr (std::is_same_v<Number, Element>)
      if (width_ % kLanes == 0) return {weight_row(word), weight_.stride(0)};
    load_tile(weight_row(word), weight_.stride(0), words, width_, tile, stride_);
    return buffer.stacked(tile, stride_, words, width_).right();
  }

  // dW += dlogitsᵀ · h of a block of tokens, for one slice of the vocabulary
  void add_to_weight(int64_t first_tile, int64_t tiles, int64_t word) {
    const int64_t words = std::min(kWords, words_ - word);
    Workspace workspace;
    float* sums = workspace.take(kWords * stride_);
    float* total = weight_sums_.mutable_data_ptr<float>() + word * width_;
    OperandBuffer<Product> pushed_rows(workspace, kWords, kTokens);
    if (first_tile > 0) load_tile(total, width_, words, width_, sums, stride_);
    for (int64_t slot = 0; slot < tiles; ++slot) {
      const int64_t count = tokens_of(first_tile + slot);
      const auto left = pushed_rows.rows(logits_of(slot) + word * kTokens, kTokens, words, count);
      const Right<Element> right{rows_of(slot), stride_};
      multiply<Product>(words, width_, Made::depth(count), left, right, sums, stride_, first_tile + slot > 0);
    }
    store_tile(sums, stride_, words, width_, total, width_);
  }

  const Tensor &hidden_, &weight_;
  const int64_t* labels_;
  const std::vector<int64_t>& places_;
  Wanted wanted_;
  Tensor &hidden_gradient_, &weight_sums_;
  int64_t tokens_, width_, words_, stride_, block_;
  Tensor logits_, rows_;  // of one block: [tiles, V, kTokens] and [tiles, kTokens, D] as the right side of a product
  std::vector<double> losses_;
};

// Where labels count.
std::vector<int64_t> places_of(const Tensor& labels, int64_t ignored, int64_t words) {
  std::vector<int64_t> places;
  places.reserve(labels.numel());
  const int64_t* label = labels.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < labels.numel(); ++i) {
    if (label[i] == ignored) continue;
    TORCH_CHECK_INDEX(label[i] >= 0 && label[i] < words, "label ", label[i], " is outside the vocabulary of ", words,
                      " tokens");
    places.push_back(i);
  }
  return places;
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> linear_cross_entropy(const Tensor& given, const Tensor& given_weight,
                                                        const Tensor& given_labels, int64_t ignored, bool wants_hidden,
                                                        bool wants_weight) {
  const Tensor hidden = as_rows(given), weight = as_rows(given_weight), labels = given_labels.reshape(-1).contiguous();
  const auto places = places_of(labels, ignored, weight.size(0));
  const auto new_gradient = [](bool wanted, const Tensor& like, bool is_written, at::TensorOptions options) {
    const std::vector<int64_t> sizes = wanted ? like.sizes().vec() : std::vector<int64_t>{0};
    return is_written ? at::empty(sizes, options) : at::zeros(sizes, options);
  };
  const bool all_count = int64_t(places.size()) == labels.numel();
  Tensor hidden_gradient = new_gradient(wants_hidden, given, all_count, given.options());
  Tensor weight_sums = new_gradient(wants_weight, weight, !places.empty(), at::kFloat);
  double loss = 0;
  if (!places.empty())
    with_number(hidden, [&](auto number) {
      loss = CrossEntropy<decltype(number)>(hidden, weight, labels.const_data_ptr<int64_t>(), places,
                                            {wants_hidden, wants_weight}, hidden_gradient, weight_sums)
                 .run();
    });
  return {at::full({}, loss, at::kFloat), hidden_gradient, weight_sums.to(given.scalar_type())};
}

}  // namespace smht
