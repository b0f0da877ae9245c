"""Texts of different lengths in batches: an order that wastes little, and rows filled up to the longest."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from smht.tasks.task import Item

_BATCHES_SORTED_TOGETHER = 32


class ShuffledItems(Dataset[Item]):
    """Items in an order that depends on nothing but the seed, in which neighbours have like lengths.

    Each pass draws the items in a new order, sorts runs of a few batches by length, and shuffles the batches.

    Args:
        items: to choose from.
        lengths: of the items, in tokens.
        seed: of the order.
        length: how many items there are in all: steps times batch size.
        batch_size: items that will be together.
    """

    def __init__(self, items: Sequence[Item], lengths: Sequence[int], seed: int, length: int, batch_size: int) -> None:
        self.items, self.seed, self.length, self.batch_size = items, seed, length, batch_size
        self._lengths = np.asarray(lengths)
        self._epoch = -1
        self._order = np.empty(0, np.int64)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Item:
        """Item number `index`, the same whenever and however often it is asked for.

        Raises:
            IndexError: there is no such item, as iteration expects it.
        """
        if not 0 <= index < self.length:
            raise IndexError(f"item {index} is not among the {self.length}")
        epoch, place = divmod(index, len(self.items))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._draw(epoch)
        return self.items[self._order[place]]

    def _draw(self, epoch: int) -> np.ndarray:
        generator = np.random.default_rng((self.seed, epoch))
        order = generator.permutation(len(self.items))
        # A batch may hold the end of one pass and the beginning of the next, so count from the pass's own first batch.
        first = -(epoch * len(self.items)) % self.batch_size
        batches = [order[:first]] if first else []
        run = _BATCHES_SORTED_TOGETHER * self.batch_size
        for start in range(first, len(order), run):
            chunk = order[start : start + run]
            chunk = chunk[np.argsort(self._lengths[chunk], kind="stable")]
            whole = len(chunk) // self.batch_size * self.batch_size
            pieces = np.split(chunk[:whole], whole // self.batch_size) if whole else []
            batches += [pieces[i] for i in generator.permutation(len(pieces))]
            if len(chunk) > whole:
                batches.append(chunk[whole:])
        return np.concatenate(batches)


def pad(rows: Sequence[Tensor], value: int) -> Tensor:
    """Rows `[T_i]` as `[B, T]`, filled up on the right."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)


def padding_of(rows: Sequence[Tensor]) -> Tensor:
    """`[B, T]`, 1 at tokens and 0 at what `pad` fills up."""
    return pad([torch.ones(len(row), dtype=torch.long) for row in rows], 0)
