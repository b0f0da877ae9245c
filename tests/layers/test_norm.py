import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from helpers.tensors import assert_all_close, relative_errors, value_and_gradients
from smht.errors import UsageError
from smht.layers import ChannelShuffle, HeadLayerNorm, make_norm


def norm_by_chunk(norm: HeadLayerNorm, x: Tensor, channels: Tensor) -> Tensor:
    """One `nn.LayerNorm` a head, over the residual channels `channels` `[H, K]` of each."""
    out = torch.empty_like(x)
    for chunk in channels:
        layer = nn.LayerNorm(len(chunk), eps=norm.eps, elementwise_affine=False)
        out[..., chunk] = layer(x[..., chunk]) * norm.weight[chunk] + norm.bias[chunk]
    return out


def make(hidden_size: int, heads: int, shuffle: ChannelShuffle | None = None, eps: float = 1e-5) -> HeadLayerNorm:
    norm = HeadLayerNorm(hidden_size, heads, eps, shuffle).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


@given(
    heads=st.integers(1, 5),
    head_dim=st.integers(2, 6),
    power=st.none() | st.integers(0, 5),
    leading=st.sampled_from([(), (3,), (2, 4), (0,)]),
    eps=st.sampled_from([1e-5, 0.1]),
    seed=st.integers(0, 2**32),
)
def test_equals_one_layer_norm_for_each_heads_channels(
    heads: int, head_dim: int, power: int | None, leading: tuple[int, ...], eps: float, seed: int
) -> None:
    torch.manual_seed(seed)
    hidden_size = heads * head_dim
    shuffle = None if power is None else ChannelShuffle(hidden_size, heads, power)
    norm = make(hidden_size, heads, shuffle, eps)
    channels = torch.arange(hidden_size).view(heads, head_dim)
    for _ in range(power or 0):
        channels = channels.T.reshape(heads, head_dim)
    x = torch.randn(*leading, hidden_size, dtype=torch.float64)
    parameters = list(norm.parameters())
    results = []
    for function in (norm, lambda given: norm_by_chunk(norm, given, channels)):
        norm.zero_grad()
        leaf = x.clone().requires_grad_()
        output = function(leaf)
        (output * torch.linspace(-1, 2, hidden_size)).sum().backward()
        results.append([output, leaf.grad, *(parameter.grad for parameter in parameters)])
    assert_all_close(*results)


def test_one_head_is_layer_norm() -> None:
    torch.manual_seed(0)
    norm = make(6, 1)
    plain = nn.LayerNorm(6, dtype=torch.float64)
    plain.load_state_dict(norm.state_dict())
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    assert_all_close(value_and_gradients(norm, x), value_and_gradients(plain, x))


def test_chunks_share_nothing() -> None:
    norm = make(6, 2)
    x = torch.randn(6, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(norm, x)
    assert isinstance(jacobian, Tensor)
    same_chunk = torch.block_diag(torch.ones(3, 3), torch.ones(3, 3)).bool()
    assert (jacobian[~same_chunk] == 0).all()
    assert (jacobian[same_chunk] != 0).all()


def test_starts_as_plain_normalisation() -> None:
    norm = HeadLayerNorm(8, 2)
    assert (norm.weight == 1).all() and (norm.bias == 0).all()
    assert list(norm.state_dict()) == ["weight", "bias"]
    assert repr(norm) == "HeadLayerNorm(8, num_heads=2, eps=1e-05)"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_keeps_the_dtype_and_rounds_about_as_layer_norm_does(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 32, dtype=torch.float64).to(dtype)
    ours = HeadLayerNorm(32, 4).to(dtype)(x)
    assert ours.dtype == dtype
    exact = nn.functional.layer_norm(x.double().unflatten(-1, (4, 8)), (8,))
    theirs = nn.functional.layer_norm(x.unflatten(-1, (4, 8)), (8,))
    assert relative_errors([ours.unflatten(-1, (4, 8))], [exact])[0] <= 1.5 * relative_errors([theirs], [exact])[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_full_precision_leave_the_inputs_dtype(dtype: torch.dtype) -> None:
    x = torch.randn(2, 8).to(dtype)
    assert HeadLayerNorm(8, 2)(x).dtype == nn.LayerNorm(8)(x).dtype == dtype


def test_autocast_keeps_the_residual_streams_dtype() -> None:
    x = torch.randn(2, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert HeadLayerNorm(8, 2)(x).dtype == nn.LayerNorm(8)(x).dtype == torch.float32


def test_make_norm_gives_either_and_refuses_the_rest() -> None:
    whole = make_norm("model", 8, 2, 1e-3)
    assert type(whole) is nn.LayerNorm and whole.normalized_shape == (8,) and whole.eps == 1e-3
    by_head = make_norm("head", 8, 2, 1e-3)
    assert type(by_head) is HeadLayerNorm and by_head.num_heads == 2 and by_head.eps == 1e-3
    with pytest.raises(UsageError, match=r"^norm_scope = 'heads': did you mean head\?$"):
        make_norm("heads", 8, 2, 1e-3)
