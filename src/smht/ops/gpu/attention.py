"""`split_attention` on the GPU: one kernel forward, five launches backward."""

from typing import Any

import torch
from torch import Tensor

from smht.ops import reference
from smht.ops.gpu.attention_backward import key_kernel, query_kernel, weight_kernel
from smht.ops.gpu.attention_forward import forward_kernel
from smht.ops.gpu.linear import weight_gradient_parts
from smht.ops.gpu.tiles import as_rows, bucket, ceil_div, on_device_of, padded, precision
from smht.ops.second_derivatives import differentiable_gradients, no_second_derivative

_WEIGHT_ROWS = 16


def _mask_arguments(mask: Tensor | None, x: Tensor, num_heads: int) -> tuple[Tensor, tuple[int, ...], str]:
    """What kernels read, its strides over `[B, H, T, T]`, and its kind."""
    if mask is None:
        return x, (0, 0, 0, 0), "none"
    batch, tokens, _ = x.shape
    strides = mask.expand(batch, num_heads, tokens, tokens).stride()
    if mask.dtype == torch.bool:
        return mask.view(torch.uint8), strides, "boolean"
    return mask, strides, "additive"


@torch.library.custom_op("smht_gpu::split_attention", mutates_args=())
def _split_attention(
    x: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    v_weight: Tensor,
    o_weight: Tensor,
    mask: Tensor | None,
    residual: Tensor | None,
    seed: Tensor | None,
    is_causal: bool,
    dropout: float,
    scale: float,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and what the backward pass needs if `keep`: mixed chunks `[B, T, D]`, softmax sums `[B, H, T]`."""
    num_heads, width, _ = q_weight.shape
    out, mixed, log_sums = _outputs(x, num_heads, keep)
    batch, tokens, _ = x.shape
    if out.numel():
        given_mask, mask_strides, kind = _mask_arguments(mask, x, num_heads)
        with on_device_of(x):
            forward_kernel[lambda tile: (ceil_div(tokens, tile["BM"]) * batch * num_heads,)](
                x, *(weight.contiguous() for weight in (q_weight, k_weight, v_weight, o_weight)), given_mask,
                x if residual is None else residual, x if seed is None else seed, out, mixed, log_sums,
                *x.stride(), *mask_strides, *(x if residual is None else residual).stride(),
                num_heads, tokens, scale, dropout, bucket(tokens), width, padded(width), is_causal, kind,
                seed is not None, residual is not None, keep, precision(),
            )  # fmt: skip
    return out, mixed, log_sums


def _outputs(x: Tensor, num_heads: int, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    batch, tokens, _ = x.shape
    return (
        x.new_empty(x.shape),
        x.new_empty(x.shape if keep else (0,)),
        x.new_empty((batch, num_heads, tokens) if keep else (0,), dtype=torch.float32),
    )


@_split_attention.register_fake
def _(
    x: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    v_weight: Tensor,
    o_weight: Tensor,
    mask: Tensor | None,
    residual: Tensor | None,
    seed: Tensor | None,
    is_causal: bool,
    dropout: float,
    scale: float,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return _outputs(x, q_weight.shape[0], keep)


@torch.library.custom_op("smht_gpu::split_attention_backward", mutates_args=())
def _split_attention_backward(
    grad: Tensor,
    x: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    v_weight: Tensor,
    o_weight: Tensor,
    mask: Tensor | None,
    seed: Tensor | None,
    mixed: Tensor,
    log_sums: Tensor,
    is_causal: bool,
    dropout: float,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x and the four weights."""
    num_heads, width, _ = q_weight.shape
    batch, tokens, _ = x.shape
    weights = [weight.contiguous() for weight in (q_weight, k_weight, v_weight, o_weight)]
    grad_x = x.new_empty(x.shape)
    grad_weights = [torch.empty_like(weight) for weight in weights]
    if not x.numel():
        return grad_x, *(gradient.zero_() for gradient in grad_weights)  # pyright: ignore[reportReturnType]
    queries, grad_queries, grad_mixes = (x.new_empty(x.shape) for _ in range(3))
    deltas = torch.empty_like(log_sums)
    given_mask, mask_strides, kind = _mask_arguments(mask, x, num_heads)
    given_seed = x if seed is None else seed
    sizes = (bucket(tokens), width, padded(width), is_causal, kind, seed is not None, precision())
    with on_device_of(x):
        query_kernel[lambda tile: (ceil_div(tokens, tile["BM"]) * batch * num_heads,)](
            x, grad, mixed, log_sums, *weights, given_mask, given_seed, queries, grad_queries, grad_mixes, deltas,
            *x.stride(), *grad.stride(), *mask_strides, num_heads, tokens, scale, dropout, *sizes,
        )  # fmt: skip
        key_kernel[lambda tile: (ceil_div(tokens, tile["BN"]) * batch * num_heads,)](
            x, queries, grad_queries, grad_mixes, log_sums, deltas, *weights[:2], given_mask, given_seed, grad_x,
            *x.stride(), *mask_strides, num_heads, tokens, dropout, *sizes,
        )  # fmt: skip
        query_parts, value_parts = (
            weight_gradient_parts(as_rows(left, num_heads), as_rows(right, num_heads), has_bias=False)
            for left, right in ((x, grad_queries), (mixed, grad))
        )
        given: list[Any] = [query_parts, value_parts, *weights, *grad_weights, query_parts.shape[0], num_heads]
        given += [width, padded(width), _WEIGHT_ROWS]
        weight_kernel[(num_heads, 4, ceil_div(width, _WEIGHT_ROWS))](*given)  # pyright: ignore[reportIndexIssue]
    return grad_x, *grad_weights  # pyright: ignore[reportReturnType]


@_split_attention_backward.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    v_weight: Tensor,
    o_weight: Tensor,
    mask: Tensor | None,
    seed: Tensor | None,
    mixed: Tensor,
    log_sums: Tensor,
    is_causal: bool,
    dropout: float,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    weights = (q_weight, k_weight, v_weight, o_weight)
    return x.new_empty(x.shape), *(x.new_empty(weight.shape) for weight in weights)  # pyright: ignore[reportReturnType]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, mask, residual, seed, ctx.is_causal, ctx.dropout, ctx.scale, _ = inputs
    ctx.save_for_backward(*tensors, mask, seed, *output[1:])
    ctx.has_residual = residual is not None


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, q_weight, k_weight, v_weight, o_weight, mask, seed, mixed, log_sums = ctx.saved_tensors
    tensors = (x, q_weight, k_weight, v_weight, o_weight)
    if torch.is_grad_enabled():
        if seed is not None:
            raise no_second_derivative("gpu")
        gradients = differentiable_gradients(
            lambda x, q, k, v, o: reference.split_attention(x, q, k, v, o, ctx.is_causal, mask, 0.0, ctx.scale),
            tensors,
            grad,
        )
    else:
        gradients = _split_attention_backward(
            grad, *tensors, mask, seed, mixed, log_sums, ctx.is_causal, ctx.dropout, ctx.scale
        )
    return *gradients, None, grad if ctx.has_residual else None, *[None] * 5


_split_attention.register_autograd(_backward, setup_context=_save)
