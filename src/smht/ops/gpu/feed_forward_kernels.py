"""Kernels of the fused feed-forward sub-layer: a head's hidden units live in registers only.

Each makes a tile of hidden units `[BM, BG]`, uses it and goes on to the next: a head may have any number of them.
With `u = x·W1 + b1`, `h = act(u)`, `z = h·W2 + b2` (seed 000, step 3k) and the gradient `dz`: `dh = dz·W2ᵀ`,
`du = dh·act'(u)`, `dx = du·W1ᵀ`, `dW1 = xᵀ·du`, `dW2 = hᵀ·dz`. Both backward kernels make `u` and `dh` themselves: K
multiplications an element each, against writing and reading `[M, F]` tensors.
"""

# ruff: noqa: N803
# pyright: reportMissingImports=false
# (a kernel's constants are written in capitals; Triton is not for every system)

import triton
import triton.language as tl

from smht.ops.gpu.activation import activate, activation_slope
from smht.ops.gpu.tiles import load_tile, store_tile, tuned

_tuned_row = tuned(
    ["BUCKET", "K", "G"],
    ({"BM": 128, "BG": 64}, 8, 3),
    ({"BM": 128, "BG": 64}, 4, 2),
    ({"BM": 128, "BG": 128}, 8, 2),
    ({"BM": 64, "BG": 64}, 4, 3),
    ({"BM": 64, "BG": 32}, 4, 2),
)
_tuned_weight = tuned(
    ["BUCKET", "K", "G"],
    ({"BM": 64, "BG": 64}, 4, 3),
    ({"BM": 64, "BG": 64}, 8, 2),
    ({"BM": 64, "BG": 128}, 8, 2),
    ({"BM": 32, "BG": 64}, 4, 2),
    ({"BM": 32, "BG": 32}, 4, 2),
)


@triton.jit
def _hidden(
    x, up, bias, inner, columns, K: tl.constexpr, G: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr
):
    """The tile of `W1`, and `u` of these columns for the rows `x`."""
    weight = load_tile(up, inner, G, K, columns, 1, G)
    u = tl.dot(x, weight, input_precision=PRECISION)
    if HAS_BIAS:
        u += tl.load(bias + columns, mask=columns < G, other=0.0).to(tl.float32)[None, :]
    return weight, u


@_tuned_row
@triton.jit
def forward_kernel(
    x, up, down, up_bias, down_bias, out,
    x_row, x_head, x_column, M, H, BUCKET,
    K: tl.constexpr, G: tl.constexpr, BK: tl.constexpr, ACTIVATION: tl.constexpr,
    HAS_UP_BIAS: tl.constexpr, HAS_DOWN_BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BG: tl.constexpr,
):  # fmt: skip
    """Rows `[BM, K]` of one head's `z`."""
    tiles = tl.cdiv(M, BM)
    head = tl.program_id(0) // tiles
    rows = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    inner = tl.arange(0, BK)
    up += head * K * G
    down += head * K * G
    given = load_tile(x + head * x_head, rows, x_row, M, inner, x_column, K)
    total = tl.zeros([BM, BK], tl.float32)
    for start in range(0, G, BG):
        columns = start + tl.arange(0, BG)
        _, u = _hidden(given, up, up_bias + head * G, inner, columns, K, G, HAS_UP_BIAS, PRECISION)
        hidden = activate(u, ACTIVATION).to(given.dtype)
        weight = load_tile(down, columns, K, G, inner, 1, K)
        total = tl.dot(hidden, weight, total, input_precision=PRECISION)
    if HAS_DOWN_BIAS:
        total += tl.load(down_bias + head * K + inner, mask=inner < K, other=0.0).to(tl.float32)[None, :]
    store_tile(out + head * K, rows, H * K, M, inner, 1, K, total)


