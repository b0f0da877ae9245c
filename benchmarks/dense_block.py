"""The dense Transformer block as most would write it, with torch's own modules."""

import torch.nn.functional as F
from torch import Tensor, nn


class DenseBlock(nn.Module):
    """The pre-norm block with full matrices, queries, keys and values in one, whose projections have no biases.

    Args:
        hidden: width.
        heads: how many.
        norm_bias: whether the norms have one.
    """

    def __init__(self, hidden: int, heads: int, norm_bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(hidden, bias=norm_bias)
        self.feed_forward_norm = nn.LayerNorm(hidden, bias=norm_bias)
        self.qkv, self.output = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.up, self.down = nn.Linear(hidden, 4 * hidden, bias=False), nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, T, D]` to `[B, T, D]`."""
        batch, tokens, hidden = x.shape
        heads = self.qkv(self.attention_norm(x)).view(batch, tokens, 3, self.heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(batch, tokens, hidden))
        return x + self.down(F.gelu(self.up(self.feed_forward_norm(x))))
