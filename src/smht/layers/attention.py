"""Multi-head attention with split or dense projections (seed 000, steps 3b to 3g; seed 004)."""

import math
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from smht import ops
from smht.errors import UsageError
from smht.layers.attention_functions import AttentionFunction, sdpa_attention
from smht.layers.fast_path import SDPA_FUNCTIONS, fused_attention_weights
from smht.layers.mixing import ChannelShuffle
from smht.layers.position import rotate
from smht.layers.projection import make_projection


class KeyValueCache(Protocol):
    """What a layer needs of a cache; transformers' `Cache` has it."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Append keys and values `[B, H, T, K]` of a layer; return all of that layer."""
        ...


class MemoryCache(Protocol):
    """Keys and values of what a decoder attends to, which stay the same from token to token."""

    def load(self, layer_idx: int) -> tuple[Tensor, Tensor] | None:
        """Keys and values `[B, H, S, K]` of a layer, if they were saved."""
        ...

    def save(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> None:
        """Keep keys and values `[B, H, S, K]` of a layer."""
        ...


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
        memory_cache: MemoryCache | None = None,
        rotation: tuple[Tensor, Tensor] | None = None,
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
            memory_cache: keeps the projected `key` and `value` of the first call for later ones.
            rotation: cosines and sines of the tokens' positions (`smht.layers.position.rotate`), in self-attention.
            **kwargs: handed to `attention_function`.

        Returns:
            The output `[B, T, D]`, and the weights `[B, H, T, S]` if `attention_function` gives them.

        Raises:
            UsageError: a query without batch axis, or a mask of another shape.
        """
        if query.dim() != 3:
            raise UsageError(f"attention takes [B, T, D], got shape {list(query.shape)}")
        _check_mask_type(mask)
        query = self._shuffle(query)
        is_self_attention = key is None and value is None
        caches = (cache, memory_cache)
        if is_self_attention and caches == (None, None) and attention_function in SDPA_FUNCTIONS:
            weights = fused_attention_weights(self.q_proj, self.k_proj, self.v_proj, self.o_proj)
            if weights is not None:
                is_causal = kwargs.get("is_causal", self.is_causal) and mask is None
                return self._undo_shuffle(self._fused(query, weights, mask, is_causal, rotation)), None
        key = query if key is None else self._shuffle(key)
        value = key if value is None else self._shuffle(value)

        query_heads = self._to_heads(self.q_proj(query))
        key_heads, value_heads = self._project_memory(key, value, memory_cache)
        if rotation is not None:
            query_heads, key_heads = rotate(query_heads, *rotation), rotate(key_heads, *rotation)
        if cache is not None:
            key_heads, value_heads = cache.update(key_heads, value_heads, self.layer_idx)
        _check_mask_shape(mask, (*query_heads.shape[:3], key_heads.shape[2]))
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
        output = self.o_proj(mixed.flatten(-2))
        return self._undo_shuffle(output), attention_weights

    def _project_memory(self, key: Tensor, value: Tensor, memory_cache: MemoryCache | None) -> tuple[Tensor, Tensor]:
        """Keys and values per head, `[B, H, S, K]` each; computed once where there is a cache for them."""
        kept = None if memory_cache is None else memory_cache.load(self.layer_idx)
        if kept is not None:
            return kept
        key_heads, value_heads = self._to_heads(self.k_proj(key)), self._to_heads(self.v_proj(value))
        if memory_cache is not None:
            memory_cache.save(key_heads, value_heads, self.layer_idx)
        return key_heads, value_heads

    def _to_heads(self, x: Tensor) -> Tensor:
        """`[B, T, D]` to `[B, H, T, K]`."""
        return x.unflatten(-1, (x.shape[-1] // self.head_dim, self.head_dim)).transpose(1, 2)

    def _fused(
        self,
        x: Tensor,
        weights: tuple[Tensor, ...],
        mask: Tensor | None,
        is_causal: bool,
        rotation: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
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
            rotation=rotation,
        )

    def _shuffle(self, x: Tensor) -> Tensor:
        return x if self.input_shuffle is None else self.input_shuffle(x)

    def _undo_shuffle(self, output: Tensor) -> Tensor:
        return output if self.output_shuffle is None else self.output_shuffle.undo(output)


def _check_mask_type(mask: Tensor | None) -> None:
    """Refuse numbers of which nobody knows what they mean."""
    if isinstance(mask, Tensor) and mask.dtype != torch.bool and not mask.is_floating_point():
        raise UsageError(
            "an attention mask is boolean, True where attention is allowed, or floating, to be added to the scores; "
            f"got {str(mask.dtype).removeprefix('torch.')}"
        )


def _check_mask_shape(mask: Tensor | None, scores_shape: tuple[int, ...]) -> None:
    """Refuse a mask that does not fit the scores `[B, H, T, S]`; other implementations have masks of their own kind."""
    if not isinstance(mask, Tensor) or torch.compiler.is_compiling():
        return
    padded = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    if len(padded) != 4 or any(size not in (1, full) for size, full in zip(padded, scores_shape, strict=True)):
        raise UsageError(
            f"the attention mask must broadcast to [B, H, T, S] = {list(scores_shape)}, got {list(mask.shape)}; "
            "padding of the keys is [B, 1, 1, S]"
        )
