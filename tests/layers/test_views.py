import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from helpers.errors import refused
from smht.layers import ChannelShuffle, MultiHeadAttention
from smht.layers.views import PerHeadWeights, SeparateWeights

KINDS = ("split", "shuffled", "dense", "half")


def make(kind: str, num_heads: int = 3, head_dim: int = 4) -> MultiHeadAttention:
    width = num_heads * head_dim
    shuffle = ChannelShuffle(width, num_heads, power=2) if kind == "shuffled" else None
    split = kind != "dense"
    return MultiHeadAttention(
        width, num_heads, split_qkv=split, split_output=split and kind != "half", shuffle=shuffle, is_causal=False
    )


def through_views(weights: SeparateWeights, num_heads: int) -> SeparateWeights:
    """Separate to per head to separate to fused to separate."""
    again = SeparateWeights.from_per_head(weights.to_per_head(num_heads))
    return SeparateWeights.from_fused(*again.to_fused())


@pytest.mark.parametrize("kind", KINDS)
@given(num_heads=st.integers(1, 5), head_dim=st.integers(1, 5))
def test_every_view_gives_back_the_weights_exactly(kind: str, num_heads: int, head_dim: int) -> None:
    source, target = make(kind, num_heads, head_dim), make(kind, num_heads, head_dim)
    through_views(SeparateWeights.of(source), num_heads).load_into(target)
    for name, weight in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], weight), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_dense_layer_with_a_split_layers_weights_computes_the_same(kind: str) -> None:
    torch.manual_seed(0)
    source, dense = make(kind).double(), make("dense").double()
    SeparateWeights.of(source).load_into(dense)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    torch.testing.assert_close(dense(x)[0], source(x)[0])


def test_per_head_matrices_are_the_formulas_of_the_seed() -> None:
    torch.manual_seed(0)
    attention = make("dense").double()
    heads = SeparateWeights.of(attention).to_per_head(3)
    x = torch.randn(1, 5, 12, dtype=torch.float64)
    outputs = []
    for query, key, value in zip(heads.query, heads.key, heads.value, strict=True):
        assert query.shape == (12, 4)
        scores = (x @ query) @ (x @ key).transpose(1, 2) / 2
        outputs.append(scores.softmax(-1) @ (x @ value))
    expected = sum(output @ matrix for output, matrix in zip(outputs, heads.output, strict=True))
    torch.testing.assert_close(attention(x)[0], expected)


def test_a_fused_matrix_is_that_of_torch_and_of_gpt2() -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(12, 3, bias=False, batch_first=True)
    ours = make("dense")
    assert theirs.in_proj_weight is not None
    SeparateWeights.from_fused(theirs.in_proj_weight.T, theirs.out_proj.weight.T).load_into(ours)
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(ours(x)[0], theirs(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize("name", ["query", "key", "value", "output"])
@pytest.mark.parametrize("kind", ["split", "shuffled"])
def test_a_split_layer_refuses_weights_between_heads_and_keeps_its_own(kind: str, name: str) -> None:
    attention = make(kind)
    before = {key: value.clone() for key, value in attention.state_dict().items()}
    weights = vars(SeparateWeights.of(make(kind)))
    # Head 0's rows and the last head's columns never meet in a block.
    own = weights[name] != 0
    row, column = (int(i) for i in (~own).nonzero()[0])
    weights[name][row, column] = 1e-30
    with refused(f"{name[0]}_proj is split", "outside its own channels", "dense layer"):
        SeparateWeights(**weights).load_into(attention)
    assert all(torch.equal(value, before[key]) for key, value in attention.state_dict().items())


def test_matrices_of_another_shape_are_refused() -> None:
    weights = SeparateWeights.of(make("dense", num_heads=2))
    with refused("q_proj takes a matrix [D, D] = [12, 12]", "got [8, 8]"):
        weights.load_into(make("dense"))
    with refused("[D, 3·D]", "[12, 24]"):
        SeparateWeights.from_fused(torch.zeros(12, 24), torch.zeros(12, 12))


def test_views_are_copies() -> None:
    attention = make("dense")
    weights = SeparateWeights.of(attention)
    weights.query.zero_()
    assert attention.q_proj.weight.any()
    assert isinstance(weights.to_per_head(3), PerHeadWeights)
