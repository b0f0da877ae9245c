"""The split ops by dense matrices, from PyTorch's own functions."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from helpers.tensors import embed_blocks


def dense_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, embed_blocks(weight).T, bias)


def dense_feed_forward(
    x: Tensor, up_weight: Tensor, down_weight: Tensor, up_bias: Tensor | None = None, down_bias: Tensor | None = None
) -> Tensor:
    return dense_linear(F.gelu(dense_linear(x, up_weight, up_bias)), down_weight, down_bias)


def dense_attention(
    x: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    v_weight: Tensor,
    o_weight: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """PyTorch's multi-head attention with its softmax written out, on the blocks in dense matrices."""
    batch, tokens, hidden_size = x.shape
    num_heads, head_dim, _ = q_weight.shape
    # PyTorch's own factor of the scores is 1/√K.
    factor = 1.0 if scale is None else scale * math.sqrt(head_dim)
    if is_causal:
        mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    if mask is not None:
        mask = mask.expand(batch, num_heads, tokens, tokens).reshape(batch * num_heads, tokens, tokens)
        # There, True is where attention is forbidden.
        mask = ~mask if mask.dtype == torch.bool else mask
    time_first = x.transpose(0, 1)
    output, _ = F.multi_head_attention_forward(
        time_first,
        time_first,
        time_first,
        hidden_size,
        num_heads,
        in_proj_weight=torch.cat([embed_blocks(weight).T for weight in (q_weight * factor, k_weight, v_weight)]),
        in_proj_bias=None,
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=0.0,
        out_proj_weight=embed_blocks(o_weight).T,
        out_proj_bias=None,
        attn_mask=mask,
        need_weights=True,
    )
    return output.transpose(0, 1)


def dense_rotary_attention(
    x: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    v_weight: Tensor,
    o_weight: Tensor,
    cosines: Tensor,
    sines: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """PyTorch's attention between queries and keys turned by transformers' Llama, on the blocks in dense matrices."""
    query, key, value = (
        dense_linear(x, weight).unflatten(-1, weight.shape[::2]).transpose(1, 2)
        for weight in (q_weight, k_weight, v_weight)
    )
    query, key = apply_rotary_pos_emb(query, key, *(torch.cat([half, half], -1) for half in (cosines, sines)))
    mixed = F.scaled_dot_product_attention(query, key, value, mask, is_causal=is_causal, scale=scale)
    return dense_linear(mixed.transpose(1, 2).flatten(2), o_weight)
