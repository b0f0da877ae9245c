"""What torch needs to know of the compiled operators: shapes of results, gradients, FLOPs.

Importing this registers it; the operators must have been loaded (`smht.ops.build`). First derivatives are kernels.
Where second derivatives may be asked for (`create_graph`), the gradient is that of the reference, which has them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from smht.errors import UsageError
from smht.ops import reference

_OPS = torch.ops.smht


def _differentiable(
    function: Callable[..., Tensor], tensors: Sequence[Tensor | None], gradient: Tensor
) -> list[Tensor | None]:
    """The gradient of `function` by each tensor, as a part of the graph; None for what needs none."""
    wanted = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
    found = iter(torch.autograd.grad(function(*tensors), wanted, gradient, create_graph=True))
    return [next(found) if tensor is not None and tensor.requires_grad else None for tensor in tensors]


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
        return tuple(_differentiable(reference.split_linear, (x, weight, bias), gradient))
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
        by_x, by_up, by_down, by_up_bias, by_down_bias = _differentiable(
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
) -> tuple[Tensor, Tensor]:
    log_sums = x.new_empty((x.shape[0], q_weight.shape[0], x.shape[1]), dtype=torch.float32)
    return x.new_empty(x.shape), log_sums


@torch.library.register_fake("smht::split_attention_backward")
def _(gradient: Tensor, x: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    return x.new_empty(x.shape), *(weight.new_empty(weight.shape) for weight in arguments[:4])


def _attention_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, q, k, v, o, ctx.is_causal, mask, ctx.dropout, ctx.scale, seed = inputs
    ctx.save_for_backward(x, q, k, v, o, mask, seed, *output)


def _attention_gradients(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    x, q, k, v, o, mask, seed, y, log_sums = ctx.saved_tensors
    if torch.is_grad_enabled():
        if seed is not None:
            raise UsageError(
                "split_attention: the cpu backend has no second derivative with dropout; set the dropout to 0 or "
                "call smht.ops.set_backend('reference')"
            )
        gradients = _differentiable(
            lambda x, q, k, v, o: reference.split_attention(x, q, k, v, o, ctx.is_causal, mask, 0.0, ctx.scale),
            (x, q, k, v, o),
            gradient,
        )
    else:
        gradients = _OPS.split_attention_backward(
            gradient, x, q, k, v, o, ctx.is_causal, mask, ctx.dropout, ctx.scale, seed, y, log_sums
        )
    return *gradients, None, None, None, None, None


torch.library.register_autograd("smht::split_attention", _attention_gradients, setup_context=_attention_context)


@register_flop_formula(_OPS.split_attention)
def _attention_flops(x: Sequence[int], q_weight: Sequence[int], *_: Any, **__: Any) -> int:
    """Four projections and two products of T·T, as the reference would count."""
    return 8 * _count(x) * q_weight[2] + 4 * _count(x) * x[1]


@register_flop_formula(_OPS.split_attention_backward)
def _attention_backward_flops(gradient: Any, x: Sequence[int], q_weight: Sequence[int], *_: Any, **__: Any) -> int:
    """Twice the projections, and five products of T·T: one is the scores again, as torch counts flash attention."""
    return 16 * _count(x) * q_weight[2] + 10 * _count(x) * x[1]


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
