import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from smht.tasks.padding import ShuffledItems, pad, padding_of


def items_of(lengths: list[int]) -> list[dict[str, Tensor]]:
    return [{"ids": torch.full((length,), number)} for number, length in enumerate(lengths)]


def numbers(items: ShuffledItems) -> list[int]:
    return [int(items[i]["ids"][0]) for i in range(len(items))]


lengths = st.lists(st.integers(1, 30), min_size=1, max_size=50)


@given(lengths, st.integers(1, 9), st.integers(0, 5), st.integers(1, 4))
def test_each_pass_has_every_item_once(lengths: list[int], batch_size: int, seed: int, epochs: int) -> None:
    count = len(lengths)
    drawn = numbers(ShuffledItems(items_of(lengths), lengths, seed, epochs * count, batch_size))
    for epoch in range(epochs):
        assert Counter(drawn[epoch * count : (epoch + 1) * count]) == Counter(range(count))


@given(lengths, st.integers(1, 9), st.integers(0, 5), st.integers(0, 199))
def test_an_item_depends_on_its_number_and_the_seed_alone(
    lengths: list[int], batch_size: int, seed: int, index: int
) -> None:
    short = ShuffledItems(items_of(lengths), lengths, seed, index + 1, batch_size)
    long = ShuffledItems(items_of(lengths), lengths, seed, 200, batch_size)
    for other in (0, 199, index // 2):
        long[other]
    assert torch.equal(short[index]["ids"], long[index]["ids"])


def test_seeds_and_passes_differ() -> None:
    lengths = [5] * 40
    drawn = [numbers(ShuffledItems(items_of(lengths), lengths, seed, 80, 4)) for seed in (0, 1)]
    assert drawn[0] != drawn[1]
    assert drawn[0][:40] != drawn[0][40:]


@pytest.mark.parametrize("count", [4096, 4099])
def test_batches_hold_little_padding_and_are_not_in_order_of_length(count: int) -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 200, (count,), generator=generator).tolist()
    items = ShuffledItems(items_of(lengths), lengths, 0, 2 * count // 16 * 16, 16)
    drawn = [lengths[number] for number in numbers(items)]
    batches = [drawn[i : i + 16] for i in range(0, len(drawn), 16)]
    padded = sum(16 * max(batch) for batch in batches)
    assert padded < 1.1 * sum(drawn)
    longest = [max(batch) for batch in batches]
    steps = [a - b for a, b in itertools.pairwise(longest)]
    assert sum(step > 0 for step in steps) > len(steps) / 3


def test_iteration_ends() -> None:
    items = ShuffledItems(items_of([1, 1]), [1, 1], 0, 5, 2)
    assert len(list(items)) == len(items) == 5
    for index in (-1, 5):
        with pytest.raises(IndexError, match=f"item {index} is not among the 5"):
            items[index]


def test_padding() -> None:
    rows = [torch.tensor([1, 2, 3]), torch.tensor([4])]
    assert pad(rows, 9).tolist() == [[1, 2, 3], [4, 9, 9]]
    assert padding_of(rows).tolist() == [[1, 1, 1], [1, 0, 0]]
