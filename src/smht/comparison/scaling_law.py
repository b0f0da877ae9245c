"""Power laws of loss over size, what they foretell, and where two of them cross. Needs scipy.

`loss(N) = E + A · N^(−α)`, fitted as in Hoffmann et al. 2022, "Training Compute-Optimal Large Language Models"
(arXiv:2203.15556), section 3.3: a Huber loss of the differences of logarithms, from a grid of starting points. `N` is
whatever grows: parameters, multiply-adds a token, training multiplications.

Intervals come from a bootstrap of residuals (Efron, "Bootstrap methods", Annals of Statistics 7, 1979): the fit is
repeated on its own predictions with the residuals dealt out anew, widened for few degrees of freedom as Student's t is.
That takes in both how far seeds are apart and how far sizes are off the law. It says nothing of whether the law holds
beyond the sizes measured.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smht.comparison.statistics import LEVEL, student_quantile
from smht.errors import UsageError, first_line

LEAST_SIZES = 4
"""A law has three numbers: through three sizes one always fits."""
HUBER = 1e-3
"""From which difference of logarithms on the loss of the fit grows linearly; the paper's."""
REPLICATES = 400
REACH = 1000.0
"""How many times the largest size measured is looked ahead for a crossing."""
_EXPONENTS = (0.1, 0.3, 0.6, 1.0, 2.0)
_SHARES = (0.1, 0.5, 0.8, 0.95)
STEEPEST = 10.0
"""The largest α that is tried: nothing known falls faster, and a cloud of points would ask for any."""
# Bounds of ln E and of the logarithm of what is above it at the middle size, from those of the losses.
_LEAST_IRREDUCIBLE, _LEAST_REDUCIBLE, _MOST_REDUCIBLE = -14.0, -20.0, 10.0
_GRID = 500


@dataclass(frozen=True)
class Point:
    """A trial's result.

    Attributes:
        size: above zero.
        loss: above zero.
        seed: of the trial.
    """

    size: float
    loss: float
    seed: int = 0


@dataclass(frozen=True)
class PowerLaw:
    """`loss(N) = E + A · N^(−α)`.

    Attributes:
        irreducible: E, what remains at any size.
        log_coefficient: ln A; A itself is often too large for a number.
        exponent: α.
    """

    irreducible: float
    log_coefficient: float
    exponent: float

    def loss(self, sizes: Any) -> np.ndarray:
        """At one size or an array of them."""
        return self.irreducible + np.exp(self.log_coefficient - self.exponent * np.log(sizes))


