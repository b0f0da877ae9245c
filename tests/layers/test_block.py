import itertools

import pytest
import torch
from torch import Tensor, nn

from helpers.layers import assert_fused_equals_composed, output_and_all_gradients, randomize
from helpers.tensors import assert_all_close
from smht.errors import UsageError
from smht.layers import Block, HeadLayerNorm, SplitLinear
from smht.layers.block import SPLITTABLE

HIDDEN, HEADS, WIDTH = 12, 3, 30
SUBSETS = [subset for size in range(4) for subset in itertools.combinations(SPLITTABLE, size)]
X = torch.randn(2, 5, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def make(**options) -> Block:
    torch.manual_seed(0)
    block = Block(HIDDEN, HEADS, WIDTH, **options).double()
    randomize(block)
    return block


def dense_weight(projection: nn.Module) -> Tensor:
    """`[out, in]`, as `nn.Linear` stores it."""
    return projection.to_dense().weight if isinstance(projection, SplitLinear) else projection.weight


def encoder_layer(block: Block) -> nn.TransformerEncoderLayer:
    """PyTorch's pre-norm layer with the block's weights, blocks in dense matrices."""
    layer = nn.TransformerEncoderLayer(
        HIDDEN, HEADS, WIDTH, dropout=0.0, activation="gelu", norm_first=True, batch_first=True, dtype=torch.float64
    )
    attention, mlp = block.self_attn, block.mlp
    inputs = [attention.q_proj, attention.k_proj, attention.v_proj]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.self_attn.in_proj_weight.copy_(torch.cat([dense_weight(projection) for projection in inputs]))
        layer.self_attn.out_proj.weight.copy_(dense_weight(attention.o_proj))
        layer.linear1.weight.copy_(dense_weight(mlp.up_proj))
        layer.linear2.weight.copy_(dense_weight(mlp.down_proj))
        if attention.q_proj.bias is not None:
            layer.self_attn.in_proj_bias.copy_(torch.cat([projection.bias for projection in inputs]))
            layer.self_attn.out_proj.bias.copy_(attention.o_proj.bias)
            layer.linear1.bias.copy_(mlp.up_proj.bias)
            layer.linear2.bias.copy_(mlp.down_proj.bias)
        layer.norm1.load_state_dict(block.input_layernorm.state_dict())
        layer.norm2.load_state_dict(block.post_attention_layernorm.state_dict())
    return layer


@pytest.mark.parametrize("split", SUBSETS, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_every_choice_of_split_equals_pytorchs_pre_norm_layer(split: tuple[str, ...], bias: bool) -> None:
    block = make(split=split, bias=bias)
    layer = encoder_layer(block)
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    ours = output_and_all_gradients(block, block, X)
    theirs = output_and_all_gradients(layer, lambda x: layer(x, src_mask=causal, is_causal=True), X)
    assert_all_close(ours[:2], theirs[:2])


def test_without_is_causal_it_is_an_encoder_block() -> None:
    block = make(is_causal=False)
    assert_all_close([block(X)], [encoder_layer(block).train()(X)])


@pytest.mark.parametrize("norm_scope", ["model", "head"])
@pytest.mark.parametrize("split", [SPLITTABLE, ("qkv",), ("output", "feed_forward")], ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layer_idx", [1, 2, 4])
def test_shuffle_is_the_block_in_another_order_of_channels(
    norm_scope: str, split: tuple[str, ...], bias: bool, layer_idx: int
) -> None:
    """block(x) = undo(plain(reorder(x))), with what is dense or norm in the plain block reordered likewise."""
    block = make(shuffle=True, norm_scope=norm_scope, split=split, bias=bias, layer_idx=layer_idx)
    order = torch.arange(HIDDEN)
    for _ in range(layer_idx):
        order = order.view(HEADS, -1).T.flatten()
    plain = make(shuffle=False, norm_scope=norm_scope, split=split, bias=bias)
    plain.load_state_dict(block.state_dict())
    with torch.no_grad():
        for norm in (plain.input_layernorm, plain.post_attention_layernorm):
            norm.weight.copy_(norm.weight[order]), norm.bias.copy_(norm.bias[order])
        attention, mlp = plain.self_attn, plain.mlp
        for reader in (attention.q_proj, attention.k_proj, attention.v_proj, mlp.up_proj):
            if isinstance(reader, nn.Linear):
                reader.weight.copy_(reader.weight[:, order])
        for writer in (attention.o_proj, mlp.down_proj):
            if isinstance(writer, nn.Linear):
                writer.weight.copy_(writer.weight[order])
                if bias:
                    writer.bias.copy_(writer.bias[order])
    expected = torch.empty_like(X)
    expected[..., order] = plain(X[..., order])
    assert_all_close([block(X)], [expected])
    assert not torch.allclose(block(X), plain(X))


def test_the_first_block_has_the_residual_order() -> None:
    assert_all_close([make(shuffle=True, layer_idx=0)(X)], [make()(X)], tolerance=0)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("norm_scope", ["model", "head"])
def test_the_fused_ops_compute_what_the_projections_compute(shuffle: bool, norm_scope: str) -> None:
    block = make(shuffle=shuffle, norm_scope=norm_scope, layer_idx=1)
    assert_fused_equals_composed(block, block, X)


def test_dropout_acts_in_training_only_and_follows_the_seed() -> None:
    block = make(hidden_dropout=0.5, attention_dropout=0.5)
    assert_all_close([block.eval()(X)], [make()(X)])
    block.train()
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(block(X))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_hidden_dropout_leaves_the_residual_alone() -> None:
    block = make(hidden_dropout=0.5)
    # With both sub-layers' outputs dropped whole, only the residual is left.
    block.dropout.p = 1.0
    assert torch.equal(block.train()(X), X)


@pytest.mark.parametrize("split", SUBSETS, ids=str)
def test_split_names_what_is_block_diagonal(split: tuple[str, ...]) -> None:
    block = make(split=split)
    groups = {
        "qkv": [block.self_attn.q_proj, block.self_attn.k_proj, block.self_attn.v_proj],
        "output": [block.self_attn.o_proj],
        "feed_forward": [block.mlp.up_proj, block.mlp.down_proj],
    }
    for name, projections in groups.items():
        for projection in projections:
            assert type(projection) is (SplitLinear if name in split else nn.Linear)


def test_norm_scope_and_epsilon_reach_both_norms() -> None:
    for scope, kind in (("model", nn.LayerNorm), ("head", HeadLayerNorm)):
        block = make(norm_scope=scope, norm_eps=0.5)
        for norm in (block.input_layernorm, block.post_attention_layernorm):
            assert type(norm) is kind and norm.eps == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": ("qvk",)}, r"^split names 'qvk', which is no projection: did you mean qkv\?$"),
        ({"split": "qkv"}, "^split names 'q', which is no projection: "),
        ({"norm_scope": "modl"}, r"^norm_scope = 'modl': did you mean model\?$"),
        ({"activation": "swish"}, "^activation = 'swish': choose from gelu, gelu_tanh, relu, relu_squared, silu$"),
    ],
)
def test_refused_names(options: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Block(HIDDEN, HEADS, WIDTH, **options)
