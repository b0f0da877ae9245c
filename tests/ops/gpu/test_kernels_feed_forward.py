from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

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
from smht.ops.activation import ACTIVATIONS
from smht.ops.gpu import tiles
from smht.ops.gpu_backend import NUMBERS, split_feed_forward

pytestmark = interpreter_warnings


def inputs(leading: tuple[int, ...], heads: int, head_dim: int, head_width: int, biases: str = "ud") -> list[Tensor]:
    """`x`, both weights, and the biases of `biases`: u(p), d(own)."""
    tensors = [
        torch.randn(*leading, heads * head_dim),
        torch.randn(heads, head_dim, head_width) / head_dim**0.5,
        torch.randn(heads, head_width, head_dim) / head_width**0.5,
    ]
    sizes = {"u": heads * head_width, "d": heads * head_dim}
    return [*tensors, *(torch.randn(sizes[bias]) for bias in biases)]


def of(op, activation: str = "gelu", biases: str = "ud"):
    """The op as a function of the tensors of `inputs`."""

    def function(x: Tensor, up_weight: Tensor, down_weight: Tensor, *given: Tensor) -> Tensor:
        chosen = dict(zip(biases, given, strict=True))
        return op(x, up_weight, down_weight, activation, chosen.get("u"), chosen.get("d"))

    return function


@few_examples
@example(leading=(2, 9), heads=2, head_dim=17, head_width=19, biases="ud", activation="gelu", seed=0)
@example(leading=(), heads=1, head_dim=1, head_width=1, biases="u", activation="silu", seed=0)
@example(leading=(0,), heads=2, head_dim=2, head_width=3, biases="d", activation="relu", seed=0)
@given(
    leading=st.sampled_from([(), (1,), (37,), (2, 9)]),
    heads=st.integers(1, 2),
    head_dim=st.integers(1, 20),
    head_width=st.integers(1, 40),
    biases=st.sampled_from(["", "u", "d", "ud"]),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    seed=st.integers(0, 2**32),
)
def test_equals_the_reference(
    leading: tuple[int, ...], heads: int, head_dim: int, head_width: int, biases: str, activation: str, seed: int
) -> None:
    torch.manual_seed(seed)
    tensors = inputs(leading, heads, head_dim, head_width, biases)
    assert_agree(
        of(split_feed_forward, activation, biases), of(reference.split_feed_forward, activation, biases), tensors
    )


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_activations_and_their_slopes_far_from_zero(activation: str) -> None:
    def alone(op: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        one = torch.ones(1, 1, 1, device=DEVICE)
        return lambda x: op(x, one.to(x.dtype), one.to(x.dtype), activation, None, None)

    # Not at zero itself, where the slope of relu is a matter of taste.
    x = torch.linspace(-12, 12, 97)[:, None] + 0.01
    assert_agree(alone(split_feed_forward), alone(reference.split_feed_forward), [x], tolerance=1e-6)


def test_rows_in_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "_ROWS_PER_SPLIT", 4)
    torch.manual_seed(0)
    assert_agree(of(split_feed_forward), of(reference.split_feed_forward), inputs((2, 17), 1, 3, 5))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_rounds_no_worse_than_pytorch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    assert_no_less_exact(of(split_feed_forward), of(reference.split_feed_forward), inputs((2, 16), 2, 24, 40), dtype)


def test_non_contiguous_inputs() -> None:
    torch.manual_seed(0)
    tensors = inputs((4, 5), heads=3, head_dim=2, head_width=6, biases="")
    strided = [tensor.transpose(0, 1).contiguous().transpose(0, 1) for tensor in tensors]
    assert not any(tensor.is_contiguous() for tensor in strided)
    assert_agree(of(split_feed_forward, biases=""), of(reference.split_feed_forward, biases=""), strided)


@pytest.mark.parametrize("frozen", ["x", "weights"])
def test_only_the_gradients_that_are_asked_for(frozen: str) -> None:
    tensors = [tensor.to(DEVICE) for tensor in inputs((3,), heads=2, head_dim=4, head_width=3)]
    wanted = tensors[1:] if frozen == "x" else tensors[:1]
    for tensor in wanted:
        tensor.requires_grad_()
    of(split_feed_forward)(*tensors).sum().backward()
    assert all((tensor.grad is not None) == tensor.requires_grad for tensor in tensors)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter runs one program after the other")
def test_the_same_every_time() -> None:
    tensors = inputs((20, 150), 1, 3, 5)
    first, second = (outcomes(of(split_feed_forward), tensors, torch.float16) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_second_derivatives_are_the_references() -> None:
    assert_second_derivatives(of(split_feed_forward), of(reference.split_feed_forward), inputs((3,), 2, 4, 3))


def test_autocast_to_half_precision() -> None:
    tensors = [tensor.to(DEVICE) for tensor in inputs((3,), heads=2, head_dim=4, head_width=3)]
    leaves = [tensor.requires_grad_() for tensor in tensors]
    with torch.autocast(DEVICE, dtype=torch.float16):
        output = of(split_feed_forward)(*leaves)
    output.sum().backward()
    assert output.dtype == torch.float16
    assert all(leaf.grad is not None and leaf.grad.dtype == torch.float32 for leaf in leaves)
