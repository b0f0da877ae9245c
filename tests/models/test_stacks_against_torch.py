"""Whole stacks: dense ones against those of torch.nn, split ones against dense ones with blocks on the diagonal."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.dense_models import embedded_model
from helpers.hugging_face import TWO_STACKS, tiny
from helpers.tensors import assert_all_close
from helpers.torch_layers import Pairs, assert_same_gradients, block_pairs, copy_weights, module_pairs
from smht import SmhtModel
from smht.layers.block import NORM_PLACEMENTS, SPLITTABLE
from smht.layers.norm import NORM_SCOPES
from smht.models.configuration import STACKS

WIDTH, HEADS, HIDDEN_WIDTH, LAYERS, DECODER_LAYERS = 16, 4, 32, 3, 2
SUBSETS = [subset for size in range(1, 4) for subset in itertools.combinations(SPLITTABLE, size)]

every_placement = pytest.mark.parametrize("placement", NORM_PLACEMENTS)


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


SOURCE, TARGET = random(3, 6, WIDTH), random(3, 5, WIDTH, seed=2)
REAL_SOURCE = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
REAL_TARGET = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0], [1, 1, 0, 0, 0]])


def make(stack: str, **changes: Any) -> SmhtModel:
    """Without positions, so that nothing but blocks and norms is between embeddings and hidden states."""
    options = {"stack": stack, "position_embedding": "none", "mixing": "none", "use_cache": False, **changes}
    if stack == "encoder_decoder":
        options = {**TWO_STACKS, "num_decoder_layers": DECODER_LAYERS, **options}
    return tiny(SmhtModel, **options).double()


def torch_layer(placement: str, activation: str) -> dict[str, Any]:
    """Arguments of torch.nn's layers."""
    return {
        "d_model": WIDTH,
        "nhead": HEADS,
        "dim_feedforward": HIDDEN_WIDTH,
        "dropout": 0.0,
        "activation": activation,
        "norm_first": placement == "pre",
        "batch_first": True,
        "dtype": torch.float64,
    }


def torch_encoder(layer: dict[str, Any], layers: int) -> nn.TransformerEncoder:
    norm = nn.LayerNorm(WIDTH, dtype=torch.float64) if layer["norm_first"] else None
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), layers, norm, enable_nested_tensor=False)


def stack_pairs(ours: nn.Module, theirs: nn.Module) -> Pairs:
    """Of a stack of blocks and, where there is one, the norm at the end."""
    pairs: Pairs = []
    for block, layer in zip(ours.layers, theirs.layers, strict=True):
        pairs += block_pairs(block, layer)
    assert (ours.norm is None) == (theirs.norm is None)
    return pairs if ours.norm is None else pairs + module_pairs(ours.norm, theirs.norm)


def assert_all_paired(pairs: Pairs, model: SmhtModel) -> None:
    """Nothing of the model but its token embedding is left out of a comparison."""
    paired = {id(part) for parts, _ in pairs for part in parts}
    left_out = {name for name, parameter in model.named_parameters() if id(parameter) not in paired}
    assert {name.rsplit(".", 2)[-2] for name in left_out} == {"embed_tokens"}


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@every_placement
def test_the_dense_encoder_is_torchs(placement: str, activation: str, bias: bool, implementation: str) -> None:
    options = {"norm_placement": placement, "hidden_act": activation, "projection_bias": bias}
    model = make("encoder", split=(), attn_implementation=implementation, **options)
    encoder = torch_encoder(torch_layer(placement, activation), LAYERS)
    pairs = stack_pairs(model, encoder)
    assert_all_paired(pairs, model)
    copy_weights(pairs, encoder)
    for mask, padding in ((None, None), (REAL_SOURCE, REAL_SOURCE == 0)):
        ours, theirs = SOURCE.clone().requires_grad_(), SOURCE.clone().requires_grad_()
        hidden_states = model(inputs_embeds=ours, attention_mask=mask).last_hidden_state
        assert_same_gradients(pairs, (hidden_states, encoder(theirs, src_key_padding_mask=padding)), [(ours, theirs)])


@pytest.mark.parametrize("bias", [False, True])
@every_placement
def test_the_dense_decoder_is_torchs_encoder_with_a_causal_mask(placement: str, bias: bool) -> None:
    model = make("decoder", split=(), norm_placement=placement, projection_bias=bias)
    encoder = torch_encoder(torch_layer(placement, "gelu"), LAYERS)
    pairs = stack_pairs(model, encoder)
    assert_all_paired(pairs, model)
    copy_weights(pairs, encoder)
    ours, theirs = TARGET.clone().requires_grad_(), TARGET.clone().requires_grad_()
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = encoder(theirs, mask=causal, src_key_padding_mask=REAL_TARGET == 0)
    hidden_states = model(inputs_embeds=ours, attention_mask=REAL_TARGET).last_hidden_state
    assert_same_gradients(pairs, (hidden_states, expected), [(ours, theirs)])


