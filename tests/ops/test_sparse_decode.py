import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers.errors import refused
from helpers.tensors import assert_all_close, value_and_gradients
from smht.ops.sparse_attention import block_sparse_attention, block_sparse_decode

HEADS, WIDTH, LONGEST = 2, 3, 40
block_sizes = st.sampled_from([1, 2, 3, 4, 5, 13, 50])


def bias(table: Tensor, relative: Tensor) -> Tensor:
    """Of `[H, 2·LONGEST - 1]`."""
    return table[:, relative + LONGEST - 1]


def whole_sequence(
    query: Tensor, key: Tensor, value: Tensor, table: Tensor, *, padding: Tensor, block_size: int, new: int
) -> Tensor:
    """The last `new` rows of attention over everything so far."""
    output = block_sparse_attention(
        query,
        key,
        value,
        block_size=block_size,
        is_causal=True,
        key_padding=padding,
        relative_bias=partial(bias, table),
    )
    return output[:, :, query.shape[2] - new :]


def from_the_cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor,
    *,
    padding: Tensor,
    block_size: int,
    new: int,
    spare: int = 0,
) -> Tensor:
    """The same with a cache that holds NaN in its padding and in `spare` columns that are not in use yet."""
    tokens = query.shape[2]
    first_column = (~padding).sum(-1)
    key, value = (
        F.pad(x.masked_fill(~padding[:, None, :, None], math.nan), (0, 0, 0, spare), value=math.nan)
        for x in (key, value)
    )
    return block_sparse_decode(
        query[:, :, tokens - new :],
        key,
        value,
        block_size=block_size,
        query_positions=torch.arange(tokens - new, tokens) - first_column.unsqueeze(-1),
        first_position_column=first_column,
        relative_bias=partial(bias, table),
    )


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=3),
    st.integers(1, LONGEST),
    st.integers(1, 5),
    st.integers(0, 9),
    block_sizes,
    st.integers(0, 2**32),
)
def test_equals_the_last_rows_of_the_whole_sequence(
    left_padding: list[int], tokens: int, new: int, spare: int, block_size: int, seed: int
) -> None:
    torch.manual_seed(seed)
    new = min(new, tokens)
    padding = torch.arange(tokens) >= torch.tensor(left_padding).unsqueeze(-1)
    tensors = [*torch.randn(3, len(left_padding), HEADS, tokens, WIDTH), torch.randn(HEADS, 2 * LONGEST - 1)]
    tensors = [tensor.double() for tensor in tensors]
    given = {"padding": padding, "block_size": block_size, "new": new}
    ours = value_and_gradients(partial(from_the_cache, spare=spare, **given), *tensors)
    assert_all_close(ours, value_and_gradients(partial(whole_sequence, **given), *tensors))


@pytest.mark.parametrize("block_size", [1, 3, 4, 30])
def test_a_query_reads_nothing_of_what_comes_after_it(block_size: int) -> None:
    tokens = 20
    query, key, value = torch.randn(3, 1, HEADS, tokens, WIDTH, dtype=torch.float64)
    whole = block_sparse_attention(query, key, value, block_size=block_size, is_causal=True)
    for position in range(tokens):
        is_later = (torch.arange(tokens) > position)[:, None]
        outputs = block_sparse_decode(
            query,
            key.masked_fill(is_later, math.nan),
            value.masked_fill(is_later, math.nan),
            block_size=block_size,
            query_positions=torch.arange(tokens).unsqueeze(0),
            first_position_column=torch.tensor([0]),
        )
        torch.testing.assert_close(outputs[:, :, : position + 1], whole[:, :, : position + 1])


def test_a_query_at_a_negative_position_gives_zeros() -> None:
    query = torch.randn(1, HEADS, 2, WIDTH)
    nothing = torch.full((1, HEADS, 4, WIDTH), math.nan)
    output = block_sparse_decode(
        query,
        nothing,
        nothing,
        block_size=2,
        query_positions=torch.tensor([[-3, -1]]),
        first_position_column=torch.tensor([3]),
    )
    assert (output == 0).all()


def test_traces_into_one_graph_for_all_lengths() -> None:
    torch.compiler.reset()
    compiled = torch.compile(from_the_cache, fullgraph=True, dynamic=True, backend="eager")
    for stance, tokens in (("default", 9), ("fail_on_recompile", 12), ("fail_on_recompile", 20)):
        padding = torch.arange(tokens) >= torch.tensor([[0], [2]])
        tensors = [*torch.randn(3, 2, HEADS, tokens, WIDTH), torch.randn(HEADS, 2 * LONGEST - 1)]
        with torch.compiler.set_stance(stance):
            ours = compiled(*tensors, padding=padding, block_size=4, new=2)
        torch.testing.assert_close(ours, from_the_cache(*tensors, padding=padding, block_size=4, new=2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensors = [*torch.randn(3, 1, HEADS, 20, WIDTH), torch.randn(HEADS, 2 * LONGEST - 1)]
    function = partial(from_the_cache, padding=torch.arange(20).unsqueeze(0) >= 3, block_size=4, new=3)
    rounded = function(*(tensor.to(dtype) for tensor in tensors))
    assert rounded.dtype == dtype
    torch.testing.assert_close(rounded.float(), function(*tensors), rtol=0, atol=0.03)


def decode(**changes: Any) -> None:
    given = {
        "query": torch.zeros(2, 3, 1, 4),
        "key": torch.zeros(2, 3, 6, 4),
        "value": torch.zeros(2, 3, 6, 4),
        "block_size": 2,
        "query_positions": torch.tensor([[5], [5]]),
        "first_position_column": torch.tensor([0, 0]),
    }
    block_sparse_decode(**(given | changes))


def test_refusals() -> None:
    decode()
    with refused("block_sparse_decode: query must be [B, H, T, K], got shape [3, 1, 4]"):
        decode(query=torch.zeros(3, 1, 4))
    with refused("block_sparse_decode: key must be [2, 3, S, 4], got [2, 1, 6, 4]"):
        decode(key=torch.zeros(2, 1, 6, 4))
    with refused("block_sparse_decode: value must be like key [2, 3, 6, 4], got [2, 3, 5, 4]"):
        decode(value=torch.zeros(2, 3, 5, 4))
    with refused("block_sparse_decode: query_positions must be [2, 1], got [1]"):
        decode(query_positions=torch.tensor([5]))
    with refused("block_sparse_decode: first_position_column must be [2], got [1]"):
        decode(first_position_column=torch.tensor([0]))
    with refused("block_sparse_decode: block_size must be at least 1, got 0"):
        decode(block_size=0)
