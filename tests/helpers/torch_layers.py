"""Our dense layers beside those of torch.nn: the same weights, and gradients weight by weight."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from helpers.tensors import assert_all_close
from smht.layers import Block, FeedForward, MultiHeadAttention

Pairs = list[tuple[list[Tensor], Tensor]]
"""Parameters of ours beside one of theirs; several of ours, one below the other, where theirs holds them together."""


def attention_pairs(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> Pairs:
    """Of dense attention; torch.nn keeps q, k and v in one matrix."""
    inputs = [ours.q_proj, ours.k_proj, ours.v_proj]
    pairs: Pairs = [
        ([projection.weight for projection in inputs], theirs.in_proj_weight),
        ([ours.o_proj.weight], theirs.out_proj.weight),
    ]
    if ours.o_proj.bias is not None:
        pairs.append(([projection.bias for projection in inputs], theirs.in_proj_bias))
        pairs.append(([ours.o_proj.bias], theirs.out_proj.bias))
    return pairs


def module_pairs(ours: nn.Module | None, theirs: nn.Module) -> Pairs:
    """Of modules whose parameters have the same names."""
    assert ours is not None
    return [([parameter], theirs.get_parameter(name)) for name, parameter in ours.named_parameters()]


def block_pairs(block: Block, layer: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> Pairs:
    """Of a dense block."""
    mlp = block.mlp
    assert isinstance(mlp, FeedForward)
    pairs = attention_pairs(block.self_attn, layer.self_attn)
    pairs += module_pairs(mlp.up_proj, layer.linear1) + module_pairs(mlp.down_proj, layer.linear2)
    pairs += module_pairs(block.input_layernorm, layer.norm1)
    if isinstance(layer, nn.TransformerDecoderLayer):
        assert block.cross_attn is not None
        pairs += attention_pairs(block.cross_attn, layer.multihead_attn)
        pairs += module_pairs(block.cross_attention_layernorm, layer.norm2)
        return pairs + module_pairs(block.post_attention_layernorm, layer.norm3)
    return pairs + module_pairs(block.post_attention_layernorm, layer.norm2)


@torch.no_grad()
def copy_weights(pairs: Pairs, theirs: nn.Module) -> None:
    """Ours into theirs, and zeros where we have no parameter."""
    for parameter in theirs.parameters():
        parameter.zero_()
    for parts, whole in pairs:
        whole.copy_(torch.cat(parts))


def assert_same_gradients(
    pairs: Pairs, outputs: tuple[Tensor, Tensor], inputs: Sequence[tuple[Tensor, Tensor]] = (), tolerance: float = 1e-11
) -> None:
    """A random weighting of our and their output has the same gradients by all weights and inputs, none of them zero.

    Args:
        pairs: all parameters of ours.
        outputs: ours and theirs, of one shape.
        inputs: leaves of ours and of theirs.
        tolerance: relative and absolute.
    """
    ours, theirs = outputs
    assert_all_close([ours], [theirs], tolerance)
    weighting = torch.randn(ours.shape, dtype=ours.dtype, generator=torch.Generator().manual_seed(5))
    our_leaves = [part for parts, _ in pairs for part in parts] + [leaf for leaf, _ in inputs]
    our_gradients = iter(torch.autograd.grad((ours * weighting).sum(), our_leaves))
    their_leaves = [whole for _, whole in pairs] + [leaf for _, leaf in inputs]
    their_gradients = iter(torch.autograd.grad((theirs * weighting).sum(), their_leaves))
    for parts, _ in pairs:
        gradient = torch.cat([next(our_gradients) for _ in parts])
        assert gradient.any()
        assert_all_close([gradient], [next(their_gradients)], tolerance)
    assert_all_close(list(our_gradients), list(their_gradients), tolerance)
