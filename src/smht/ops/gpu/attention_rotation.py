"""Kernels of attention with rotated queries and keys (rotary positions: arXiv:2104.09864, in halves).

Turned by their positions, queries and keys are no longer one form in `x`: `q_i = scale·R_i(x_i·W_Q)` and
`k_j = R_j(x_j·W_K)` are made here once a call, and `x` is only value. With `C` the cosines of both halves and `S` the
sines, negative in the first half, `R(u) = u∘C + u'∘S`, where `u'` is `u` with its halves exchanged. Since `(x·W)'` is
`x·W'`, with the columns of `W` exchanged, nothing moves between registers. The gradient by `u` is `g∘C - g'∘S`.
"""

# ruff: noqa: N803
# pyright: reportMissingImports=false
# (a kernel's constants are written in capitals; Triton is not for every system)

import torch
import triton
import triton.language as tl
from torch import Tensor

from smht.ops.gpu.attention_forward import load_square
from smht.ops.gpu.tiles import bucket, ceil_div, load_tile, padded, precision, store_tile, tuned

_tuned = tuned(["BUCKET", "K"], ({"BM": 64}, 4, 2), ({"BM": 128}, 8, 2), ({"BM": 32}, 4, 2))


@triton.jit
def _exchanged(inner, K: tl.constexpr):
    """The channels with which these are turned; what lies beyond the head stays there."""
    return tl.where(inner < K, (inner + K // 2) % K, inner)


@triton.jit
def _load_angles(cosines, sines, rows, row_stride, T, inner, column_stride, K: tl.constexpr):
    """`C` and `S` of these rows, float32."""
    columns = tl.where(inner < K, inner % (K // 2), K)
    cosine = load_tile(cosines, rows, row_stride, T, columns, column_stride, K // 2).to(tl.float32)
    sine = load_tile(sines, rows, row_stride, T, columns, column_stride, K // 2).to(tl.float32)
    return cosine, tl.where(inner[None, :] < K // 2, -sine, sine)


@triton.jit
def _project_and_turn(
    chunk, weight, head, inner, cosine, sine, K: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr
):
    """`R(chunk·W)`."""
    straight = tl.dot(chunk, load_square(weight, head, K, BK), input_precision=PRECISION)
    exchanged = load_tile(weight + head * K * K, tl.arange(0, BK), K, K, _exchanged(inner, K), 1, K)
    return straight * cosine + tl.dot(chunk, exchanged, input_precision=PRECISION) * sine


@_tuned
@triton.jit
def turn_kernel(
    x, q_weight, k_weight, cosines, sines, queries, keys,
    x_batch, x_row, x_column, angle_batch, angle_row, angle_column, H, T, scale, BUCKET,
    K: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Rows `[BM, K]` of one head's `q` and `k`."""
    tiles = tl.cdiv(T, BM)
    head_of_batch = tl.program_id(0) // tiles
    batch, head = (head_of_batch // H).to(tl.int64), (head_of_batch % H).to(tl.int64)
    rows = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    inner = tl.arange(0, BK)
    start = batch * T * H * K + head * K
    angle_start = batch * angle_batch
    cosine, sine = _load_angles(cosines + angle_start, sines + angle_start, rows, angle_row, T, inner, angle_column, K)
    chunk = load_tile(x + batch * x_batch + head * K * x_column, rows, x_row, T, inner, x_column, K)
    query = _project_and_turn(chunk, q_weight, head, inner, cosine, sine, K, BK, PRECISION) * scale
    store_tile(queries + start, rows, H * K, T, inner, 1, K, query)
    key = _project_and_turn(chunk, k_weight, head, inner, cosine, sine, K, BK, PRECISION)
    store_tile(keys + start, rows, H * K, T, inner, 1, K, key)


@triton.jit
def _load_and_turn_back(grads, rows, row_stride, T, inner, cosine, sine, K: tl.constexpr):
    """`g∘C - g'∘S`."""
    straight = load_tile(grads, rows, row_stride, T, inner, 1, K)
    exchanged = load_tile(grads, rows, row_stride, T, _exchanged(inner, K), 1, K)
    return (straight.to(tl.float32) * cosine - exchanged.to(tl.float32) * sine).to(straight.dtype)


@_tuned
@triton.jit
def turn_back_kernel(
    grad_queries, grad_keys, grad_values, q_weight, k_weight, cosines, sines, by_q, by_k, grad_x,
    angle_batch, angle_row, angle_column, H, T, BUCKET,
    K: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Rows `[BM, K]` of one head's gradients by `x·W_Q` and `x·W_K`, and of `dx`, of which `grad_values` is a part."""
    tiles = tl.cdiv(T, BM)
    head_of_batch = tl.program_id(0) // tiles
    batch, head = (head_of_batch // H).to(tl.int64), (head_of_batch % H).to(tl.int64)
    rows = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    inner = tl.arange(0, BK)
    start = batch * T * H * K + head * K
    angle_start = batch * angle_batch
    cosine, sine = _load_angles(cosines + angle_start, sines + angle_start, rows, angle_row, T, inner, angle_column, K)
    query = _load_and_turn_back(grad_queries + start, rows, H * K, T, inner, cosine, sine, K)
    key = _load_and_turn_back(grad_keys + start, rows, H * K, T, inner, cosine, sine, K)
    total = load_tile(grad_values + start, rows, H * K, T, inner, 1, K).to(tl.float32)
    total = tl.dot(query, tl.trans(load_square(q_weight, head, K, BK)), total, input_precision=PRECISION)
    total = tl.dot(key, tl.trans(load_square(k_weight, head, K, BK)), total, input_precision=PRECISION)
    store_tile(by_q + start, rows, H * K, T, inner, 1, K, query)
    store_tile(by_k + start, rows, H * K, T, inner, 1, K, key)
    store_tile(grad_x + start, rows, H * K, T, inner, 1, K, total)


def turned(
    x: Tensor, q_weight: Tensor, k_weight: Tensor, cosines: Tensor, sines: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Queries, with their scale, and keys, `[B, T, D]` each.

    Args:
        x: `[B, T, D]`, any strides.
        q_weight: `[H, K, K]`, contiguous, like `k_weight`.
        k_weight: see there.
        cosines: `[B, T, K/2]` or `[1, T, K/2]`, with the same strides as `sines`.
        sines: see there.
        scale: factor of the scores.
    """
    batch, tokens, _ = x.shape
    num_heads, width, _ = q_weight.shape
    queries, keys = (x.new_empty(x.shape) for _ in range(2))
    turn_kernel[lambda tile: (ceil_div(tokens, tile["BM"]) * batch * num_heads,)](
        x, q_weight, k_weight, cosines, sines, queries, keys,
        *x.stride(), *_strides(cosines, batch), num_heads, tokens, scale, bucket(tokens),
        width, padded(width), precision(),
    )  # fmt: skip
    return queries, keys


def turned_back(
    grad_queries: Tensor,
    grad_keys: Tensor,
    grad_values: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cosines: Tensor,
    sines: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by `x·W_Q`, by `x·W_K` and by x: `[B, T, D]` each, like the gradients that they are made from."""
    batch, tokens, _ = grad_values.shape
    num_heads, width, _ = q_weight.shape
    by_q, by_k, grad_x = (torch.empty_like(grad_values) for _ in range(3))
    turn_back_kernel[lambda tile: (ceil_div(tokens, tile["BM"]) * batch * num_heads,)](
        grad_queries, grad_keys, grad_values, q_weight, k_weight, cosines, sines, by_q, by_k, grad_x,
        *_strides(cosines, batch), num_heads, tokens, bucket(tokens), width, padded(width), precision(),
    )  # fmt: skip
    return by_q, by_k, grad_x


def _strides(angles: Tensor, batch: int) -> tuple[int, ...]:
    return angles.expand(batch, -1, -1).stride()
