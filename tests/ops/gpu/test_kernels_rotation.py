"""Attention whose queries and keys are turned by their positions."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from helpers.gpu_kernels import (
    DEVICE,
    assert_agree,
    assert_no_less_exact,
    assert_second_derivatives,
    few_examples,
    interpreter_warnings,
    outcomes,
)
from smht.ops import reference
from smht.ops.gpu import tiles
from smht.ops.gpu_backend import NUMBERS, split_attention

pytestmark = interpreter_warnings


def inputs(batch: int, tokens: int, heads: int, head_dim: int) -> list[Tensor]:
    """`x` and the weights of q, k, v and o."""
    return [torch.randn(batch, tokens, heads * head_dim), *torch.randn(4, heads, head_dim, head_dim) / head_dim**0.5]


def angles(batch: int, tokens: int, head_dim: int) -> Tensor:
    """As different as they can be, `[batch, tokens, head_dim / 2]`."""
    return torch.rand(batch, tokens, head_dim // 2) * 2 * math.pi


def composed(
    x: Tensor, q_weight: Tensor, k_weight: Tensor, v_weight: Tensor, o_weight: Tensor, is_causal: bool,
    mask: Tensor | None, dropout: float, scale: float, cosines: Tensor, sines: Tensor,
) -> Tensor:  # fmt: skip
    """Written out: a turn is a complex product. Tokens that may see nothing give zeros."""
    batch, tokens, width = x.shape
    num_heads = q_weight.shape[0]
    chunks = x.view(batch, tokens, num_heads, width // num_heads).transpose(1, 2)
    turns = torch.complex(cosines, sines)[:, None]

    def turned(heads: Tensor) -> Tensor:
        pairs = torch.complex(*heads.chunk(2, dim=-1)) * turns
        return torch.cat([pairs.real, pairs.imag], dim=-1)

    scores = turned(chunks @ q_weight) @ turned(chunks @ k_weight).transpose(-1, -2) * scale
    if is_causal:
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).tril()
    if mask is not None:
        scores = torch.where(mask, scores, -math.inf) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1).nan_to_num(0.0)
    return ((weights @ (chunks @ v_weight)) @ o_weight).transpose(1, 2).reshape(x.shape)


def of(op: Callable[..., Tensor], turn: Tensor, is_causal: bool = False, mask: Tensor | None = None):
    """The op as a function of x and the four weights, for these angles."""

    def function(*tensors: Tensor) -> Tensor:
        cosines, sines = (part.to(DEVICE, tensors[0].dtype) for part in (turn.cos(), turn.sin()))
        given = mask if mask is None else mask.to(DEVICE)
        return op(*tensors, is_causal, given, 0.0, 0.4, cosines, sines)

    return function


@few_examples
@example((1, 17, 2, 18), True, False, 0)
@example((1, 1, 1, 2), False, True, 0)
@given(
    st.tuples(st.just(1), st.integers(1, 20), st.integers(1, 2), st.integers(1, 10).map(lambda half: 2 * half)),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_equals_the_composition(
    shape: tuple[int, int, int, int], is_causal: bool, turns_are_shared: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    batch, tokens, _, head_dim = shape
    turn = angles(1 if turns_are_shared else batch, tokens, head_dim)
    assert_agree(of(split_attention, turn, is_causal), of(composed, turn, is_causal), inputs(*shape))


@pytest.mark.parametrize("turns", [1, 2])
def test_every_sequence_has_its_own_turns_or_all_the_same(turns: int) -> None:
    torch.manual_seed(0)
    turn = angles(turns, 5, 4)
    assert_agree(of(split_attention, turn), of(composed, turn), inputs(2, 5, 1, 4))


def test_no_turn_changes_nothing() -> None:
    torch.manual_seed(0)
    tensors = [tensor.to(DEVICE) for tensor in inputs(1, 20, 2, 6)]
    turned = of(split_attention, torch.zeros(1, 20, 3), True)(*tensors)
    torch.testing.assert_close(turned, split_attention(*tensors, True, None, 0.0, 0.4))


def test_masks_and_tokens_that_may_see_nothing() -> None:
    torch.manual_seed(0)
    turn, mask = angles(1, 20, 6), torch.rand(1, 2, 20, 20) < 0.7
    mask[..., 7, :] = False
    assert_agree(of(split_attention, turn, mask=mask), of(composed, turn, mask=mask), inputs(1, 20, 2, 6))


def test_strided_inputs_and_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "_ROWS_PER_SPLIT", 4)  # and gradients of weights in parts
    torch.manual_seed(0)
    x, *weights = inputs(2, 17, 2, 4)
    strided = [x.transpose(0, 1).contiguous().transpose(0, 1), *(weight.mT.contiguous().mT for weight in weights)]
    turn = angles(2, 17, 4).mT.contiguous().mT
    assert_agree(of(split_attention, turn), of(composed, turn), strided)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_rounds_no_worse_than_pytorch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    turn = angles(1, 33, 24)

    def theirs(*tensors: Tensor) -> Tensor:
        """PyTorch has no half-precision complex numbers: turned channel by channel, as layers do."""
        if tensors[0].dtype == torch.float64:
            return of(composed, turn, True)(*tensors)
        x, q_weight, k_weight, v_weight, o_weight = tensors
        chunks = x.view(1, 33, 1, 24).transpose(1, 2)
        cosines, sines = (part[:, None].to(x) for part in (turn.cos(), turn.sin()))

        def turned(heads: Tensor) -> Tensor:
            first, second = heads.chunk(2, dim=-1)
            return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)

        mixed = torch.nn.functional.scaled_dot_product_attention(
            turned(chunks @ q_weight), turned(chunks @ k_weight), chunks @ v_weight, is_causal=True, scale=0.4
        )
        return (mixed @ o_weight).transpose(1, 2).reshape(x.shape)

    assert_no_less_exact(of(split_attention, turn, True), theirs, inputs(1, 33, 1, 24), dtype)


@pytest.mark.parametrize(("batch", "tokens"), [(0, 3), (2, 0)])
def test_nothing_in_gives_nothing_out(batch: int, tokens: int) -> None:
    output, *gradients = outcomes(
        of(split_attention, angles(1, tokens, 4)), inputs(batch, tokens, 2, 4), torch.float32
    )  # fmt: skip
    assert output.shape == (batch, tokens, 8)
    assert all((gradient == 0).all() for gradient in gradients)


def test_dropout_drops_the_same_weights_with_and_without_turns() -> None:
    torch.manual_seed(0)
    x, *weights = (tensor.to(DEVICE) for tensor in inputs(1, 18, 1, 4))
    outputs = []
    for rotation in ((), (torch.ones(1, 18, 2, device=DEVICE), torch.zeros(1, 18, 2, device=DEVICE))):
        torch.manual_seed(1)
        leaf = x.clone().requires_grad_()
        output = split_attention(leaf, *weights, True, None, 0.3, 0.4, *rotation)
        outputs.append([output, *torch.autograd.grad(output.square().sum(), leaf)])
    torch.testing.assert_close(*outputs)


def test_second_derivatives_are_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "split_attention", composed)
    torch.manual_seed(0)
    turn = angles(1, 3, 2)
    assert_second_derivatives(of(split_attention, turn, True), of(composed, turn, True), inputs(1, 3, 2, 2))
