"""Kernels of the fused attention sub-layer's gradients.

With `A = W_Q·W_Kᵀ`, `C = W_V·W_O`, `q_i = scale·x_i·A` and `m_i = Σ_j p_ij·x_j`, the output is `y_i = m_i·C`. Then
`dm = dy·Cᵀ`, `δ_i = dm_i·m_i`, `ds_ij = p_ij·(dm_i·x_j - δ_i)`, and

- `r_i = scale·Σ_j ds_ij·x_j`, the gradient by `x_i·A` (query kernel, one program a query tile);
- `dx_j = r_j·Aᵀ + Σ_i ds_ij·q_i + Σ_i p_ij·dm_i` (key kernel, one program a key tile; what the tile's tokens get as
  queries is added at its end, so that `dx` is written once);
- `dA = Σ_i x_iᵀ·r_i` and `dC = Σ_i m_iᵀ·dy_i`, each a product of two activations;
- `dW_Q = dA·W_K`, `dW_K = dAᵀ·W_Q`, `dW_V = dC·W_Oᵀ`, `dW_O = W_Vᵀ·dC` (weight kernel).

Turned queries and keys (`attention_rotation`) are no form in `x`: there `r_i` is the gradient by `R_i(x_i·W_Q)`, and
the key kernel gives the one by `R_j(x_j·W_K)`, `Σ_i ds_ij·q_i`, apart from `Σ_i p_ij·dm_i`.

No program adds to what another wrote: results are the same every time. `p` is made again from the saved logarithms.
"""

# ruff: noqa: N803
# pyright: reportMissingImports=false, reportArgumentType=false
# (a kernel's constants are written in capitals; Triton is not for every system; True is a constant to it alone)

import triton
import triton.language as tl

from smht.ops.gpu.attention_forward import LOG2E, add_mask, form_query, keep_weights, load_square
from smht.ops.gpu.tiles import load_tile, store_tile, tuned

_tuned = tuned(
    ["BUCKET", "K", "CAUSAL", "MASK", "DROPOUT"],
    ({"BM": 64, "BN": 64}, 4, 3),
    ({"BM": 128, "BN": 64}, 8, 3),
    ({"BM": 64, "BN": 128}, 8, 3),
    ({"BM": 128, "BN": 128}, 8, 2),
    ({"BM": 64, "BN": 32}, 4, 2),
    ({"BM": 32, "BN": 64}, 4, 2),
)


