"""The encoder block (seed 001): tokens look both ways."""

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from smht.errors import UsageError
from smht.layers.attention_functions import eager_attention, sdpa_attention
from smht.layers.block import SPLITTABLE, Block


class EncoderBlock(Block):
    """Bidirectional self-attention and feed-forward, each with a residual connection and a norm.

    Without position encodings it knows nothing of order: permuted tokens give the permuted output.

    Args:
        hidden_size: `D`.
        num_heads: `H`.
        intermediate_size: `F`.
        norm_placement: `pre`, or `post` as in 2017.
        split: which projections are block-diagonal, any of `SPLITTABLE`; none of them makes the dense block.
        bias: whether the projections add a bias.
        activation: `gelu` or another name in `smht.ops.activation.ACTIVATIONS`.
        **options: as for `Block`.

    Raises:
        UsageError: as `Block`.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        intermediate_size: int,
        *,
        norm_placement: str = "pre",
        split: Collection[str] = SPLITTABLE,
        bias: bool = False,
        activation: str = "gelu",
        **options: Any,
    ) -> None:
        super().__init__(
            hidden_size,
            num_heads,
            intermediate_size,
            norm_placement=norm_placement,
            split=split,
            bias=bias,
            activation=activation,
            is_causal=False,
            **options,
        )

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Every token attends to every real token.

        Args:
            hidden_states: `[B, T, D]`.
            attention_mask: `[B, T]`, True (or 1) at real tokens and False (or 0) at padding: the opposite of
                `torch.nn`'s `key_padding_mask`.
            return_weights: whether to give the attention weights too.

        Returns:
            `[B, T, D]`, or that and the weights `[B, H, T, T]`.

        Raises:
            UsageError: a mask of another shape, or of numbers other than 0 and 1.
        """
        mask = None if attention_mask is None else padding_mask(attention_mask, hidden_states)
        if not return_weights:
            return super().forward(hidden_states, mask, attention_function=sdpa_attention)
        weights: list[Tensor] = []

        def keep_weights(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            output, these = eager_attention(module, *args, **kwargs)
            weights.append(these)
            return output, these

        return super().forward(hidden_states, mask, attention_function=keep_weights), weights[0]


def padding_mask(attention_mask: Tensor, hidden_states: Tensor) -> Tensor:
    """`[B, T]`, 1 at real tokens, as a boolean mask `[B, 1, 1, T]`, True where attention is allowed.

    Raises:
        UsageError: another shape, or numbers other than 0 and 1.
    """
    expected = hidden_states.shape[:2]
    if attention_mask.shape != expected:
        raise UsageError(
            f"the attention mask must be [B, T] = {list(expected)}, 1 at real tokens and 0 at padding; "
            f"got {list(attention_mask.shape)}"
        )
    if attention_mask.is_floating_point() and ((attention_mask != 0) & (attention_mask != 1)).any():
        raise UsageError(
            "the attention mask must be 1 at real tokens and 0 at padding; this one has other numbers, like a mask "
            "that is added to the scores"
        )
    return attention_mask.bool()[:, None, None, :]
