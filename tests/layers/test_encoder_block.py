"""The encoder block: seed 001's experiment, torch.nn's layer, split and dense, order, padding, attention weights."""

import importlib.util
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from helpers.dense_models import copy_block, diagonal_blocks
from helpers.errors import refused
from helpers.layers import randomize
from helpers.tensors import assert_all_close
from helpers.torch_layers import assert_same_gradients, block_pairs, copy_weights
from smht.layers import EncoderBlock, SplitLinear
from smht.layers.block import NORM_PLACEMENTS, SPLITTABLE
from smht.layers.norm import NORM_SCOPES

HIDDEN, HEADS, WIDTH = 12, 3, 30
SUBSETS = [subset for size in range(4) for subset in itertools.combinations(SPLITTABLE, size)]
X = torch.randn(2, 5, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
REAL = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 0, 0]])

every_placement = pytest.mark.parametrize("placement", NORM_PLACEMENTS)


def make(placement: str = "pre", hidden: int = HIDDEN, heads: int = HEADS, **options: Any) -> EncoderBlock:
    torch.manual_seed(0)
    block = EncoderBlock(hidden, heads, 10 * heads, norm_placement=placement, **options).double()
    randomize(block)
    return block


def output(block: EncoderBlock, x: Tensor, mask: Tensor | None = None) -> Tensor:
    result = block(x, mask)
    assert isinstance(result, Tensor)
    return result


def test_the_experiment_of_seed_001_gives_the_numbers_that_it_prints() -> None:
    path = Path(__file__).parents[2] / "examples" / "encoder_block.py"
    spec = importlib.util.spec_from_file_location("encoder_block_example", path)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert example.measure() == {
        "shape of the output": (2, 5, 16),
        "shape of the attention weights": (2, 4, 5, 5),
        "parameters of attention": 1088,
        "parameters of the feed-forward": 1072,
        "parameters of both norms": 64,
        "parameters": 2224,
        "post-norm: mean of each token": [0.0, 0.0, 0.0, 0.0, 0.0],
        "post-norm: deviation of each token": [1.0, 1.0, 1.0, 1.0, 1.0],
        "permuted tokens give the permuted output": True,
        "with positions: largest difference": 3.784,
        "pre-norm: mean of each token": [-0.155, -0.171, -0.016, 0.146, 0.051],
        "pre-norm: deviation of each token": [0.898, 0.98, 0.82, 0.889, 1.13],
        "shape of the output of two blocks": (2, 5, 16),
    }


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@every_placement
def test_the_dense_block_is_torchs_encoder_layer(placement: str, activation: str, bias: bool, padded: bool) -> None:
    block = make(placement, split=(), activation=activation, bias=bias)
    layer = nn.TransformerEncoderLayer(
        HIDDEN, HEADS, WIDTH, 0.0, activation, batch_first=True, norm_first=placement == "pre", dtype=torch.float64
    )
    pairs = block_pairs(block, layer)
    assert {id(part) for parts, _ in pairs for part in parts} == {id(part) for part in block.parameters()}
    copy_weights(pairs, layer)
    ours, theirs = X.clone().requires_grad_(), X.clone().requires_grad_()
    expected = layer(theirs, src_key_padding_mask=REAL == 0 if padded else None)
    result = output(block, ours, REAL if padded else None)
    assert_same_gradients(pairs, (result, expected), [(ours, theirs)])


@pytest.mark.parametrize("split", SUBSETS, ids=str)
@pytest.mark.parametrize("scope", NORM_SCOPES)
@every_placement
def test_the_split_block_is_a_dense_one_with_blocks_on_the_diagonal(
    placement: str, split: tuple[str, ...], scope: str
) -> None:
    options: dict[str, Any] = {"norm_scope": scope, "bias": True}
    block, dense = make(placement, split=split, **options), make(placement, split=(), **options)
    copy_block(dense, block)
    results = []
    for module in (block, dense):
        x = X.clone().requires_grad_()
        result = output(module, x, REAL)
        (result * torch.linspace(-1, 2, HIDDEN)).sum().backward()
        results.append([result, x.grad])
    assert_all_close(*results)
    for name, parameter in block.named_parameters():
        gradient = dense.get_parameter(name).grad
        assert gradient is not None and parameter.grad is not None
        expected = diagonal_blocks(gradient, HEADS) if parameter.dim() == 3 else gradient
        assert_all_close([parameter.grad], [expected])


@every_placement
def test_a_dense_block_that_is_block_diagonal_can_be_made_split(placement: str) -> None:
    split, dense = make(placement), make(placement, split=())
    copy_block(dense, split)
    other = make(placement)
    randomize(other)
    for name, projection in other.named_modules():
        if isinstance(projection, SplitLinear):
            source = dense.get_submodule(name)
            assert isinstance(source, nn.Linear)
            projection.load_state_dict(SplitLinear.from_dense(source, HEADS).state_dict())
        elif isinstance(projection, nn.LayerNorm):
            projection.load_state_dict(dense.get_submodule(name).state_dict())
    assert torch.equal(output(other, X), output(split, X))


