"""The feed-forward sub-layer (seed 000, steps 3j to 3l)."""

from torch import Tensor, nn

from smht import ops
from smht.errors import UsageError, did_you_mean
from smht.layers.fast_path import fused_feed_forward_weights
from smht.layers.mixing import ChannelShuffle
from smht.layers.projection import make_projection
from smht.ops.activation import ACTIVATIONS


class FeedForward(nn.Module):
    """Up projection, activation, down projection; block-diagonal per head if `split`.

    Args:
        hidden_size: `D`.
        num_heads: `H`; must divide `D` and `F` if `split`.
        intermediate_size: `F`.
        split: whether both projections are block-diagonal.
        activation: a name in `smht.ops.activation.ACTIVATIONS`.
        bias: whether the projections add a bias.
        shuffle: the block's channel order, for split projections.

    Raises:
        UsageError: sizes that `H` does not divide, or an unknown activation.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        intermediate_size: int,
        *,
        split: bool = True,
        activation: str = "gelu",
        bias: bool = False,
        shuffle: ChannelShuffle | None = None,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise UsageError(f"activation = {activation!r}: {did_you_mean(activation, ACTIVATIONS)}")
        self.activation = activation
        self.shuffle = shuffle if split else None
        self.up_proj = make_projection(split, num_heads, hidden_size, intermediate_size, bias)
        self.down_proj = make_projection(split, num_heads, intermediate_size, hidden_size, bias)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., D]` to `[..., D]`."""
        if self.shuffle is not None:
            x = self.shuffle(x)
        weights = fused_feed_forward_weights(self.up_proj, self.down_proj)
        if weights is not None:
            up_weight, down_weight, up_bias, down_bias = weights
            x = ops.split_feed_forward(x, up_weight, down_weight, self.activation, up_bias, down_bias)
        else:
            x = self.down_proj(ACTIVATIONS[self.activation](self.up_proj(x)))
        return x if self.shuffle is None else self.shuffle.undo(x)
