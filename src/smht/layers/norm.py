"""Layer normalisation over the whole vector or over each head's chunk (arXiv:1607.06450)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smht.errors import UsageError, did_you_mean
from smht.layers.mixing import ChannelShuffle

NORM_SCOPES = ("model", "head")
"""What a mean and a variance may be taken over."""


class HeadLayerNorm(nn.Module):
    """LayerNorm with a mean and variance of its own for each head's chunk.

    With `nn.LayerNorm` all chunks share two numbers a token (seed 000, 6.2); here they share nothing.

    Args:
        hidden_size: `D`.
        num_heads: `H`; chunks of one channel are useless, since their normalised value is always 0.
        eps: added to the variance.
        shuffle: which channels make up a chunk, where that is not the residual order.

    Attributes:
        weight: `[D]`, in residual order.
        bias: `[D]`, in residual order.
    """

    def __init__(
        self, hidden_size: int, num_heads: int, eps: float = 1e-5, shuffle: ChannelShuffle | None = None
    ) -> None:
        super().__init__()
        self.hidden_size, self.num_heads, self.eps = hidden_size, num_heads, eps
        self.shuffle = shuffle
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        """`[..., D]` to `[..., D]`."""
        chunks = x if self.shuffle is None else self.shuffle(x)
        chunks = chunks.unflatten(-1, (self.num_heads, -1))
        normalised = F.layer_norm(chunks, (chunks.shape[-1],), eps=self.eps).flatten(-2)
        if self.shuffle is not None:
            normalised = self.shuffle.undo(normalised)
        return torch.addcmul(self.bias, normalised, self.weight).to(x.dtype)

    def extra_repr(self) -> str:
        """The arguments, for `print(model)`."""
        return f"{self.hidden_size}, num_heads={self.num_heads}, eps={self.eps}"


def make_norm(
    scope: str, hidden_size: int, num_heads: int, eps: float, shuffle: ChannelShuffle | None = None
) -> nn.LayerNorm | HeadLayerNorm:
    """LayerNorm over all of `D` (`scope="model"`, the seed's) or over each chunk (`scope="head"`).

    Raises:
        UsageError: another scope.
    """
    if scope not in NORM_SCOPES:
        raise UsageError(f"norm_scope = {scope!r}: {did_you_mean(scope, NORM_SCOPES)}")
    if scope == "head":
        return HeadLayerNorm(hidden_size, num_heads, eps, shuffle)
    return nn.LayerNorm(hidden_size, eps=eps)
