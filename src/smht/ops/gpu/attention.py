"""`split_attention` on the GPU: one kernel forward, five launches backward; with a rotation two and ten."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from smht.ops import reference
from smht.ops.gpu.attention_backward import key_kernel, query_kernel, weight_kernel
from smht.ops.gpu.attention_forward import forward_kernel
from smht.ops.gpu.attention_rotation import turned, turned_back
from smht.ops.gpu.linear import weight_gradient_parts
from smht.ops.gpu.partial_sums import sum_parts
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
    cosines: Tensor | None,
    sines: Tensor | None,
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
        weights = [weight.contiguous() for weight in (q_weight, k_weight, v_weight, o_weight)]
        with on_device_of(x):
            queries, keys = _queries_and_keys(x, weights, cosines, sines, scale)
            forward_kernel[lambda tile: (ceil_div(tokens, tile["BM"]) * batch * num_heads,)](
                x, x if queries is None else queries, x if keys is None else keys, *weights, given_mask,
                x if residual is None else residual, x if seed is None else seed, out, mixed, log_sums,
                *x.stride(), *mask_strides, *(x if residual is None else residual).stride(),
                num_heads, tokens, scale, dropout, bucket(tokens), width, padded(width), is_causal, kind,
                seed is not None, keys is not None, residual is not None, keep, precision(),
            )  # fmt: skip
    return out, mixed, log_sums


def _queries_and_keys(
    x: Tensor, weights: list[Tensor], cosines: Tensor | None, sines: Tensor | None, scale: float
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Turned by their positions, if there is a rotation."""
    if cosines is None or sines is None:
        return None, None
    return turned(x, weights[0], weights[1], cosines.contiguous(), sines.contiguous(), scale)


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
    cosines: Tensor | None,
    sines: Tensor | None,
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
    cosines: Tensor | None,
    sines: Tensor | None,
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
    grad_queries, grad_keys, grad_mixes = (x.new_empty(x.shape) for _ in range(3))
    deltas = torch.empty_like(log_sums)
    given_mask, mask_strides, kind = _mask_arguments(mask, x, num_heads)
    given_seed = x if seed is None else seed
    with on_device_of(x):
        queries, keys = _queries_and_keys(x, weights, cosines, sines, scale)
        is_turned = keys is not None
        queries, keys = (x.new_empty(x.shape), x) if queries is None or keys is None else (queries, keys)
        sizes = (bucket(tokens), width, padded(width), is_causal, kind, seed is not None, is_turned, precision())
        query_kernel[lambda tile: (ceil_div(tokens, tile["BM"]) * batch * num_heads,)](
            x, grad, mixed, log_sums, *weights, given_mask, given_seed, queries, keys, grad_queries, grad_mixes, deltas,
            *x.stride(), *grad.stride(), *mask_strides, num_heads, tokens, scale, dropout, *sizes,
        )  # fmt: skip
        key_kernel[lambda tile: (ceil_div(tokens, tile["BN"]) * batch * num_heads,)](
            x, queries, keys, grad_queries, grad_mixes, log_sums, deltas, *weights[:2], given_mask, given_seed,
            grad_keys, grad_x, *x.stride(), *mask_strides, num_heads, tokens, dropout, *sizes,
        )  # fmt: skip
        if cosines is not None and sines is not None:
            grad_queries, grad_keys, grad_x = turned_back(
                grad_queries, grad_keys, grad_x, weights[0], weights[1], cosines.contiguous(), sines.contiguous()
            )
            for grad_weight, by_projection in zip(grad_weights, (grad_queries, grad_keys), strict=False):
                sum_parts(_products(x, by_projection, num_heads), [grad_weight])
        _weights_of_products(x, mixed, grad, grad_queries, weights, grad_weights, first=2 if is_turned else 0)
    return grad_x, *grad_weights  # pyright: ignore[reportReturnType]


def _products(left: Tensor, right: Tensor, num_heads: int) -> Tensor:
    """`Σ leftᵀ·right` of each head, in parts `[S, H·K·K]`."""
    return weight_gradient_parts(as_rows(left, num_heads), as_rows(right, num_heads), has_bias=False)


def _weights_of_products(
    x: Tensor,
    mixed: Tensor,
    grad: Tensor,
    grad_queries: Tensor,
    weights: list[Tensor],
    grad_weights: list[Tensor],
    first: int,
) -> None:
    """Write the gradients of the weights from `first` on: those of both factors of `W_Q·W_Kᵀ` and of `W_V·W_O`."""
    num_heads, width, _ = weights[0].shape
    value_parts = _products(mixed, grad, num_heads)
    query_parts = _products(x, grad_queries, num_heads) if first == 0 else value_parts
    given: list[Any] = [query_parts, value_parts, *weights, *grad_weights, value_parts.shape[0], num_heads, first]
    given += [width, padded(width), _WEIGHT_ROWS]
    grid = (num_heads, 4 - first, ceil_div(width, _WEIGHT_ROWS))
    weight_kernel[grid](*given)  # pyright: ignore[reportIndexIssue]


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
    cosines: Tensor | None,
    sines: Tensor | None,
    mixed: Tensor,
    log_sums: Tensor,
    is_causal: bool,
    dropout: float,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    weights = (q_weight, k_weight, v_weight, o_weight)
    return x.new_empty(x.shape), *(x.new_empty(weight.shape) for weight in weights)  # pyright: ignore[reportReturnType]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, mask, residual, seed, cosines, sines, ctx.is_causal, ctx.dropout, ctx.scale, _ = inputs
    ctx.save_for_backward(*tensors, mask, seed, cosines, sines, *output[1:])
    ctx.has_residual = residual is not None


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, q_weight, k_weight, v_weight, o_weight, mask, seed, *rotation, mixed, log_sums = ctx.saved_tensors
    tensors = (x, q_weight, k_weight, v_weight, o_weight)
    if torch.is_grad_enabled():
        if seed is not None:
            raise no_second_derivative("gpu")
        gradients = differentiable_gradients(_reference(ctx, mask, rotation), tensors, grad)
    else:
        gradients = _split_attention_backward(
            grad, *tensors, mask, seed, *rotation, mixed, log_sums, ctx.is_causal, ctx.dropout, ctx.scale
        )
    return *gradients, None, grad if ctx.has_residual else None, *[None] * 7


def _reference(ctx: Any, mask: Tensor | None, rotation: list[Tensor | None]) -> Callable[..., Tensor]:
    given = rotation if rotation[0] is not None else ()

    def function(x: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor) -> Tensor:
        return reference.split_attention(x, q, k, v, o, ctx.is_causal, mask, 0.0, ctx.scale, *given)

    return function


_split_attention.register_autograd(_backward, setup_context=_save)