@given(
    heads=st.integers(1, 3),
    head_dim=st.integers(2, 4),
    tokens=st.integers(1, 7),
    placement=st.sampled_from(NORM_PLACEMENTS),
    scope=st.sampled_from(NORM_SCOPES),
    split=st.sampled_from(SUBSETS),
    data=st.data(),
)
def test_permuted_tokens_give_the_permuted_output(
    heads: int, head_dim: int, tokens: int, placement: str, scope: str, split: tuple[str, ...], data: st.DataObject
) -> None:
    block = make(placement, heads * head_dim, heads, norm_scope=scope, split=split)
    order = data.draw(st.permutations(range(tokens)))
    real = torch.tensor([data.draw(st.lists(st.booleans(), min_size=tokens, max_size=tokens))])
    x = torch.randn(1, tokens, heads * head_dim, dtype=torch.float64)
    assert_all_close([output(block, x)[:, order]], [output(block, x[:, order])])
    if real.any():
        assert_all_close([output(block, x, real)[:, order]], [output(block, x[:, order], real[:, order])])


@every_placement
def test_padding_is_not_seen_and_may_lie_anywhere(placement: str) -> None:
    block = make(placement)
    alone = output(block, X[1:, [1, 2]])
    assert_all_close([output(block, X, REAL)[1:, [1, 2]]], [alone])
    assert not torch.allclose(output(block, X)[1:, [1, 2]], alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("split", [SPLITTABLE, ()], ids=["split", "dense"])
@pytest.mark.parametrize("return_weights", [False, True])
@every_placement
def test_a_text_of_nothing_but_padding_makes_no_nan(
    placement: str, split: tuple[str, ...], return_weights: bool, dtype: torch.dtype
) -> None:
    block = make(placement, split=split).to(dtype)
    x = X.to(dtype, copy=True).requires_grad_()
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
    result = block(x, mask, return_weights=return_weights)
    hidden_states = result[0] if return_weights else result
    assert hidden_states.isfinite().all()
    hidden_states.square().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
    for name, parameter in block.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    assert_all_close([hidden_states[:1]], [output(block, x[:1], mask[:1])], tolerance=1e-5)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.float32, torch.float64])
def test_masks_of_ones_and_zeros_may_have_any_dtype(dtype: torch.dtype) -> None:
    block = make()
    assert torch.equal(output(block, X, REAL.to(dtype)), output(block, X, REAL))


@pytest.mark.parametrize("shape", [(2, 5, 5), (2, 1, 1, 5), (5,), (2, 4), (1, 5), ()], ids=str)
def test_masks_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with refused("the attention mask must be [B, T] = [2, 5]", f"got {list(shape)}"):
        make()(X, torch.ones(shape))


@pytest.mark.parametrize("number", [-torch.inf, torch.finfo(torch.float32).min, 0.5, 2.0, torch.nan])
def test_masks_of_other_numbers_are_refused(number: float) -> None:
    mask = torch.ones(2, 5)
    mask[1, 2] = number
    with refused("must be 1 at real tokens and 0 at padding", "a mask that is added to the scores"):
        make()(X, mask)


@pytest.mark.parametrize("split", SUBSETS, ids=str)
@every_placement
def test_weights_are_those_that_mixed_the_values(placement: str, split: tuple[str, ...]) -> None:
    block, seen = make(placement, split=split, bias=True), {}
    attention = block.self_attn
    attention.v_proj.register_forward_hook(lambda _, __, values: seen.update(values=values))
    attention.o_proj.register_forward_pre_hook(lambda _, inputs: seen.update(mixed=inputs[0]))
    result, weights = block(X, REAL, return_weights=True)
    assert weights.shape == (2, HEADS, 5, 5)
    assert_all_close([weights.sum(-1)], [torch.ones(2, HEADS, 5, dtype=torch.float64)])
    assert torch.equal(weights > 0, (REAL == 1)[:, None, None].expand_as(weights))
    values = seen["values"].unflatten(-1, (HEADS, -1))
    assert_all_close([torch.einsum("bhts,bshk->bthk", weights, values).flatten(-2)], [seen["mixed"]])
    assert_all_close([result], [output(block, X, REAL)])


@pytest.mark.parametrize("tokens", [0, 1])
def test_one_token_attends_to_itself_and_none_give_nothing(tokens: int) -> None:
    block = make()
    result, weights = block(X[:, :tokens], return_weights=True)
    assert result.shape == (2, tokens, HIDDEN)
    assert (weights == 1).all() and weights.shape == (2, HEADS, tokens, tokens)
    assert output(block, X[:, :tokens]).shape == (2, tokens, HIDDEN)


def test_shuffle_and_dropout_are_passed_on() -> None:
    shuffled = make(shuffle=True, layer_idx=1)
    assert not torch.allclose(output(shuffled, X), output(make(), X))
    dropping = make(hidden_dropout=0.5)
    assert not torch.equal(output(dropping, X), output(dropping, X))
    assert torch.equal(output(dropping.eval(), X), output(make(), X))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm_placement": "pst"}, "norm_placement = 'pst': did you mean post"),
        ({"split": ("qvk",)}, "split names 'qvk', which is no projection"),
        ({"activation": "tanh"}, "activation = 'tanh'"),
    ],
)
def test_unknown_names_are_refused(options: dict[str, Any], message: str) -> None:
    with refused(message):
        EncoderBlock(HIDDEN, HEADS, WIDTH, **options)
