"""The Transformer block of every stack (seed 000, section 3; seeds 001 and 004)."""

from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor, nn

from smht.errors import UsageError, did_you_mean
from smht.layers.attention import KeyValueCache, MemoryCache, MultiHeadAttention
from smht.layers.attention_functions import AttentionFunction, sdpa_attention
from smht.layers.feed_forward import FeedForward
from smht.layers.mixing import ChannelShuffle
from smht.layers.norm import make_norm

SPLITTABLE = ("qkv", "output", "feed_forward")
"""The projections of a block that can be block-diagonal."""

NORM_PLACEMENTS = ("pre", "post")
"""Where a block's norms stand: before each sub-layer, or after each residual sum."""


class Block(nn.Module):
    """Self-attention, attention to a memory if asked for, feed-forward; each with a residual connection and a norm.

    Pre-norm, `x + sublayer(norm(x))`, leaves the residual path alone; post-norm, `norm(x + sublayer(x))`, is that of
    2017 (seed 001, arXiv:1706.03762).

    Args:
        hidden_size: `D`.
        num_heads: `H`.
        intermediate_size: `F`.
        split: which of `SPLITTABLE` are block-diagonal; none of them makes the dense block.
        shuffle: whether the block assigns channels to heads in a shuffled order.
        norm_scope: `model` or `head`.
        norm_placement: `pre` or `post`.
        is_causal: whether a token sees only those before it, where no mask is given.
        cross_attention: whether the block attends to a memory too, as a decoder to its encoder's output.
        activation: a name in `smht.ops.activation.ACTIVATIONS`.
        bias: whether the projections add a bias.
        norm_eps: added to the variance in the norms.
        hidden_dropout: probability that a channel of a sub-layer's output is dropped in training.
        attention_dropout: probability that an attention weight is dropped in training.
        layer_idx: the block's number, which its channel order and its place in a cache follow.

    Raises:
        UsageError: sizes that `H` does not divide, or an unknown projection, norm scope, norm placement or activation.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        intermediate_size: int,
        *,
        split: Collection[str] = SPLITTABLE,
        shuffle: bool = False,
        norm_scope: str = "model",
        norm_placement: str = "pre",
        is_causal: bool = True,
        cross_attention: bool = False,
        activation: str = "gelu",
        bias: bool = False,
        norm_eps: float = 1e-5,
        hidden_dropout: float = 0.0,
        attention_dropout: float = 0.0,
        layer_idx: int = 0,
    ) -> None:
        super().__init__()
        _check_names(split, norm_placement)
        order = ChannelShuffle(hidden_size, num_heads, power=layer_idx) if shuffle and layer_idx else None

        def make_attention(is_causal: bool) -> MultiHeadAttention:
            return MultiHeadAttention(
                hidden_size,
                num_heads,
                split_qkv="qkv" in split,
                split_output="output" in split,
                is_causal=is_causal,
                dropout=attention_dropout,
                bias=bias,
                layer_idx=layer_idx,
                shuffle=order,
            )

        def new_norm() -> nn.Module:
            return make_norm(norm_scope, hidden_size, num_heads, norm_eps, order)

        self.norm_placement = norm_placement
        self.input_layernorm = new_norm()
        self.self_attn = make_attention(is_causal)
        self.cross_attn = make_attention(is_causal=False) if cross_attention else None
        self.cross_attention_layernorm = new_norm() if cross_attention else None
        self.post_attention_layernorm = new_norm()
        self.mlp = FeedForward(
            hidden_size,
            num_heads,
            intermediate_size,
            split="feed_forward" in split,
            activation=activation,
            bias=bias,
            shuffle=order,
        )
        self.dropout = nn.Dropout(hidden_dropout)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
        attention_function: AttentionFunction = sdpa_attention,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        memory_cache: MemoryCache | None = None,
        memory_attention_function: AttentionFunction | None = None,
        rotation: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """`[B, T, D]` to `[B, T, D]`.

        Args:
            hidden_states: `[B, T, D]`.
            mask: of self-attention, like `cache`, `attention_function` and `rotation`; see `MultiHeadAttention`.
            cache: see there.
            attention_function: see there.
            memory: `[B, S, D]`, for a block with cross-attention.
            memory_mask: which tokens of the memory may be attended to, broadcastable to `[B, H, T, S]`.
            memory_cache: keeps the memory's keys and values.
            memory_attention_function: of cross-attention; that of self-attention if not given.
            rotation: see there.
            **kwargs: handed to the attention functions.

        Raises:
            UsageError: a memory where the block has no cross-attention, or none where it has.
        """
        if (memory is None) != (self.cross_attn is None):
            raise UsageError("a memory is for a block with cross_attention, and such a block needs one")

        def attend(x: Tensor) -> Tensor:
            return self.self_attn(
                x, mask=mask, cache=cache, attention_function=attention_function, rotation=rotation, **kwargs
            )[0]

        def attend_to_memory(x: Tensor) -> Tensor:
            assert self.cross_attn is not None
            function = memory_attention_function or attention_function
            return self.cross_attn(
                x,
                memory,
                mask=memory_mask,
                memory_cache=memory_cache,
                attention_function=function,
                **{**kwargs, "is_causal": False},
            )[0]

        hidden_states = self._add(hidden_states, self.input_layernorm, attend)
        if self.cross_attention_layernorm is not None:
            hidden_states = self._add(hidden_states, self.cross_attention_layernorm, attend_to_memory)
        return self._add(hidden_states, self.post_attention_layernorm, self.mlp)

    def _add(self, residual: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_placement == "pre":
            return residual + self.dropout(sublayer(norm(residual)))
        return norm(residual + self.dropout(sublayer(residual)))


def _check_names(split: Collection[str], norm_placement: str) -> None:
    unknown = [name for name in split if name not in SPLITTABLE]
    if unknown:
        raise UsageError(f"split names {unknown[0]!r}, which is no projection: {did_you_mean(unknown[0], SPLITTABLE)}")
    if norm_placement not in NORM_PLACEMENTS:
        raise UsageError(f"norm_placement = {norm_placement!r}: {did_you_mean(norm_placement, NORM_PLACEMENTS)}")
