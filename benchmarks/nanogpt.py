"""nanoGPT's model for a laptop's processor, of ordinary PyTorch modules: learned positions, pre-norm, GELU, no biases.

As its authors publish it for characters of tinyshakespeare: 4 blocks of 4 heads, width 128, context 64, no dropout.
It takes and gives what smht's models do, so that the same loop trains and measures both.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from dense_block import DenseBlock
from torch import Tensor, nn

from smht.models.labels import IGNORED

STEPS, BATCH_SIZE, CONTEXT, LEARNING_RATE = 2_000, 12, 64, 1e-3
PUBLISHED_LOSS = 1.88
_DEVIATION = 0.02


@dataclass(frozen=True)
class Output:
    """The mean cross-entropy in nats, or the sum divided by `num_items_in_batch`."""

    loss: Tensor


class NanoGPT(nn.Module):
    """A decoder whose head is its embedding; weights from N(0, 0.02²), those into the residual stream smaller.

    Args:
        vocab_size: `V`.
        hidden: width.
        heads: of each block.
        layers: blocks.
    """

    def __init__(self, vocab_size: int, hidden: int = 128, heads: int = 4, layers: int = 4) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=vocab_size)
        self.tokens, self.positions = nn.Embedding(vocab_size, hidden), nn.Embedding(CONTEXT, hidden)
        self.blocks = nn.Sequential(*[DenseBlock(hidden, heads, norm_bias=False) for _ in range(layers)])
        self.norm = nn.LayerNorm(hidden, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                into_stream = name.endswith(("output.weight", "down.weight"))
                nn.init.normal_(weight, std=_DEVIATION / (2 * layers) ** 0.5 if into_stream else _DEVIATION)

    def forward(
        self, input_ids: Tensor, shift_labels: Tensor, num_items_in_batch: int | None = None, **_: Any
    ) -> Output:
        """`[B, T]` tokens and the ones after them."""
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        logits = F.linear(self.norm(self.blocks(x)), self.tokens.weight)
        reduction = "mean" if num_items_in_batch is None else "sum"
        loss = F.cross_entropy(logits.flatten(0, 1), shift_labels.flatten(), ignore_index=IGNORED, reduction=reduction)
        return Output(loss / (num_items_in_batch or 1))
