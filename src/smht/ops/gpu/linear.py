"""`split_linear` on the GPU: block-diagonal products that read and write `[M, H, K]` by strides.

Each program makes one tile of one head's output, so that neither the head axis nor the rows are moved in memory.
The gradient by `x` is the same product with the blocks transposed (by strides); the gradient by the blocks is summed
over parts of the rows, then over the parts, in a fixed order.
"""

# ruff: noqa: N803
# pyright: reportMissingImports=false
# (a kernel's constants are written in capitals; Triton is not for every system)

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from smht.ops.gpu.partial_sums import sum_parts
from smht.ops.gpu.tiles import (
    as_rows,
    bucket,
    ceil_div,
    load_tile,
    on_device_of,
    precision,
    split_rows,
    store_tile,
    tuned,
)

_tuned_product = tuned(
    ["BUCKET", "IN", "OUT"],
    ({"BM": 128, "BO": 64, "BI": 64}, 4, 3),
    ({"BM": 128, "BO": 128, "BI": 32}, 8, 3),
    ({"BM": 64, "BO": 64, "BI": 64}, 4, 2),
    ({"BM": 64, "BO": 32, "BI": 32}, 4, 2),
    ({"BM": 32, "BO": 64, "BI": 32}, 2, 2),
)
_tuned_gradient = tuned(
    ["BUCKET", "IN", "OUT"],
    ({"BM": 64, "BI": 64, "BO": 64}, 4, 3),
    ({"BM": 32, "BI": 64, "BO": 128}, 8, 3),
    ({"BM": 64, "BI": 128, "BO": 64}, 8, 3),
    ({"BM": 64, "BI": 32, "BO": 32}, 4, 2),
)


@_tuned_product
@triton.jit
def product_kernel(
    x, weight, bias, out,
    x_row, x_head, x_column, weight_head, weight_row, weight_column,
    M, H, BUCKET,
    IN: tl.constexpr, OUT: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr,
):  # fmt: skip
    """Tile `[BM, BO]` of `x[:, h, :] · weight[h] + bias[h]`; row tiles of one head run side by side."""
    tiles = tl.cdiv(M, BM)
    head = tl.program_id(0) // tiles
    rows = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BO + tl.arange(0, BO)
    x += head * x_head
    weight += head * weight_head
    total = tl.zeros([BM, BO], tl.float32)
    for start in range(0, IN, BI):
        inner = start + tl.arange(0, BI)
        left = load_tile(x, rows, x_row, M, inner, x_column, IN)
        right = load_tile(weight, inner, weight_row, IN, columns, weight_column, OUT)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    if HAS_BIAS:
        total += tl.load(bias + head * OUT + columns, mask=columns < OUT, other=0.0).to(tl.float32)[None, :]
    store_tile(out + head * OUT, rows, H * OUT, M, columns, 1, OUT, total)


