import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.layers import assert_fused_equals_composed, output_and_all_gradients, randomize
from helpers.tensors import assert_all_close, embed_blocks, permutation_matrix, value_and_gradients
from smht.errors import UsageError
from smht.layers import ChannelShuffle, FeedForward, SplitLinear
from smht.ops.activation import ACTIVATIONS


def make(split: bool = True, bias: bool = False, activation: str = "gelu", power: int = 0) -> FeedForward:
    torch.manual_seed(0)
    shuffle = ChannelShuffle(12, 3, power) if power else None
    layer = FeedForward(12, 3, 30, split=split, activation=activation, bias=bias, shuffle=shuffle).double()
    randomize(layer)
    return layer


X = torch.randn(2, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("power", [0, 1, 2])
def test_equals_dense_layers_with_permuted_rows_and_columns(bias: bool, power: int) -> None:
    layer = make(bias=bias, power=power)
    permutation = torch.eye(12, dtype=torch.float64)
    if layer.shuffle is not None:
        permutation = permutation_matrix(layer.shuffle.order)

    def dense(x: Tensor) -> Tensor:
        hidden = F.gelu(x @ permutation @ embed_blocks(layer.up_proj.weight) + (layer.up_proj.bias if bias else 0))
        out = hidden @ embed_blocks(layer.down_proj.weight) + (layer.down_proj.bias if bias else 0)
        return out @ permutation.T

    assert_all_close(output_and_all_gradients(layer, layer, X), output_and_all_gradients(layer, dense, X))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_the_dense_layer_is_nn_linear_twice(bias: bool, activation: str) -> None:
    layer = make(split=False, bias=bias, activation=activation)
    function = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}.get(activation, ACTIVATIONS[activation])
    assert type(layer.up_proj) is nn.Linear and type(layer.down_proj) is nn.Linear

    def dense(x: Tensor) -> Tensor:
        hidden = function(F.linear(x, layer.up_proj.weight, layer.up_proj.bias))
        return F.linear(hidden, layer.down_proj.weight, layer.down_proj.bias)

    assert_all_close(value_and_gradients(layer, X), value_and_gradients(dense, X))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("bias", "power"), [(False, 0), (False, 1), (True, 0), (True, 1)])
def test_the_fused_op_computes_what_the_projections_compute(dtype: torch.dtype, bias: bool, power: int) -> None:
    layer = make(bias=bias, power=power).to(dtype)
    assert_fused_equals_composed(layer, layer, X.to(dtype))


def test_any_leading_axes() -> None:
    layer = make()
    flat = layer(X.flatten(0, 1))
    torch.testing.assert_close(layer(X), flat.view(2, 5, 12))
    torch.testing.assert_close(layer(X[0, 0]), flat[0])
    assert layer(X[:0]).shape == (0, 5, 12)


def test_a_dense_layer_needs_no_shuffle() -> None:
    layer = FeedForward(12, 3, 30, split=False, shuffle=ChannelShuffle(12, 3, 1))
    assert layer.shuffle is None


def test_only_split_widths_must_be_divisible() -> None:
    assert FeedForward(12, 3, 31, split=False)(X.float()).shape == X.shape
    with pytest.raises(UsageError, match="out_features = 31 must be a positive multiple of num_heads = 3"):
        FeedForward(12, 3, 31)


def test_an_unknown_activation_is_refused_with_the_nearest() -> None:
    for split in (True, False):
        with pytest.raises(UsageError, match=r"^activation = 'geluu': did you mean gelu.*\?$"):
            FeedForward(12, 3, 30, split=split, activation="geluu")


def test_projections_are_split_or_dense() -> None:
    assert type(make().up_proj) is SplitLinear
    assert make().up_proj.weight.shape == (3, 4, 10)
    assert make().down_proj.weight.shape == (3, 10, 4)