@_tuned_row
@triton.jit
def input_gradient_kernel(
    x, grad, up, down, up_bias, out,
    x_row, x_head, x_column, grad_row, grad_head, grad_column, M, H, BUCKET,
    K: tl.constexpr, G: tl.constexpr, BK: tl.constexpr, ACTIVATION: tl.constexpr,
    HAS_UP_BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BG: tl.constexpr,
):  # fmt: skip
    """Rows `[BM, K]` of one head's `dx`."""
    tiles = tl.cdiv(M, BM)
    head = tl.program_id(0) // tiles
    rows = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    inner = tl.arange(0, BK)
    up += head * K * G
    down += head * K * G
    given = load_tile(x + head * x_head, rows, x_row, M, inner, x_column, K)
    grad_out = load_tile(grad + head * grad_head, rows, grad_row, M, inner, grad_column, K)
    total = tl.zeros([BM, BK], tl.float32)
    for start in range(0, G, BG):
        columns = start + tl.arange(0, BG)
        weight, u = _hidden(given, up, up_bias + head * G, inner, columns, K, G, HAS_UP_BIAS, PRECISION)
        down_weight = load_tile(down, columns, K, G, inner, 1, K)
        grad_hidden = tl.dot(grad_out, tl.trans(down_weight), input_precision=PRECISION)
        grad_u = (grad_hidden * activation_slope(u, ACTIVATION)).to(given.dtype)
        total = tl.dot(grad_u, tl.trans(weight), total, input_precision=PRECISION)
    store_tile(out + head * K, rows, H * K, M, inner, 1, K, total)


@_tuned_weight
@triton.jit
def weight_gradient_kernel(
    x, grad, up, down, up_bias, parts,
    x_row, x_head, x_column, grad_row, grad_head, grad_column, M, H, ROWS, WIDTH, BUCKET,
    K: tl.constexpr, G: tl.constexpr, BK: tl.constexpr, ACTIVATION: tl.constexpr,
    HAS_UP_BIAS: tl.constexpr, HAS_DOWN_BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BG: tl.constexpr,
):  # fmt: skip
    """`dW1[:, columns]`, `dW2[columns, :]` and the biases' gradients over ROWS rows: one line of `parts`."""
    tiles = tl.cdiv(G, BG)
    head = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    part = tl.program_id(1)
    columns = tile * BG + tl.arange(0, BG)
    inner = tl.arange(0, BK)
    end = tl.minimum(M, (part + 1) * ROWS)
    x += head * x_head
    grad += head * grad_head
    up += head * K * G
    up_bias += head * G
    down_weight = load_tile(down + head * K * G, columns, K, G, inner, 1, K)
    grad_up = tl.zeros([BK, BG], tl.float32)
    grad_down = tl.zeros([BG, BK], tl.float32)
    grad_up_bias = tl.zeros([BG], tl.float32)
    grad_down_bias = tl.zeros([BK], tl.float32)
    for start in range(part * ROWS, end, BM):
        rows = start + tl.arange(0, BM)
        given = load_tile(x, rows, x_row, end, inner, x_column, K)
        grad_out = load_tile(grad, rows, grad_row, end, inner, grad_column, K)
        _, u = _hidden(given, up, up_bias, inner, columns, K, G, HAS_UP_BIAS, PRECISION)
        grad_hidden = tl.dot(grad_out, tl.trans(down_weight), input_precision=PRECISION)
        grad_u = grad_hidden * activation_slope(u, ACTIVATION)
        hidden = activate(u, ACTIVATION).to(given.dtype)
        grad_up = tl.dot(tl.trans(given), grad_u.to(given.dtype), grad_up, input_precision=PRECISION)
        grad_down = tl.dot(tl.trans(hidden), grad_out, grad_down, input_precision=PRECISION)
        if HAS_UP_BIAS:
            grad_up_bias += tl.sum(grad_u, 0)
        if HAS_DOWN_BIAS:
            grad_down_bias += tl.sum(grad_out.to(tl.float32), 0)
    parts += part.to(tl.int64) * WIDTH
    store_tile(parts + head * K * G, inner, G, K, columns, 1, G, grad_up)
    parts += H * K * G
    store_tile(parts + head * K * G, columns, K, G, inner, 1, K, grad_down)
    parts += H * K * G
    if HAS_UP_BIAS:
        tl.store(parts + head * G + columns, grad_up_bias, mask=columns < G)
        parts += H * G
    if HAS_DOWN_BIAS:  # noqa: SIM102 - one is decided when compiling, the other when running
        if tile == 0:
            tl.store(parts + head * K + inner, grad_down_bias, mask=inner < K)
