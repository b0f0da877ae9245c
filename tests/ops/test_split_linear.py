import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode

from helpers.dense_ops import dense_linear
from helpers.tensors import assert_all_close, relative_errors, value_and_gradients
from smht.errors import UsageError
from smht.ops import split_linear

LEADING_SHAPES = [(), (1,), (5,), (2, 3), (2, 1, 3), (0,), (2, 0)]


def inputs(leading: tuple[int, ...], heads: int, block_in: int, block_out: int, bias: bool = True) -> list[Tensor]:
    x = torch.randn(*leading, heads * block_in, dtype=torch.float64)
    weight = torch.randn(heads, block_in, block_out, dtype=torch.float64)
    return [x, weight, torch.randn(heads * block_out, dtype=torch.float64)] if bias else [x, weight]


@given(
    leading=st.sampled_from(LEADING_SHAPES),
    heads=st.integers(1, 5),
    block_in=st.integers(1, 7),
    block_out=st.integers(1, 7),
    bias=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_equals_the_dense_matrix_with_the_blocks_on_its_diagonal(
    leading: tuple[int, ...], heads: int, block_in: int, block_out: int, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    tensors = inputs(leading, heads, block_in, block_out, bias)
    assert_all_close(value_and_gradients(split_linear, *tensors), value_and_gradients(dense_linear, *tensors))


def test_multiplies_vectors_from_the_left_as_the_seed_writes_it() -> None:
    weight = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
    x = torch.tensor([1.0, 10.0, 100.0, 1000.0])
    assert split_linear(x, weight).tolist() == [31.0, 42.0, 7500.0, 8600.0]
    assert split_linear(x, weight, torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist() == [32.0, 44.0, 7503.0, 8604.0]


def test_a_head_reads_its_own_chunk_only() -> None:
    x, weight = inputs((3,), heads=4, block_in=2, block_out=3, bias=False)
    jacobian = torch.autograd.functional.jacobian(lambda row: split_linear(row, weight), x[0])
    assert isinstance(jacobian, Tensor)
    same_head = torch.block_diag(*torch.ones(4, 3, 2)).bool()
    assert (jacobian[~same_head] == 0).all()
    assert (jacobian[same_head] != 0).all()


def test_non_contiguous_inputs() -> None:
    x, weight, bias = inputs((4, 5), heads=3, block_in=2, block_out=4)
    strided = [
        x.transpose(0, 1).contiguous().transpose(0, 1),
        weight.transpose(1, 2).contiguous().transpose(1, 2),
        torch.stack([bias, bias], dim=-1)[:, 0],
    ]
    assert not any(tensor.is_contiguous() for tensor in strided)
    assert_all_close(value_and_gradients(split_linear, *strided), value_and_gradients(dense_linear, x, weight, bias))


def test_a_row_broadcast_over_the_batch() -> None:
    x, weight, bias = inputs((1,), heads=2, block_in=3, block_out=3)
    expanded = x.expand(4, -1)
    assert_all_close([split_linear(expanded, weight, bias)], [dense_linear(expanded, weight, bias)])


def test_first_and_second_derivatives() -> None:
    torch.manual_seed(0)
    tensors = tuple(tensor.requires_grad_() for tensor in inputs((2, 2), heads=2, block_in=2, block_out=3))
    assert torch.autograd.gradcheck(split_linear, tensors)
    assert torch.autograd.gradgradcheck(split_linear, tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounds_no_worse_than_the_dense_layer(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensors = [tensor.to(dtype) for tensor in inputs((4, 32), heads=4, block_in=48, block_out=16)]
    exact = value_and_gradients(dense_linear, *(tensor.double() for tensor in tensors))
    ours = value_and_gradients(split_linear, *tensors)
    assert all(tensor.dtype == dtype for tensor in ours)
    theirs = relative_errors(value_and_gradients(dense_linear, *tensors), exact)
    for our_error, their_error in zip(relative_errors(ours, exact), theirs, strict=True):
        assert our_error <= 1.5 * their_error


def test_autocast_gives_the_dtype_of_the_dense_layer() -> None:
    x, weight, bias = (tensor.float() for tensor in inputs((2, 3), heads=2, block_in=4, block_out=4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for given_bias in (None, bias):
            assert split_linear(x, weight, given_bias).dtype == dense_linear(x, weight, given_bias).dtype


def test_meta_and_fake_tensors() -> None:
    x, weight, bias = inputs((2, 3), heads=2, block_in=4, block_out=5)
    on_meta = split_linear(x.to("meta"), weight.to("meta"), bias.to("meta"))
    assert on_meta.is_meta and on_meta.shape == (2, 3, 10) and on_meta.dtype == torch.float64
    with FakeTensorMode() as mode:
        fake = split_linear(*(mode.from_tensor(tensor) for tensor in (x, weight, bias)))
    real = split_linear(x, weight, bias)
    assert fake.shape == real.shape and fake.stride() == real.stride() and fake.dtype == real.dtype


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            [(2, 9), (2, 4, 3)],
            "split_linear: weight must be [H, in/H, out/H] with H·in/H = 9, the width of its input; got [2, 4, 3]",
        ),
        (
            [(2, 8), (8, 3)],
            "split_linear: weight must be [H, in/H, out/H] with H·in/H = 8, the width of its input; got [8, 3]",
        ),
        ([(), (1, 1, 1)], "split_linear: x must be [..., H·in/H], got a single number"),
        ([(2, 0), (0, 4, 3)], "split_linear: weight has nothing in it, got [0, 4, 3]"),
        ([(2, 8), (2, 4, 0)], "split_linear: weight has nothing in it, got [2, 4, 0]"),
        (
            [(2, 8), (2, 4, 3), (7,)],
            "split_linear: bias must be [6], the width of its output; got [7]",
        ),
        (
            [(2, 8), (2, 4, 3), (2, 3)],
            "split_linear: bias must be [6], the width of its output; got [2, 3]",
        ),
    ],
)
def test_refused_shapes(shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        split_linear(*(torch.zeros(shape) for shape in shapes))
    assert str(refusal.value) == message