@triton.jit
def _score_gradients(
    total, query, grad_mix, delta, log_sum, keys, key_row, x, x_row, x_column, mask, mask_row, mask_column,
    seed, head_of_batch, rows, start, end, T, dropout,
    K: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, IS_EDGE: tl.constexpr, CAUSAL: tl.constexpr,
    MASK: tl.constexpr, DROPOUT: tl.constexpr, TURNED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add `Σ_j ds_ij·k_j` over keys `start..end`."""
    inner = tl.arange(0, BK)
    for first in range(start, end, BN):
        columns = first + tl.arange(0, BN)
        value = load_tile(x, columns, x_row, T, inner, x_column, K)
        key = load_tile(keys, columns, key_row, T, inner, 1, K) if TURNED else value
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * LOG2E
        scores = add_mask(scores, mask, rows, mask_row, columns, mask_column, T, MASK)
        if IS_EDGE:
            seen = columns[None, :] < T
            if CAUSAL:
                seen = seen & (columns[None, :] <= rows[:, None])
            scores = tl.where(seen, scores, -float("inf"))
        weights = tl.exp2(scores - log_sum[:, None])
        grad_weights = tl.dot(grad_mix, tl.trans(value), input_precision=PRECISION)
        if DROPOUT:
            kept = keep_weights(seed, head_of_batch, rows, columns, T, dropout)
            grad_weights = tl.where(kept, grad_weights / (1.0 - dropout), 0.0)
        grad_scores = weights * (grad_weights - delta[:, None])
        total = tl.dot(grad_scores.to(key.dtype), key, total, input_precision=PRECISION)
    return total


@_tuned
@triton.jit
def query_kernel(
    x, grad, mixed, log_sums, q_weight, k_weight, v_weight, o_weight, mask, seed,
    queries, keys, grad_queries, grad_mixes, deltas,
    x_batch, x_row, x_column, grad_batch, grad_row, grad_column, mask_batch, mask_head, mask_row, mask_column,
    H, T, scale, dropout, BUCKET,
    K: tl.constexpr, BK: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr,
    TURNED: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Rows `[BM, K]` of `q` (which is there if it is `TURNED`), `r` and `dm`, and `δ`, of one head."""
    tiles = tl.cdiv(T, BM)
    head_of_batch = tl.program_id(0) // tiles
    batch, head = (head_of_batch // H).to(tl.int64), (head_of_batch % H).to(tl.int64)
    tile = tiles - 1 - tl.program_id(0) % tiles
    rows = tile * BM + tl.arange(0, BM)
    inner = tl.arange(0, BK)
    x += batch * x_batch + head * K * x_column
    grad += batch * grad_batch + head * K * grad_column
    mask += batch * mask_batch + head * mask_head
    start = batch * T * H * K + head * K
    line = head_of_batch.to(tl.int64) * T
    chosen_seed = tl.load(seed) if DROPOUT else 0

    if TURNED:
        query = load_tile(queries + start, rows, H * K, T, inner, 1, K)
    else:
        chunk = load_tile(x, rows, x_row, T, inner, x_column, K)
        query = form_query(chunk, q_weight, k_weight, head, scale, K, BK, PRECISION)
        store_tile(queries + start, rows, H * K, T, inner, 1, K, query)

    grad_out = load_tile(grad, rows, grad_row, T, inner, grad_column, K)
    grad_mix = tl.dot(grad_out, tl.trans(load_square(o_weight, head, K, BK)), input_precision=PRECISION)
    grad_mix = grad_mix.to(query.dtype)
    grad_mix = tl.dot(grad_mix, tl.trans(load_square(v_weight, head, K, BK)), input_precision=PRECISION)
    grad_mix = grad_mix.to(query.dtype)
    store_tile(grad_mixes + start, rows, H * K, T, inner, 1, K, grad_mix)
    mix = load_tile(mixed + start, rows, H * K, T, inner, 1, K)
    delta = tl.sum(mix.to(tl.float32) * grad_mix.to(tl.float32), 1)
    tl.store(deltas + line + rows, delta, mask=rows < T)

    log_sum = tl.load(log_sums + line + rows, mask=rows < T, other=float("inf"))
    total = tl.zeros([BM, BK], tl.float32)
    end = tl.minimum(T, (tile + 1) * BM) if CAUSAL else T
    edge = tile * BM // BN * BN if CAUSAL else T // BN * BN
    total = _score_gradients(
        total, query, grad_mix, delta, log_sum, keys + start, H * K, x, x_row, x_column, mask, mask_row, mask_column,
        chosen_seed, head_of_batch, rows, 0, edge, T, dropout,
        K, BK, BN, False, CAUSAL, MASK, DROPOUT, TURNED, PRECISION,
    )  # fmt: skip
    total = _score_gradients(
        total, query, grad_mix, delta, log_sum, keys + start, H * K, x, x_row, x_column, mask, mask_row, mask_column,
        chosen_seed, head_of_batch, rows, edge, end, T, dropout,
        K, BK, BN, True, CAUSAL, MASK, DROPOUT, TURNED, PRECISION,
    )  # fmt: skip
    store_tile(grad_queries + start, rows, H * K, T, inner, 1, K, total * scale)


@triton.jit
def _chunk_gradients(
    by_key, by_value, key, value, queries, grad_mixes, log_sums, deltas, row_stride, mask, mask_row, mask_column,
    seed, head_of_batch, columns, start, end, T, dropout,
    K: tl.constexpr, BK: tl.constexpr, BM: tl.constexpr, IS_EDGE: tl.constexpr,
    MASK: tl.constexpr, DROPOUT: tl.constexpr, TURNED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add `Σ_i ds_ij·q_i` and `Σ_i p_ij·dm_i` over queries `start..end`, both to `by_value` if keys are values.

    Tiles are `[keys, queries]`.
    """
    inner = tl.arange(0, BK)
    for first in range(start, end, BM):
        rows = first + tl.arange(0, BM)
        query = load_tile(queries, rows, row_stride, T, inner, 1, K)
        grad_mix = load_tile(grad_mixes, rows, row_stride, T, inner, 1, K)
        # Queries beyond the last: their weights are 2^-inf.
        log_sum = tl.load(log_sums + rows, mask=rows < T, other=float("inf"))
        delta = tl.load(deltas + rows, mask=rows < T, other=0.0)
        scores = tl.dot(key, tl.trans(query), input_precision=PRECISION) * LOG2E
        scores = add_mask(scores, mask, columns, mask_column, rows, mask_row, T, MASK)
        if IS_EDGE:
            scores = tl.where(columns[:, None] <= rows[None, :], scores, -float("inf"))
        weights = tl.exp2(scores - log_sum[None, :])
        grad_weights = tl.dot(value, tl.trans(grad_mix), input_precision=PRECISION)
        if DROPOUT:
            kept = tl.trans(keep_weights(seed, head_of_batch, rows, columns, T, dropout))
            grad_weights = tl.where(kept, grad_weights / (1.0 - dropout), 0.0)
            used = tl.where(kept, weights / (1.0 - dropout), 0.0)
        else:
            used = weights
        by_value = tl.dot(used.to(value.dtype), grad_mix, by_value, input_precision=PRECISION)
        grad_scores = (weights * (grad_weights - delta[None, :])).to(value.dtype)
        if TURNED:
            by_key = tl.dot(grad_scores, query, by_key, input_precision=PRECISION)
        else:
            by_value = tl.dot(grad_scores, query, by_value, input_precision=PRECISION)
    return by_key, by_value


@_tuned
@triton.jit
def key_kernel(
    x, queries, keys, grad_queries, grad_mixes, log_sums, deltas, q_weight, k_weight, mask, seed, grad_keys, grad_x,
    x_batch, x_row, x_column, mask_batch, mask_head, mask_row, mask_column,
    H, T, dropout, BUCKET,
    K: tl.constexpr, BK: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr,
    TURNED: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Rows `[BN, K]` of one head's `dx`; if keys are `TURNED`, of theirs and of `dx` as far as values give it."""
    tiles = tl.cdiv(T, BN)
    head_of_batch = tl.program_id(0) // tiles
    batch, head = (head_of_batch // H).to(tl.int64), (head_of_batch % H).to(tl.int64)
    tile = tl.program_id(0) % tiles
    columns = tile * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    x += batch * x_batch + head * K * x_column
    mask += batch * mask_batch + head * mask_head
    start = batch * T * H * K + head * K
    line = head_of_batch.to(tl.int64) * T
    chosen_seed = tl.load(seed) if DROPOUT else 0

    value = load_tile(x, columns, x_row, T, inner, x_column, K)
    key = load_tile(keys + start, columns, H * K, T, inner, 1, K) if TURNED else value
    by_value = tl.zeros([BN, BK], tl.float32)
    by_key = tl.zeros([BN, BK], tl.float32) if TURNED else 0.0
    begin = tile * BN // BM * BM if CAUSAL else 0
    edge = tl.minimum(T, tl.cdiv((tile + 1) * BN, BM) * BM) if CAUSAL else 0
    by_key, by_value = _chunk_gradients(
        by_key, by_value, key, value, queries + start, grad_mixes + start, log_sums + line, deltas + line, H * K,
        mask, mask_row, mask_column, chosen_seed, head_of_batch, columns, begin, edge, T, dropout,
        K, BK, BM, True, MASK, DROPOUT, TURNED, PRECISION,
    )  # fmt: skip
    by_key, by_value = _chunk_gradients(
        by_key, by_value, key, value, queries + start, grad_mixes + start, log_sums + line, deltas + line, H * K,
        mask, mask_row, mask_column, chosen_seed, head_of_batch, columns, edge, T, T, dropout,
        K, BK, BM, False, MASK, DROPOUT, TURNED, PRECISION,
    )  # fmt: skip

    if TURNED:
        store_tile(grad_keys + start, columns, H * K, T, inner, 1, K, by_key)
    else:
        as_query = load_tile(grad_queries + start, columns, H * K, T, inner, 1, K)
        as_query = tl.dot(as_query, load_square(k_weight, head, K, BK), input_precision=PRECISION).to(value.dtype)
        by_value = tl.dot(
            as_query, tl.trans(load_square(q_weight, head, K, BK)), by_value, input_precision=PRECISION
        )  # fmt: skip
    store_tile(grad_x + start, columns, H * K, T, inner, 1, K, by_value)


@triton.jit
def _multiply(
    parts, part_row, part_column, num_parts, part_stride, weight, weight_row, weight_column, out, out_row, out_column,
    K: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Rows `[BR, K]` of `(Σ parts) · weight`; in float32 throughout, as there is little of it."""
    rows = tl.program_id(2) * BR + tl.arange(0, BR)
    inner = tl.arange(0, BK)
    total = tl.zeros([BR, BK], tl.float32)
    for _ in range(num_parts):
        total += load_tile(parts, rows, part_row, K, inner, part_column, K)
        parts += part_stride
    right = load_tile(weight, inner, weight_row, K, inner, weight_column, K).to(tl.float32)
    store_tile(out, rows, out_row, K, inner, out_column, K, tl.dot(total, right, input_precision="ieee"))


@triton.jit
def weight_kernel(
    query_parts, value_parts, q_weight, k_weight, v_weight, o_weight, grad_q, grad_k, grad_v, grad_o, num_parts, H,
    FIRST: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Weights' gradients from `dA` and `dC`, in parts `[S, H, K, K]` yet; program `[head, weight, row tile]`."""
    block = tl.program_id(0) * K * K
    which = tl.program_id(1) + FIRST
    stride = H * K * K
    if which == 0:
        _multiply(query_parts + block, K, 1, num_parts, stride, k_weight + block, K, 1, grad_q + block, K, 1, K, BK, BR)
    elif which == 1:
        _multiply(query_parts + block, 1, K, num_parts, stride, q_weight + block, K, 1, grad_k + block, K, 1, K, BK, BR)
    elif which == 2:
        _multiply(value_parts + block, K, 1, num_parts, stride, o_weight + block, 1, K, grad_v + block, K, 1, K, BK, BR)
    else:
        # dW_Oᵀ = dCᵀ·W_V, written transposed.
        _multiply(value_parts + block, 1, K, num_parts, stride, v_weight + block, K, 1, grad_o + block, 1, K, K, BK, BR)
