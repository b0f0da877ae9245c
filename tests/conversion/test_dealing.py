import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from smht.conversion import dealing
from smht.conversion.dealing import deal


def worth(gain: np.ndarray, sizes: np.ndarray, order: np.ndarray) -> float:
    chunk = np.repeat(np.arange(len(sizes)), sizes)
    return float(gain[chunk, order].sum())


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 2**32 - 1), st.booleans())
def test_no_assignment_is_worth_more(sizes: list[int], seed: int, ties: bool) -> None:
    random = np.random.default_rng(seed)
    gain = (
        random.integers(0, 3, (len(sizes), sum(sizes))).astype(float)
        if ties
        else random.random((len(sizes), sum(sizes)))
    )
    order = deal(gain, np.array(sizes))
    assert sorted(order) == list(range(sum(sizes)))
    whole = np.repeat(gain, sizes, axis=0)
    best = whole[linear_sum_assignment(whole, maximize=True)].sum()
    assert worth(gain, np.array(sizes), order) == pytest.approx(best)


def test_against_every_permutation() -> None:
    gain, sizes = np.random.default_rng(0).random((3, 6)), np.array([1, 2, 3])
    best = max(worth(gain, sizes, np.array(order)) for order in itertools.permutations(range(6)))
    assert worth(gain, sizes, deal(gain, sizes)) == pytest.approx(best)


def test_more_chunks_than_have_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    gain, sizes = np.random.default_rng(0).random((4, 12)), np.full(4, 3)
    priced = worth(gain, sizes, deal(gain, sizes))
    monkeypatch.setattr(dealing, "_MOST_PRICED", 1)
    assert worth(gain, sizes, deal(gain, sizes)) == pytest.approx(priced)


def test_the_order_within_a_chunk_is_kept() -> None:
    gain = np.array([[1.0, 0, 1, 0], [0, 1, 0, 1]])
    assert deal(gain, np.array([2, 2])).tolist() == [0, 2, 1, 3]
