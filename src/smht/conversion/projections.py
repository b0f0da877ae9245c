"""The projections of a model as full matrices over the residual stream, whether they are split or not.

Matrices are `[out, in]`, as in `nn.Linear`; "reads" and "writes" say which side is the residual stream, whose channels
are always in residual order here.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from smht.errors import UsageError
from smht.layers import ChannelShuffle, MultiHeadAttention, SplitLinear
from smht.layers.block import Block
from smht.models import SmhtPreTrainedModel

READERS = ("q_proj", "k_proj", "v_proj", "up_proj")
"""Projections that read the residual stream; the others write into it."""
PARTS = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "o_proj": "output"}
"""The word of `split` for a projection; that of the feed-forward's for all others."""


@dataclass(frozen=True)
class Projection:
    """One projection of a block.

    Attributes:
        name: of the module in its model.
        module: split or dense.
        shuffle: the channel order of its block, if that is not the residual one.
    """

    name: str
    module: SplitLinear | nn.Linear
    shuffle: ChannelShuffle | None

    @property
    def reads(self) -> bool:
        """Whether its inputs are the residual stream's channels; otherwise its outputs are."""
        return self.name.rsplit(".", 1)[-1] in READERS

    @property
    def part(self) -> str:
        """The word of `SmhtConfig.split` that it belongs to."""
        return PARTS.get(self.name.rsplit(".", 1)[-1], "feed_forward")

    @torch.no_grad()
    def read(self) -> tuple[Tensor, Tensor | None]:
        """The matrix `[out, in]` and the bias `[out]`."""
        bias = self.module.bias
        if not isinstance(self.module, SplitLinear):
            return self.module.weight.clone(), None if bias is None else bias.clone()
        matrix = torch.block_diag(*self.module.weight).T
        if self.shuffle is None:
            return matrix.clone(), None if bias is None else bias.clone()
        inverse = self.shuffle.inverse
        if self.reads:
            return matrix[:, inverse], None if bias is None else bias.clone()
        return matrix[inverse], None if bias is None else bias[inverse]

    @torch.no_grad()
    def write(self, matrix: Tensor, bias: Tensor | None) -> None:
        """Put in a matrix `[out, in]` and a bias `[out]`; a split projection takes what lies in its blocks."""
        if isinstance(self.module, SplitLinear):
            if self.shuffle is not None and self.reads:
                matrix = matrix[:, self.shuffle.order]
            elif self.shuffle is not None:
                matrix, bias = matrix[self.shuffle.order], None if bias is None else bias[self.shuffle.order]
            self.module.weight.copy_(_diagonal_blocks(matrix, self.module.num_heads))
        else:
            self.module.weight.copy_(matrix)
        if bias is not None:
            assert self.module.bias is not None
            self.module.bias.copy_(bias)


def blocks(model: SmhtPreTrainedModel) -> Iterator[tuple[str, Block]]:
    """Every block of the model's stacks with its name."""
    for name, module in model.named_modules():
        if isinstance(module, Block):
            yield name, module


def attentions(name: str, block: Block) -> Iterator[tuple[str, MultiHeadAttention]]:
    """A block's attention layers with their names."""
    for part, module in (("self_attn", block.self_attn), ("cross_attn", block.cross_attn)):
        if module is not None:
            yield f"{name}.{part}", module


def projections(model: SmhtPreTrainedModel) -> Iterator[Projection]:
    """Every projection of every block."""
    for name, block in blocks(model):
        for place, attention in attentions(name, block):
            for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
                shuffle = attention.output_shuffle if part == "o_proj" else attention.input_shuffle
                yield Projection(f"{place}.{part}", getattr(attention, part), shuffle)
        for part in ("up_proj", "down_proj"):
            yield Projection(f"{name}.mlp.{part}", getattr(block.mlp, part), block.mlp.shuffle)


@torch.no_grad()
def copy_weights(source: SmhtPreTrainedModel, target: SmhtPreTrainedModel) -> None:
    """All weights of a model into one that differs in what is split alone; what has no place there is left out.

    Raises:
        UsageError: the models differ in more than that.
    """
    written = {projection.name: projection for projection in projections(target)}
    for projection in projections(source):
        written[projection.name].write(*projection.read())
    others = dict(target.named_parameters())
    for name, weight in source.named_parameters():
        if name.rsplit(".", 1)[0] in written:
            continue
        if name not in others or others[name].shape != weight.shape:
            raise UsageError(f"{name} has no place of its shape in the other model")
        others[name].copy_(weight)


def _diagonal_blocks(matrix: Tensor, num_heads: int) -> Tensor:
    """`[out, in]` to the blocks that `SplitLinear` has, `[H, in/H, out/H]`."""
    grid = matrix.T.unflatten(0, (num_heads, -1)).unflatten(2, (num_heads, -1))
    return grid.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
