"""Kernel of the fused attention sub-layer: projections, attention, output projection and residual in one launch.

No keys or values are made. A head's scores are a form in its own chunk of `x`, and its output a map of mixed chunks:

`q_i · k_j = (x_i·W_Q·W_Kᵀ) · x_j`, and `Σ_j p_ij·(x_j·W_V)·W_O = (Σ_j p_ij·x_j)·W_V·W_O`.

So a query tile carries both products of the query side at its start and both of the value side at its end, four in all
as in the composed path, and in between one tile of `x` is key and value at once: half of flash attention's reads, and
no `[B, H, T, K]` buffers to write. (Keys and values made again by every query tile would cost up to half of attention's
own multiplications; made once, they would cost a launch and three passes over memory.) Rounding errors are about those
of the composed path, unless the key matrix all but deletes a large part of `x`.

Softmax is the online one of flash attention (arXiv:2205.14135), in base 2. Scores carry their factor in the query side.
"""

# ruff: noqa: N803
# pyright: reportMissingImports=false, reportArgumentType=false
# (a kernel's constants are written in capitals; Triton is not for every system; True is a constant to it alone)

import triton
import triton.language as tl

from smht.ops.gpu.tiles import load_tile, store_tile, tuned

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)

_tuned = tuned(
    ["BUCKET", "K", "CAUSAL", "MASK", "DROPOUT"],
    ({"BM": 128, "BN": 64}, 4, 3),
    ({"BM": 128, "BN": 128}, 8, 3),
    ({"BM": 128, "BN": 64}, 8, 3),
    ({"BM": 64, "BN": 64}, 4, 3),
    ({"BM": 64, "BN": 32}, 4, 2),
)


@triton.jit
def load_square(weight, head, K: tl.constexpr, BK: tl.constexpr):
    """A head's block of a contiguous `[H, K, K]`."""
    inner = tl.arange(0, BK)
    return load_tile(weight + head * K * K, inner, K, K, inner, 1, K)


@triton.jit
def form_query(chunk, q_weight, k_weight, head, scale, K: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr):
    """`scale·x·W_Q·W_Kᵀ`, whose scores are with `x` itself."""
    query = tl.dot(chunk, load_square(q_weight, head, K, BK), input_precision=PRECISION).to(chunk.dtype)
    query = tl.dot(query, tl.trans(load_square(k_weight, head, K, BK)), input_precision=PRECISION)
    return (query * scale).to(chunk.dtype)


@triton.jit
def add_mask(scores, mask, rows, row_stride, columns, column_stride, T, MASK: tl.constexpr):
    """Base-2 scores under a mask: `MASK` is `none`, `boolean` or `additive` (in base e)."""
    if MASK != "none":
        places = mask + rows.to(tl.int64)[:, None] * row_stride + columns.to(tl.int64)[None, :] * column_stride
        given = tl.load(places, mask=(rows[:, None] < T) & (columns[None, :] < T), other=0)
        if MASK == "boolean":
            scores = tl.where(given != 0, scores, -float("inf"))
        else:
            scores += given.to(tl.float32) * LOG2E
    return scores


@triton.jit
def keep_weights(seed, head_of_batch, rows, columns, T, dropout):
    """Which attention weights stay: one Philox counter each (`i·T + j`), one key for each head of each sequence."""
    return tl.rand(seed + head_of_batch, rows[:, None] * T + columns[None, :]) >= dropout