def torch_transformer(layer: dict[str, Any]) -> nn.Transformer:
    """Both stacks; after post-norm blocks torch.nn puts one norm more, which the paper has not."""
    encoder = torch_encoder(layer, LAYERS)
    whole = nn.Transformer(**layer, num_decoder_layers=DECODER_LAYERS, custom_encoder=encoder)
    if not layer["norm_first"]:
        whole.decoder.norm = None
    return whole


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@every_placement
def test_the_dense_encoder_decoder_is_torchs_transformer(
    placement: str, activation: str, bias: bool, implementation: str
) -> None:
    options = {"norm_placement": placement, "hidden_act": activation, "projection_bias": bias}
    model = make("encoder_decoder", split=(), attn_implementation=implementation, **options)
    transformer = torch_transformer(torch_layer(placement, activation))
    pairs = stack_pairs(model.encoder, transformer.encoder) + stack_pairs(model.decoder, transformer.decoder)
    assert_all_paired(pairs, model)
    copy_weights(pairs, transformer)
    inputs = [(x.clone().requires_grad_(), x.clone().requires_grad_()) for x in (SOURCE, TARGET)]
    (our_source, their_source), (our_target, their_target) = inputs
    expected = transformer(
        their_source,
        their_target,
        tgt_mask=torch.ones(5, 5, dtype=torch.bool).triu(1),
        src_key_padding_mask=REAL_SOURCE == 0,
        tgt_key_padding_mask=REAL_TARGET == 0,
        memory_key_padding_mask=REAL_SOURCE == 0,
    )
    outputs = model(
        inputs_embeds=our_source,
        attention_mask=REAL_SOURCE,
        decoder_inputs_embeds=our_target,
        decoder_attention_mask=REAL_TARGET,
    )
    assert_same_gradients(pairs, (outputs.last_hidden_state, expected), inputs)
    memory = transformer.encoder(their_source, src_key_padding_mask=REAL_SOURCE == 0)
    assert_all_close([outputs.encoder_last_hidden_state], [memory])


def hidden_states(model: SmhtModel, x: Tensor) -> Tensor:
    """Of a source, with what it takes beside it."""
    if model.config.stack == "encoder_decoder":
        target = {"decoder_inputs_embeds": x[:, :5].flip(1), "decoder_attention_mask": REAL_TARGET}
        return model(inputs_embeds=x, attention_mask=REAL_SOURCE, **target).last_hidden_state
    return model(inputs_embeds=x, attention_mask=REAL_SOURCE).last_hidden_state


KINDS = [("none", "model"), ("none", "head"), ("shuffle", "model")]
"""Mixing and norm scope; a shuffled block's norm over each head has no dense counterpart."""


@pytest.mark.parametrize("split", SUBSETS, ids=str)
@pytest.mark.parametrize(("mixing", "scope"), KINDS)
@pytest.mark.parametrize("stack", STACKS)
@every_placement
def test_a_split_model_is_a_dense_one_with_blocks_on_the_diagonal(
    stack: str, mixing: str, scope: str, split: tuple[str, ...], placement: str
) -> None:
    options = {"norm_placement": placement, "norm_scope": scope, "projection_bias": True}
    model = make(stack, split=split, mixing=mixing, **options)
    dense = embedded_model(model)
    assert isinstance(dense, SmhtModel) and dense.config.split == ()
    results = []
    for each in (model, dense):
        x = SOURCE.clone().requires_grad_()
        result = hidden_states(each, x)
        (result * torch.linspace(-1, 2, WIDTH)).sum().backward()
        results.append([result, x.grad, *(each.get_parameter(name).grad for name in shared_parameters(model))])
    assert_all_close(*results)


def shared_parameters(model: SmhtModel) -> list[str]:
    """Names of parameters that the dense model has too, in the same order of channels: the norms."""
    return [name for name, _ in model.named_parameters() if "norm" in name]


@pytest.mark.parametrize("scope", NORM_SCOPES)
@pytest.mark.parametrize("stack", STACKS)
def test_shuffled_models_are_not_those_without(stack: str, scope: str) -> None:
    """What the test above would miss if both models ignored the order."""
    shuffled = make(stack, mixing="shuffle", norm_scope=scope)
    plain = make(stack, norm_scope=scope)
    plain.load_state_dict(shuffled.state_dict())
    assert not torch.allclose(hidden_states(shuffled, SOURCE), hidden_states(plain, SOURCE))


@pytest.mark.parametrize("stack", STACKS)
@every_placement
def test_split_weights_are_fewer_by_the_number_of_heads(stack: str, placement: str) -> None:
    model = make(stack, norm_placement=placement)
    split = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 3)
    dense = embedded_model(model)
    full = sum(p.numel() for name, p in dense.named_parameters() if name.endswith("proj.weight"))
    assert full == HEADS * split
    attentions = LAYERS if stack != "encoder_decoder" else LAYERS + 2 * DECODER_LAYERS
    blocks = LAYERS if stack != "encoder_decoder" else LAYERS + DECODER_LAYERS
    assert full == attentions * 4 * WIDTH**2 + blocks * 2 * WIDTH * HIDDEN_WIDTH
