"""What a ladder of sizes came to: laws of loss over size, what they foretell, and where they cross."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from smht.comparison.report.notes import name_limit
from smht.comparison.report.outcomes import Outcome
from smht.comparison.report.record import RECORD, Limit
from smht.comparison.report.summary import REFERENCE, Summary, summarise
from smht.comparison.results import TrialResult
from smht.comparison.scaling_law import (
    LEAST_SIZES,
    REPLICATES,
    Crossing,
    Estimate,
    Fit,
    Point,
    find_crossing,
    fit_power_law,
)
from smht.errors import UsageError, first_line

LADDER_RECORD = "scaling.json"


@dataclass(frozen=True)
class Axis:
    """What loss is a law of.

    Attributes:
        name: one word.
        label: in words.
        measure: of a trial.
    """

    name: str
    label: str
    measure: Callable[[TrialResult], float]


PARAMETERS = Axis("parameters", "parameters", lambda trial: trial.parameters)
MULTIPLICATIONS = Axis("multiplications", "multiply-adds a token", lambda trial: trial.multiply_adds_per_token)
COMPUTE = Axis("compute", "training multiplications", lambda trial: trial.training_multiply_adds)


@dataclass(frozen=True)
class Rung:
    """One size.

    Attributes:
        size: the budget.
        summary: the comparison at it.
    """

    size: Limit
    summary: Summary


@dataclass(frozen=True)
class Foretold:
    """The largest size's loss, as a law of all smaller sizes has it, and as it was measured.

    Attributes:
        variant: whose.
        loss: by the law.
        measured: the mean over seeds.
    """

    variant: str
    loss: Estimate
    measured: float


@dataclass(frozen=True)
class Laws:
    """Laws of loss over one axis.

    Attributes:
        axis: which.
        fits: by variant, those with enough sizes.
        crossings: of each other variant's law with the reference's.
    """

    axis: Axis
    fits: Mapping[str, Fit]
    crossings: tuple[Crossing, ...]


@dataclass(frozen=True)
class Ladder:
    """A ladder, finished or not.

    Attributes:
        sizes: all that were asked for.
        rungs: those that were begun, in rising order.
        variants: names, in the order asked for.
        seeds: asked for.
        search_at: `every`, or `smallest`.
        reference: what the others' laws are compared with: `dense` where it is there, else the first.
        laws: over what the sizes are of, and over training multiplications.
        foretold: how well smaller sizes foretell the largest; nothing for four sizes, none of which can be spared.
        unfitted: by variant without a law, how many sizes it has.
        has_intervals: whether intervals are claimed; not for one seed.
        command: that makes the ladder again.
    """

    sizes: tuple[Limit, ...]
    rungs: tuple[Rung, ...]
    variants: tuple[str, ...]
    seeds: tuple[int, ...]
    search_at: str
    reference: str
    laws: tuple[Laws, ...]
    foretold: tuple[Foretold, ...]
    unfitted: Mapping[str, int]
    has_intervals: bool
    command: Sequence[str] | None

    def outcome(self, rung: Rung, variant: str) -> Outcome | None:
        """What a variant came to at one size."""
        return next((each for each in rung.summary.outcomes if each.variant == variant), None)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; intervals are null for one seed, and ends beyond all bounds too."""
        return {
            "sizes": [asdict(size) for size in self.sizes],
            "reference": self.reference,
            "laws": {laws.axis.name: self._laws_dict(laws) for laws in self.laws},
            "unfitted": dict(self.unfitted),
            "comparisons": [rung.summary.to_dict() for rung in self.rungs],
        }

    def _laws_dict(self, laws: Laws) -> dict[str, Any]:
        def estimate(found: Any) -> dict[str, float | None]:
            low, high = (found.low, found.high) if self.has_intervals else (None, None)
            return {"value": found.value, "low": low, "high": high}

        return {
            "fits": {
                name: {
                    "irreducible": estimate(fit.irreducible),
                    "log_coefficient": fit.law.log_coefficient,
                    "exponent": estimate(fit.exponent),
                    "largest_size": fit.largest,
                    "loss_at_10_times": estimate(fit.loss(10 * fit.largest)),
                }
                for name, fit in laws.fits.items()
            },
            "crossings": [self._crossing_dict(crossing) for crossing in laws.crossings],
        }

    def _crossing_dict(self, crossing: Crossing) -> dict[str, Any]:
        values = asdict(crossing)
        if not self.has_intervals:
            values |= {"low": None, "high": None, "share": None, "stays": None}
        return {name: None if value == float("inf") else value for name, value in values.items()}


