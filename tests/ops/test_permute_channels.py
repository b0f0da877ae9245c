import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode

from helpers.errors import refused
from helpers.kernels import cpu_kernels
from helpers.tensors import assert_all_close, permutation_matrix, value_and_gradients
from smht.ops import permute_channels


def inputs(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    """`x` of this shape, a random order of its channels, and the order's inverse."""
    order = torch.randperm(shape[-1])
    return torch.randn(shape, dtype=torch.float64), order, torch.argsort(order)


@given(st.lists(st.integers(0, 3), max_size=3), st.integers(1, 9), st.integers(0, 2**32))
def test_equals_the_product_with_a_permutation_matrix(leading: list[int], channels: int, seed: int) -> None:
    torch.manual_seed(seed)
    x, order, inverse = inputs(*leading, channels)
    matrix = permutation_matrix(order)
    ours = value_and_gradients(lambda given: permute_channels(given, order, inverse), x)
    assert_all_close(ours, value_and_gradients(lambda given: given @ matrix, x), tolerance=0)
    assert ours[0].is_contiguous()


@given(st.integers(1, 9), st.integers(0, 2**32))
def test_the_inverse_undoes_it(channels: int, seed: int) -> None:
    torch.manual_seed(seed)
    x, order, inverse = inputs(2, 3, channels)
    assert torch.equal(permute_channels(permute_channels(x, order, inverse), inverse, order), x)


def test_position_j_holds_channel_order_j() -> None:
    order = torch.tensor([2, 0, 1])
    assert permute_channels(torch.tensor([10, 20, 30]), order, torch.argsort(order)).tolist() == [30, 10, 20]


def test_non_contiguous_inputs() -> None:
    x, order, inverse = inputs(3, 4, 5)
    strided = x.transpose(0, 2).contiguous().transpose(0, 2)
    expanded = x[:1].expand(6, 4, 5)
    assert torch.equal(permute_channels(strided, order, inverse), x[..., order])
    assert torch.equal(permute_channels(expanded, order, inverse), expanded[..., order])


def test_first_and_second_derivatives() -> None:
    x, order, inverse = inputs(2, 5)
    # Without the sine the second derivative would be zero and its check empty.
    function = lambda given: permute_channels(given.sin(), order, inverse).exp()  # noqa: E731
    assert torch.autograd.gradcheck(function, x.requires_grad_())
    assert torch.autograd.gradgradcheck(function, x)


def test_every_dtype_moves_bits_unchanged() -> None:
    x, order, inverse = inputs(2, 6)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.complex64):
        assert torch.equal(permute_channels(x.to(dtype), order, inverse), x.to(dtype)[:, order])


def test_bits_that_are_no_number_are_kept() -> None:
    bits = torch.tensor([0x7F800001, 0x7FC00123, -1, 0x00000001], dtype=torch.int32)  # signalling, quiet, denormal
    moved = permute_channels(bits.view(torch.float32), torch.tensor([3, 1, 0, 2]), torch.tensor([2, 1, 3, 0]))
    assert torch.equal(moved.view(torch.int32), bits[[3, 1, 0, 2]])


@pytest.mark.parametrize("shape", [(1500, 192), (3, 257, 130), (1, 5000), (70000, 1)])
def test_many_rows_and_wide_ones(shape: tuple[int, ...]) -> None:
    x, order, inverse = inputs(*shape)
    gradient = torch.randn_like(x)
    leaf = x.float().requires_grad_()
    y = permute_channels(leaf, order, inverse)
    assert torch.equal(y, leaf[..., order])
    assert torch.equal(torch.autograd.grad(y, leaf, gradient.float())[0], gradient.float()[..., inverse])


@pytest.mark.parametrize("length", [4, 6])
def test_an_order_of_another_length_is_refused(length: int) -> None:
    x, order, _ = inputs(2, 5)
    with refused("permute_channels: order and inverse must be [5]", f"got [5] and [{length}]"):
        permute_channels(x, order, torch.arange(length))
    with refused("permute_channels: order and inverse must be [5]", f"got [{length}] and [5]"):
        permute_channels(x, torch.arange(length), order)


def test_a_channel_that_is_not_there_is_refused() -> None:
    for wrong in (5, -1):
        with pytest.raises((IndexError, RuntimeError), match=r"channel|index"):
            permute_channels(torch.ones(2, 5), torch.tensor([0, 1, 2, 3, wrong]), torch.arange(5))


def test_the_kernel_is_an_operator_of_torch() -> None:
    with cpu_kernels():
        _, order, inverse = inputs(6)
        for x in (torch.randn(2, 3, 6, requires_grad=True), torch.randn(0, 6), torch.ones(2, 6, dtype=torch.bool)):
            torch.library.opcheck(torch.ops.smht.permute_channels.default, (x, order, inverse))
            permute_channels(x, order, inverse)  # not by the reference


def test_vmap_over_inputs_and_over_orders() -> None:
    x, order, inverse = inputs(4, 3, 5)
    assert torch.equal(torch.vmap(lambda row: permute_channels(row, order, inverse))(x), x[..., order])
    orders = torch.stack([torch.randperm(5) for _ in range(4)])
    mapped = torch.vmap(permute_channels)(x, orders, orders.argsort(-1))
    assert torch.equal(mapped, torch.stack([row[:, given] for row, given in zip(x, orders, strict=True)]))


def test_vmap_of_the_gradient() -> None:
    x, order, inverse = inputs(4, 5)
    weighting = torch.randn(5, dtype=torch.float64)
    loss = lambda row: (permute_channels(row, order, inverse).square() * weighting).sum()  # noqa: E731
    expected = 2 * x * weighting[inverse]
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(x), expected)


def test_meta_and_fake_tensors() -> None:
    x, order, inverse = inputs(2, 3, 6)
    on_meta = permute_channels(x.to("meta"), order.to("meta"), inverse.to("meta"))
    assert on_meta.is_meta and on_meta.shape == x.shape and on_meta.dtype == torch.float64
    with FakeTensorMode() as mode:
        fake = permute_channels(*(mode.from_tensor(tensor) for tensor in (x, order, inverse)))
    assert fake.shape == x.shape and fake.stride() == x.stride() and fake.dtype == torch.float64
