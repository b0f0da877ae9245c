import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.errors import refused
from helpers.tensors import assert_all_close, relative_errors, value_and_gradients
from smht.ops.sparse_attention import block_sparse_attention, block_sparse_decode, block_sparse_mask

Shape = tuple[int, int, int, int]

shapes = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 20), st.integers(1, 4))
"""Batch, heads, tokens, head width."""
block_sizes = st.sampled_from([1, 2, 3, 4, 5, 19, 20, 30])
seeds = st.integers(0, 2**32)
CAUSALITY = pytest.mark.parametrize("is_causal", [False, True])


def inputs(shape: Shape) -> list[Tensor]:
    """Query, key, value, and a bias for each head and relative position."""
    _, heads, tokens, _ = shape
    return [*torch.randn(3, *shape, dtype=torch.float64), torch.randn(heads, 2 * tokens - 1, dtype=torch.float64)]


def sparse(query: Tensor, key: Tensor, value: Tensor, table: Tensor | None = None, **kwargs: Any) -> Tensor:
    bias = None if table is None else lambda relative: table[:, relative + query.shape[2] - 1]
    return block_sparse_attention(query, key, value, relative_bias=bias, **kwargs)


def dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor | None = None,
    *,
    block_size: int,
    is_causal: bool,
    key_padding: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Masked attention over all pairs, with zeros for padded queries."""
    batch, _, tokens, _ = query.shape
    real = torch.ones(batch, tokens, dtype=torch.bool) if key_padding is None else key_padding
    positions = (real.cumsum(-1) - 1).clamp(min=0)
    allowed = block_sparse_mask(positions, positions, block_size, is_causal) & real.unsqueeze(1)
    # A padded query may see nothing; it looks at everything here, so that only its output needs masking.
    allowed = (allowed | ~real.unsqueeze(2)).unsqueeze(1)
    mask = torch.zeros((), dtype=query.dtype)
    if table is not None:
        relative = positions.unsqueeze(1) - positions.unsqueeze(2)
        mask = table[:, relative + tokens - 1].movedim(1, 0)
    mask = torch.where(allowed, mask, -math.inf)
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    return mixed.masked_fill(~real[:, None, :, None], 0)


@st.composite
def paddings(draw: st.DrawFn, shape: Shape) -> Tensor:
    """Real tokens in one run of columns of each row; a row may have none."""
    batch, _, tokens, _ = shape
    starts = [draw(st.integers(0, tokens)) for _ in range(batch)]
    ends = [draw(st.integers(start, tokens)) for start in starts]
    return torch.tensor([[start <= c < end for c in range(tokens)] for start, end in zip(starts, ends, strict=True)])


def test_the_pattern_of_three_blocks() -> None:
    def drawn(is_causal: bool) -> list[str]:
        mask = block_sparse_mask(torch.arange(8), torch.arange(8), 3, is_causal)
        return ["".join(".x"[seen] for seen in row) for row in mask.int().tolist()]

    # The third block is incomplete: it has no summary.
    assert drawn(is_causal=True) == [
        "x.......",
        "xx......",
        "xxx.....",
        "..xx....",
        "..xxx...",
        "..xxxx..",
        "..x..xx.",
        "..x..xxx",
    ]
    assert drawn(is_causal=False) == ["xxx..x.."] * 3 + ["..xxxx.."] * 3 + ["..x..xxx"] * 2


@given(st.lists(st.integers(0, 50), max_size=9), st.lists(st.integers(0, 50), max_size=9), block_sizes, st.booleans())
def test_the_mask_by_pairs(queries: list[int], keys: list[int], block_size: int, is_causal: bool) -> None:
    def is_seen(query: int, key: int) -> bool:
        if is_causal and key > query:
            return False
        return query // block_size == key // block_size or (key + 1) % block_size == 0

    mask = block_sparse_mask(torch.tensor(queries).long(), torch.tensor(keys).long(), block_size, is_causal)
    assert mask.shape == (len(queries), len(keys))
    assert mask.tolist() == [[is_seen(query, key) for key in keys] for query in queries]


@given(shapes, block_sizes, st.booleans(), st.sampled_from([None, 0.3, 2.0]), seeds)
def test_equals_dense_attention_with_the_mask(
    shape: Shape, block_size: int, is_causal: bool, scale: float | None, seed: int
) -> None:
    torch.manual_seed(seed)
    query, key, value, _ = inputs(shape)
    given = {"block_size": block_size, "is_causal": is_causal, "scale": scale}
    ours = value_and_gradients(lambda *tensors: sparse(*tensors, **given), query, key, value)
    assert_all_close(ours, value_and_gradients(lambda *tensors: dense(*tensors, **given), query, key, value))


@given(st.data(), shapes, block_sizes, st.booleans(), seeds)
def test_equals_dense_attention_with_padding_and_a_bias(
    data: st.DataObject, shape: Shape, block_size: int, is_causal: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    tensors = inputs(shape)
    given = {"block_size": block_size, "is_causal": is_causal, "key_padding": data.draw(paddings(shape))}
    ours = value_and_gradients(lambda *tensors: sparse(*tensors, **given), *tensors)
    assert_all_close(ours, value_and_gradients(lambda *tensors: dense(*tensors, **given), *tensors))


@given(st.data(), shapes, block_sizes, st.booleans(), seeds)
def test_padding_may_hold_anything(
    data: st.DataObject, shape: Shape, block_size: int, is_causal: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    *tensors, table = inputs(shape)
    padding = data.draw(paddings(shape))
    is_padded = ~padding[:, None, :, None]
    poisoned = [tensor.masked_fill(is_padded, math.nan) for tensor in tensors]
    given = {"block_size": block_size, "is_causal": is_causal, "key_padding": padding}
    ours = value_and_gradients(lambda *tensors: sparse(*tensors, **given), *poisoned, table)
    assert_all_close(ours, value_and_gradients(lambda *tensors: sparse(*tensors, **given), *tensors, table))
    for tensor in ours[:4]:
        assert (tensor.masked_select(is_padded) == 0).all()


@CAUSALITY
@pytest.mark.parametrize("block_size", [1, 3, 4, 20])
def test_a_row_is_the_same_wherever_its_padding_lies(block_size: int, is_causal: bool) -> None:
    torch.manual_seed(0)
    real = torch.randn(3, 1, 2, 10, 3, dtype=torch.float64)
    alone = block_sparse_attention(*real, block_size=block_size, is_causal=is_causal)
    for left, right in ((0, 5), (5, 0), (2, 3), (7, 7)):
        padded = F.pad(real, (0, 0, left, right), value=9.0)
        padding = F.pad(torch.ones(1, 10, dtype=torch.bool), (left, right))
        output = block_sparse_attention(*padded, block_size=block_size, is_causal=is_causal, key_padding=padding)
        torch.testing.assert_close(output[:, :, left : left + 10], alone)


@pytest.mark.parametrize("block_size", [1, 3, 4, 20])
def test_causal_attention_ignores_later_tokens(block_size: int) -> None:
    tensors = torch.randn(3, 1, 2, 10, 3, dtype=torch.float64)
    whole = block_sparse_attention(*tensors, block_size=block_size, is_causal=True)
    for tokens in range(1, 10):
        start = block_sparse_attention(*tensors[..., :tokens, :], block_size=block_size, is_causal=True)
        torch.testing.assert_close(start, whole[:, :, :tokens])


@CAUSALITY
@pytest.mark.parametrize(("batch", "tokens"), [(0, 3), (2, 0), (0, 0)])
def test_nothing_in_gives_nothing_out(batch: int, tokens: int, is_causal: bool) -> None:
    tensors = [torch.randn(batch, 2, tokens, 3, dtype=torch.float64) for _ in range(3)]
    for padding in (None, torch.ones(batch, tokens, dtype=torch.bool)):
        given = {"block_size": 2, "is_causal": is_causal, "key_padding": padding}
        for tensor in value_and_gradients(lambda *tensors, given=given: sparse(*tensors, **given), *tensors):
            assert tensor.shape == (batch, 2, tokens, 3)


@CAUSALITY
def test_first_and_second_derivatives(is_causal: bool) -> None:
    torch.manual_seed(0)
    tensors = tuple(tensor.requires_grad_() for tensor in inputs((2, 2, 5, 2)))
    padding = torch.tensor([[True] * 5, [False, True, True, True, False]])

    def function(*tensors: Tensor) -> Tensor:
        return sparse(*tensors, block_size=2, is_causal=is_causal, key_padding=padding)

    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors)


@CAUSALITY
def test_a_bias_is_asked_for_few_positions_that_occur(is_causal: bool) -> None:
    tokens, block_size = 50, 8
    asked: list[Tensor] = []

    def bias(relative: Tensor) -> Tensor:
        asked.append(relative.flatten())
        return relative.new_zeros((1, *relative.shape)).double()

    tensors = torch.randn(3, 1, 1, tokens, 2, dtype=torch.float64)
    block_sparse_attention(*tensors, block_size=block_size, is_causal=is_causal, relative_bias=bias)
    positions = torch.cat(asked)
    assert positions.dtype == torch.int64
    assert positions.min() >= 1 - tokens
    assert positions.max() <= (0 if is_causal else tokens - 1)
    assert len(positions) <= block_size**2 + 2 * (tokens + block_size)


def test_dropout_keeps_its_share_of_the_weights_and_scales_them_up() -> None:
    tokens, block_size, probability, heads = 64, 8, 0.25, 40
    nothing = torch.zeros(1, heads, tokens, tokens, dtype=torch.float64)
    torch.manual_seed(0)
    # Equal scores, and values that spell out the weights.
    weights = block_sparse_attention(
        nothing, nothing, torch.eye(tokens).double().expand_as(nothing), block_size=block_size, is_causal=False,
        dropout=probability,
    )  # fmt: skip
    seen = block_sparse_mask(torch.arange(tokens), torch.arange(tokens), block_size, is_causal=False)
    assert (weights[..., ~seen] == 0).all()
    kept = weights * seen.sum(-1, keepdim=True) * (1 - probability)
    torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-9)
    is_local = torch.block_diag(*torch.ones(8, block_size, block_size)).bool()
    for part in (is_local, seen & ~is_local):
        spread = math.sqrt(probability * (1 - probability) / (heads * part.sum().item()))
        assert abs(kept[..., part].mean().item() - (1 - probability)) < 4 * spread


class LargestTensor(TorchDispatchMode):
    """Notes the elements of the largest memory that an operation fills, apart from that of `given`."""

    def __init__(self, *given: Tensor) -> None:
        super().__init__()
        self.given = {tensor.untyped_storage().data_ptr() for tensor in given}
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(made, Tensor) and made.untyped_storage().data_ptr() not in self.given:
                self.elements = max(self.elements, made.untyped_storage().nbytes() // made.element_size())
        return result


def largest_tensor(function: Callable[..., Tensor], *tensors: Tensor, **kwargs: Any) -> int:
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    with LargestTensor(*leaves) as mode:
        torch.autograd.grad(function(*leaves, **kwargs).sum(), leaves)
    return mode.elements


@CAUSALITY
@pytest.mark.parametrize("block_size", [8, 32, 128])
def test_no_tensor_grows_with_the_square_of_the_tokens(block_size: int, is_causal: bool) -> None:
    batch, heads, tokens, width = 2, 2, 1024, 4
    tensors = inputs((batch, heads, tokens, width))
    given = {"block_size": block_size, "is_causal": is_causal}
    padding = torch.ones(batch, tokens, dtype=torch.bool)
    padding[1, :100] = False
    scores = batch * heads * tokens * (block_size + tokens // block_size)
    for some, key_padding in ((tensors, padding), (tensors[:3], None)):
        assert largest_tensor(sparse, *some, key_padding=key_padding, **given) <= scores
    assert largest_tensor(dense, *tensors[:3], **given) >= tokens**2


def test_decoding_makes_no_tensor_of_the_size_of_the_cache() -> None:
    batch, heads, tokens, columns, width, block_size = 2, 2, 3, 4096, 8, 64
    query = torch.randn(batch, heads, tokens, width)
    key, value = torch.randn(2, batch, heads, columns, width)
    given = {"block_size": block_size, "first_position_column": torch.zeros(batch, dtype=torch.int64)}
    with LargestTensor(query, key) as mode:
        block_sparse_decode(query, key, value, query_positions=torch.tensor([[4000, 4001, 4002]] * 2), **given)
    # key and value share their memory.
    assert mode.elements == batch * heads * tokens * (block_size + columns // block_size) * width


# PyTorch's compiler uses parts of PyTorch that PyTorch deprecates.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("is_causal", "is_padded"), [(True, False), (False, True)])
def test_traces_into_one_graph_for_all_lengths(is_causal: bool, is_padded: bool) -> None:
    def function(padding: Tensor | None, *tensors: Tensor) -> Tensor:
        return sparse(*tensors, block_size=4, is_causal=is_causal, key_padding=padding)

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="eager")
    for stance, tokens in (("default", 5), ("fail_on_recompile", 8), ("fail_on_recompile", 11)):
        tensors = inputs((2, 2, tokens, 3))
        padding = torch.arange(tokens) >= torch.tensor([[0], [2]]) if is_padded else None
        with torch.compiler.set_stance(stance):
            ours = value_and_gradients(partial(compiled, padding), *tensors)
        assert_all_close(ours, value_and_gradients(partial(function, padding), *tensors))


def written_out(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    scores = (query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])).float().masked_fill(~mask, -math.inf)
    return scores.softmax(-1).to(value.dtype) @ value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounds_no_worse_than_dense_attention_written_out(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensors = [tensor.to(dtype) for tensor in torch.randn(3, 2, 2, 50, 16)]
    mask = block_sparse_mask(torch.arange(50), torch.arange(50), 8, is_causal=True)
    exact = value_and_gradients(
        lambda *tensors: dense(*tensors, block_size=8, is_causal=True), *(tensor.double() for tensor in tensors)
    )
    ours = value_and_gradients(lambda *tensors: sparse(*tensors, block_size=8, is_causal=True), *tensors)
    theirs = value_and_gradients(lambda *tensors: written_out(*tensors, mask=mask), *tensors)
    assert all(tensor.dtype == dtype for tensor in ours)
    for our_error, their_error in zip(relative_errors(ours, exact), relative_errors(theirs, exact), strict=True):
        assert our_error <= 1.5 * their_error


def test_under_autocast() -> None:
    torch.manual_seed(0)
    tensors = [tensor.float() for tensor in inputs((2, 2, 20, 8))]
    exact = value_and_gradients(lambda *tensors: sparse(*tensors, block_size=4, is_causal=True), *tensors)

    def mixed(*tensors: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return sparse(*tensors, block_size=4, is_causal=True)

    rounded = value_and_gradients(mixed, *tensors)
    assert rounded[0].dtype == torch.bfloat16
    assert all(tensor.dtype == torch.float32 for tensor in rounded[1:])
    assert max(relative_errors(rounded, [tensor.double() for tensor in exact])) < 0.02


def attend(**changes: Any) -> None:
    query = torch.zeros(2, 3, 5, 4)
    block_sparse_attention(
        **({"query": query, "key": query, "value": query, "block_size": 2, "is_causal": True} | changes)
    )


def test_refused_shapes() -> None:
    with refused("block_sparse_attention: query must be [B, H, T, K], got shape [3, 5, 4]"):
        attend(query=torch.zeros(3, 5, 4))
    for name in ("key", "value"):
        with refused(f"{name} must be [B, H, T, K] like query [2, 3, 5, 4], got [2, 3, 6, 4]"):
            attend(**{name: torch.zeros(2, 3, 6, 4)})
    with refused("key_padding must be boolean [B, T] = [2, 5], got [2, 6] of torch.bool"):
        attend(key_padding=torch.ones(2, 6, dtype=torch.bool))
    with refused("key_padding must be boolean [B, T] = [2, 5], got [2, 5] of torch.int64"):
        attend(key_padding=torch.ones(2, 5, dtype=torch.int64))
    with refused("relative_bias must give [3, 2, 2], heads first, for positions [2, 2]; got [2, 2, 3]"):
        attend(relative_bias=lambda relative: torch.zeros(*relative.shape, 3))


def test_refused_values() -> None:
    for block_size in (0, -2):
        with refused(f"block_sparse_attention: block_size must be at least 1, got {block_size}"):
            attend(block_size=block_size)
        with refused(f"block_sparse_mask: block_size must be at least 1, got {block_size}"):
            block_sparse_mask(torch.arange(3), torch.arange(3), block_size, is_causal=True)
    for dropout in (-0.1, 1.0, math.nan):
        with refused(f"block_sparse_attention: dropout must be at least 0 and below 1, got {dropout}"):
            attend(dropout=dropout)
    interrupted = torch.tensor([[True] * 5, [True, False, True, True, False]])
    with refused("real tokens of row 1 have padding between them"):
        attend(key_padding=interrupted)
