"""What may be dealt anew in a dense model, and the same model with everything dealt.

Channels of the residual stream have one order in the whole model: embeddings, positions, norms and the head go along.
The inner channels of each feed-forward, and the heads of each attention, have an order of their own; heads stay
together. With relative positions, whose biases belong to heads, all layers of a stack deal their heads alike. Where the
split model shuffles, the chunk that has a place of the residual stream differs from block to block, as is known.
"""

import numpy as np
import torch
from torch import Tensor

from smht.conversion.assignment import Coupling, Deal, Problem
from smht.conversion.projections import Projection, attentions, blocks, projections
from smht.layers import MultiHeadAttention
from smht.layers.mixing import shuffle_order
from smht.models import SmhtConfig, SmhtPreTrainedModel

_ATTENTION, _FEED_FORWARD = ("q_proj", "k_proj", "v_proj", "o_proj"), ("up_proj", "down_proj")
_RELATIVE = "embed_positions.relative_attention_bias"


def why_residual_is_fixed(config: SmhtConfig) -> str | None:
    """Why the channels of the residual stream cannot be dealt anew, if they cannot."""
    if config.position_embedding == "sinusoidal":
        return "each residual channel has a sinusoidal wave of its own"
    if config.norm_scope == "head":
        return "LayerNorm a head says which residual channels belong together"
    return None


def pose(model: SmhtPreTrainedModel, target: SmhtConfig) -> Problem:
    """What there is to deal.

    Args:
        model: dense.
        target: what it is to become; its heads are the model's.
    """
    found = {projection.name: projection for projection in projections(model)}
    couplings = []
    for name, block in blocks(model):
        power = block.self_attn.layer_idx if target.mixing == "shuffle" else 0
        owner = _owners(target, power)
        for place, attention in attentions(name, block):
            weight = _weights(found, place, _ATTENTION, target)
            if weight is not None:
                heads = weight.reshape(attention.num_heads, attention.head_dim, -1).sum(1)
                couplings.append(Coupling(heads, owner, _head_group(model.config, place)))
        weight = _weights(found, f"{name}.mlp", _FEED_FORWARD, target)
        if weight is not None:
            couplings.append(Coupling(weight, owner, f"{name}.mlp"))
    return Problem(tuple(couplings), target.num_attention_heads, why_residual_is_fixed(target) is not None)


@torch.no_grad()
def apply(deal: Deal, model: SmhtPreTrainedModel) -> None:
    """Deal the channels and heads of a dense model, in place; what it computes stays the same."""
    residual = torch.from_numpy(deal.residual)
    found = {projection.name: projection for projection in projections(model)}
    for name, weight in model.named_parameters():
        module = name.rsplit(".", 1)[0]
        if module in found:
            continue
        if module.endswith(_RELATIVE):
            heads = deal.units.get(_shared_group(module.removesuffix(_RELATIVE)))
            if heads is not None:
                weight.copy_(weight[:, torch.from_numpy(heads)])
        else:  # embeddings and heads are [.., D], norms [D]
            weight.copy_(weight[..., residual])
    for name, block in blocks(model):
        for place, attention in attentions(name, block):
            inner = _inner_order(deal.units.get(_head_group(model.config, place)), attention)
            for part in _ATTENTION:
                _reorder(found[f"{place}.{part}"], residual, inner)
        units = deal.units.get(f"{name}.mlp")
        inner = torch.arange(block.mlp.up_proj.out_features) if units is None else torch.from_numpy(units)
        for part in _FEED_FORWARD:
            _reorder(found[f"{name}.mlp.{part}"], residual, inner)


def _reorder(projection: Projection, residual: Tensor, inner: Tensor) -> None:
    matrix, bias = projection.read()
    out_order, in_order = (inner, residual) if projection.reads else (residual, inner)
    projection.write(matrix[out_order][:, in_order], None if bias is None else bias[out_order])


def _inner_order(heads: np.ndarray | None, attention: MultiHeadAttention) -> Tensor:
    """The old channel at each place between an attention's projections; heads move as a whole."""
    channels = torch.arange(attention.num_heads * attention.head_dim)
    return channels if heads is None else channels.view(attention.num_heads, -1)[torch.from_numpy(heads)].flatten()


def _owners(config: SmhtConfig, power: int) -> np.ndarray:
    """`[D]`: the head that has each residual channel in block number `power`."""
    order = shuffle_order(config.hidden_size, config.num_attention_heads, power).numpy()
    owner = np.empty(config.hidden_size, int)
    owner[order] = np.arange(config.hidden_size) // config.head_dim
    return owner


def _weights(found: dict[str, Projection], place: str, parts: tuple[str, ...], target: SmhtConfig) -> np.ndarray | None:
    """`[inner, D]`, the squared weights of those of a layer's projections that are to be split; None without any."""
    tables = []
    for part in parts:
        projection = found[f"{place}.{part}"]
        if projection.part in target.split:
            matrix = projection.read()[0].double().square()
            tables.append((matrix if projection.reads else matrix.T).cpu().numpy())
    return sum(tables[1:], tables[0]) if tables else None


def _head_group(config: SmhtConfig, place: str) -> str:
    """Which attentions deal their heads as the one at `place` does."""
    stack, _, inside = place.rpartition(".layers.")
    is_shared = config.position_embedding == "relative" and inside.endswith("self_attn")
    return _shared_group(f"{stack}.") if is_shared else place


def _shared_group(stack: str) -> str:
    return f"{stack}self_attn"
