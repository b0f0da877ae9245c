import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode

from helpers.gpu_kernels import (
    DEVICE,
    INTERPRETED,
    assert_agree,
    assert_no_less_exact,
    assert_second_derivatives,
    few_examples,
    interpreter_warnings,
    outcomes,
)
from smht.ops import reference
from smht.ops.gpu import tiles
from smht.ops.gpu_backend import NUMBERS, split_linear

pytestmark = interpreter_warnings


def inputs(leading: tuple[int, ...], heads: int, block_in: int, block_out: int, bias: bool = True) -> list[Tensor]:
    x, weight = torch.randn(*leading, heads * block_in), torch.randn(heads, block_in, block_out) / block_in**0.5
    return [x, weight, torch.randn(heads * block_out)] if bias else [x, weight]


def ours(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return split_linear(x, weight, bias)


def theirs(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return reference.split_linear(x, weight, bias)


@few_examples
@example(leading=(2, 9), heads=2, block_in=19, block_out=21, bias=True, seed=0)
@example(leading=(), heads=1, block_in=1, block_out=1, bias=False, seed=0)
@example(leading=(2, 0), heads=2, block_in=2, block_out=3, bias=True, seed=0)
@given(
    leading=st.sampled_from([(), (1,), (37,), (2, 9), (0,)]),
    heads=st.integers(1, 2),
    block_in=st.integers(1, 20),
    block_out=st.integers(1, 20),
    bias=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_equals_the_reference(
    leading: tuple[int, ...], heads: int, block_in: int, block_out: int, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    assert_agree(ours, theirs, inputs(leading, heads, block_in, block_out, bias))


def test_rows_in_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "_ROWS_PER_SPLIT", 4)
    torch.manual_seed(0)
    assert_agree(ours, theirs, inputs((2, 17), heads=1, block_in=3, block_out=5))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_rounds_no_worse_than_pytorch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    assert_no_less_exact(ours, theirs, inputs((2, 16), heads=2, block_in=40, block_out=24), dtype)


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
    assert_second_derivatives(ours, theirs, inputs((3,), 2, 4, 3))


@pytest.mark.skipif(INTERPRETED, reason="the interpreter runs one program after the other")
def test_the_same_every_time() -> None:
    tensors = inputs((20, 150), heads=1, block_in=3, block_out=5)
    first, second = (outcomes(ours, tensors, torch.float16) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_meta_and_fake_tensors() -> None:
    tensors = inputs((2, 3), heads=2, block_in=4, block_out=5)
    assert ours(*(tensor.to("meta") for tensor in tensors)).shape == (2, 3, 10)
    with FakeTensorMode() as mode:
        fake = ours(*(mode.from_tensor(tensor) for tensor in tensors))
    real = ours(*(tensor.to(DEVICE) for tensor in tensors))
    assert fake.shape == real.shape and fake.stride() == real.stride() and fake.dtype == real.dtype
