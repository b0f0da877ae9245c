import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode

from helpers.dense_ops import dense_feed_forward, dense_linear
from helpers.tensors import assert_all_close, relative_errors, value_and_gradients
from smht.errors import UsageError
from smht.ops import split_feed_forward
from smht.ops.activation import ACTIVATIONS


def inputs(leading: tuple[int, ...], heads: int, head_dim: int, head_width: int, biases: bool = True) -> list[Tensor]:
    shapes = [
        (*leading, heads * head_dim),
        (heads, head_dim, head_width),
        (heads, head_width, head_dim),
        (heads * head_width,),
        (heads * head_dim,),
    ]
    return [torch.randn(shape, dtype=torch.float64) for shape in (shapes if biases else shapes[:3])]


def exact_gelu(
    x: Tensor, up_weight: Tensor, down_weight: Tensor, up_bias: Tensor | None = None, down_bias: Tensor | None = None
) -> Tensor:
    return split_feed_forward(x, up_weight, down_weight, "gelu", up_bias, down_bias)


@given(
    leading=st.sampled_from([(), (1,), (2, 3), (1, 1), (0,), (2, 0)]),
    heads=st.integers(1, 5),
    head_dim=st.integers(1, 5),
    head_width=st.integers(1, 9),
    biases=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_equals_dense_matrices_with_the_blocks_on_their_diagonals(
    leading: tuple[int, ...], heads: int, head_dim: int, head_width: int, biases: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    tensors = inputs(leading, heads, head_dim, head_width, biases)
    assert_all_close(value_and_gradients(exact_gelu, *tensors), value_and_gradients(dense_feed_forward, *tensors))


def normal_cdf(value: float) -> float:
    return (1 + math.erf(value / math.sqrt(2))) / 2


FORMULAS = {
    "gelu": lambda value: value * normal_cdf(value),
    "gelu_tanh": lambda value: 0.5 * value * (1 + math.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3))),
    "relu": lambda value: max(value, 0.0),
    "relu_squared": lambda value: max(value, 0.0) ** 2,
    "silu": lambda value: value / (1 + math.exp(-value)),
}


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_every_activation_is_its_formula(activation: str) -> None:
    values = [-3.0, -1.0, -0.5, 0.0, 0.25, 1.0, 4.0]
    identity = torch.eye(1, dtype=torch.float64).expand(len(values), 1, 1)
    result = split_feed_forward(torch.tensor(values, dtype=torch.float64), identity, identity, activation)
    expected = torch.tensor([FORMULAS[activation](value) for value in values], dtype=torch.float64)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_gradients_of_every_activation(activation: str) -> None:
    torch.manual_seed(0)
    tensors = inputs((3,), heads=2, head_dim=3, head_width=5)
    published = {"relu_squared": lambda x: F.relu(x).square(), "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}
    function = published.get(activation) or getattr(F, activation)

    def dense(x: Tensor, up_weight: Tensor, down_weight: Tensor, up_bias: Tensor, down_bias: Tensor) -> Tensor:
        return dense_linear(function(dense_linear(x, up_weight, up_bias)), down_weight, down_bias)

    def ours(x: Tensor, up_weight: Tensor, down_weight: Tensor, up_bias: Tensor, down_bias: Tensor) -> Tensor:
        return split_feed_forward(x, up_weight, down_weight, activation, up_bias, down_bias)

    assert_all_close(value_and_gradients(ours, *tensors), value_and_gradients(dense, *tensors))


def test_non_contiguous_inputs() -> None:
    x, up_weight, down_weight = inputs((4, 5), heads=3, head_dim=2, head_width=4, biases=False)
    strided = [tensor.transpose(0, 1).contiguous().transpose(0, 1) for tensor in (x, up_weight, down_weight)]
    assert not any(tensor.is_contiguous() for tensor in strided)
    expected = value_and_gradients(dense_feed_forward, x, up_weight, down_weight)
    assert_all_close(value_and_gradients(exact_gelu, *strided), expected)


def test_first_and_second_derivatives() -> None:
    torch.manual_seed(0)
    tensors = tuple(tensor.requires_grad_() for tensor in inputs((2,), heads=2, head_dim=2, head_width=3))
    assert torch.autograd.gradcheck(exact_gelu, tensors)
    assert torch.autograd.gradgradcheck(exact_gelu, tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounds_no_worse_than_the_dense_layers(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, *weights = inputs((4, 32), heads=4, head_dim=24, head_width=96)
    tensors = [x.to(dtype), *((weight / 5).to(dtype) for weight in weights)]
    exact = value_and_gradients(dense_feed_forward, *(tensor.double() for tensor in tensors))
    ours = value_and_gradients(exact_gelu, *tensors)
    assert all(tensor.dtype == dtype for tensor in ours)
    theirs = relative_errors(value_and_gradients(dense_feed_forward, *tensors), exact)
    for our_error, their_error in zip(relative_errors(ours, exact), theirs, strict=True):
        assert our_error <= 1.5 * their_error


def test_meta_and_fake_tensors() -> None:
    tensors = inputs((2, 3), heads=2, head_dim=4, head_width=5)
    on_meta = exact_gelu(*(tensor.to("meta") for tensor in tensors))
    assert on_meta.is_meta and on_meta.shape == (2, 3, 8) and on_meta.dtype == torch.float64
    with FakeTensorMode() as mode:
        fake = exact_gelu(*(mode.from_tensor(tensor) for tensor in tensors))
    real = exact_gelu(*tensors)
    assert fake.shape == real.shape and fake.stride() == real.stride() and fake.dtype == real.dtype


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            [(2, 9), (2, 4, 6), (2, 6, 4)],
            "split_feed_forward: up_weight must be [H, in/H, out/H] with H·in/H = 9, the width of its input; "
            "got [2, 4, 6]",
        ),
        (
            [(2, 8), (8, 6), (2, 6, 4)],
            "split_feed_forward: up_weight must be [H, in/H, out/H] with H·in/H = 8, the width of its input; "
            "got [8, 6]",
        ),
        (
            [(2, 8), (2, 4, 6), (4, 3, 2)],
            "split_feed_forward: down_weight must be [2, 6, 4], up_weight [2, 4, 6] the other way round; got [4, 3, 2]",
        ),
        (
            [(2, 8), (2, 4, 6), (2, 6, 5)],
            "split_feed_forward: down_weight must be [2, 6, 4], up_weight [2, 4, 6] the other way round; got [2, 6, 5]",
        ),
        (
            [(2, 8), (2, 4, 6), (12, 4)],
            "split_feed_forward: down_weight must be [2, 6, 4], up_weight [2, 4, 6] the other way round; got [12, 4]",
        ),
        (
            [(2, 8), (2, 4, 6), (2, 6, 4), (8,)],
            "split_feed_forward: up_bias must be [12], the width of its output; got [8]",
        ),
        (
            [(2, 8), (2, 4, 6), (2, 6, 4), (12,), (12,)],
            "split_feed_forward: down_bias must be [8], the width of its output; got [12]",
        ),
        ([(2, 8), (2, 4, 0), (2, 0, 4)], "split_feed_forward: up_weight has nothing in it, got [2, 4, 0]"),
    ],
)
def test_refused_shapes(shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        exact_gelu(*(torch.zeros(shape) for shape in shapes))
    assert str(refusal.value) == message


def test_an_unknown_activation_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"^no activation is called 'gleu': did you mean gelu.*\?$"):
        split_feed_forward(torch.zeros(2, 8), torch.zeros(2, 4, 6), torch.zeros(2, 6, 4), "gleu")
