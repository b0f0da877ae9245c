"""Attention to a memory: against torch.nn, with the memory's keys and values kept, with shuffled channels."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from helpers.dense_models import copy_block, in_residual_order, shuffled_order
from helpers.errors import refused
from helpers.layers import randomize
from helpers.tensors import assert_all_close
from helpers.torch_layers import assert_same_gradients, attention_pairs, block_pairs, copy_weights
from smht.layers import Block, ChannelShuffle, MultiHeadAttention, SplitLinear, eager_attention
from smht.layers.block import NORM_PLACEMENTS

HIDDEN, HEADS, WIDTH = 12, 3, 30
every_placement = pytest.mark.parametrize("placement", NORM_PLACEMENTS)


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


TARGET, MEMORY = random(2, 5, HIDDEN), random(2, 7, HIDDEN, seed=2)
CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()
REAL_TARGET = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.bool)
REAL_MEMORY = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 0]], dtype=torch.bool)


def make(placement: str = "pre", **options: Any) -> Block:
    torch.manual_seed(0)
    options = {"cross_attention": True, "norm_placement": placement, **options}
    block = Block(HIDDEN, HEADS, WIDTH, **options).double()
    randomize(block)
    return block


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@every_placement
def test_the_dense_block_is_torchs_decoder_layer(placement: str, activation: str, bias: bool, padded: bool) -> None:
    block = make(placement, split=(), activation=activation, bias=bias)
    layer = nn.TransformerDecoderLayer(
        HIDDEN, HEADS, WIDTH, 0.0, activation, batch_first=True, norm_first=placement == "pre", dtype=torch.float64
    )
    pairs = block_pairs(block, layer)
    assert {id(part) for parts, _ in pairs for part in parts} == {id(part) for part in block.parameters()}
    copy_weights(pairs, layer)
    inputs = [(x.clone().requires_grad_(), x.clone().requires_grad_()) for x in (TARGET, MEMORY)]
    (our_target, their_target), (our_memory, their_memory) = inputs
    if padded:
        mask = CAUSAL & REAL_TARGET[:, None, None]
        ours = block(our_target, mask, memory=our_memory, memory_mask=REAL_MEMORY[:, None, None])
        padding = {"tgt_key_padding_mask": ~REAL_TARGET, "memory_key_padding_mask": ~REAL_MEMORY}
    else:
        ours, padding = block(our_target, memory=our_memory), {}
    theirs = layer(their_target, their_memory, tgt_mask=~CAUSAL, **padding)
    assert_same_gradients(pairs, (ours, theirs), inputs)


@pytest.mark.parametrize("is_causal", [False, True])
def test_only_self_attention_is_causal(is_causal: bool) -> None:
    block = make(is_causal=is_causal)
    jacobian = torch.autograd.functional.jacobian(lambda memory: block(TARGET[:1], memory=memory), MEMORY[:1])
    assert isinstance(jacobian, Tensor)
    assert (jacobian.abs().amax(dim=(0, 2, 3, 5)) > 0).all()
    jacobian = torch.autograd.functional.jacobian(lambda target: block(target, memory=MEMORY[:1]), TARGET[:1])
    assert isinstance(jacobian, Tensor)
    assert torch.equal(jacobian.abs().amax(dim=(0, 2, 3, 5)) > 0, CAUSAL if is_causal else torch.ones_like(CAUSAL))


@every_placement
@pytest.mark.parametrize("bias", [False, True])
def test_the_split_block_is_a_dense_one_with_blocks_on_the_diagonal(placement: str, bias: bool) -> None:
    block, dense = make(placement, bias=bias), make(placement, bias=bias, split=())
    copy_block(dense, block)
    mask = REAL_MEMORY[:, None, None]
    for function in ({}, {"attention_function": eager_attention}):
        ours = block(TARGET, memory=MEMORY, memory_mask=mask, **function)
        assert_all_close([ours], [dense(TARGET, memory=MEMORY, memory_mask=mask)])


@pytest.mark.parametrize("scope", ["model", "head"])
@pytest.mark.parametrize("split", [("qkv", "output", "feed_forward"), ("qkv",), ("output",)], ids=str)
@pytest.mark.parametrize("layer_idx", [1, 2])
def test_shuffle_is_the_block_in_another_order_of_channels(scope: str, split: tuple[str, ...], layer_idx: int) -> None:
    """block(x, memory) = undo(plain(reorder(x), reorder(memory))), with norms and dense weights reordered likewise."""
    options: dict[str, Any] = {"norm_scope": scope, "split": split, "bias": True, "layer_idx": layer_idx}
    block, plain = make(shuffle=True, **options), make(**options)
    plain.load_state_dict(block.state_dict())
    order = shuffled_order(HIDDEN, HEADS, layer_idx)
    with torch.no_grad():
        for name, module in plain.named_modules():
            if name.endswith("layernorm") or (isinstance(module, nn.Linear) and name.endswith(("o_proj", "down_proj"))):
                for parameter in module.parameters():
                    parameter.copy_(parameter[order])
            elif isinstance(module, nn.Linear):
                module.weight.copy_(module.weight[:, order])
    expected = torch.empty_like(TARGET)
    expected[..., order] = plain(TARGET[..., order], memory=MEMORY[..., order])
    assert_all_close([block(TARGET, memory=MEMORY)], [expected])
    assert not torch.allclose(expected, plain(TARGET, memory=MEMORY))


@given(
    heads=st.integers(1, 4),
    head_dim=st.integers(1, 5),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 7)),
    splits=st.tuples(st.booleans(), st.booleans()),
    power=st.integers(0, 3),
    bias=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_query_key_value_and_mask_may_all_be_given(
    heads: int,
    head_dim: int,
    sizes: tuple[int, int, int],
    splits: tuple[bool, bool],
    power: int,
    bias: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    (batch, tokens, keys), width = sizes, heads * head_dim
    shuffle = ChannelShuffle(width, heads, power)
    layer = MultiHeadAttention(
        width, heads, split_qkv=splits[0], split_output=splits[1], is_causal=False, bias=bias, shuffle=shuffle
    ).double()
    randomize(layer)
    theirs = nn.MultiheadAttention(width, heads, batch_first=True, dtype=torch.float64)
    dense = MultiHeadAttention(width, heads, split_qkv=False, split_output=False, bias=bias).double()
    order = shuffled_order(width, heads, power)
    for name, projection in layer.named_children():
        if isinstance(projection, SplitLinear):
            projection = in_residual_order(name, projection, order)
        if isinstance(projection, nn.Linear):
            dense.get_submodule(name).load_state_dict(projection.state_dict())
    copy_weights(attention_pairs(dense, theirs), theirs)
    query = torch.randn(batch, tokens, width, dtype=torch.float64)
    key, value = torch.randn(2, batch, keys, width, dtype=torch.float64).unbind()
    mask = torch.rand(batch, heads, tokens, keys) < 0.5
    mask[..., 0] = True
    expected, weights = theirs(query, key, value, attn_mask=~mask.flatten(0, 1), average_attn_weights=False)
    assert_all_close([layer(query, key, value, mask)[0]], [expected])
    assert_all_close(layer(query, key, value, mask, attention_function=eager_attention), [expected, weights])


class KeptTensors:
    """A cache of both kinds; what layers need of transformers' caches."""

    def __init__(self) -> None:
        self.own: dict[int, tuple[Tensor, Tensor]] = {}
        self.of_memory: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        if layer_idx in self.own:
            keys, values = self.own[layer_idx]
            key_states, value_states = torch.cat([keys, key_states], 2), torch.cat([values, value_states], 2)
        self.own[layer_idx] = key_states, value_states
        return key_states, value_states

    def load(self, layer_idx: int) -> tuple[Tensor, Tensor] | None:
        return self.of_memory.get(layer_idx)

    def save(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> None:
        assert layer_idx not in self.of_memory
        self.of_memory[layer_idx] = key_states, value_states


@pytest.mark.parametrize("split", [("qkv", "output", "feed_forward"), ()], ids=["split", "dense"])
@pytest.mark.parametrize("shuffle", [False, True])
@every_placement
def test_token_by_token_with_kept_keys_and_values(placement: str, split: tuple[str, ...], shuffle: bool) -> None:
    block, kept, projected = make(placement, split=split, shuffle=shuffle, layer_idx=3), KeptTensors(), []
    assert block.cross_attn is not None
    block.cross_attn.k_proj.register_forward_hook(lambda *_: projected.append("keys"))
    block.cross_attn.v_proj.register_forward_hook(lambda *_: projected.append("values"))
    options = {"memory_mask": REAL_MEMORY[:, None, None]}
    whole = block(TARGET, memory=MEMORY, **options)
    projected.clear()
    steps = [
        # After the first token the memory itself is not looked at.
        block(token, memory=MEMORY if not kept.own else MEMORY * 0, cache=kept, memory_cache=kept, **options)
        for token in TARGET.split(1, dim=1)
    ]
    assert_all_close([torch.cat(steps, 1)], [whole])
    assert projected == ["keys", "values"]
    assert list(kept.own) == list(kept.of_memory) == [3]
    assert kept.of_memory[3][0].shape == (2, HEADS, 7, HIDDEN // HEADS)


def test_attention_to_the_memory_may_have_a_function_of_its_own() -> None:
    block, calls = make(), []

    def recorded(name: str) -> Any:
        def function(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            calls.append((name, module, kwargs["is_causal"], kwargs["extra"]))
            return eager_attention(module, *args, **kwargs)

        return function

    functions = {"attention_function": recorded("own"), "memory_attention_function": recorded("memory")}
    result = block(TARGET, memory=MEMORY, is_causal=True, extra=1, **functions)
    assert calls == [("own", block.self_attn, True, 1), ("memory", block.cross_attn, False, 1)]
    assert_all_close([result], [block(TARGET, memory=MEMORY)])
    calls.clear()
    block(TARGET, memory=MEMORY, attention_function=recorded("both"), extra=2)
    assert [name for name, *_ in calls] == ["both", "both"]


def test_positions_turn_queries_and_keys_of_self_attention_only() -> None:
    block, seen = make(), []

    def spy(module: nn.Module, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        seen.append((query, key))
        return eager_attention(module, query, key, *args, **kwargs)

    # Half a turn, so that every channel of a query or a key changes its sign.
    rotation = -torch.ones(1, 5, 2, dtype=torch.float64), torch.zeros(1, 5, 2, dtype=torch.float64)
    for options in ({}, {"rotation": rotation}):
        block(TARGET, memory=MEMORY, attention_function=spy, **options)
    (own, to_memory, turned, turned_to_memory) = seen
    assert_all_close([*turned], [-own[0], -own[1]])
    assert_all_close([*turned_to_memory], [*to_memory])


def test_a_memory_is_required_or_refused() -> None:
    with refused("a memory is for a block with cross_attention, and such a block needs one"):
        make()(TARGET)
    with refused("a memory is for a block with cross_attention, and such a block needs one"):
        make(cross_attention=False)(TARGET, memory=MEMORY)


@every_placement
def test_a_memory_of_padding_alone_makes_no_nan(placement: str) -> None:
    block = make(placement)
    target, memory = TARGET.clone().requires_grad_(), MEMORY.clone().requires_grad_()
    mask = torch.ones(2, 1, 1, 7, dtype=torch.bool)
    mask[1] = False
    for function in ({}, {"attention_function": eager_attention}):
        result = block(target, memory=memory, memory_mask=mask, **function)
        gradients = torch.autograd.grad(result.square().sum(), [target, memory, *block.parameters()])
        assert result.isfinite().all() and all(gradient.isfinite().all() for gradient in gradients)
