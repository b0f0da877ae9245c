"""Multi-head attention with split or dense projections (seed 000, steps 3b to 3g)."""

import math
from typing import Any, Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from smht import ops
from smht.errors import UsageError
from smht.layers.fast_path import SDPA_FUNCTIONS, fused_attention_weights
from smht.layers.mixing import ChannelShuffle
from smht.layers.projection import make_projection


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


class KeyValueCache(Protocol):
    """What a layer needs of a cache; transformers' `Cache` has it."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Append keys and values `[B, H, T, K]` of a layer; return all of that layer."""
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


class MultiHeadAttention(nn.Module):
    """Queries, keys and values per head, attention, output projection; each projection split or dense.

    Args:
        hidden_size: `D`.
        num_heads: `H`; must divide `D`.
        split_qkv: whether q, k and v are block-diagonal.
        split_output: whether the output projection is block-diagonal.
        is_causal: token `t` attends to tokens `0..t` where no mask is given.
        dropout: probability that an attention weight is dropped in training.
        bias: whether the projections add a bias.
        layer_idx: the layer's number in a cache.
        shuffle: the block's channel order, for split projections.

    Raises:
        UsageError: `H` does not divide `D`.
    """

    num_key_value_groups = 1

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        split_qkv: bool = True,
        split_output: bool = True,
        is_causal: bool = True,
        dropout: float = 0.0,
        bias: bool = False,
        layer_idx: int = 0,
        shuffle: ChannelShuffle | None = None,
    ) -> None:
        super().__init__()
        if num_heads < 1 or hidden_size < 1 or hidden_size % num_heads:
            raise UsageError(f"hidden_size = {hidden_size} must be a positive multiple of num_heads = {num_heads}")
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.scaling = 1 / math.sqrt(self.head_dim)
        self.is_causal = is_causal
        self.dropout = dropout
        self.layer_idx = layer_idx
        self.input_shuffle = shuffle if split_qkv else None
        self.output_shuffle = shuffle if split_output else None
        self.q_proj = make_projection(split_qkv, num_heads, hidden_size, hidden_size, bias)
        self.k_proj = make_projection(split_qkv, num_heads, hidden_size, hidden_size, bias)
        self.v_proj = make_projection(split_qkv, num_heads, hidden_size, hidden_size, bias)
        self.o_proj = make_projection(split_output, num_heads, hidden_size, hidden_size, bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
        attention_function: AttentionFunction = sdpa_attention,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from `query` to `key` and `value`.

        Args:
            query: `[B, T, D]`.
            key: `[B, S, D]`; the query itself if not given.
            value: `[B, S, D]`; the key itself if not given.
            mask: broadcastable to `[B, H, T, S]`; boolean, True where attention is allowed, or added to the scores.
            cache: takes the new keys and values and gives all so far.
            attention_function: computes attention between the projected heads.
            **kwargs: handed to `attention_function`.

        Returns:
            The output `[B, T, D]`, and the weights `[B, H, T, S]` if `attention_function` gives them.

        Raises:
            UsageError: a query without batch axis, or a mask of another shape.
        """
        if query.dim() != 3:
            raise UsageError(f"attention takes [B, T, D], got shape {list(query.shape)}")
        query = self._shuffle(query)
        is_self_attention = key is None and value is None
        if is_self_attention and cache is None and attention_function in SDPA_FUNCTIONS:
            weights = fused_attention_weights(self.q_proj, self.k_proj, self.v_proj, self.o_proj)
            if weights is not None:
                is_causal = kwargs.get("is_causal", self.is_causal) and mask is None
                return self._undo_shuffle(self._fused(query, weights, mask, is_causal)), None
        key = query if key is None else self._shuffle(key)
        value = key if value is None else self._shuffle(value)

        heads = (-1, self.head_dim)
        query_heads = self.q_proj(query).unflatten(-1, heads).transpose(1, 2)
        key_heads = self.k_proj(key).unflatten(-1, heads).transpose(1, 2)
        value_heads = self.v_proj(value).unflatten(-1, heads).transpose(1, 2)
        if cache is not None:
            key_heads, value_heads = cache.update(key_heads, value_heads, self.layer_idx)
        mixed, attention_weights = attention_function(
            self,
            query_heads,
            key_heads,
            value_heads,
            mask,
            scaling=self.scaling,
            dropout=self.dropout if self.training else 0.0,
            **{"is_causal": self.is_causal, **kwargs},
        )
        output = self.o_proj(mixed.reshape(query.shape))
        return self._undo_shuffle(output), attention_weights

    def _fused(self, x: Tensor, weights: tuple[Tensor, ...], mask: Tensor | None, is_causal: bool) -> Tensor:
        q_weight, k_weight, v_weight, o_weight = weights
        return ops.split_attention(
            x,
            q_weight,
            k_weight,
            v_weight,
            o_weight,
            is_causal=is_causal,
            mask=mask,
            dropout=self.dropout if self.training else 0.0,
            scale=self.scaling,
        )

    def _shuffle(self, x: Tensor) -> Tensor:
        return x if self.input_shuffle is None else self.input_shuffle(x)

    def _undo_shuffle(self, output: Tensor) -> Tensor:
        return output if self.output_shuffle is None else self.output_shuffle.undo(output)
