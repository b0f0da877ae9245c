"""The trials of a comparison, sorted: what each variant's search and final trials came to."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from smht.comparison.report.record import Limit, Record
from smht.comparison.report.trials import how_it_ended, is_done
from smht.comparison.results import TrialResult
from smht.comparison.statistics import Interval, mean_interval

SIZE_FIELDS = {"parameters": "parameters", "multiplications": "multiply_adds_per_token", "width": "hidden_size"}
"""What each kind of budget for size limits, as trials, configurations and `comparison.json` call it."""
_LENGTH_FIELDS = {"tokens": "tokens", "time": "seconds", "training-multiplications": "training_multiply_adds"}


@dataclass(frozen=True)
class RateSearch:
    """The learning rates that were tried for a variant.

    Attributes:
        rates: in rising order.
        losses: of each, the mean where several seeds were tried; None where it failed or diverged.
        failures: `diverged` or `failed` where there is no loss, else an empty text.
        trials: how many there were.
    """

    rates: tuple[float, ...]
    losses: tuple[float | None, ...]
    failures: tuple[str, ...]
    trials: int

    @property
    def best(self) -> int | None:
        """The place of the lowest loss."""
        done = [(loss, place) for place, loss in enumerate(self.losses) if loss is not None]
        return min(done)[1] if done else None

    @property
    def is_hopeless(self) -> bool:
        """Whether rates were tried, and none has a loss."""
        return bool(self.rates) and self.best is None

    @property
    def edge(self) -> Literal["lowest", "highest"] | None:
        """Which end of what was tried the best rate is at, if it is at one: a better one may lie beyond."""
        if self.best is None or len(self.rates) < 2:
            return None
        return {0: "lowest", len(self.rates) - 1: "highest"}.get(self.best)  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class Outcome:
    """What came out for a variant.

    Attributes:
        variant: its name.
        finals: those final trials that count, by seed.
        failed: final trials that failed or diverged, at the same learning rate.
        superseded: final trials that a later learning rate took the place of; they do not count.
        missing: seeds asked for that have no final trial yet.
        search: of its learning rate.
        loss: validation loss over seeds, nats; None without finals.
        bits_per_byte: over seeds; None where no trial has them.
    """

    variant: str
    finals: tuple[TrialResult, ...]
    failed: tuple[TrialResult, ...]
    superseded: tuple[TrialResult, ...]
    missing: tuple[int, ...]
    search: RateSearch
    loss: Interval | None
    bits_per_byte: Interval | None

    @property
    def losses(self) -> dict[int, float]:
        """Validation loss by seed."""
        return {trial.seed: trial.validation_loss for trial in self.finals if trial.validation_loss is not None}

    def mean(self, measure: Callable[[TrialResult], float | None]) -> float | None:
        """The mean of what the finals have of it; None where none has."""
        values = [value for trial in self.finals if (value := measure(trial)) is not None and math.isfinite(value)]
        return math.fsum(value / len(values) for value in values) if values else None

    def size(self, limit: Limit) -> float | None:
        """As much as it has of what a budget for size limits; None for a kind that is not known."""
        field = SIZE_FIELDS.get(limit.kind, "")
        return self.mean(lambda trial: getattr(trial, field, trial.config.get(field)))

    def length(self, limit: Limit) -> float | None:
        """As much as it took of what a budget for length limits; None for a kind that is not known."""
        return self.mean(lambda trial: getattr(trial, _LENGTH_FIELDS.get(limit.kind, ""), None))


def find_outcomes(record: Record, trials: Sequence[TrialResult]) -> tuple[Outcome, ...]:
    """One outcome a variant: those asked for in their order, then others that have trials.

    Raises:
        UsageError: scipy is missing.
    """
    names = dict.fromkeys((*record.variants, *(trial.variant for trial in trials)))
    return tuple(_outcome(name, record, [trial for trial in trials if trial.variant == name]) for name in names)


def _outcome(name: str, record: Record, trials: list[TrialResult]) -> Outcome:
    finals = [trial for trial in trials if trial.purpose == "final"]
    by_seed = {trial.seed: trial for trial in finals if trial.learning_rate == finals[-1].learning_rate}
    counted = tuple(by_seed[seed] for seed in sorted(by_seed) if is_done(by_seed[seed]))
    losses = [trial.validation_loss for trial in counted if trial.validation_loss is not None]
    bits = [b for trial in counted if (b := trial.bits_per_byte) is not None and math.isfinite(b)]
    return Outcome(
        variant=name,
        finals=counted,
        failed=tuple(by_seed[seed] for seed in sorted(by_seed) if not is_done(by_seed[seed])),
        superseded=tuple(trial for trial in trials if trial.purpose != "search" and trial not in by_seed.values()),
        missing=tuple(seed for seed in record.seeds if seed not in by_seed),
        search=_search([trial for trial in trials if trial.purpose == "search"]),
        loss=mean_interval(losses) if losses else None,
        bits_per_byte=mean_interval(bits) if bits and len(bits) == len(losses) else None,
    )


def _search(trials: list[TrialResult]) -> RateSearch:
    rates = sorted({trial.learning_rate for trial in trials})
    losses: list[float | None] = []
    failures: list[str] = []
    for rate in rates:
        tried = [trial for trial in trials if trial.learning_rate == rate]
        ended = [trial.validation_loss for trial in tried if is_done(trial) and trial.validation_loss is not None]
        whole = len(ended) == len(tried)
        losses.append(math.fsum(ended) / len(ended) if whole else None)
        failures.append("" if whole else next(how_it_ended(trial) for trial in tried if not is_done(trial)))
    return RateSearch(tuple(rates), tuple(losses), tuple(failures), len(trials))
