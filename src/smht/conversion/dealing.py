"""One assignment problem: units to chunks of given sizes, so that the sum of gains is largest. Needs scipy."""

from typing import Any

import numpy as np

from smht.errors import UsageError, first_line

_MOST_PRICED = 32
_SWEEPS = 30


def deal(gain: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """An order of the units that gives each chunk as many as it has places, with the largest sum of gains.

    Chunks have prices first, raised until as many units want each as it has places. Where that comes out even, what
    each unit wants is the solution (the prices prove it, by duality); else `scipy.optimize.linear_sum_assignment`
    solves the problem with prices, which is the same one with shorter ways to its end.

    Args:
        gain: `[C, U]`, what a unit is worth in a chunk.
        sizes: `[C]`, places of each chunk, `U` in all.

    Returns:
        `[U]`, the unit at each place, chunk by chunk, in rising order within a chunk.

    Raises:
        UsageError: scipy is missing.
    """
    if len(gain) == 1:
        return np.arange(gain.shape[1])
    if len(gain) <= _MOST_PRICED:
        gain = gain - _prices(gain, sizes)[:, None]
        wanted = gain.argmax(axis=0)
        if (np.bincount(wanted, minlength=len(gain)) == sizes).all():
            return np.argsort(wanted, kind="stable")
    units, places = _solver()(np.repeat(gain, sizes, axis=0).T, maximize=True)
    return units[np.argsort(np.repeat(np.arange(len(gain)), sizes)[places], kind="stable")]


def _prices(gain: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """`[C]`: with them about as many units want each chunk as it has places; one price is set after the other."""
    prices = np.zeros(len(gain))
    count = gain.shape[1]
    for _ in range(_SWEEPS):
        for chunk, size in enumerate(sizes):
            others = np.delete(gain - prices[:, None], chunk, axis=0).max(axis=0)
            margins = np.sort(gain[chunk] - others)
            prices[chunk] = margins[count - size - 1 : count - size + 1].mean()
        if (np.bincount((gain - prices[:, None]).argmax(axis=0), minlength=len(gain)) == sizes).all():
            break
    return prices


def _solver() -> Any:
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise UsageError(f"dealing channels needs scipy ({first_line(error)}): pip install 'smht[split]'") from None
    return linear_sum_assignment