def read_ladder(folder: Path) -> Ladder:
    """Read a ladder's folder, finished or not, and fit.

    Raises:
        UsageError: the folder holds no ladder, a file is damaged, or scipy is missing.
    """
    record = _read_record(folder)
    try:
        asked = record["asked"]
        places = {Limit(str(size["kind"]), float(size["amount"])): str(size["folder"]) for size in asked["sizes"]}
        variants, seeds = tuple(map(str, asked["variants"])), tuple(map(int, asked["seeds"]))
        search_at, command = str(asked["search_at"]), record["command"]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(folder, error) from None
    begun = {size: folder / place for size, place in places.items() if (folder / place / RECORD).exists()}
    rungs = tuple(Rung(size, summarise(place)) for size, place in begun.items())
    reference = REFERENCE if REFERENCE in variants else variants[0]
    primary = MULTIPLICATIONS if next(iter(places)).kind == "multiplications" else PARAMETERS
    counts = {name: len({point.size for point in _points(rungs, name, primary)}) for name in variants}
    fitted, replicates = [name for name in variants if counts[name] >= LEAST_SIZES], REPLICATES if len(seeds) > 1 else 1
    laws = tuple(_find_laws(axis, rungs, fitted, reference, replicates) for axis in (primary, COMPUTE))
    checked = [name for name in fitted if counts[name] > LEAST_SIZES]
    return Ladder(
        sizes=tuple(places),
        rungs=rungs,
        variants=variants,
        seeds=seeds,
        search_at=search_at,
        reference=reference,
        laws=laws,
        foretold=tuple(_foretell(name, _points(rungs, name, primary), replicates) for name in checked),
        unfitted={name: count for name, count in counts.items() if count < LEAST_SIZES},
        has_intervals=len(seeds) > 1,
        command=command,
    )


def name_size(size: Limit) -> str:
    """`800,000 parameters`."""
    return f"{size.amount:,.0f} {name_limit(size)}" if size.kind != "width" else f"width {size.amount:,.0f}"


def _find_laws(axis: Axis, rungs: Sequence[Rung], variants: Sequence[str], reference: str, replicates: int) -> Laws:
    fits = {name: fit_power_law(name, _points(rungs, name, axis), replicates) for name in variants}
    others = [name for name in fits if name != reference]
    crossings = [find_crossing(fits[name], fits[reference]) for name in others] if reference in fits else []
    return Laws(axis, fits, tuple(crossings))


def _foretell(name: str, points: Sequence[Point], replicates: int) -> Foretold:
    """The largest size by a law of all others."""
    largest = max(point.size for point in points)
    fit = fit_power_law(name, [point for point in points if point.size < largest], replicates)
    return Foretold(name, fit.loss(largest), fmean(point.loss for point in points if point.size == largest))


def _points(rungs: Sequence[Rung], variant: str, axis: Axis) -> list[Point]:
    finals = [
        trial
        for rung in rungs
        for outcome in rung.summary.outcomes
        if outcome.variant == variant
        for trial in outcome.finals
    ]
    return [Point(axis.measure(trial), trial.validation_loss or 0.0, trial.seed) for trial in finals]


def _read_record(folder: Path) -> dict[str, Any]:
    path = folder / LADDER_RECORD
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{folder} holds no ladder of sizes: it has no {LADDER_RECORD}") from None
    except (ValueError, OSError, RecursionError) as error:
        raise _damaged(folder, error) from None


def _damaged(folder: Path, error: Exception) -> UsageError:
    return UsageError(f"{folder / LADDER_RECORD} is damaged: {first_line(error)}")
