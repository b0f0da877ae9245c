import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode

from helpers.gpu_kernels import (
    DEVICE,
    DTYPES,
    assert_agree,
    assert_no_less_exact,
    few_examples,
    interpreter_warnings,
    outcomes,
)
from smht.ops import reference
from smht.ops.gpu import split_linear

pytestmark = interpreter_warnings


def inputs(leading: tuple[int, ...], heads: int, block_in: int, block_out: int, bias: bool = True) -> list[Tensor]:
    x, weight = torch.randn(*leading, heads * block_in), torch.randn(heads, block_in, block_out) / block_in**0.5
    return [x, weight, torch.randn(heads * block_out)] if bias else [x, weight]


def ours(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return split_linear(x, weight, bias)


def theirs(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return reference.split_linear(x, weight, bias)


@few_examples
@given(
    leading=st.sampled_from([(), (1,), (37,), (2, 9), (0,), (2, 0)]),
    heads=st.integers(1, 3),
    block_in=st.integers(1, 35),
    block_out=st.integers(1, 35),
    bias=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_equals_the_reference(
    leading: tuple[int, ...], heads: int, block_in: int, block_out: int, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    assert_agree(ours, theirs, inputs(leading, heads, block_in, block_out, bias))


def test_rows_in_several_parts() -> None:
    torch.manual_seed(0)
    assert_agree(ours, theirs, inputs((2, 150), heads=1, block_in=3, block_out=5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounds_no_worse_than_pytorch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    assert_no_less_exact(ours, theirs, inputs((4, 16), heads=2, block_in=40, block_out=24), dtype)


def test_non_contiguous_inputs() -> None:
    torch.manual_seed(0)
    x, weight, bias = inputs((4, 5), heads=3, block_in=2, block_out=4)
    strided = [
        x.transpose(0, 1).contiguous().transpose(0, 1),
        weight.transpose(1, 2).contiguous().transpose(1, 2),
        torch.stack([bias, bias], dim=-1)[:, 0],
    ]
    columns = torch.randn(4, 5, 12)[..., ::2]
    assert not any(tensor.is_contiguous() for tensor in [*strided, columns])
    assert_agree(ours, theirs, strided)
    assert_agree(ours, theirs, [columns, *strided[1:]])
    assert_agree(ours, theirs, [x[:1].expand(4, -1, -1), weight, bias])


def test_only_the_gradients_that_are_asked_for() -> None:
    x, weight, bias = (tensor.to(DEVICE) for tensor in inputs((3,), heads=2, block_in=4, block_out=3))
    for chosen in range(3):
        leaves = [x.clone(), weight.clone(), bias.clone()]
        leaves[chosen].requires_grad_()
        split_linear(*leaves).sum().backward()
        assert [leaf.grad is not None for leaf in leaves] == [number == chosen for number in range(3)]


def test_second_derivatives() -> None:
    torch.manual_seed(0)

    def penalty(function, dtype: torch.dtype) -> list[Tensor]:
        torch.manual_seed(1)
        leaves = [tensor.to(DEVICE, dtype).requires_grad_() for tensor in inputs((3,), 2, 4, 3)]
        first = torch.autograd.grad(function(*leaves).square().sum(), leaves, create_graph=True)
        total = sum((gradient.pow(3).sum() for gradient in first), torch.zeros((), device=DEVICE, dtype=dtype))
        return list(torch.autograd.grad(total, leaves))

    for single, double in zip(penalty(ours, torch.float32), penalty(theirs, torch.float64), strict=True):
        torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-3)


def test_the_same_every_time() -> None:
    tensors = inputs((2, 150), heads=1, block_in=3, block_out=5)
    first, second = (outcomes(ours, tensors, torch.float16) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_meta_and_fake_tensors() -> None:
    tensors = inputs((2, 3), heads=2, block_in=4, block_out=5)
    assert ours(*(tensor.to("meta") for tensor in tensors)).shape == (2, 3, 10)
    with FakeTensorMode() as mode:
        fake = ours(*(mode.from_tensor(tensor) for tensor in tensors))
    real = ours(*(tensor.to(DEVICE) for tensor in tensors))
    assert fake.shape == real.shape and fake.stride() == real.stride() and fake.dtype == real.dtype
