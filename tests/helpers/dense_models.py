"""Split blocks and models as dense ones: blocks on the diagonal, channels in residual order."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from helpers.layers import PROJECTIONS
from smht.layers import Block, SplitLinear
from smht.models import SmhtPreTrainedModel, dense_twin
from smht.models.base import SmhtBlock

READERS, WRITERS = ("q_proj", "k_proj", "v_proj", "up_proj"), ("o_proj", "down_proj")
"""Projections that read the residual stream, and those that write into it."""


def shuffled_order(hidden_size: int, num_heads: int, power: int) -> Tensor:
    """`[D]`: the residual channel at each place of a block's order, by transposing `[H, K]` again and again."""
    order = torch.arange(hidden_size)
    for _ in range(power):
        order = order.view(num_heads, -1).T.flatten()
    return order


def block_projections(block: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every projection of a block and its name in there."""
    for name, module in block.named_modules():
        if name.rsplit(".", 1)[-1] in PROJECTIONS:
            yield name, module


@torch.no_grad()
def in_residual_order(name: str, projection: SplitLinear, order: Tensor) -> nn.Linear:
    """The dense projection that reads and writes residual channels where the split one does so in the block's order."""
    dense = projection.to_dense()
    if name.endswith(READERS):
        dense.weight[:, order] = dense.weight.clone()
    else:
        assert name.endswith(WRITERS)
        dense.weight[order] = dense.weight.clone()
        if projection.bias is not None:
            dense.bias[order] = dense.bias.clone()
    return dense


def dense_projections(block: nn.Module, order: Tensor) -> dict[str, Tensor]:
    """The weights and biases of a block's split projections as dense ones, by name; `order` is the block's."""
    state = {}
    for name, projection in block_projections(block):
        if isinstance(projection, SplitLinear):
            dense = in_residual_order(name, projection, order)
            state |= {f"{name}.{key}": value for key, value in dense.state_dict().items()}
    return state


def copy_block(dense: Block, block: Block) -> None:
    """All weights of a block without shuffle into a dense one, so that it computes the same."""
    residual_order = torch.arange(block.mlp.up_proj.in_features)
    dense.load_state_dict(block.state_dict() | dense_projections(block, residual_order))


def embedded_model(model: SmhtPreTrainedModel) -> SmhtPreTrainedModel:
    """The dense model that computes the same; its norms must be over the whole vector where channels are shuffled."""
    config = model.config
    dense = type(model)(dense_twin(config)).to(model.dtype)
    state = model.state_dict()
    for name, block in model.named_modules():
        if isinstance(block, SmhtBlock):
            power = block.self_attn.layer_idx if config.mixing == "shuffle" else 0
            order = shuffled_order(config.hidden_size, config.num_attention_heads, power)
            state |= {f"{name}.{key}": value for key, value in dense_projections(block, order).items()}
    dense.load_state_dict(state)
    return dense.train(model.training)


def diagonal_blocks(gradient: Tensor, num_heads: int) -> Tensor:
    """Of `[out, in]`, the blocks `[H, in/H, out/H]` that a split projection has."""
    blocks = gradient.T.unflatten(0, (num_heads, -1)).unflatten(2, (num_heads, -1))
    return torch.stack([blocks[head, :, head] for head in range(num_heads)])
