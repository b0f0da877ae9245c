"""Means over seeds, paired differences and their tests. Needs scipy.

Two variants with the same seed see the same data in the same order, so their losses are compared seed by seed: what
a seed does to both cancels. Student, "The probable error of a mean", Biometrika 6 (1908); Holm, "A simple
sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from smht.errors import UsageError, first_line

LEVEL = 0.95
"""Of every interval."""


@dataclass(frozen=True)
class Interval:
    """A mean and how far off it may be.

    Attributes:
        mean: of the values.
        half_width: of the interval around the mean at `LEVEL`; None for a single value.
        count: of the values.
    """

    mean: float
    half_width: float | None
    count: int

    @property
    def low(self) -> float:
        """The lower end; the mean itself where there is no interval."""
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        """The upper end; the mean itself where there is no interval."""
        return self.mean + (self.half_width or 0.0)


@dataclass(frozen=True)
class PairedDifference:
    """What one variant's values are above another's, seed by seed.

    Attributes:
        variant: whose values.
        reference: what is taken off them.
        seeds: those that both have.
        interval: mean and interval of the differences; None where no seed is common.
        p_value: of the two-sided paired t-test; None for fewer than two seeds.
        corrected_p: the same after Holm's correction for all differences of the report.
    """

    variant: str
    reference: str
    seeds: tuple[int, ...]
    interval: Interval | None
    p_value: float | None
    corrected_p: float | None

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of zero."""
        interval = self.interval
        return interval is not None and interval.half_width is not None and abs(interval.mean) > interval.half_width

    @property
    def is_told(self) -> bool:
        """Whether there is a difference: the interval excludes zero, and the corrected p-value agrees."""
        return self.excludes_zero and self.corrected_p is not None and self.corrected_p < 1 - LEVEL


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean with Student's interval, `mean ± t · s / √n`.

    Args:
        values: at least one, all finite.

    Raises:
        UsageError: scipy is missing.
    """
    count = len(values)
    mean = math.fsum(value / count for value in values)
    if count < 2:
        return Interval(mean, None, count)
    return Interval(mean, student_quantile(count - 1) * _standard_error(values, mean), count)


def student_quantile(degrees: float) -> float:
    """How many standard errors half an interval at `LEVEL` is wide, with so many degrees of freedom.

    Raises:
        UsageError: scipy is missing.
    """
    return float(_student().ppf((1 + LEVEL) / 2, degrees))


def paired_difference(
    variant: str, values: Mapping[int, float], reference: str, reference_values: Mapping[int, float]
) -> PairedDifference:
    """Compare two variants over the seeds that both have.

    Args:
        variant: the one's name.
        values: its loss by seed.
        reference: the other's name.
        reference_values: its loss by seed.

    Raises:
        UsageError: scipy is missing.
    """
    seeds = tuple(sorted(values.keys() & reference_values.keys()))
    if not seeds:
        return PairedDifference(variant, reference, (), None, None, None)
    differences = [values[seed] - reference_values[seed] for seed in seeds]
    interval = mean_interval(differences)
    p_value = _p_value(differences, interval.mean)
    return PairedDifference(variant, reference, seeds, interval, p_value, p_value)


def corrected(differences: Sequence[PairedDifference]) -> tuple[PairedDifference, ...]:
    """The same differences with Holm's correction for their number; those without a test do not count."""
    tested = [difference.p_value for difference in differences if difference.p_value is not None]
    adjusted = iter(holm(tested))
    return tuple(
        difference if difference.p_value is None else replace(difference, corrected_p=next(adjusted))
        for difference in differences
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values after Holm's correction, in the order given: the i-th smallest of m times m − i + 1, never falling."""
    result = [1.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        result[place] = largest
    return result


def _p_value(differences: Sequence[float], mean: float) -> float | None:
    if len(differences) < 2:
        return None
    error = _standard_error(differences, mean)
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * _student().sf(abs(mean) / error, len(differences) - 1))


def _standard_error(values: Sequence[float], mean: float) -> float:
    count = len(values)
    return math.hypot(*((value - mean) for value in values)) / math.sqrt(count * (count - 1))


def _student() -> Any:
    try:
        from scipy.stats import t
    except ImportError as error:
        raise UsageError(f"intervals need scipy ({first_line(error)}): pip install 'smht[compare]'") from None
    return t
