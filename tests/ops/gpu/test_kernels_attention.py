import math
from collections.abc import Callable

import pytest
import torch
import triton
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from helpers.errors import refused
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
from smht.ops.gpu import attention_backward, attention_forward, tiles
from smht.ops.gpu_backend import NUMBERS, split_attention

pytestmark = interpreter_warnings


def inputs(batch: int, tokens: int, heads: int, head_dim: int) -> list[Tensor]:
    """`x` and the weights of q, k, v and o."""
    return [torch.randn(batch, tokens, heads * head_dim), *torch.randn(4, heads, head_dim, head_dim) / head_dim**0.5]


def of(op: Callable[..., Tensor], is_causal: bool = False, mask: Tensor | None = None, scale: float = 0.4):
    """The op as a function of x and the four weights."""

    def function(*tensors: Tensor) -> Tensor:
        if mask is None or mask.dtype == torch.bool:
            return op(*tensors, is_causal, None if mask is None else mask.to(DEVICE), 0.0, scale)
        return op(*tensors, is_causal, mask.to(DEVICE, tensors[0].dtype), 0.0, scale)

    return function


shapes = st.sampled_from([(1, 1), (1, 2), (2, 1)]).flatmap(
    lambda chunks: st.tuples(st.just(chunks[0]), st.integers(1, 20), st.just(chunks[1]), st.integers(1, 19))
)
"""Batch, tokens, heads, head width."""


@few_examples
@example((2, 17, 1, 17), True, 0.4, 0)
@example((1, 33, 1, 3), False, 0.4, 0)
@example((1, 1, 1, 1), False, 1.0, 0)
@given(shapes, st.booleans(), st.sampled_from([0.1, 2.0]), st.integers(0, 2**32))
def test_equals_the_reference(shape: tuple[int, int, int, int], is_causal: bool, scale: float, seed: int) -> None:
    torch.manual_seed(seed)
    tensors = inputs(*shape)
    assert_agree(
        of(split_attention, is_causal, None, scale), of(reference.split_attention, is_causal, None, scale), tensors
    )


@few_examples
@given(st.data(), shapes, st.sampled_from(["boolean", "additive"]), st.integers(0, 2**32))
def test_masks_that_broadcast(data: st.DataObject, shape: tuple[int, int, int, int], kind: str, seed: int) -> None:
    torch.manual_seed(seed)
    batch, tokens, heads, _ = shape
    mask_shape = [data.draw(st.sampled_from([1, size])) for size in (batch, heads, tokens, tokens)]
    mask = torch.rand(mask_shape) < 0.7 if kind == "boolean" else torch.randn(mask_shape) * 3
    assert_agree(of(split_attention, mask=mask), of(without_lost_tokens, mask=mask), inputs(*shape))


def without_lost_tokens(*given: Tensor | bool | float) -> Tensor:
    """The reference written out, with zeros for a token that may see nothing."""
    x, q_weight, k_weight, v_weight, o_weight, _, mask, _, scale = given
    batch, tokens, width = x.shape
    num_heads = q_weight.shape[0]
    chunks = x.view(batch, tokens, num_heads, width // num_heads).transpose(1, 2)
    scores = (chunks @ q_weight) @ (chunks @ k_weight).transpose(-1, -2) * scale
    scores = torch.where(mask, scores, -math.inf) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1).nan_to_num(0.0)
    return ((weights @ (chunks @ v_weight)) @ o_weight).transpose(1, 2).reshape(x.shape)


