"""Shuffle mixing: which head a channel belongs to changes from block to block, at no cost in weights."""

import torch
from torch import Tensor, nn

from smht import ops


def shuffle_order(hidden_size: int, num_heads: int, power: int) -> Tensor:
    """The channel order of block number `power`: the transpose of `[H, K]`, applied `power` times.

    Position `j` of the result names the residual channel that stands there, so head `h` owns the residual
    channels `order[h·K : (h+1)·K]`. The order of block 0 is the residual order itself.

    Returns:
        `[D]`, int64, a permutation of `0..D-1`.
    """
    order = torch.arange(hidden_size)
    for _ in range(power % _cycle_length(hidden_size, num_heads)):
        order = order.view(num_heads, -1).T.reshape(-1)
    return order


def _cycle_length(hidden_size: int, num_heads: int) -> int:
    """How many transposes of `[H, K]` give the identity: channel `i` moves to `i·H mod (D - 1)`."""
    length, position = 1, num_heads
    while hidden_size > 2 and position % (hidden_size - 1) != 1:
        position = position * num_heads % (hidden_size - 1)
        length += 1
    return length


class ChannelShuffle(nn.Module):
    """Takes the residual stream into a block's channel order and back.

    The residual stream itself keeps one fixed order, so embeddings, the language-model head and everything
    that looks at hidden states need to know nothing of it.

    Args:
        hidden_size: `D`.
        num_heads: `H`.
        power: how many times the transpose of `[H, K]` is applied: the block's number.
    """

    order: Tensor
    inverse: Tensor

    def __init__(self, hidden_size: int, num_heads: int, power: int) -> None:
        super().__init__()
        self.hidden_size, self.num_heads, self.power = hidden_size, num_heads, power
        order, inverse = self.compute_order()
        self.register_buffer("order", order, persistent=False)
        self.register_buffer("inverse", inverse, persistent=False)

    def compute_order(self) -> tuple[Tensor, Tensor]:
        """The order and its inverse, `[D]` each, on the CPU."""
        with torch.device("cpu"):
            order = shuffle_order(self.hidden_size, self.num_heads, self.power)
            return order, torch.argsort(order)

    def forward(self, x: Tensor) -> Tensor:
        """Residual order to block order, `[..., D]`: head `h` then finds its channels in chunk `h`."""
        return ops.permute_channels(x, self.order, self.inverse)

    def undo(self, x: Tensor) -> Tensor:
        """Block order back to residual order, `[..., D]`."""
        return ops.permute_channels(x, self.inverse, self.order)

    def extra_repr(self) -> str:
        """The arguments, for `print(model)`."""
        return f"hidden_size={self.hidden_size}, num_heads={self.num_heads}, power={self.power}"
