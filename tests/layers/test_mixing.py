import copy
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers.tensors import permutation_matrix, value_and_gradients
from smht.layers import ChannelShuffle, shuffle_order

shapes = st.tuples(st.integers(1, 8), st.integers(1, 8))
"""Heads, head width."""


def transpose_matrix(heads: int, head_dim: int) -> Tensor:
    """`x @ matrix` writes `[H, K]` as `[K, H]`: the channel of head h at place k goes to place k·H + h."""
    matrix = torch.zeros(heads * head_dim, heads * head_dim, dtype=torch.float64)
    for head, place in itertools.product(range(heads), range(head_dim)):
        matrix[head * head_dim + place, place * heads + head] = 1
    return matrix


@given(shapes, st.integers(0, 9))
def test_block_l_has_the_l_th_power_of_the_transpose(shape: tuple[int, int], power: int) -> None:
    heads, head_dim = shape
    expected = torch.linalg.matrix_power(transpose_matrix(heads, head_dim), power)
    assert torch.equal(permutation_matrix(shuffle_order(heads * head_dim, heads, power)), expected)


def test_orders_written_out() -> None:
    assert shuffle_order(6, 2, 0).tolist() == [0, 1, 2, 3, 4, 5]
    assert shuffle_order(6, 2, 1).tolist() == [0, 3, 1, 4, 2, 5]
    assert shuffle_order(6, 2, 2).tolist() == [0, 4, 3, 2, 1, 5]
    assert shuffle_order(6, 2, 3).tolist() == [0, 2, 4, 1, 3, 5]
    assert shuffle_order(6, 2, 4).tolist() == [0, 1, 2, 3, 4, 5]


@given(shapes)
def test_the_orders_repeat_when_the_transposes_come_back_to_the_start(shape: tuple[int, int]) -> None:
    heads, head_dim = shape
    width = heads * head_dim
    matrix = transpose_matrix(heads, head_dim)
    identity = torch.eye(width, dtype=torch.float64)
    product, cycle = matrix, 1
    while not torch.equal(product, identity):
        product, cycle = product @ matrix, cycle + 1
    for power in range(cycle):
        is_identity = torch.equal(shuffle_order(width, heads, power), torch.arange(width))
        assert is_identity == (power == 0)
    for power in (0, 1, cycle // 2):
        assert torch.equal(shuffle_order(width, heads, power + 1000 * cycle), shuffle_order(width, heads, power))


@pytest.mark.parametrize(("hidden_size", "heads"), [(64, 8), (256, 16)])
def test_after_two_blocks_of_square_shape_every_head_has_read_from_every_chunk(hidden_size: int, heads: int) -> None:
    chunks = shuffle_order(hidden_size, heads, 1).view(heads, -1) // (hidden_size // heads)
    for head in range(heads):
        assert sorted(set(chunks[head].tolist())) == list(range(heads))


@given(shapes, st.integers(0, 9), st.integers(0, 2**32))
def test_the_module_goes_into_block_order_and_back(shape: tuple[int, int], power: int, seed: int) -> None:
    torch.manual_seed(seed)
    heads, head_dim = shape
    shuffle = ChannelShuffle(heads * head_dim, heads, power)
    matrix = torch.linalg.matrix_power(transpose_matrix(heads, head_dim), power)
    x = torch.randn(2, 3, heads * head_dim, dtype=torch.float64)
    for ours, theirs in ((shuffle, matrix), (shuffle.undo, matrix.T)):
        value, gradient = value_and_gradients(ours, x)
        expected_value, expected_gradient = value_and_gradients(lambda given, theirs=theirs: given @ theirs, x)
        assert torch.equal(value, expected_value) and torch.equal(gradient, expected_gradient)
    assert torch.equal(shuffle.undo(shuffle(x)), x)


def test_holds_no_weights_and_saves_nothing() -> None:
    shuffle = ChannelShuffle(12, 3, power=2)
    assert not list(shuffle.parameters()) and not shuffle.state_dict()
    assert torch.equal(copy.deepcopy(shuffle).order, shuffle.order)
    assert repr(shuffle) == "ChannelShuffle(hidden_size=12, num_heads=3, power=2)"


def test_gives_its_order_when_made_on_the_meta_device() -> None:
    with torch.device("meta"):
        shuffle = ChannelShuffle(12, 3, power=2)
    order, inverse = shuffle.compute_order()
    assert order.tolist() == shuffle_order(12, 3, 2).tolist()
    assert order[inverse].tolist() == list(range(12))
