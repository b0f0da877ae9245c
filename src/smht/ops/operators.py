"""What torch needs to know of the compiled operators: shapes of results, gradients, FLOPs.

Importing this registers it; the operators must have been loaded (`smht.ops.build`). First derivatives are kernels.
Where second derivatives may be asked for (`create_graph`), the gradient is that of the reference, which has them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from smht.ops import reference
from smht.ops.second_derivatives import differentiable_gradients, no_second_derivative

_OPS = torch.ops.smht


# split_linear


@torch.library.register_fake("smht::split_linear")
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0] * weight.shape[2]))


@torch.library.register_fake("smht::split_linear_backward")
def _(gradient: Tensor, x: Tensor, weight: Tensor, has_bias: bool) -> tuple[Tensor, ...]:
    width = weight.shape[0] * weight.shape[2]
    return x.new_empty(x.shape), weight.new_empty(weight.shape), x.new_empty(width if has_bias else 0)


def _linear_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _linear_gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias = ctx.saved_tensors
    if torch.is_grad_enabled():
        return tuple(differentiable_gradients(reference.split_linear, (x, weight, bias), gradient))
    *gradients, by_bias = _OPS.split_linear_backward(gradient, x, weight, bias is not None)
    return *gradients, None if bias is None else by_bias


torch.library.register_autograd("smht::split_linear", _linear_gradients, setup_context=_linear_context)


@register_flop_formula(_OPS.split_linear)
def _linear_flops(x: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * _count(x) * weight[2]


@register_flop_formula(_OPS.split_linear_backward)
def _linear_backward_flops(gradient: Any, x: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * _linear_flops(x, weight)


# split_feed_forward


@torch.library.register_fake("smht::split_feed_forward")
def _(
    x: Tensor, up_weight: Tensor, down_weight: Tensor, activation: str, up_bias: Tensor | None, down_bias: Tensor | None
) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("smht::split_feed_forward_backward")
def _(
    gradient: Tensor,
    x: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    activation: str,
    up_bias: Tensor | None,
    has_down_bias: bool,
) -> tuple[Tensor, ...]:
    width = up_weight.shape[0] * up_weight.shape[2]
    return (
        x.new_empty(x.shape),
        up_weight.new_empty(up_weight.shape),
        down_weight.new_empty(down_weight.shape),
        x.new_empty(0 if up_bias is None else width),
        x.new_empty(x.shape[-1] if has_down_bias else 0),
    )


def _feed_forward_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, up_weight, down_weight, ctx.activation, up_bias, down_bias = inputs
    ctx.save_for_backward(x, up_weight, down_weight, up_bias, down_bias)


def _feed_forward_gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, up_weight, down_weight, up_bias, down_bias = ctx.saved_tensors
    if torch.is_grad_enabled():
        by_x, by_up, by_down, by_up_bias, by_down_bias = differentiable_gradients(
            lambda x, up, down, *biases: reference.split_feed_forward(x, up, down, ctx.activation, *biases),
            ctx.saved_tensors,
            gradient,
        )
        return by_x, by_up, by_down, None, by_up_bias, by_down_bias
    by_x, by_up, by_down, by_up_bias, by_down_bias = _OPS.split_feed_forward_backward(
        gradient, x, up_weight, down_weight, ctx.activation, up_bias, down_bias is not None
    )
    return (
        by_x,
        by_up,
        by_down,
        None,
        None if up_bias is None else by_up_bias,
        None if down_bias is None else by_down_bias,
    )


torch.library.register_autograd(
    "smht::split_feed_forward", _feed_forward_gradients, setup_context=_feed_forward_context
)


@register_flop_formula(_OPS.split_feed_forward)
def _feed_forward_flops(x: Sequence[int], up_weight: Sequence[int], *_: Any, **__: Any) -> int:
    return 4 * _count(x) * up_weight[2]


@register_flop_formula(_OPS.split_feed_forward_backward)
def _feed_forward_backward_flops(gradient: Any, x: Sequence[int], up_weight: Sequence[int], *_: Any, **__: Any) -> int:
    """As the reference would count: what is computed again to save memory is no work asked for."""
    return 2 * _feed_forward_flops(x, up_weight)


# split_attention


@torch.library.register_fake("smht::split_attention")
def _(
    x: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    v_weight: Tensor,
    o_weight: Tensor,
    is_causal: bool,
    mask: Tensor | None,
    dropout: float,
    scale: float,
    seed: Tensor | None,
    cosines: Tensor | None,
    sines: Tensor | None,
) -> tuple[Tensor, Tensor]:
    log_sums = x.new_empty((x.shape[0], q_weight.shape[0], x.shape[1]), dtype=torch.float32)
    return x.new_empty(x.shape), log_sums


@torch.library.register_fake("smht::split_attention_backward")
def _(gradient: Tensor, x: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    return x.new_empty(x.shape), *(weight.new_empty(weight.shape) for weight in arguments[:4])


def _attention_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, q, k, v, o, ctx.is_causal, mask, ctx.dropout, ctx.scale, seed, cosines, sines = inputs
    ctx.save_for_backward(x, q, k, v, o, mask, seed, cosines, sines, *output)


def _attention_gradients(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    x, q, k, v, o, mask, seed, cosines, sines, y, log_sums = ctx.saved_tensors
    if torch.is_grad_enabled():
        if seed is not None:
            raise no_second_derivative("cpu")
        gradients = differentiable_gradients(
            lambda x, q, k, v, o: reference.split_attention(
                x, q, k, v, o, ctx.is_causal, mask, 0.0, ctx.scale, cosines, sines
            ),
            (x, q, k, v, o),
            gradient,
        )
    else:
        gradients = _OPS.split_attention_backward(
            gradient, x, q, k, v, o, ctx.is_causal, mask, ctx.dropout, ctx.scale, seed, cosines, sines, y, log_sums
        )
    return *gradients, *[None] * 7


torch.library.register_autograd("smht::split_attention", _attention_gradients, setup_context=_attention_context)


@register_flop_formula(_OPS.split_attention)
def _attention_flops(x: Sequence[int], q_weight: Sequence[int], *_: Any, **__: Any) -> int:
    """Four projections and two products of T·T, as the reference would count."""
    return 8 * _count(x) * q_weight[2] + 4 * _count(x) * x[1]


@register_flop_formula(_OPS.split_attention_backward)
def _attention_backward_flops(gradient: Any, x: Sequence[int], q_weight: Sequence[int], *_: Any, **__: Any) -> int:
    """Twice the projections, and five products of T·T: one is the scores again, as torch counts flash attention."""
    return 16 * _count(x) * q_weight[2] + 10 * _count(x) * x[1]


# permute_channels, whose gradient is registered by the library


@torch.library.register_fake("smht::permute_channels")
def _(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    return x.new_empty(x.shape)


# linear_cross_entropy


@torch.library.register_fake("smht::linear_cross_entropy")
def _(
    hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int, wants_hidden: bool, wants_weight: bool
) -> tuple[Tensor, ...]:
    return (
        hidden.new_empty((), dtype=torch.float32),
        hidden.new_empty(hidden.shape if wants_hidden else 0),
        weight.new_empty(weight.shape if wants_weight else 0),
    )


def _cross_entropy_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    hidden, weight, labels, ctx.ignore_index, *ctx.wanted = inputs
    _, by_hidden, by_weight = output
    ctx.save_for_backward(hidden, weight, labels, by_hidden, by_weight)
    # Only the loss is anyone's result; without this, backward would fill zeros for the other two.
    ctx.mark_non_differentiable(by_hidden, by_weight)
    ctx.set_materialize_grads(False)


def _cross_entropy_gradients(ctx: Any, gradient: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    hidden, weight, labels, by_hidden, by_weight = ctx.saved_tensors
    if torch.is_grad_enabled():
        found = differentiable_gradients(
            lambda hidden, weight: reference.linear_cross_entropy(hidden, weight, labels, ctx.ignore_index),
            (hidden, weight),
            gradient,
        )
    else:
        known = zip((by_hidden, by_weight), ctx.wanted, strict=True)
        found = [of_one * gradient if is_wanted else None for of_one, is_wanted in known]
    return *found, None, None, None, None


torch.library.register_autograd(
    "smht::linear_cross_entropy", _cross_entropy_gradients, setup_context=_cross_entropy_context
)


@register_flop_formula(_OPS.linear_cross_entropy)
def _cross_entropy_flops(
    hidden: Sequence[int], weight: Sequence[int], labels: Any, ignore_index: int, *wants: bool, **_: Any
) -> int:
    """Forward and backward together, as the gradients are made in forward."""
    return 2 * _count(hidden) * weight[0] * (1 + sum(wants))


# split_decode


@torch.library.register_fake("smht::split_decode")
def _(x: Tensor, *arguments: Any) -> Tensor:
    return x.new_empty(x.shape)


@register_flop_formula(_OPS.split_decode)
def _decode_flops(x: Sequence[int], projections: Sequence[Sequence[int]], *arguments: Any, **__: Any) -> int:
    """Projections, and two products of the token with all those up to it."""
    past = arguments[6]
    blocks = len(projections) // 6
    return 2 * x[0] * sum(_count(weight) for weight in projections) + 4 * _count(x) * (past + 1) * blocks


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
