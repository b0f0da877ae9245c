// permute_channels on CPU: y[..., j] = x[..., order[j]], bits moved and nothing else.
//
// Its gradient is written here too, as it is called for every sub-layer: through Python it took as long as the work.
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <vector>

#include "operators.h"
#include "partition.h"

namespace smht {
namespace {

constexpr int64_t kNumbersOfPiece = 1 << 15;  // fewer are not worth a thread

// Four at a time, read before any is written: else a compiler must take each write for a change of what is read next.
template <class Bits>
void permute_rows(const Bits* x, const std::vector<uint32_t>& order, int64_t rows, Bits* y) {
  const auto width = static_cast<int64_t>(order.size());
  const uint32_t* from = order.data();
  for (int64_t i = 0; i < rows; ++i, x += width, y += width) {
    int64_t j = 0;
    for (; j + 4 <= width; j += 4) {
      const Bits a = x[from[j]], b = x[from[j + 1]], c = x[from[j + 2]], d = x[from[j + 3]];
      y[j] = a;
      y[j + 1] = b;
      y[j + 2] = c;
      y[j + 3] = d;
    }
    for (; j < width; ++j) y[j] = x[from[j]];
  }
}

template <class Bits>
void permute(const Tensor& x, const std::vector<uint32_t>& order, Tensor& y) {
  const int64_t width = x.size(1), piece = std::max<int64_t>(1, kNumbersOfPiece / width);
  const auto* source = static_cast<const Bits*>(x.const_data_ptr());
  auto* target = static_cast<Bits*>(y.mutable_data_ptr());
  at::parallel_for(0, x.size(0), piece, [&](int64_t first, int64_t last) {
    permute_rows(source + first * width, order, last - first, target + first * width);
  });
}

std::vector<uint32_t> places_of(const Tensor& given, int64_t width) {
  const Tensor order = given.contiguous();
  const int64_t* place = order.const_data_ptr<int64_t>();
  TORCH_CHECK_VALUE(order.dim() == 1 && order.numel() == width, "order must be [", width, "], got ", order.sizes());
  std::vector<uint32_t> places(width);
  for (int64_t j = 0; j < width; ++j) {
    TORCH_CHECK_INDEX(place[j] >= 0 && place[j] < width, "channel ", place[j], " is not one of ", width);
    places[j] = static_cast<uint32_t>(place[j]);
  }
  return places;
}

Tensor permute_again(const Tensor& x, const Tensor& order, const Tensor& inverse) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("smht::permute_channels", "")
                             .typed<Tensor(const Tensor&, const Tensor&, const Tensor&)>();
  return op.call(x, order, inverse);
}

class Permutation : public torch::autograd::Function<Permutation> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& order,
                        const Tensor& inverse) {
    at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({order, inverse});
    return permute_again(x, order, inverse);
  }
  // The inverse permutation, and a part of the graph in its turn.
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {permute_again(gradients[0], saved[1], saved[0]), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor permute_channels(const Tensor& given, const Tensor& order, const Tensor&) {
  Tensor y = at::empty(given.sizes(), given.options());
  const auto places = places_of(order, given.size(-1));
  if (y.numel() == 0) return y;
  const Tensor x = given.reshape({-1, given.size(-1)}).contiguous();
  switch (given.element_size()) {
    case 1:
      permute<uint8_t>(x, places, y);
      break;
    case 2:
      permute<uint16_t>(x, places, y);
      break;
    case 4:
      permute<float>(x, places, y);
      break;
    case 8:
      permute<double>(x, places, y);
      break;
    default:
      TORCH_CHECK_TYPE(false, "permute_channels takes no ", given.scalar_type(), " on the CPU");
  }
  return y;
}

Tensor permute_channels_differentiably(const Tensor& x, const Tensor& order, const Tensor& inverse) {
  return Permutation::apply(x, order, inverse);
}

}  // namespace smht
