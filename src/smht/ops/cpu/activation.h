// The activations of smht.ops.activation with their slopes, and the exponential that they and softmax need.
#pragma once

#include <c10/util/Exception.h>

#include <string_view>

#include "matmul.h"

namespace smht {

// e^x to about 1e-7 relative: 2^n · e^r with |r| <= ln 2 / 2, polynomial of Cephes' expf. e^(-inf) is exactly 0.
inline Vec exponential(Vec x) {
#if defined(CPU_CAPABILITY_AVX512)
  x = at::vec::clamp(x, Vec(-104.f), Vec(89.f));
#else
  const Vec given = x;
  x = at::vec::clamp(x, Vec(-87.33f), Vec(88.37f));
#endif
  const Vec n = (x * Vec(1.44269504088896341f)).round();
  Vec r = at::vec::fmadd(n, Vec(-0.693359375f), x);
  r = at::vec::fmadd(n, Vec(2.12194440e-4f), r);
  Vec p = at::vec::fmadd(Vec(1.9875691500e-4f), r, Vec(1.3981999507e-3f));
  p = at::vec::fmadd(p, r, Vec(8.3334519073e-3f));
  p = at::vec::fmadd(p, r, Vec(4.1665795894e-2f));
  p = at::vec::fmadd(p, r, Vec(1.6666665459e-1f));
  p = at::vec::fmadd(p, r, Vec(5.0000001201e-1f));
  p = at::vec::fmadd(p, r * r, r + Vec(1.f));
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_scalef_ps(p, n);
#else
  const auto exponent = at::vec::convert_to_int_of_same_size(n) + at::vec::Vectorized<int32_t>(127);
  const Vec power = at::vec::cast<float>(exponent << at::vec::Vectorized<int32_t>(23));
  return Vec::blendv(p * power, Vec(0.f), given < Vec(-87.33f));
#endif
}

inline Vec sigmoid(Vec x) { return Vec(1.f) / (Vec(1.f) + exponential(x.neg())); }

// erf to 1e-7: a quotient of polynomials (the one in Eigen), 1 beyond ±4.
inline Vec error_function(Vec x) {
  x = at::vec::clamp(x, Vec(-4.f), Vec(4.f));
  const Vec s = x * x;
  Vec p = at::vec::fmadd(Vec(-2.72614225801306e-10f), s, Vec(2.77068142495902e-08f));
  p = at::vec::fmadd(p, s, Vec(-2.10102402082508e-06f));
  p = at::vec::fmadd(p, s, Vec(-5.69250639462346e-05f));
  p = at::vec::fmadd(p, s, Vec(-7.34990630326855e-04f));
  p = at::vec::fmadd(p, s, Vec(-2.95459980854025e-03f));
  p = at::vec::fmadd(p, s, Vec(-1.60960333262415e-02f));
  Vec q = at::vec::fmadd(Vec(-1.45660718464996e-05f), s, Vec(-2.13374055278905e-04f));
  q = at::vec::fmadd(q, s, Vec(-1.68282697438203e-03f));
  q = at::vec::fmadd(q, s, Vec(-7.37332916720468e-03f));
  q = at::vec::fmadd(q, s, Vec(-1.42647390514189e-02f));
  return at::vec::clamp(x * p / q, Vec(-1.f), Vec(1.f));
}

struct ValueAndSlope {
  Vec value, slope;
};

struct Gelu {  // x·Φ(x)
  static Vec distribution(Vec x) {
    return at::vec::fmadd(error_function(x * Vec(0.70710678118654752f)), Vec(0.5f), Vec(0.5f));
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