@_tuned_gradient
@triton.jit
def weight_gradient_kernel(
    x, grad, parts,
    x_row, x_head, x_column, grad_row, grad_head, grad_column,
    M, H, ROWS, WIDTH, BUCKET,
    IN: tl.constexpr, OUT: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BI: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """Tile `[BI, BO]` of `x[:, h, :]ᵀ · grad[:, h, :]` over ROWS rows, and their sum of `grad`: one line of `parts`."""
    tiles = tl.cdiv(IN, BI)
    head = tl.program_id(0) // tiles
    inner = tl.program_id(0) % tiles * BI + tl.arange(0, BI)
    columns = tl.program_id(1) * BO + tl.arange(0, BO)
    part = tl.program_id(2)
    end = tl.minimum(M, (part + 1) * ROWS)
    x += head * x_head
    grad += head * grad_head
    parts += part.to(tl.int64) * WIDTH
    total = tl.zeros([BI, BO], tl.float32)
    bias_total = tl.zeros([BO], tl.float32)
    for start in range(part * ROWS, end, BM):
        rows = start + tl.arange(0, BM)
        left = load_tile(x, rows, x_row, end, inner, x_column, IN)
        right = load_tile(grad, rows, grad_row, end, columns, grad_column, OUT)
        total = tl.dot(tl.trans(left), right, total, input_precision=PRECISION)
        if HAS_BIAS:
            bias_total += tl.sum(right.to(tl.float32), 0)
    store_tile(parts + head * IN * OUT, inner, OUT, IN, columns, 1, OUT, total)
    if HAS_BIAS:  # noqa: SIM102 - one is decided when compiling, the other when running
        if tl.program_id(0) % tiles == 0:
            tl.store(parts + H * IN * OUT + head * OUT + columns, bias_total, mask=columns < OUT)


def weight_gradient_parts(x: Tensor, grad: Tensor, has_bias: bool) -> Tensor:
    """Sums over parts of the rows of `xᵀ · grad`, head by head, then of `grad`.

    Args:
        x: `[M, H, I]`, any strides.
        grad: `[M, H, O]`, any strides.
        has_bias: whether the sums of `grad` are wanted.

    Returns:
        float32 `[S, H·I·O]`, or `[S, H·I·O + H·O]` with the sums of `grad`.
    """
    rows, num_heads, inner = x.shape
    columns = grad.shape[2]
    parts, length = split_rows(rows, num_heads * ceil_div(inner, 64) * ceil_div(columns, 64), x.device)
    width = num_heads * inner * columns + (num_heads * columns if has_bias else 0)
    out = torch.empty(parts, width, dtype=torch.float32, device=x.device)

    def grid(tile: dict[str, int]) -> tuple[int, int, int]:
        return num_heads * ceil_div(inner, tile["BI"]), ceil_div(columns, tile["BO"]), parts

    weight_gradient_kernel[grid](
        x, grad, out, *x.stride(), *grad.stride(), rows, num_heads, length, width, bucket(rows),
        inner, columns, has_bias, precision(),
    )  # fmt: skip
    return out


@torch.library.custom_op("smht_gpu::split_linear", mutates_args=())
def _split_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    num_heads, inner, columns = weight.shape
    out = x.new_empty(*x.shape[:-1], num_heads * columns)
    seen = as_rows(x, num_heads)
    rows = seen.shape[0]

    def grid(tile: dict[str, int]) -> tuple[int, int]:
        return num_heads * ceil_div(rows, tile["BM"]), ceil_div(columns, tile["BO"])

    if out.numel():
        with on_device_of(x):
            product_kernel[grid](
                seen, weight, weight if bias is None else bias.contiguous(), out, *seen.stride(), *weight.stride(),
                rows, num_heads, bucket(rows), inner, columns, bias is not None, precision(),
            )  # fmt: skip
    return out


@_split_linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0] * weight.shape[2])


@torch.library.custom_op("smht_gpu::split_linear_weight_gradient", mutates_args=())
def _weight_gradient(x: Tensor, grad: Tensor, num_heads: int, has_bias: bool) -> tuple[Tensor, Tensor]:
    seen, grad_seen = as_rows(x, num_heads), as_rows(grad, num_heads)
    weight = x.new_empty(num_heads, seen.shape[2], grad_seen.shape[2])
    bias = x.new_empty(grad.shape[-1] if has_bias else 0)
    if not seen.shape[0]:
        return weight.zero_(), bias.zero_()
    with on_device_of(x):
        sum_parts(weight_gradient_parts(seen, grad_seen, has_bias), [weight, bias])
    return weight, bias


@_weight_gradient.register_fake
def _(x: Tensor, grad: Tensor, num_heads: int, has_bias: bool) -> tuple[Tensor, Tensor]:
    weight = x.new_empty(num_heads, x.shape[-1] // num_heads, grad.shape[-1] // num_heads)
    return weight, x.new_empty(grad.shape[-1] if has_bias else 0)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.has_bias = bias is not None


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, needs_bias = ctx.needs_input_grad
    grad_x = _split_linear(grad, weight.transpose(1, 2), None) if needs_x else None
    if not (needs_weight or needs_bias):
        return grad_x, None, None
    grad_weight, grad_bias = _weight_gradient(x, grad, weight.shape[0], ctx.has_bias)
    return grad_x, grad_weight, grad_bias if ctx.has_bias else None


def _save_gradient(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.has_bias = inputs[3]


def _backward_gradient(ctx: Any, grad_weight: Tensor, grad_bias: Tensor) -> tuple[Tensor, Tensor, None, None]:
    x, grad = ctx.saved_tensors
    grad_x = _split_linear(grad, grad_weight.transpose(1, 2), None)
    return grad_x, _split_linear(x, grad_weight, grad_bias if ctx.has_bias else None), None, None


_split_linear.register_autograd(_backward, setup_context=_save)
_weight_gradient.register_autograd(_backward_gradient, setup_context=_save_gradient)
