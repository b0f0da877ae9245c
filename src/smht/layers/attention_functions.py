"""Attention between projected heads, as functions with the signature of transformers' attention interface."""

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smht.layers.fast_path import SDPA_FUNCTIONS


class AttentionFunction(Protocol):
    """Attention between projected heads; the signature is that of transformers' attention interface."""

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        scaling: float,
        dropout: float,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """`[B, H, T, K]` three times to the output `[B, T, H, K]` and, where it has them, the weights."""
        ...


def sdpa_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    dropout: float,
    is_causal: bool = True,
    **_: Any,
) -> tuple[Tensor, None]:
    """PyTorch's `scaled_dot_product_attention`: `softmax(q · kᵀ · scaling) · v`."""
    mixed = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=dropout,
        is_causal=is_causal and attention_mask is None and query.shape[2] > 1,
        scale=scaling,
    )
    return mixed.transpose(1, 2), None


SDPA_FUNCTIONS.add(sdpa_attention)


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    is_causal: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """`softmax(q · kᵀ · scaling + mask) · v` (seed 000, steps 3d and 3e).

    Args:
        module: tells whether dropout is on.
        query: `[B, H, T, K]`.
        key: `[B, H, S, K]`.
        value: `[B, H, S, K]`.
        attention_mask: broadcastable to `[B, H, T, S]`; boolean, True where attention is allowed, or added to
            the scores.
        scaling: factor of the scores, `1/√K` in the seed.
        dropout: probability that a weight is dropped.
        is_causal: token `t` attends to tokens `0..t`, where no mask is given.

    Returns:
        The output `[B, T, H, K]` and the weights `[B, H, T, S]`, each row summing to 1.
    """
    scores = query @ key.transpose(-1, -2) * scaling
    if attention_mask is None and is_causal and query.shape[2] > 1:
        attention_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        # Not minus infinity: a row with nothing allowed, as of padding, would become NaN.
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    # Half precision would round the sum of the exponentials; fp64 keeps its own.
    precision = torch.promote_types(scores.dtype, torch.float32)
    weights = torch.softmax(scores, dim=-1, dtype=precision).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2), weights
