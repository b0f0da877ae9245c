// The activations of smht.ops.activation with their slopes, and the exponential that they and softmax need.
#pragma once

#include <c10/util/Exception.h>

#include <string_view>

#include "matmul.h"

namespace smht {

// 2^r on [-1/2, 1/2] to 1e-8: its polynomial through the Chebyshev points, without the 1.
constexpr float kPower[] = {0.69314718f, 0.24022651f, 0.055503570f, 0.0096180830f, 0.0013390863f, 0.00015453163f};

// e^x = 2^n · 2^r, |r| <= 1/2. Relative error 1e-7 · (1 + |x|); e^(-inf) is exactly 0.
inline Vec exponential(Vec x) {
  Vec t = x * Vec(1.44269504088896341f);
#if defined(CPU_CAPABILITY_AVX512)
  t = at::vec::clamp_min(t, Vec(-160.f));
#else
  const Vec given = t;
  t = at::vec::clamp(t, Vec(-126.f), Vec(127.f));
#endif
  const Vec n = t.round(), r = t - n;
  Vec p = at::vec::fmadd(Vec(kPower[5]), r, Vec(kPower[4]));
  for (int i = 3; i >= 0; --i) p = at::vec::fmadd(p, r, Vec(kPower[i]));
  p = at::vec::fmadd(p, r, Vec(1.f));
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_scalef_ps(p, n);
#else
  const auto exponent = at::vec::convert_to_int_of_same_size(n) + at::vec::Vectorized<int32_t>(127);
  const Vec power = at::vec::cast<float>(exponent << at::vec::Vectorized<int32_t>(23));
  return Vec::blendv(p * power, Vec(0.f), given < Vec(-126.f));
#endif
}

inline Vec sigmoid(Vec x) { return Vec(1.f) / (Vec(1.f) + exponential(x.neg())); }

struct ValueAndSlope {
  Vec value, slope;
};

struct Gelu {  // x·Φ(x)
  // Φ to 1e-7: half of 1 + erf(x/√2), erf the quotient of polynomials in Eigen, which is 1 beyond ±4.
  static Vec distribution(Vec x) {
    x = at::vec::clamp(x, Vec(-5.6568542f), Vec(5.6568542f));
    const Vec s = x * x;
    Vec p = at::vec::fmadd(Vec(-1.50599506e-12f), s, Vec(3.06119941e-10f));
    p = at::vec::fmadd(p, s, Vec(-4.64265104e-08f));
    p = at::vec::fmadd(p, s, Vec(-2.51575617e-06f));
    p = at::vec::fmadd(p, s, Vec(-6.49646074e-05f));
    p = at::vec::fmadd(p, s, Vec(-0.00052230439f));
    p = at::vec::fmadd(p, s, Vec(-0.00569080716f));
    Vec q = at::vec::fmadd(Vec(-9.1037949e-07f), s, Vec(-2.66717569e-05f));
    q = at::vec::fmadd(q, s, Vec(-0.000420706744f));
    q = at::vec::fmadd(q, s, Vec(-0.00368666458f));
    q = at::vec::fmadd(q, s, Vec(-0.0142647391f));
    return at::vec::clamp_min(Vec(0.5f) + x * p / q, Vec(0.f));
  }
  static Vec value(Vec x) { return x * distribution(x); }
  static ValueAndSlope both(Vec x) {
    const Vec below = distribution(x), density = exponential(x * x * Vec(-0.5f)) * Vec(0.39894228040143268f);
    return {x * below, at::vec::fmadd(x, density, below)};
  }
};

struct GeluTanh {  // x/2 · (1 + tanh(y)) = x · sigmoid(2y), y = √(2/π) (x + 0.044715 x³)
  static constexpr float kFactor = 1.5957691216057308f, kCube = 0.044715f;
  static Vec share(Vec x) { return sigmoid(x * at::vec::fmadd(x * x, Vec(kFactor * kCube), Vec(kFactor))); }
  static Vec value(Vec x) { return x * share(x); }
  static ValueAndSlope both(Vec x) {
    const Vec s = share(x), steepness = at::vec::fmadd(x * x, Vec(3 * kFactor * kCube), Vec(kFactor));
    return {x * s, at::vec::fmadd(x * steepness, s * (Vec(1.f) - s), s)};
  }
};

struct Relu {
  static Vec value(Vec x) { return at::vec::maximum(x, Vec(0.f)); }
  static ValueAndSlope both(Vec x) { return {value(x), Vec::blendv(Vec(1.f), Vec(0.f), x <= Vec(0.f))}; }
};

struct ReluSquared {
  static Vec value(Vec x) { return Relu::value(x) * Relu::value(x); }
  static ValueAndSlope both(Vec x) { return {value(x), Relu::value(x) * Vec(2.f)}; }
};

struct Silu {
  static Vec value(Vec x) { return x * sigmoid(x); }
  static ValueAndSlope both(Vec x) {
    const Vec s = sigmoid(x), value = x * s;
    return {value, at::vec::fmadd(value, Vec(1.f) - s, s)};
  }
};

// Calls `function` with a value of the activation's type.
template <class Function>
void with_activation(std::string_view name, Function function) {
  if (name == "gelu") return function(Gelu());
  if (name == "gelu_tanh") return function(GeluTanh());
  if (name == "relu") return function(Relu());
  if (name == "relu_squared") return function(ReluSquared());
  if (name == "silu") return function(Silu());
  TORCH_CHECK_VALUE(false, "no activation is called ", name);
}

}  // namespace smht
