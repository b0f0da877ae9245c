"""Replicas that share a batch."""

from hypothesis import given
from hypothesis import strategies as st

from smht.training.part_trainer import ShareOfBatches


@given(batches=st.integers(0, 5), each=st.integers(1, 4), shares=st.integers(1, 4))
def test_shares_of_a_batch_are_the_batch(batches: int, each: int, shares: int) -> None:
    size = each * shares
    items = list(range(batches * size))
    parts = [ShareOfBatches(items, size, share, shares) for share in range(shares)]
    for batch in range(batches):
        dealt = [part[batch * each + place] for part in parts for place in range(each)]
        assert dealt == items[batch * size : (batch + 1) * size]
    assert sum(map(len, parts)) == len(items)
