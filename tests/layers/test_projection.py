import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from helpers.tensors import assert_all_close, embed_blocks, value_and_gradients
from smht.errors import UsageError
from smht.layers import SplitLinear, make_projection

sizes = st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6))
"""Heads, block width in, block width out."""


def make(size: tuple[int, int, int], bias: bool = False, dtype: torch.dtype = torch.float64) -> SplitLinear:
    heads, block_in, block_out = size
    return SplitLinear(heads, heads * block_in, heads * block_out, bias=bias, dtype=dtype)


@given(sizes, st.booleans(), st.sampled_from([(), (3,), (2, 4), (0,)]), st.integers(0, 2**32))
def test_computes_what_an_nn_linear_with_the_blocks_on_its_diagonal_computes(
    size: tuple[int, int, int], bias: bool, leading: tuple[int, ...], seed: int
) -> None:
    torch.manual_seed(seed)
    split = make(size, bias)
    dense = nn.Linear(split.in_features, split.out_features, bias=bias, dtype=torch.float64)
    with torch.no_grad():
        dense.weight.copy_(embed_blocks(split.weight).T)
        if bias:
            dense.bias.copy_(split.bias)
    x = torch.randn(*leading, split.in_features, dtype=torch.float64)
    assert_all_close(value_and_gradients(split, x), value_and_gradients(dense, x))
    assert torch.equal(split.to_dense().weight, dense.weight)


@given(sizes, st.booleans(), st.integers(0, 2**32))
def test_dense_and_back_changes_nothing(size: tuple[int, int, int], bias: bool, seed: int) -> None:
    torch.manual_seed(seed)
    split = make(size, bias)
    again = SplitLinear.from_dense(split.to_dense(), split.num_heads)
    assert (again.in_features, again.out_features) == (split.in_features, split.out_features)
    assert torch.equal(again.weight, split.weight)
    assert torch.equal(again.bias, split.bias) if bias else again.bias is None


def test_from_dense_keeps_the_diagonal_blocks() -> None:
    dense = nn.Linear(6, 9, dtype=torch.float64)
    split = SplitLinear.from_dense(dense, 3)
    for head in range(3):
        block = dense.weight[3 * head : 3 * head + 3, 2 * head : 2 * head + 2]
        assert torch.equal(split.weight[head], block.T)
    assert split.bias is not None and torch.equal(split.bias, dense.bias)
    assert split.weight.dtype == torch.float64
    # Later training of one must not move the other.
    with torch.no_grad():
        dense.weight.zero_(), dense.bias.zero_()
    assert (split.weight != 0).all() and (split.bias != 0).all()


@pytest.mark.parametrize("heads", [1, 4, 16])
def test_has_a_share_of_the_dense_weights(heads: int) -> None:
    split, dense = SplitLinear(heads, 32, 64), nn.Linear(32, 64, bias=False)
    assert split.weight.numel() * heads == dense.weight.numel()
    assert split.weight.shape == (heads, 32 // heads, 64 // heads)
    assert list(split.state_dict()) == ["weight"]
    assert list(SplitLinear(heads, 32, 64, bias=True).state_dict()) == ["weight", "bias"]


@pytest.mark.parametrize("heads", [1, 4, 16])
def test_fresh_weights_are_as_large_as_those_of_a_dense_layer_of_one_block(heads: int) -> None:
    torch.manual_seed(0)
    split = SplitLinear(heads, 256, 1024, bias=True)
    block = nn.Linear(256 // heads, 1024 // heads)
    for ours, theirs in ((split.weight, block.weight), (split.bias, block.bias)):
        assert isinstance(ours, nn.Parameter)
        bound = (256 // heads) ** -0.5
        assert 0.95 * bound < ours.abs().max() <= bound
        assert theirs.abs().max() <= bound
        assert ours.std().item() == pytest.approx(theirs.std().item(), rel=0.2)


def test_takes_a_device_and_a_dtype() -> None:
    split = SplitLinear(2, 4, 6, bias=True, device="meta", dtype=torch.bfloat16)
    for parameter in split.parameters():
        assert parameter.is_meta and parameter.dtype == torch.bfloat16
    assert split.to_dense().weight.is_meta
    split = SplitLinear(2, 4, 6, dtype=torch.float16)
    assert split.to_dense().weight.dtype == torch.float16


def test_copies_and_pickles_like_any_module() -> None:
    split = make((2, 3, 4), bias=True)
    x = torch.randn(5, 6, dtype=torch.float64)
    for twin in (copy.deepcopy(split), pickle.loads(pickle.dumps(split))):
        assert torch.equal(twin(x), split(x))


def test_says_what_it_is() -> None:
    text = "SplitLinear(num_heads=2, in_features=4, out_features=6, bias=True)"
    assert repr(SplitLinear(2, 4, 6, bias=True)) == text


@pytest.mark.parametrize(
    ("heads", "in_features", "out_features", "message"),
    [
        (4, 10, 8, "in_features = 10 must be a positive multiple of num_heads = 4"),
        (4, 8, 10, "out_features = 10 must be a positive multiple of num_heads = 4"),
        (4, 0, 8, "in_features = 0 must be a positive multiple of num_heads = 4"),
        (4, 8, -4, "out_features = -4 must be a positive multiple of num_heads = 4"),
        (0, 8, 8, "in_features = 8 must be a positive multiple of num_heads = 0"),
        (-2, 8, 8, "in_features = 8 must be a positive multiple of num_heads = -2"),
    ],
)
def test_refused_sizes(heads: int, in_features: int, out_features: int, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        SplitLinear(heads, in_features, out_features)
    assert str(refusal.value) == message


def test_from_dense_refuses_widths_that_heads_do_not_divide() -> None:
    with pytest.raises(UsageError, match="in_features = 6 must be a positive multiple of num_heads = 4"):
        SplitLinear.from_dense(nn.Linear(6, 8), 4)


def test_make_projection_gives_either() -> None:
    assert type(make_projection(True, 2, 4, 6)) is SplitLinear
    assert type(make_projection(False, 2, 4, 6)) is nn.Linear
    assert make_projection(True, 2, 4, 6).bias is None and make_projection(False, 2, 4, 6).bias is None
    assert make_projection(True, 2, 4, 6, bias=True).bias is not None
    assert make_projection(False, 2, 4, 6, bias=True).bias is not None