@dataclass(frozen=True)
class Estimate:
    """A value and its interval at `statistics.LEVEL`."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Fit:
    """A law and how sure it is.

    Attributes:
        name: of the variant.
        law: the best fit.
        replicates: fits of bootstrap samples.
        points: what was fitted.
    """

    name: str
    law: PowerLaw
    replicates: tuple[PowerLaw, ...]
    points: tuple[Point, ...]

    @property
    def smallest(self) -> float:
        """The smallest size measured."""
        return min(point.size for point in self.points)

    @property
    def largest(self) -> float:
        """The largest size measured."""
        return max(point.size for point in self.points)

    @property
    def irreducible(self) -> Estimate:
        """E, with its interval."""
        return self._estimate(lambda law: law.irreducible)

    @property
    def exponent(self) -> Estimate:
        """α, with its interval."""
        return self._estimate(lambda law: law.exponent)

    def loss(self, size: float) -> Estimate:
        """The mean loss at a size, measured or not, with its interval; a single seed scatters more."""
        return self._estimate(lambda law: float(law.loss(size)))

    def _estimate(self, measure: Callable[[PowerLaw], float]) -> Estimate:
        return Estimate(measure(self.law), *_percentiles([measure(law) for law in self.replicates]))


@dataclass(frozen=True)
class Crossing:
    """Where one law falls below another.

    Attributes:
        worse: which variant is worse at the smallest size.
        better: which is better there.
        size: the first at which `worse` is no longer worse; None if there is none in the range.
        low: lower end of the interval; 0 where it lies below the range.
        high: its upper end; infinity where it lies beyond the range.
        share: of the bootstrap samples in which they cross within the range.
        stays: of those in which `worse` is worse all through it; in the rest it is not even at the smallest size.
        smallest: the range's lower end.
        largest: its upper end.
    """

    worse: str
    better: str
    size: float | None
    low: float
    high: float
    share: float
    stays: float
    smallest: float
    largest: float


def fit_power_law(name: str, points: Sequence[Point], replicates: int = REPLICATES, seed: int = 0) -> Fit:
    """Fit one variant's losses.

    Args:
        name: of the variant, for messages.
        points: one a trial, at least four different sizes.
        replicates: bootstrap samples.
        seed: of the bootstrap; the same seed gives the same intervals.

    Raises:
        UsageError: fewer than four sizes, a size or loss that is no number above zero, or scipy is missing.
    """
    _check(name, points)
    sizes, losses = (np.log([getattr(point, field) for point in points]) for field in ("size", "loss"))
    middle = sizes.mean()
    best = _fit(sizes - middle, losses, _starts(losses))
    fitted = _log_loss(best, sizes - middle)
    residuals = (losses - fitted) * widening(len(points))
    samples = np.random.default_rng(seed).choice(residuals, (replicates, len(points)))
    again = [_fit(sizes - middle, fitted + sample, [best]) for sample in samples]
    return Fit(name, _law(best, middle), tuple(_law(found, middle) for found in again), tuple(points))


def find_crossing(first: Fit, second: Fit, largest: float | None = None) -> Crossing:
    """Where the variant that is worse at the smallest size measured stops being worse.

    Args:
        first: one variant.
        second: the other, over the same kind of size.
        largest: how far to look; `REACH` times the largest size measured if not given.

    Raises:
        UsageError: the range is empty, or scipy is missing.
    """
    smallest = min(first.smallest, second.smallest)
    largest = REACH * max(first.largest, second.largest) if largest is None else largest
    if not smallest < largest < math.inf:
        raise UsageError(f"there is no range from size {smallest:g} to {largest:g} to look for a crossing in")
    worse, better = (first, second) if first.law.loss(smallest) >= second.law.loss(smallest) else (second, first)
    grid = np.linspace(math.log(smallest), math.log(largest), _GRID)
    size = _first_crossing(worse.law, better.law, grid)
    # Fits of one seed have dealt out the residuals of the same trials, so what a seed does to both cancels.
    found = [_first_crossing(a, b, grid) for a, b in zip(worse.replicates, better.replicates, strict=False)]
    low, high = _percentiles(found)
    return Crossing(
        worse=worse.name,
        better=better.name,
        size=size if 0 < size < math.inf else None,
        low=low,
        high=high,
        share=sum(0 < size < math.inf for size in found) / len(found),
        stays=sum(math.isinf(size) for size in found) / len(found),
        smallest=float(smallest),
        largest=float(largest),
    )


def _check(name: str, points: Sequence[Point]) -> None:
    for point in points:
        for field in ("size", "loss"):
            value = getattr(point, field)
            if not 0 < value < math.inf:
                raise UsageError(f"{name}, seed {point.seed}: {field} = {value} must be above 0 and finite")
    sizes = len({point.size for point in points})
    if sizes < LEAST_SIZES:
        raise UsageError(f"a power law needs at least {LEAST_SIZES} sizes, and {name} has {sizes}: train more sizes")


def widening(count: int) -> float:
    """By how much residuals are too small to deal out anew: three numbers were fitted to them, and few are left."""
    degrees = count - 3
    return math.sqrt(count / degrees) * student_quantile(degrees) / student_quantile(math.inf)


def _fit(sizes: np.ndarray, losses: np.ndarray, starts: Sequence[np.ndarray]) -> np.ndarray:
    """`[ln E, ln (A·N₀^−α), α]` for logarithms of `N / N₀` and of losses: the best end of any start."""
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        raise UsageError(f"fits need scipy ({first_line(error)}): pip install 'smht[compare]'") from None
    least, most = losses.min(), losses.max()
    low = np.array([least + _LEAST_IRREDUCIBLE, least + _LEAST_REDUCIBLE, 0.0])
    high = np.array([most, most + _MOST_REDUCIBLE, STEEPEST])

    def residuals(found: np.ndarray) -> np.ndarray:
        return _log_loss(found, sizes) - losses

    def jacobian(found: np.ndarray) -> np.ndarray:
        total, reducible = _log_loss(found, sizes), found[1] - found[2] * sizes
        share = np.exp(reducible - total)
        return np.stack([np.exp(found[0] - total), share, -sizes * share], axis=1)

    def descend(start: np.ndarray, huber: float) -> Any:
        inside = np.clip(start, low + 1e-9, high - 1e-9)
        options: dict[str, Any] = {"jac": jacobian, "loss": "huber", "f_scale": huber, "xtol": 1e-10, "gtol": 1e-12}
        return least_squares(residuals, inside, bounds=(low, high), **options)

    # The paper's corner is so sharp that descents from afar are slow: a rounder one finds the neighbourhood.
    near = min((descend(start, 10 * HUBER) for start in starts), key=lambda result: result.cost)
    return descend(near.x, HUBER).x


def _starts(losses: np.ndarray) -> list[np.ndarray]:
    """A grid over the part of the lowest loss that is irreducible, and over the exponent."""
    lowest, middle = math.exp(losses.min()), math.exp(losses.mean())
    return [
        np.array([math.log(share * lowest), math.log(middle - share * lowest), exponent])
        for share in _SHARES
        for exponent in _EXPONENTS
    ]


def _log_loss(found: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return np.logaddexp(found[0], found[1] - found[2] * sizes)


def _law(found: np.ndarray, middle: float) -> PowerLaw:
    return PowerLaw(math.exp(found[0]), float(found[1] + found[2] * middle), float(found[2]))


def _first_crossing(worse: PowerLaw, better: PowerLaw, grid: np.ndarray) -> float:
    """The first size at which `worse` is not worse: 0 where that is below the grid, infinity where it is beyond."""
    from scipy.optimize import brentq

    def gap(size: Any) -> Any:
        return worse.loss(np.exp(size)) - better.loss(np.exp(size))

    ends = np.flatnonzero(gap(grid) <= 0)
    if not len(ends):
        return math.inf
    end = int(ends[0])
    return math.exp(brentq(gap, grid[end - 1], grid[end])) if end else 0.0  # pyright: ignore[reportArgumentType]


def _percentiles(values: Sequence[float]) -> tuple[float, float]:
    """The ends of the interval; each is one of the values, since they may be infinite."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="inverted_cdf")
    return float(low), float(high)