@triton.jit
def _attend(
    total, norm, highest, query, keys, key_row, x, x_row, x_column, mask, mask_row, mask_column,
    seed, head_of_batch, rows, start, end, T, dropout,
    K: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, IS_EDGE: tl.constexpr, CAUSAL: tl.constexpr,
    MASK: tl.constexpr, DROPOUT: tl.constexpr, TURNED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Go on with the online softmax over keys `start..end`; `IS_EDGE` where some of them may not be seen."""
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
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        shift = new_highest
        if MASK != "none":
            shift = tl.where(new_highest == -float("inf"), 0.0, new_highest)
        weights = tl.exp2(scores - shift[:, None])
        shrink = tl.exp2(highest - shift)
        norm = norm * shrink + tl.sum(weights, 1)
        if DROPOUT:
            kept = keep_weights(seed, head_of_batch, rows, columns, T, dropout)
            weights = tl.where(kept, weights / (1.0 - dropout), 0.0)
        total = tl.dot(weights.to(value.dtype), value, total * shrink[:, None], input_precision=PRECISION)
        highest = new_highest
    return total, norm, highest


@_tuned
@triton.jit
def forward_kernel(
    x, queries, keys, q_weight, k_weight, v_weight, o_weight, mask, residual, seed, out, mixed, log_sums,
    x_batch, x_row, x_column, mask_batch, mask_head, mask_row, mask_column,
    residual_batch, residual_row, residual_column,
    H, T, scale, dropout, BUCKET,
    K: tl.constexpr, BK: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr,
    TURNED: tl.constexpr, HAS_RESIDUAL: tl.constexpr, KEEP: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Rows `[BM, K]` of one head's output, of its mixed chunks and of the logarithms (base 2) of its softmax sums.

    `TURNED` queries and keys have been made (`attention_rotation`); without, keys are `x`.
    """
    tiles = tl.cdiv(T, BM)
    head_of_batch = tl.program_id(0) // tiles
    batch, head = (head_of_batch // H).to(tl.int64), (head_of_batch % H).to(tl.int64)
    # Causal tiles with most keys start first, so that the last ones running are short.
    tile = tiles - 1 - tl.program_id(0) % tiles
    rows = tile * BM + tl.arange(0, BM)
    inner = tl.arange(0, BK)
    x += batch * x_batch + head * K * x_column
    mask += batch * mask_batch + head * mask_head
    chosen_seed = tl.load(seed) if DROPOUT else 0
    start = batch * T * H * K + head * K

    if TURNED:
        query = load_tile(queries + start, rows, H * K, T, inner, 1, K)
    else:
        chunk = load_tile(x, rows, x_row, T, inner, x_column, K)
        query = form_query(chunk, q_weight, k_weight, head, scale, K, BK, PRECISION)

    total = tl.zeros([BM, BK], tl.float32)
    norm = tl.zeros([BM], tl.float32)
    highest = tl.full([BM], -float("inf"), tl.float32)
    end = tl.minimum(T, (tile + 1) * BM) if CAUSAL else T
    edge = tile * BM // BN * BN if CAUSAL else T // BN * BN
    total, norm, highest = _attend(
        total, norm, highest, query, keys + start, H * K, x, x_row, x_column, mask, mask_row, mask_column,
        chosen_seed, head_of_batch, rows, 0, edge, T, dropout,
        K, BK, BN, False, CAUSAL, MASK, DROPOUT, TURNED, PRECISION,
    )  # fmt: skip
    total, norm, highest = _attend(
        total, norm, highest, query, keys + start, H * K, x, x_row, x_column, mask, mask_row, mask_column,
        chosen_seed, head_of_batch, rows, edge, end, T, dropout,
        K, BK, BN, True, CAUSAL, MASK, DROPOUT, TURNED, PRECISION,
    )  # fmt: skip

    # A token that may see nothing gives zeros; 0 as its logarithm makes its weights zero again in the backward pass.
    is_lost = norm == 0.0
    mix = (total / tl.where(is_lost, 1.0, norm)[:, None]).to(query.dtype)
    if KEEP:
        store_tile(mixed + start, rows, H * K, T, inner, 1, K, mix)
        log_sum = tl.where(is_lost, 0.0, highest + tl.log2(tl.where(is_lost, 1.0, norm)))
        tl.store(log_sums + head_of_batch.to(tl.int64) * T + rows, log_sum, mask=rows < T)
    value = tl.dot(mix, load_square(v_weight, head, K, BK), input_precision=PRECISION).to(query.dtype)
    result = tl.dot(value, load_square(o_weight, head, K, BK), input_precision=PRECISION)
    if HAS_RESIDUAL:
        residual += batch * residual_batch + head * K * residual_column
        result += load_tile(residual, rows, residual_row, T, inner, residual_column, K).to(tl.float32)
    store_tile(out + start, rows, H * K, T, inner, 1, K, result)
