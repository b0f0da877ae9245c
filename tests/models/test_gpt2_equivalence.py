"""A split model is a GPT-2 whose dense matrices hold the blocks: same logits, same text."""

import itertools

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from helpers.layers import randomize
from helpers.tensors import assert_all_close, permutation_matrix
from smht import SmhtConfig, SmhtForCausalLM
from smht.layers import SplitLinear

WIDTH, HIDDEN_WIDTH, LAYERS, VOCABULARY, CONTEXT = 24, 48, 3, 31, 40
IDS = torch.randint(VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(5))


def split_model(heads: int, mixing: str, **fields) -> SmhtForCausalLM:
    torch.manual_seed(heads)
    config = SmhtConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
        intermediate_size=HIDDEN_WIDTH,
        max_position_embeddings=CONTEXT,
        mixing=mixing,
        **fields,
    )
    model = SmhtForCausalLM(config).double().eval()
    randomize(model)
    return model


def gpt2(heads: int) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=heads,
        n_inner=HIDDEN_WIDTH,
        n_positions=CONTEXT,
        activation_function="gelu",
        tie_word_embeddings=False,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        layer_norm_epsilon=1e-5,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config).double().eval()


def transpose_permutation(heads: int, power: int) -> Tensor:
    """`x @ matrix` puts x into the channel order of block `power`: `[H, K]` transposed that many times."""
    order = torch.arange(WIDTH)
    for _ in range(power):
        order = order.view(heads, -1).T.flatten()
    return permutation_matrix(order)


def matrix(projection: nn.Module, permutation: Tensor, reads: bool) -> Tensor:
    """The `[in, out]` matrix of a projection of a block, in residual order."""
    if not isinstance(projection, SplitLinear):
        return projection.weight.T
    blocks = torch.block_diag(*projection.weight)
    return permutation @ blocks if reads else blocks @ permutation.T


@torch.no_grad()
def as_gpt2(model: SmhtForCausalLM) -> GPT2LMHeadModel:
    """GPT-2 with the split model's weights; its biases are zero where the split model has none."""
    heads = model.config.num_attention_heads
    dense = gpt2(heads)
    for name, parameter in dense.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
    dense.transformer.wte.load_state_dict(model.model.embed_tokens.state_dict())
    dense.transformer.wpe.load_state_dict(model.model.embed_positions.state_dict())
    dense.transformer.ln_f.load_state_dict(model.model.norm.state_dict())
    dense.lm_head.load_state_dict(model.lm_head.state_dict())
    for number, (block, target) in enumerate(zip(model.model.layers, dense.transformer.h, strict=True)):
        permutation = transpose_permutation(heads, number if model.config.mixing == "shuffle" else 0)
        attention, mlp = block.self_attn, block.mlp
        qkv = [matrix(part, permutation, reads=True) for part in (attention.q_proj, attention.k_proj, attention.v_proj)]
        target.attn.c_attn.weight.copy_(torch.cat(qkv, dim=1))
        target.attn.c_proj.weight.copy_(matrix(attention.o_proj, permutation, reads=False))
        target.mlp.c_fc.weight.copy_(matrix(mlp.up_proj, permutation, reads=True))
        target.mlp.c_proj.weight.copy_(matrix(mlp.down_proj, permutation, reads=False))
        target.ln_1.load_state_dict(block.input_layernorm.state_dict())
        target.ln_2.load_state_dict(block.post_attention_layernorm.state_dict())
        if model.config.projection_bias:
            target.attn.c_attn.bias.copy_(
                torch.cat([attention.q_proj.bias, attention.k_proj.bias, attention.v_proj.bias])
            )
            target.attn.c_proj.bias.copy_(out_bias(attention.o_proj, permutation))
            target.mlp.c_fc.bias.copy_(mlp.up_proj.bias)
            target.mlp.c_proj.bias.copy_(out_bias(mlp.down_proj, permutation))
    return dense


def out_bias(projection: nn.Module, permutation: Tensor) -> Tensor:
    return projection.bias @ permutation.T if isinstance(projection, SplitLinear) else projection.bias


def greedy(model: nn.Module, ids: Tensor) -> list[list[int]]:
    generated = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, do_sample=False, pad_token_id=0
    )
    return generated.tolist()


# With one head or one channel a head, there is nothing to shuffle.
CASES = [*itertools.product([1, 2, 4, 6, 12, 24], ["none"]), *itertools.product([2, 4, 6, 12], ["shuffle"])]


@pytest.mark.parametrize(("heads", "mixing"), CASES)
def test_same_logits_and_same_greedy_text(heads: int, mixing: str) -> None:
    model = split_model(heads, mixing)
    dense = as_gpt2(model)
    assert_all_close([model(IDS).logits], [dense(IDS).logits], tolerance=1e-11)
    text = greedy(model, IDS)
    assert text == greedy(dense, IDS)
    assert all(len(row) == 39 for row in text)


PARTS = [("qkv",), ("output",), ("feed_forward",), ("qkv", "output")]


@pytest.mark.parametrize(("split", "mixing"), [((), "none"), *itertools.product(PARTS, ["none", "shuffle"])], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_partly_split_models_and_biases(split: tuple[str, ...], mixing: str, bias: bool) -> None:
    model = split_model(4, mixing, split=split, projection_bias=bias)
    assert_all_close([model(IDS).logits], [as_gpt2(model)(IDS).logits], tolerance=1e-11)


@pytest.mark.parametrize("mixing", ["none", "shuffle"])
def test_same_loss_and_same_gradients_of_what_is_dense_in_both(mixing: str) -> None:
    model = split_model(4, mixing)
    dense = as_gpt2(model)
    losses = [module(IDS, labels=IDS).loss for module in (model, dense)]
    # transformers computes the loss in fp32.
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=1e-6)
    weighting = torch.randn(3, 9, VOCABULARY, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for module in (model, dense):
        (module(IDS).logits * weighting).sum().backward()
    pairs = [
        (model.model.embed_tokens, dense.transformer.wte),
        (model.model.embed_positions, dense.transformer.wpe),
        (model.model.norm, dense.transformer.ln_f),
        (model.lm_head, dense.lm_head),
    ]
    for block, target in zip(model.model.layers, dense.transformer.h, strict=True):
        pairs += [(block.input_layernorm, target.ln_1), (block.post_attention_layernorm, target.ln_2)]
    for ours, theirs in pairs:
        gradients = [[parameter.grad for parameter in part.parameters()] for part in (ours, theirs)]
        assert all((gradient != 0).any() for gradient in gradients[0])
        assert_all_close(*gradients, tolerance=1e-10)
