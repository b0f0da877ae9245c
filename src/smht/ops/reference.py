"""The plain PyTorch meaning of each op: correct first, differentiable by autograd, any dtype and device.

Attention is PyTorch's own, whose fused kernels have no second derivative: who wants that asks for the written-out one,
`torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`.

Inside an op the head axis leads, `[H, B·T, K]`, so that every projection is one batched
matrix product and no tensor is transposed in memory before the last one.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from smht.ops.activation import ACTIVATIONS
from smht.ops.decoder_weights import PROJECTIONS, DecoderWeights
from smht.ops.rotation import rotate


def _heads_first(x: Tensor, num_heads: int) -> Tensor:
    """`[..., H·K]` as a view `[H, B·T, K]`."""
    return x.reshape(-1, num_heads, x.shape[-1] // num_heads).transpose(0, 1)


def _project(heads: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`[H, M, I]` by `[H, I, O]`, plus a bias `[H·O]`: `[H, M, O]`."""
    if bias is None:
        return torch.bmm(heads, weight)
    # One call, as in F.linear: under autocast a separate sum would promote the result to the bias's fp32.
    return torch.baddbmm(bias.view(weight.shape[0], 1, weight.shape[2]), heads, weight)


def _heads_last(heads: Tensor, leading_shape: torch.Size) -> Tensor:
    """`[H, B·T, K]` back to `[..., H·K]`."""
    return heads.transpose(0, 1).reshape(*leading_shape, heads.shape[0] * heads.shape[2])


def split_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Reference of `smht.ops.split_linear`."""
    out = _project(_heads_first(x, weight.shape[0]), weight, bias)
    return _heads_last(out, x.shape[:-1])


def split_feed_forward(
    x: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    activation: str,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
) -> Tensor:
    """Reference of `smht.ops.split_feed_forward`."""
    hidden = ACTIVATIONS[activation](_project(_heads_first(x, up_weight.shape[0]), up_weight, up_bias))
    return _heads_last(_project(hidden, down_weight, down_bias), x.shape[:-1])


class _PermuteChannels(torch.autograd.Function):
    """The gradient of a permutation is the inverse permutation.

    PyTorch's own gradient of `gather` and `index_select` adds into zeros instead: several times slower.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        # gather takes about a third of index_select's time on CPU.
        return x.gather(-1, order.expand_as(x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        _, order, inverse = inputs
        ctx.save_for_backward(order, inverse)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        order, inverse = ctx.saved_tensors
        return _PermuteChannels.apply(grad_outputs[0], inverse, order), None, None  # pyright: ignore[reportReturnType]


def permute_channels(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """Reference of `smht.ops.permute_channels`."""
    if not (x.requires_grad and torch.is_grad_enabled()):
        return _PermuteChannels.forward(x, order, inverse)  # `apply` binds its arguments for longer than this takes
    return _PermuteChannels.apply(x, order, inverse)  # pyright: ignore[reportReturnType]


def linear_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    """Reference of `smht.ops.linear_cross_entropy`."""
    logits = F.linear(hidden.reshape(-1, hidden.shape[-1]), weight)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, labels.reshape(-1), ignore_index=ignore_index, reduction="sum")


def split_attention(
    x: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    v_weight: Tensor,
    o_weight: Tensor,
    is_causal: bool,
    mask: Tensor | None,
    dropout: float,
    scale: float,
    cosines: Tensor | None = None,
    sines: Tensor | None = None,
) -> Tensor:
    """Reference of `smht.ops.split_attention`."""
    num_heads, head_dim, _ = q_weight.shape
    batch, tokens = x.shape[:2]
    heads = _heads_first(x, num_heads)
    query, key, value = (
        _project(heads, weight).view(num_heads, batch, tokens, head_dim) for weight in (q_weight, k_weight, v_weight)
    )
    if cosines is not None and sines is not None:
        query, key = (rotate(turned.transpose(0, 1), cosines, sines).transpose(0, 1) for turned in (query, key))
    # The head axis takes the place that batch has in F.scaled_dot_product_attention.
    mixed = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=None if mask is None else mask.transpose(0, 1),
        dropout_p=dropout,
        is_causal=is_causal,
        scale=scale,
    )
    out = _project(mixed.reshape(num_heads, batch * tokens, head_dim), o_weight)
    return _heads_last(out, x.shape[:-1])


def split_decode(
    x: Tensor,
    weights: DecoderWeights,
    keys: list[Tensor],
    values: list[Tensor],
    past: int,
    mask: Tensor | None,
    rotation: tuple[Tensor, Tensor] | None,
    scale: float,
) -> Tensor:
    """Reference of `smht.ops.split_decode`."""

    def attend(x: Tensor, block: int) -> Tensor:
        projected = [split_linear(x, *_projection(weights, block, name)) for name in ("q", "k", "v")]
        query, key, value = (row.view(len(x), weights.num_heads, weights.head_dim) for row in projected)
        if rotation is not None:
            query, key = _rotate(query, *rotation), _rotate(key, *rotation)
        keys[block][:, :, past], values[block][:, :, past] = key, value
        mixed = F.scaled_dot_product_attention(
            query[:, :, None],
            keys[block][:, :, : past + 1],
            values[block][:, :, : past + 1],
            attn_mask=None if mask is None else mask[:, None, None, : past + 1],
            scale=scale,
        )
        return split_linear(mixed.reshape(x.shape), *_projection(weights, block, "o"))

    def feed_forward(x: Tensor, block: int) -> Tensor:
        hidden = ACTIVATIONS[weights.activation](split_linear(x, *_projection(weights, block, "up")))
        return split_linear(hidden, *_projection(weights, block, "down"))

    for place in range(2 * weights.num_blocks):
        block, sublayer = place // 2, feed_forward if place % 2 else attend
        order = weights.orders[block] if weights.orders else torch.arange(x.shape[1], device=x.device)
        read = x if weights.norm_after else _norm(x, weights, place, order)
        added = torch.empty_like(x)
        added[:, order] = sublayer(read[:, order], block)
        x = _norm(x + added, weights, place, order) if weights.norm_after else x + added
    return x if weights.norm_after else _norm(x, weights, -1, torch.arange(x.shape[1], device=x.device))


def _projection(weights: DecoderWeights, block: int, name: str) -> tuple[Tensor, Tensor | None]:
    """A block's weight and bias of this name."""
    place = len(PROJECTIONS) * block + PROJECTIONS.index(name)
    return weights.projections[place], weights.biases[place] if weights.biases else None


def _norm(x: Tensor, weights: DecoderWeights, place: int, order: Tensor) -> Tensor:
    """LayerNorm number `place` of `x` `[B, D]`; of the channels of each head, if so, in this order."""
    weight, bias = weights.norm_weights[place], weights.norm_biases[place]
    if not weights.norm_per_head:
        return F.layer_norm(x, x.shape[1:], weight, bias, weights.eps)
    chunks = x[:, order].view(len(x), weights.num_heads, weights.head_dim)
    normal = torch.empty_like(x)
    normal[:, order] = F.layer_norm(chunks, chunks.shape[2:], eps=weights.eps).flatten(1)
    return normal * weight + bias


def _rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Channel `i` of `[B, H, K]` turned with channel `i + K/2`."""
    cosines, sines = cosines[:, None].to(heads.dtype), sines[:, None].to(heads.dtype)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)
