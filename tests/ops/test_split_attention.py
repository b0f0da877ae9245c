import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode

from helpers.dense_ops import dense_attention, dense_rotary_attention
from helpers.errors import refused
from helpers.kernels import random_rotation
from helpers.tensors import assert_all_close, relative_errors, value_and_gradients
from smht.errors import UsageError
from smht.ops import split_attention


def inputs(batch: int, tokens: int, heads: int, head_dim: int) -> list[Tensor]:
    """`x` and the weights of q, k, v and o."""
    x = torch.randn(batch, tokens, heads * head_dim, dtype=torch.float64)
    return [x, *torch.randn(4, heads, head_dim, head_dim, dtype=torch.float64)]


def masked(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function of x, the four weights and a mask, all by position."""
    return lambda *tensors: function(*tensors[:5], mask=tensors[5])


shapes = st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 5), st.integers(1, 5))
"""Batch, tokens, heads, head width; the last may be 1, so that H = D."""


@given(shapes, st.booleans(), st.sampled_from([None, 0.3, 2.0]), st.integers(0, 2**32))
def test_equals_multi_head_attention_with_the_blocks_in_dense_matrices(
    shape: tuple[int, int, int, int], is_causal: bool, scale: float | None, seed: int
) -> None:
    torch.manual_seed(seed)
    tensors = inputs(*shape)
    ours = value_and_gradients(lambda *given: split_attention(*given, is_causal=is_causal, scale=scale), *tensors)
    dense = value_and_gradients(lambda *given: dense_attention(*given, is_causal=is_causal, scale=scale), *tensors)
    assert_all_close(ours, dense)


@st.composite
def mask_shapes(draw: st.DrawFn, full: tuple[int, int, int, int]) -> list[int]:
    """What broadcasts to `full`: any axis may have length 1, leading axes may be left out."""
    shape = [draw(st.sampled_from([1, size])) for size in full]
    return shape[draw(st.integers(0, 4)) :]


@given(st.data(), shapes, st.integers(0, 2**32))
def test_a_boolean_mask_is_true_where_attention_is_allowed(
    data: st.DataObject, shape: tuple[int, int, int, int], seed: int
) -> None:
    torch.manual_seed(seed)
    batch, tokens, heads, _ = shape
    tensors = inputs(*shape)
    mask = torch.rand(data.draw(mask_shapes((batch, heads, tokens, tokens)))) < 0.5
    # A token that may attend to nothing has no defined result.
    mask = mask | torch.eye(tokens, dtype=torch.bool) if mask.dim() >= 2 else torch.ones_like(mask)
    ours = value_and_gradients(lambda *given: split_attention(*given, mask=mask), *tensors)
    assert_all_close(ours, value_and_gradients(lambda *given: dense_attention(*given, mask=mask), *tensors))


@given(st.data(), shapes, st.integers(0, 2**32))
def test_a_float_mask_is_added_to_the_scores_and_gets_a_gradient(
    data: st.DataObject, shape: tuple[int, int, int, int], seed: int
) -> None:
    torch.manual_seed(seed)
    batch, tokens, heads, _ = shape
    mask = torch.randn(data.draw(mask_shapes((batch, heads, tokens, tokens))), dtype=torch.float64)
    tensors = [*inputs(*shape), mask]
    ours = value_and_gradients(masked(split_attention), *tensors)
    assert_all_close(ours, value_and_gradients(masked(dense_attention), *tensors))


def rotated(function: Callable[..., Tensor], **options: object) -> Callable[..., Tensor]:
    """The function of x, the four weights, cosines and sines, all by position."""
    return lambda *tensors: function(*tensors[:5], rotation=tensors[5:], **options)


def rotation_of(shape: tuple[int, int, int, int], rows: bool = True) -> list[Tensor]:
    """Cosines and sines for batch, tokens, heads and half the head width; one for all rows, or one a row."""
    batch, tokens, _, half = shape
    return [*random_rotation(batch if rows else 1, tokens, 2 * half, torch.float64)]


@given(shapes, st.booleans(), st.booleans(), st.sampled_from([None, 0.3]), st.integers(0, 2**32))
def test_a_rotation_turns_queries_and_keys_as_llama_does(
    shape: tuple[int, int, int, int], rows: bool, is_causal: bool, scale: float | None, seed: int
) -> None:
    torch.manual_seed(seed)
    tensors = [*inputs(*shape[:3], 2 * shape[3]), *rotation_of(shape, rows)]
    options = {"is_causal": is_causal, "scale": scale}
    ours = value_and_gradients(rotated(split_attention, **options), *tensors)
    assert_all_close(ours, value_and_gradients(lambda *given: dense_rotary_attention(*given, **options), *tensors))


@given(shapes, st.booleans(), st.integers(0, 2**32))
def test_a_rotation_and_a_mask(shape: tuple[int, int, int, int], boolean: bool, seed: int) -> None:
    torch.manual_seed(seed)
    batch, tokens, heads, half = shape
    mask = torch.randn(batch, heads, tokens, tokens, dtype=torch.float64)
    if boolean:
        mask = (mask > 0) | torch.eye(tokens, dtype=torch.bool)
    tensors = [*inputs(batch, tokens, heads, 2 * half), *rotation_of(shape)]
    ours = value_and_gradients(rotated(split_attention, mask=mask), *tensors)
    assert_all_close(ours, value_and_gradients(lambda *given: dense_rotary_attention(*given, mask=mask), *tensors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_rotation_and_one_by_nothing_are_the_same(dtype: torch.dtype) -> None:
    tensors = [tensor.to(dtype) for tensor in inputs(2, 5, heads=2, head_dim=4)]
    rotation = torch.ones(1, 5, 2, dtype=dtype), torch.zeros(1, 5, 2, dtype=dtype)
    ours = value_and_gradients(lambda *given: split_attention(*given, rotation=rotation), *tensors)
    assert_all_close(ours, value_and_gradients(split_attention, *tensors), tolerance=100 * torch.finfo(dtype).eps)


def test_causal_attention_ignores_later_tokens() -> None:
    x, *weights = inputs(1, 6, heads=3, head_dim=2)
    whole = split_attention(x, *weights, is_causal=True)
    for tokens in range(1, 6):
        torch.testing.assert_close(split_attention(x[:, :tokens], *weights, is_causal=True), whole[:, :tokens])


@pytest.mark.parametrize(("batch", "tokens"), [(0, 3), (2, 0), (0, 0)])
def test_nothing_in_gives_nothing_out(batch: int, tokens: int) -> None:
    output, *gradients = value_and_gradients(split_attention, *inputs(batch, tokens, heads=2, head_dim=3))
    assert output.shape == (batch, tokens, 6)
    assert all((gradient == 0).all() for gradient in gradients)
    tensors = [*inputs(batch, tokens, heads=2, head_dim=4), *rotation_of((batch, tokens, 2, 2), rows=False)]
    output, *gradients = value_and_gradients(rotated(split_attention), *tensors)
    assert output.shape == (batch, tokens, 8)
    assert all((gradient == 0).all() for gradient in gradients)


def test_non_contiguous_inputs() -> None:
    x, *weights = inputs(3, 4, heads=3, head_dim=2)
    strided = [x.transpose(0, 1).contiguous().transpose(0, 1)]
    strided += [weight.transpose(1, 2).contiguous().transpose(1, 2) for weight in weights]
    assert not any(tensor.is_contiguous() for tensor in strided)
    assert_all_close(value_and_gradients(split_attention, *strided), value_and_gradients(dense_attention, x, *weights))


@pytest.mark.parametrize("is_causal", [False, True])
def test_first_and_second_derivatives(is_causal: bool) -> None:
    torch.manual_seed(0)
    tensors = tuple(tensor.requires_grad_() for tensor in inputs(1, 3, heads=2, head_dim=2))
    assert torch.autograd.gradcheck(lambda *given: split_attention(*given, is_causal=is_causal), tensors)
    # The fused kernel of F.scaled_dot_product_attention has no second derivative; the written-out one has.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert torch.autograd.gradgradcheck(lambda *given: split_attention(*given, is_causal=is_causal), tensors)


def test_first_and_second_derivatives_under_a_rotation() -> None:
    torch.manual_seed(0)
    shape = (2, 3, 1, 1)
    tensors = tuple(tensor.requires_grad_() for tensor in [*inputs(2, 3, heads=1, head_dim=2), *rotation_of(shape)])
    assert torch.autograd.gradcheck(rotated(split_attention, is_causal=True), tensors)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert torch.autograd.gradgradcheck(rotated(split_attention, is_causal=True), tensors)


def test_derivatives_under_dropout() -> None:
    tensors = tuple(tensor.requires_grad_() for tensor in inputs(1, 4, heads=2, head_dim=2))

    def drawn_alike(*given: Tensor) -> Tensor:
        torch.manual_seed(3)
        return split_attention(*given, dropout=0.5)

    assert torch.autograd.gradcheck(drawn_alike, tensors)


def test_dropout_draws_from_the_default_generator() -> None:
    tensors = inputs(2, 5, heads=2, head_dim=3)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(split_attention(*tensors, dropout=0.4))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_dropout_keeps_its_share_of_the_weights_and_scales_them_up() -> None:
    tokens, probability = 40, 0.25
    x = torch.ones(4, tokens, 4, dtype=torch.float64)
    zero, one = torch.zeros(4, 1, 1, dtype=torch.float64), torch.ones(4, 1, 1, dtype=torch.float64)
    torch.manual_seed(0)
    # Every weight is 1/T, so the output counts those that were kept.
    kept = split_attention(x, zero, zero, one, one, dropout=probability) * tokens * (1 - probability)
    torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-9)
    draws = 4 * 4 * tokens * tokens
    spread = math.sqrt(probability * (1 - probability) / draws)
    assert abs(kept.mean().item() / tokens - (1 - probability)) < 4 * spread


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounds_no_worse_than_multi_head_attention(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, *weights = inputs(4, 32, heads=4, head_dim=16)
    tensors = [x.to(dtype), *((weight / 4).to(dtype) for weight in weights)]
    exact = value_and_gradients(dense_attention, *(tensor.double() for tensor in tensors))
    ours = value_and_gradients(split_attention, *tensors)
    assert all(tensor.dtype == dtype for tensor in ours)
    theirs = relative_errors(value_and_gradients(dense_attention, *tensors), exact)
    for our_error, their_error in zip(relative_errors(ours, exact), theirs, strict=True):
        assert our_error <= 1.5 * their_error


def test_meta_and_fake_tensors() -> None:
    tensors = inputs(2, 3, heads=2, head_dim=4)
    on_meta = split_attention(*(tensor.to("meta") for tensor in tensors), is_causal=True)
    assert on_meta.is_meta and on_meta.shape == (2, 3, 8) and on_meta.dtype == torch.float64
    with FakeTensorMode() as mode:
        fake = split_attention(*(mode.from_tensor(tensor) for tensor in tensors), is_causal=True)
    real = split_attention(*tensors, is_causal=True)
    assert fake.shape == real.shape and fake.stride() == real.stride() and fake.dtype == real.dtype
    tensors += rotation_of((2, 3, 2, 2))
    assert rotated(split_attention)(*(tensor.to("meta") for tensor in tensors)).shape == (2, 3, 8)


WEIGHT = (2, 4, 4)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(3, 8), WEIGHT, WEIGHT, WEIGHT, WEIGHT], "x must be [B, T, D], got shape [3, 8]"),
        (
            [(1, 3, 9), WEIGHT, WEIGHT, WEIGHT, WEIGHT],
            "q_weight must be [H, in/H, out/H] with H·in/H = 9, the width of its input; got [2, 4, 4]",
        ),
        (
            [(1, 3, 8), (2, 4, 3), (2, 4, 3), (2, 4, 3), (2, 4, 3)],
            "q_weight must be [H, K, K] like q_weight [2, 4, 3], got [2, 4, 3]",
        ),
        (
            [(1, 3, 8), WEIGHT, (4, 2, 2), WEIGHT, WEIGHT],
            "k_weight must be [H, K, K] like q_weight [2, 4, 4], got [4, 2, 2]",
        ),
        (
            [(1, 3, 8), WEIGHT, WEIGHT, (8, 8), WEIGHT],
            "v_weight must be [H, in/H, out/H] with H·in/H = 8, the width of its input; got [8, 8]",
        ),
        (
            [(1, 3, 8), WEIGHT, WEIGHT, WEIGHT, (2, 4, 5)],
            "o_weight must be [H, K, K] like q_weight [2, 4, 4], got [2, 4, 5]",
        ),
    ],
)
def test_refused_shapes(shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        split_attention(*(torch.zeros(shape) for shape in shapes))
    assert str(refusal.value) == f"split_attention: {message}"


@pytest.mark.parametrize("shape", [(3, 1, 5, 5), (2, 3, 5, 5), (2, 2, 4, 5), (5, 6), (1, 1, 2, 5, 5)])
def test_refused_mask_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError) as refusal:
        split_attention(*inputs(2, 5, heads=2, head_dim=3), mask=torch.zeros(shape, dtype=torch.float64))
    expected = f"split_attention: mask must broadcast to [B, H, T, T] = [2, 2, 5, 5], got {list(shape)}"
    assert str(refusal.value) == expected


@pytest.mark.parametrize(
    ("cosines", "sines", "name"),
    [
        ((2, 5, 4), (2, 5, 4), "cosines"),
        ((2, 4, 2), (2, 5, 2), "cosines"),
        ((3, 5, 2), (2, 5, 2), "cosines"),
        ((5, 2), (5, 2), "cosines"),
        ((2, 5, 2), (2, 5, 1), "sines"),
        ((1, 5, 2), (2, 1, 5, 2), "sines"),
    ],
)
def test_refused_rotations(cosines: tuple[int, ...], sines: tuple[int, ...], name: str) -> None:
    got = list(cosines if name == "cosines" else sines)
    with refused(f"split_attention: the rotation's {name} must be [B, T, K/2] = [2, 5, 2]", f"; got {got}"):
        split_attention(*inputs(2, 5, heads=2, head_dim=4), rotation=(torch.zeros(cosines), torch.zeros(sines)))


def test_a_rotation_of_heads_of_odd_width_is_refused() -> None:
    rotation = torch.zeros(1, 5, 1), torch.zeros(1, 5, 1)
    with refused("split_attention: rotation turns channels in pairs, and a head is 3 channels wide"):
        split_attention(*inputs(2, 5, heads=2, head_dim=3), rotation=rotation)


def test_a_mask_beside_is_causal_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^split_attention: is_causal and a mask exclude each other"):
        split_attention(*inputs(2, 5, heads=2, head_dim=3), is_causal=True, mask=torch.ones(5, 5, dtype=torch.bool))


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 2.0, math.nan])
def test_refused_dropout(dropout: float) -> None:
    with pytest.raises(UsageError, match=rf"^split_attention: dropout must be at least 0 and below 1, got {dropout}$"):
        split_attention(*inputs(1, 2, heads=1, head_dim=2), dropout=dropout)
