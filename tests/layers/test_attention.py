import itertools

import pytest
import torch
from torch import Tensor, nn

from helpers.layers import assert_fused_equals_composed, composed_path, output_and_all_gradients, randomize
from helpers.tensors import assert_all_close, embed_blocks, permutation_matrix
from smht.errors import UsageError
from smht.layers import ChannelShuffle, MultiHeadAttention, SplitLinear
from smht.layers.attention_functions import eager_attention
from smht.layers.position import RotaryPositions

HIDDEN, HEADS, HEAD_DIM = 12, 3, 4
SPLITS = list(itertools.product([True, False], repeat=2))
"""Whether q, k and v are split, whether the output is."""


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X = random(2, 5, HIDDEN)
MASK = (random(2, HEADS, 5, 5) > 0) | torch.eye(5, dtype=torch.bool)


def make(split_qkv: bool = True, split_output: bool = True, power: int = 0, **options) -> MultiHeadAttention:
    torch.manual_seed(0)
    shuffle = ChannelShuffle(HIDDEN, HEADS, power) if power else None
    layer = MultiHeadAttention(
        HIDDEN, HEADS, split_qkv=split_qkv, split_output=split_output, shuffle=shuffle, **options
    ).double()
    randomize(layer)
    return layer


def matrix(projection: SplitLinear | nn.Linear) -> Tensor:
    """`[D, D]` that multiplies vectors from the right."""
    return embed_blocks(projection.weight) if isinstance(projection, SplitLinear) else projection.weight.T


def dense_attention(layer: MultiHeadAttention, power: int = 0) -> nn.MultiheadAttention:
    """PyTorch's layer of the same function: blocks in dense matrices, rows and columns permuted by the shuffle."""
    permutation = torch.eye(HIDDEN, dtype=torch.float64)
    if power:
        permutation = permutation_matrix(ChannelShuffle(HIDDEN, HEADS, power).order)
    into = permutation if isinstance(layer.q_proj, SplitLinear) else torch.eye(HIDDEN, dtype=torch.float64)
    out_of = permutation.T if isinstance(layer.o_proj, SplitLinear) else torch.eye(HIDDEN, dtype=torch.float64)
    has_bias = layer.q_proj.bias is not None
    dense = nn.MultiheadAttention(HIDDEN, HEADS, bias=has_bias, batch_first=True, dtype=torch.float64)
    inputs = [layer.q_proj, layer.k_proj, layer.v_proj]
    with torch.no_grad():
        dense.in_proj_weight.copy_(torch.cat([(into @ matrix(projection)).T for projection in inputs]))
        dense.out_proj.weight.copy_((matrix(layer.o_proj) @ out_of).T)
        if has_bias:
            dense.in_proj_bias.copy_(torch.cat([projection.bias for projection in inputs]))
            dense.out_proj.bias.copy_(layer.o_proj.bias @ out_of)
    return dense


def masked(mask: Tensor) -> Tensor:
    """The mask as PyTorch's layer wants it: `[B·H, T, S]`, True where attention is forbidden."""
    return ~mask.expand(2, HEADS, *mask.shape[-2:]).flatten(0, 1)


CAUSAL = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("power", [0, 1])
def test_equals_pytorchs_layer(split: tuple[bool, bool], bias: bool, power: int) -> None:
    layer = make(*split, bias=bias, power=power)
    dense = dense_attention(layer, power)
    expected, weights = dense(X, X, X, attn_mask=masked(CAUSAL), average_attn_weights=False)
    assert_all_close([layer(X)[0]], [expected])
    assert_all_close(layer(X, attention_function=eager_attention), [expected, weights])


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_gradients_equal_those_of_pytorchs_layer(split: tuple[bool, bool]) -> None:
    layer = make(*split)
    dense = dense_attention(layer)
    ours = output_and_all_gradients(layer, layer, X)
    theirs = output_and_all_gradients(dense, lambda x: dense(x, x, x, attn_mask=masked(CAUSAL))[0], X)
    assert_all_close(ours[:2], theirs[:2])
    in_proj, out_proj = theirs[2].chunk(3), theirs[3]
    for gradient, dense_gradient, is_split in zip(
        ours[2:], [*in_proj, out_proj], [split[0], split[0], split[0], split[1]], strict=True
    ):
        blocks = dense_gradient.T.unflatten(0, (HEADS, -1)).unflatten(2, (HEADS, -1))
        diagonal = torch.stack([blocks[head, :, head] for head in range(HEADS)])
        assert_all_close([gradient], [diagonal if is_split else dense_gradient])


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("mask", [MASK, MASK[:1, :1], MASK[0, 0]], ids=["[B,H,T,T]", "[1,1,T,T]", "[T,T]"])
def test_masks_replace_the_causal_one(split: tuple[bool, bool], mask: Tensor) -> None:
    layer = make(*split)
    expected, weights = dense_attention(layer)(X, X, X, attn_mask=masked(mask), average_attn_weights=False)
    assert_all_close([layer(X, mask=mask)[0]], [expected])
    additive = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -torch.inf)
    assert_all_close([layer(X, mask=additive)[0]], [expected])
    assert_all_close(layer(X, mask=mask, attention_function=eager_attention), [expected, weights])
    assert_all_close(layer(X, mask=additive, attention_function=eager_attention), [expected, weights])


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("power", [0, 2])
def test_cross_attention(split: tuple[bool, bool], power: int) -> None:
    layer = make(*split, power=power, is_causal=False)
    dense = dense_attention(layer, power)
    keys, values = random(2, 7, HIDDEN, seed=2), random(2, 7, HIDDEN, seed=3)
    assert_all_close([layer(X, keys, values)[0]], [dense(X, keys, values)[0]])
    assert_all_close([layer(X, keys)[0]], [dense(X, keys, keys)[0]])
    mask = (random(2, HEADS, 5, 7) > 0) | (torch.arange(7) == 0)
    assert_all_close([layer(X, keys, values, mask=mask)[0]], [dense(X, keys, values, attn_mask=masked(mask))[0]])


