"""Shuffle mixing between ranks: an all-to-all of channels."""

import torch
from torch import Tensor, nn

from smht import ops
from smht.distributed.ranks import Ranks
from smht.layers.mixing import shuffle_order


class RankShuffle(nn.Module):
    """Takes this rank's part of the residual stream into a block's channel order and back, as `ChannelShuffle`.

    Rank `r` holds residual channels `r·D/P .. (r+1)·D/P - 1` and computes with as many positions of the block's order.
    Each channel goes to one rank, so a rank sends `D/P` numbers a token, less those that it keeps.

    Args:
        hidden_size: `D`.
        num_heads: `H`.
        power: how many times the transpose of `[H, K]` is applied: the block's number.
        ranks: who has the other channels.
    """

    leaving: Tensor
    leaving_inverse: Tensor
    arriving: Tensor
    arriving_inverse: Tensor

    def __init__(self, hidden_size: int, num_heads: int, power: int, ranks: Ranks) -> None:
        super().__init__()
        self.ranks, self.power = ranks, power
        with torch.device("cpu"):
            order = shuffle_order(hidden_size, num_heads, power)
            width = hidden_size // ranks.size
            owner = order // width
            here = slice(ranks.rank * width, (ranks.rank + 1) * width)
            # By place in the block's order, and so by the rank that wants it.
            mine = (owner == ranks.rank).nonzero()[:, 0]
            leaving = order[mine] - here.start
            self.sent = torch.bincount(mine // width, minlength=ranks.size).tolist()
            # They come sorted by sender, and of one sender by place.
            places = torch.argsort(owner[here], stable=True)
            self.received = torch.bincount(owner[here], minlength=ranks.size).tolist()
            for name, permutation in (("leaving", leaving), ("arriving", torch.argsort(places))):
                self.register_buffer(name, permutation, persistent=False)
                self.register_buffer(f"{name}_inverse", torch.argsort(permutation), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Residual order to block order, `[..., D/P]`; every rank has to call it."""
        x = self._deal(ops.permute_channels(x, self.leaving, self.leaving_inverse), self.sent, self.received)
        return ops.permute_channels(x, self.arriving, self.arriving_inverse)

    def undo(self, x: Tensor) -> Tensor:
        """Block order back to residual order, `[..., D/P]`; every rank has to call it."""
        x = self._deal(ops.permute_channels(x, self.arriving_inverse, self.arriving), self.received, self.sent)
        return ops.permute_channels(x, self.leaving_inverse, self.leaving)

    def _deal(self, x: Tensor, sent: list[int], received: list[int]) -> Tensor:
        rows = x.flatten(0, -2).T
        return self.ranks.exchange(rows, sent, received).T.reshape(x.shape)

    def extra_repr(self) -> str:
        """The arguments, for `print(model)`."""
        return f"power={self.power}, sent={self.sent}, received={self.received}"
