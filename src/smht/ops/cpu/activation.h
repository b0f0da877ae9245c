// The activations of smht.ops.activation with their slopes, and the exponential that they and softmax need.
#pragma once

#include <c10/util/Exception.h>

#include <string_view>

#include "matmul.h"

namespace smht {

// 2^r on [-1/2, 1/2], relative error 9e-8 at most: 1 + r·(...).
constexpr float kPower[] = {0.693146978f, 0.240222421f, 0.0555073375f, 0.00967151291f, 0.00132647269f};

// 2^t = 2^n · 2^r, |r| <= 1/2. From 127.5 on it is infinite, below -126 it is 0 (with AVX-512 what is left of it), of
// -inf exactly 0.
inline Vec power_of_two(Vec t) {
#if defined(CPU_CAPABILITY_AVX512)
  t = at::vec::clamp(t, Vec(-160.f), Vec(160.f));
  const Vec n = t.round(), r = t - n;
#else
  // Added to this, t is rounded to a whole number n, and the lowest bits are n + 127, the exponent of 2^n.
  constexpr float kRound = 12582912.f + 127.f;  // 1.5 · 2^23
  const Vec clamped = at::vec::clamp(t, Vec(-126.f), Vec(128.f));
  const Vec shifted = clamped + Vec(kRound), r = clamped - (shifted - Vec(kRound));
#endif
  Vec p = at::vec::fmadd(Vec(kPower[4]), r, Vec(kPower[3]));
  for (int i = 2; i >= 0; --i) p = at::vec::fmadd(p, r, Vec(kPower[i]));
  p = at::vec::fmadd(p, r, Vec(1.f));
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_scalef_ps(p, n);
#else
  const auto bits = at::vec::cast<int32_t>(shifted) << at::vec::Vectorized<int32_t>(23);
  return Vec::blendv(p * at::vec::cast<float>(bits), Vec(0.f), t < Vec(-126.f));
#endif
}

// e^x; relative error 1e-7 · (2 + |x|).
inline Vec exponential(Vec x) { return power_of_two(x * Vec(1.44269504088896341f)); }

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
  // The slope needs the density e^(-x²/2) as well, and with it Φ(-|x|) is a polynomial in 1 / (1 + 0.28·|x|) times the
  // density, to 1e-8 (the form is that of Abramowitz and Stegun, 7.1.26).
  static ValueAndSlope both(Vec x) {
    const Vec bell = power_of_two(x * x * Vec(-0.72134752f));
    const Vec t = Vec(1.f) / at::vec::fmadd(Vec(0.28f), x.abs(), Vec(1.f));
    Vec p = at::vec::fmadd(Vec(-0.105808245f), t, Vec(0.389874022f));
    for (const float next : {-0.236993488f, 0.268910171f, 0.067496751f, 0.116520779f})
      p = at::vec::fmadd(p, t, Vec(next));
    const Vec tail = p * t * bell, below = Vec::blendv(tail, Vec(1.f) - tail, x > Vec(0.f));
    return {x * below, at::vec::fmadd(x * Vec(0.39894228f), bell, below)};
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
