"""The activations of `smht.ops.activation` inside kernels, and their derivatives, on float32 tiles."""

# ruff: noqa: N803
# pyright: reportMissingImports=false
# (a kernel's constants are written in capitals; Triton is not for every system)

import triton
import triton.language as tl


@triton.jit
def activate(u, ACTIVATION: tl.constexpr):
    """`act(u)`; zero at zero for every activation."""
    if ACTIVATION == "gelu":
        out = 0.5 * u * (1.0 + tl.erf(u * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        out = u * tl.sigmoid(1.5957691216057308 * (u + 0.044715 * u * u * u))
    elif ACTIVATION == "relu":
        out = tl.maximum(u, 0.0)
    elif ACTIVATION == "relu_squared":
        out = tl.maximum(u, 0.0) * tl.maximum(u, 0.0)
    else:
        tl.static_assert(ACTIVATION == "silu")
        out = u * tl.sigmoid(u)
    return out


@triton.jit
def activation_slope(u, ACTIVATION: tl.constexpr):
    """`act'(u)`."""
    if ACTIVATION == "gelu":
        density = 0.3989422804014327 * tl.exp(-0.5 * u * u)
        out = 0.5 * (1.0 + tl.erf(u * 0.7071067811865476)) + u * density
    elif ACTIVATION == "gelu_tanh":
        # (1 + tanh(z)) / 2 is the logistic function at 2z.
        share = tl.sigmoid(1.5957691216057308 * (u + 0.044715 * u * u * u))
        out = share + u * share * (1.0 - share) * 1.5957691216057308 * (1.0 + 0.134145 * u * u)
    elif ACTIVATION == "relu":
        out = tl.where(u > 0.0, 1.0, 0.0)
    elif ACTIVATION == "relu_squared":
        out = 2.0 * tl.maximum(u, 0.0)
    else:
        tl.static_assert(ACTIVATION == "silu")
        share = tl.sigmoid(u)
        out = share * (1.0 + u * (1.0 - share))
    return out
