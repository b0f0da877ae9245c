"""The pre-norm Transformer block (seed 000, section 3)."""

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from smht.errors import UsageError, did_you_mean
from smht.layers.attention import AttentionFunction, KeyValueCache, MultiHeadAttention, sdpa_attention
from smht.layers.feed_forward import FeedForward
from smht.layers.mixing import ChannelShuffle
from smht.layers.norm import make_norm

SPLITTABLE = ("qkv", "output", "feed_forward")
"""The projections of a block that can be block-diagonal."""


class Block(nn.Module):
    """`x + attention(norm(x))`, then `x + feed_forward(norm(x))`.

    Args:
        hidden_size: `D`.
        num_heads: `H`.
        intermediate_size: `F`.
        split: which of `SPLITTABLE` are block-diagonal; none of them makes the dense block.
        shuffle: whether the block assigns channels to heads in a shuffled order.
        norm_scope: `model` or `head`.
        is_causal: whether a token sees only those before it, where no mask is given.
        activation: a name in `smht.ops.activation.ACTIVATIONS`.
        bias: whether the projections add a bias.
        norm_eps: added to the variance in the norms.
        hidden_dropout: probability that a channel of a sub-layer's output is dropped in training.
        attention_dropout: probability that an attention weight is dropped in training.
        layer_idx: the block's number, which its channel order and its place in a cache follow.

    Raises:
        UsageError: sizes that `H` does not divide, or an unknown projection, norm scope or activation.
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
        is_causal: bool = True,
        activation: str = "gelu",
        bias: bool = False,
        norm_eps: float = 1e-5,
        hidden_dropout: float = 0.0,
        attention_dropout: float = 0.0,
        layer_idx: int = 0,
    ) -> None:
        super().__init__()
        unknown = [name for name in split if name not in SPLITTABLE]
        if unknown:
            raise UsageError(
                f"split names {unknown[0]!r}, which is no projection: {did_you_mean(unknown[0], SPLITTABLE)}"
            )
        order = ChannelShuffle(hidden_size, num_heads, power=layer_idx) if shuffle and layer_idx else None
        self.input_layernorm = make_norm(norm_scope, hidden_size, num_heads, norm_eps, order)
        self.self_attn = MultiHeadAttention(
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
        self.post_attention_layernorm = make_norm(norm_scope, hidden_size, num_heads, norm_eps, order)
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
        **kwargs: Any,
    ) -> Tensor:
        """`[B, T, D]` to `[B, T, D]`; the arguments are those of `MultiHeadAttention`."""
        attended, _ = self.self_attn(
            self.input_layernorm(hidden_states),
            mask=mask,
            cache=cache,
            attention_function=attention_function,
            **kwargs,
        )
        hidden_states = hidden_states + self.dropout(attended)
        return hidden_states + self.dropout(self.mlp(self.post_attention_layernorm(hidden_states)))