@pytest.mark.parametrize("hooked", [False, True])
def test_without_is_causal_every_token_sees_every_token(hooked: bool) -> None:
    layer = make(is_causal=False)
    expected = dense_attention(layer)(X, X, X)[0]
    causal = make()
    if hooked:
        with composed_path(layer), composed_path(causal):
            results = [layer(X)[0], causal(X, is_causal=False)[0]]
    else:
        results = [layer(X)[0], causal(X, is_causal=False)[0]]
    assert_all_close(results, [expected, expected])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("power", [0, 1])
def test_the_fused_op_computes_what_the_projections_compute(dtype: torch.dtype, is_causal: bool, power: int) -> None:
    layer, x = make(is_causal=is_causal, power=power).to(dtype), X.to(dtype)
    assert_fused_equals_composed(layer, layer, x)
    assert_fused_equals_composed(layer, lambda given: layer(given, mask=MASK), x)
    # One position for all rows, and one a row, as padding on the left gives them.
    for positions in (torch.arange(5)[None], torch.tensor([[0, 0, 0, 1, 2], [3, 9, 2, 0, 1]])):
        rotation = RotaryPositions(10, HEAD_DIM).to(dtype).rotation(positions)
        assert_fused_equals_composed(layer, lambda given, turn=rotation: layer(given, rotation=turn), x)
        assert_fused_equals_composed(layer, lambda given, turn=rotation: layer(given, mask=MASK, rotation=turn), x)


def test_the_attention_function_sees_heads_and_settings() -> None:
    layer = make(dropout=0.25)
    seen = {}

    def spy(module, query, key, value, attention_mask, **settings):
        seen.update(settings, module=module, mask=attention_mask, shapes=[query.shape, key.shape, value.shape])
        return query.transpose(1, 2), None

    keys = random(2, 7, HIDDEN)
    layer.train()(X, keys, mask=None, attention_function=spy, extra=3)
    assert seen["module"] is layer and seen["mask"] is None
    assert seen["shapes"] == [(2, HEADS, 5, HEAD_DIM), (2, HEADS, 7, HEAD_DIM), (2, HEADS, 7, HEAD_DIM)]
    assert (seen["scaling"], seen["dropout"], seen["is_causal"], seen["extra"]) == (0.5, 0.25, True, 3)
    layer.eval()(X, attention_function=spy)
    assert seen["dropout"] == 0.0


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_dropout_acts_in_training_only(split: tuple[bool, bool]) -> None:
    layer, plain = make(*split, dropout=0.5), make(*split)
    assert_all_close([layer.eval()(X)[0]], [plain(X)[0]])
    layer.train()
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(layer(X)[0])
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


class ListCache:
    """Keeps keys and values; what a layer needs of transformers' caches."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        if layer_idx in self.layers:
            keys, values = self.layers[layer_idx]
            key_states, value_states = torch.cat([keys, key_states], 2), torch.cat([values, value_states], 2)
        self.layers[layer_idx] = key_states, value_states
        return key_states, value_states


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("power", [0, 1])
def test_token_by_token_with_a_cache(split: tuple[bool, bool], power: int) -> None:
    layer = make(*split, power=power, layer_idx=4)
    cache = ListCache()
    steps = [layer(X[:, token : token + 1], cache=cache)[0] for token in range(5)]
    assert_all_close([torch.cat(steps, dim=1)], [layer(X)[0]])
    assert list(cache.layers) == [4] and cache.layers[4][0].shape == (2, HEADS, 5, HEAD_DIM)


def test_refused_sizes_and_shapes() -> None:
    for split in (True, False):
        with pytest.raises(UsageError, match=r"^hidden_size = 10 must be a positive multiple of num_heads = 4$"):
            MultiHeadAttention(10, 4, split_qkv=split, split_output=split)
        with pytest.raises(UsageError, match=r"^attention takes \[B, T, D\], got shape \[5, 12\]$"):
            make(split, split)(X[0])


def test_an_eager_row_with_nothing_allowed_stays_finite() -> None:
    mask = CAUSAL.clone()
    mask[..., 0, 0] = False
    output, weights = make()(X, mask=mask, attention_function=eager_attention)
    assert output.isfinite().all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, HEADS, 5, dtype=torch.float64))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (torch.ones(2, 5, dtype=torch.bool), "must broadcast to"),
        (torch.ones(1, 1, 1, 4, dtype=torch.bool), "must broadcast to"),
        (torch.ones(1, 1, 1, 5, 5, dtype=torch.bool), "must broadcast to"),
        (torch.zeros(5, 5, dtype=torch.long), "True where attention is allowed"),
    ],
)
def test_masks_that_do_not_fit_are_refused(split: tuple[bool, bool], mask: Tensor, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make(*split)(X, mask=mask)
    fits = torch.ones(1, 1, 1, 5, dtype=torch.bool)
    assert make(*split)(X, mask=fits)[0].isfinite().all()