@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_tokens_that_may_see_nothing_give_zeros_and_take_no_gradient(kind: str) -> None:
    torch.manual_seed(0)
    tokens, lost = 20, [0, 7, 19]
    mask = torch.ones(1, 1, tokens, tokens, dtype=torch.bool).tril()
    mask[..., lost, :] = False
    mask[..., lost] = False
    if kind == "additive":
        mask = torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
    output, grad_x, *rest = outcomes(of(split_attention, mask=mask), inputs(1, tokens, 2, 5), torch.float32)
    assert (output[:, lost] == 0).all() and (grad_x[:, lost] == 0).all()
    assert all(tensor.isfinite().all() for tensor in (output, grad_x, *rest))
    kept = [token for token in range(tokens) if token not in lost]
    x, *weights = inputs(1, tokens, 2, 5)
    shorter = of(split_attention, is_causal=True)(*(tensor.to(DEVICE) for tensor in (x[:, kept], *weights)))
    whole = of(split_attention, mask=mask)(*(tensor.to(DEVICE) for tensor in (x, *weights)))
    torch.testing.assert_close(whole[:, kept], shorter, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not INTERPRETED, reason="on a GPU the tile sizes are those that were measured")
@pytest.mark.parametrize("tile", [(16, 32), (32, 16), (64, 16)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_tiles_of_any_size(tile: tuple[int, int], is_causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    configuration = triton.Config(dict(zip(("BM", "BN"), tile, strict=True)))
    kernels = attention_forward.forward_kernel, attention_backward.query_kernel, attention_backward.key_kernel
    for kernel in kernels:
        monkeypatch.setattr(kernel, "configs", [configuration])
    assert_agree(of(split_attention, is_causal), of(reference.split_attention, is_causal), inputs(1, 67, 1, 4))


def test_rows_in_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "_ROWS_PER_SPLIT", 4)
    torch.manual_seed(0)
    assert_agree(of(split_attention), of(reference.split_attention), inputs(1, 34, 1, 3))


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("is_causal", [False, True])
def test_rounds_no_worse_than_pytorch(is_causal: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    scale = 24**-0.5
    functions = of(split_attention, is_causal, None, scale), of(reference.split_attention, is_causal, None, scale)
    assert_no_less_exact(*functions, inputs(1, 33, 1, 24), dtype)


def test_scores_that_would_overflow_without_a_shift() -> None:
    torch.manual_seed(0)
    tensors = inputs(1, 20, 1, 4)
    assert_agree(
        of(split_attention, True, None, 300.0), of(reference.split_attention, True, None, 300.0), tensors, 1e-2
    )


@pytest.mark.parametrize(("batch", "tokens"), [(0, 3), (2, 0)])
def test_nothing_in_gives_nothing_out(batch: int, tokens: int) -> None:
    output, *gradients = outcomes(of(split_attention), inputs(batch, tokens, 2, 3), torch.float32)
    assert output.shape == (batch, tokens, 6)
    assert all((gradient == 0).all() for gradient in gradients)


def test_non_contiguous_inputs() -> None:
    torch.manual_seed(0)
    x, *weights = inputs(2, 4, heads=2, head_dim=2)
    strided = [x.transpose(0, 1).contiguous().transpose(0, 1)]
    strided += [weight.transpose(1, 2).contiguous().transpose(1, 2) for weight in weights]
    assert not any(tensor.is_contiguous() for tensor in strided)
    assert_agree(of(split_attention), of(reference.split_attention), strided)
    columns = torch.randn(2, 4, 8)[..., ::2]
    assert_agree(of(split_attention), of(reference.split_attention), [columns, *weights])


def test_a_residual_is_added_and_takes_the_gradient() -> None:
    torch.manual_seed(0)
    tensors = [*inputs(2, 20, 2, 3), torch.randn(20, 2, 6).transpose(0, 1)]

    def ours(*given: Tensor) -> Tensor:
        return split_attention(*given[:5], True, None, 0.0, 0.4, residual=given[5])

    def theirs(*given: Tensor) -> Tensor:
        return reference.split_attention(*given[:5], True, None, 0.0, 0.4) + given[5]

    assert_agree(ours, theirs, tensors)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter runs one program after the other")
def test_the_same_every_time() -> None:
    tensors = inputs(20, 150, 1, 3)
    first, second = (outcomes(of(split_attention), tensors, torch.float16) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def drawn(tensors: list[Tensor], dropout: float, seed: int, is_causal: bool = False) -> Tensor:
    torch.manual_seed(seed)
    return split_attention(*(tensor.to(DEVICE) for tensor in tensors), is_causal, None, dropout, 0.4)


def factors(batch: int, tokens: int, heads: int, dropout: float, seed: int) -> Tensor:
    """What each attention weight is multiplied by, `[B, H, T, T]`: even weights over one-hot tokens show them."""
    identity = torch.eye(tokens).expand(heads, -1, -1)
    x = torch.eye(tokens).repeat(1, heads).expand(batch, -1, -1)
    zero = torch.zeros_like(identity)
    shown = drawn([x, zero, zero, identity, identity], dropout, seed) * tokens
    return shown.view(batch, tokens, heads, tokens).transpose(1, 2)


def test_dropout_keeps_its_share_of_the_weights_and_scales_them_up() -> None:
    dropout = 0.25
    seen = factors(3, 34, 2, dropout, seed=0) * (1 - dropout)
    torch.testing.assert_close(seen, seen.round(), rtol=0, atol=1e-5)
    kept = seen.round().double()
    assert set(kept.unique().tolist()) == {0.0, 1.0}
    spread = math.sqrt(dropout * (1 - dropout) / kept.numel())
    assert abs(kept.mean().item() - (1 - dropout)) < 4 * spread
    # No head of a sequence, row or column repeats another.
    flat = kept.flatten(0, 1).flatten(1)
    for lines in (flat, kept.flatten(0, 2), kept.transpose(-1, -2).flatten(0, 2)):
        assert len(lines.unique(dim=0)) == len(lines)
    agreement = (flat[0] == flat[1]).double().mean().item()
    expected = dropout**2 + (1 - dropout) ** 2
    assert abs(agreement - expected) < 4 * math.sqrt(expected * (1 - expected) / flat.shape[1])


def test_dropout_draws_from_the_default_generator() -> None:
    tensors = inputs(2, 20, 2, 3)
    first, again, other = (drawn(tensors, 0.4, seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(("is_causal", "batch", "heads"), [(False, 2, 2), (True, 1, 1)])
def test_derivatives_under_dropout(is_causal: bool, batch: int, heads: int) -> None:
    tokens, dropout, seed = 20, 0.3, 5
    kept = factors(batch, tokens, heads, dropout, seed)

    def ours(*tensors: Tensor) -> Tensor:
        torch.manual_seed(seed)
        return split_attention(*tensors, is_causal, None, dropout, 0.4)

    def theirs(x: Tensor, q_weight: Tensor, k_weight: Tensor, v_weight: Tensor, o_weight: Tensor) -> Tensor:
        chunks = x.view(batch, tokens, heads, -1).transpose(1, 2)
        scores = (chunks @ q_weight) @ (chunks @ k_weight).transpose(-1, -2) * 0.4
        if is_causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
        mixed = (scores.softmax(-1) * kept.to(x.dtype)) @ (chunks @ v_weight)
        return (mixed @ o_weight).transpose(1, 2).reshape(x.shape)

    torch.manual_seed(0)
    assert_agree(ours, theirs, inputs(batch, tokens, heads, 3))


def test_second_derivatives_are_the_references() -> None:
    # The fused kernel of F.scaled_dot_product_attention has no second derivative; the written-out one has.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert_second_derivatives(of(split_attention, True), of(reference.split_attention, True), inputs(1, 3, 2, 2))


def test_a_second_derivative_with_dropout_is_refused() -> None:
    x, *weights = (tensor.to(DEVICE) for tensor in inputs(1, 3, 2, 2))
    output = split_attention(x.requires_grad_(), *weights, False, None, 0.5, 0.4)
    with refused("the gpu backend has no second derivative with dropout", "set_backend('reference')"):
        torch.autograd.grad(output.sum(), x, create_graph=True)
