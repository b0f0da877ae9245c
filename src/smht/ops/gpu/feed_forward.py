"""`split_feed_forward` on the GPU: up, activation and down in one kernel; two more for the gradients."""

from typing import Any

import torch
from torch import Tensor

from smht.ops import reference
from smht.ops.gpu.feed_forward_kernels import forward_kernel, input_gradient_kernel, weight_gradient_kernel
from smht.ops.gpu.partial_sums import sum_parts
from smht.ops.gpu.tiles import as_rows, bucket, ceil_div, on_device_of, padded, precision, split_rows
from smht.ops.second_derivatives import differentiable_gradients


@torch.library.custom_op("smht_gpu::split_feed_forward", mutates_args=())
def _split_feed_forward(
    x: Tensor, up_weight: Tensor, down_weight: Tensor, activation: str, up_bias: Tensor | None, down_bias: Tensor | None
) -> Tensor:
    num_heads, width, head_width = up_weight.shape
    out = x.new_empty(x.shape)
    seen = as_rows(x, num_heads)
    rows = seen.shape[0]
    if rows:
        with on_device_of(x):
            forward_kernel[lambda tile: (num_heads * ceil_div(rows, tile["BM"]),)](
                seen, up_weight.contiguous(), down_weight.contiguous(),
                x if up_bias is None else up_bias.contiguous(), x if down_bias is None else down_bias.contiguous(), out,
                *seen.stride(), rows, num_heads, bucket(rows), width, head_width, padded(width), activation,
                up_bias is not None, down_bias is not None, precision(),
            )  # fmt: skip
    return out


@_split_feed_forward.register_fake
def _(
    x: Tensor, up_weight: Tensor, down_weight: Tensor, activation: str, up_bias: Tensor | None, down_bias: Tensor | None
) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("smht_gpu::split_feed_forward_backward", mutates_args=())
def _split_feed_forward_backward(
    grad: Tensor,
    x: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    activation: str,
    up_bias: Tensor | None,
    has_down_bias: bool,
    needs_x: bool,
    needs_weights: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, the weights and the biases; empty where not asked for."""
    num_heads, width, head_width = up_weight.shape
    seen, grad_seen = as_rows(x, num_heads), as_rows(grad, num_heads)
    rows, device = seen.shape[0], x.device
    grad_x, *grads = _empty_gradients(x, up_weight, down_weight, up_bias, has_down_bias, needs_x, needs_weights)
    if not rows:
        return grad_x, *(gradient.zero_() for gradient in grads)  # pyright: ignore[reportReturnType]
    given = (
        seen, grad_seen, up_weight.contiguous(), down_weight.contiguous(),
        x if up_bias is None else up_bias.contiguous(),
    )  # fmt: skip
    strides = (*seen.stride(), *grad_seen.stride(), rows, num_heads)
    sizes = (bucket(rows), width, head_width, padded(width), activation, up_bias is not None)
    with on_device_of(x):
        if needs_x:
            input_gradient_kernel[lambda tile: (num_heads * ceil_div(rows, tile["BM"]),)](
                *given, grad_x, *strides, *sizes, precision()
            )
        if needs_weights:
            parts, length = split_rows(rows, num_heads * ceil_div(head_width, 64), device)
            line = sum(gradient.numel() for gradient in grads)
            sums = torch.empty(parts, line, dtype=torch.float32, device=device)
            weight_gradient_kernel[lambda tile: (num_heads * ceil_div(head_width, tile["BG"]), parts)](
                *given, sums, *strides, length, line, *sizes, has_down_bias, precision()
            )
            sum_parts(sums, grads)
    return grad_x, *grads  # pyright: ignore[reportReturnType]


def _empty_gradients(
    x: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    up_bias: Tensor | None,
    has_down_bias: bool,
    needs_x: bool,
    needs_weights: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    num_heads, width, head_width = up_weight.shape
    nothing = (0,)
    return (
        x.new_empty(x.shape if needs_x else nothing),
        x.new_empty(up_weight.shape if needs_weights else nothing),
        x.new_empty(down_weight.shape if needs_weights else nothing),
        x.new_empty(num_heads * head_width if needs_weights and up_bias is not None else 0),
        x.new_empty(num_heads * width if needs_weights and has_down_bias else 0),
    )


@_split_feed_forward_backward.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    activation: str,
    up_bias: Tensor | None,
    has_down_bias: bool,
    needs_x: bool,
    needs_weights: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _empty_gradients(x, up_weight, down_weight, up_bias, has_down_bias, needs_x, needs_weights)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, up_weight, down_weight, ctx.activation, up_bias, down_bias = inputs
    ctx.save_for_backward(x, up_weight, down_weight, up_bias, down_bias)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, up_weight, down_weight, up_bias, down_bias = ctx.saved_tensors
    if torch.is_grad_enabled():
        by_x, up, down, *biases = differentiable_gradients(
            lambda x, up, down, *biases: reference.split_feed_forward(x, up, down, ctx.activation, *biases),
            ctx.saved_tensors,
            grad,
        )
        return by_x, up, down, None, *biases
    needs_x, needs_up, needs_down, _, needs_up_bias, needs_down_bias = ctx.needs_input_grad
    needs_weights = needs_up or needs_down or needs_up_bias or needs_down_bias
    by_x, up, down, by_up_bias, by_down_bias = _split_feed_forward_backward(
        grad, x, up_weight, down_weight, ctx.activation, up_bias, down_bias is not None, needs_x, needs_weights
    )
    if not needs_weights:
        return by_x, None, None, None, None, None
    return (
        by_x if needs_x else None, up, down, None,
        None if up_bias is None else by_up_bias, None if down_bias is None else by_down_bias,
    )  # fmt: skip


_split_feed_forward.register_autograd(_backward, setup_context=_save)
