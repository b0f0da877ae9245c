"""What a comparison came to: the numbers that the report, the terminal and `--json` show."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from smht.comparison.report.lengths import losses_by_length
from smht.comparison.report.notes import find_notes, find_sentences
from smht.comparison.report.outcomes import Outcome, find_outcomes
from smht.comparison.report.record import Record, read_record
from smht.comparison.report.trials import is_done, read_trials
from smht.comparison.results import TrialResult
from smht.comparison.statistics import PairedDifference, corrected, paired_difference

REFERENCE = "dense"


@dataclass(frozen=True)
class Summary:
    """A comparison, finished or not.

    Attributes:
        record: what was asked.
        outcomes: a variant each, in the order asked for.
        reference: the variant that the others are compared with: `dense` where it is there, else the first.
        differences: of each other variant to the reference, Holm-corrected for their number.
        pairs: of every variant to every one before it, Holm-corrected for their number; none for two variants.
        sentences: what can be told, one a difference to the reference.
        notes: what must be said with it.
        failures: trials that failed or diverged, searches and finals.
        trials: all, in the order in which they ended.
    """

    record: Record
    outcomes: tuple[Outcome, ...]
    reference: str | None
    differences: tuple[PairedDifference, ...]
    pairs: tuple[PairedDifference, ...]
    sentences: tuple[str, ...]
    notes: tuple[str, ...]
    failures: tuple[TrialResult, ...]
    trials: tuple[TrialResult, ...]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: numbers that are none become null, and curves stay in `results.jsonl`."""
        return {
            "asked": _plain(asdict(self.record)),
            "reference": self.reference,
            "sentences": list(self.sentences),
            "notes": list(self.notes),
            "variants": [_outcome_dict(outcome) for outcome in self.outcomes],
            "differences": [_plain(asdict(difference)) for difference in self.differences],
            "pairs": [_plain(asdict(difference)) for difference in self.pairs],
            "failures": [_trial_dict(trial) for trial in self.failures],
        }


def summarise(folder: Path) -> Summary:
    """Read a comparison's folder, finished or not, and reckon.

    Args:
        folder: with `comparison.json` and `results.jsonl`.

    Raises:
        UsageError: the folder holds no comparison, a file is damaged, or scipy is missing.
    """
    record = read_record(folder)
    trials = read_trials(folder)
    outcomes = find_outcomes(record, trials.results)
    reference = _reference(outcomes)
    others = [outcome for outcome in outcomes if outcome is not reference]
    differences = _compare([(outcome, reference) for outcome in others if reference is not None])
    pairs = [(second, first) for first, second in itertools.combinations(outcomes, 2)]
    return Summary(
        record=record,
        outcomes=outcomes,
        reference=reference.variant if reference else None,
        differences=differences,
        pairs=_compare(pairs) if len(outcomes) > 2 else (),
        sentences=find_sentences(record, outcomes, differences),
        notes=find_notes(record, outcomes, trials),
        failures=tuple(trial for trial in trials.results if not is_done(trial)),
        trials=trials.results,
    )


def _reference(outcomes: Sequence[Outcome]) -> Outcome | None:
    dense = [outcome for outcome in outcomes if outcome.variant == REFERENCE]
    return (dense or [*outcomes, None])[0]


def _compare(pairs: Sequence[tuple[Outcome, Outcome]]) -> tuple[PairedDifference, ...]:
    return corrected([paired_difference(a.variant, a.losses, b.variant, b.losses) for a, b in pairs])


def _outcome_dict(outcome: Outcome) -> dict[str, Any]:
    return {
        "variant": outcome.variant,
        "validation_loss": _plain(outcome.loss and asdict(outcome.loss)),
        "bits_per_byte": _plain(outcome.bits_per_byte and asdict(outcome.bits_per_byte)),
        "search": {**_plain(asdict(outcome.search)), "best": outcome.search.best, "edge": outcome.search.edge},
        "missing_seeds": list(outcome.missing),
        "lengths": {
            str(length): _plain(interval and asdict(interval)) for length, interval in losses_by_length(outcome).items()
        },
        "finals": [_trial_dict(trial) for trial in (*outcome.finals, *outcome.failed)],
    }


def _trial_dict(trial: TrialResult) -> dict[str, Any]:
    return {name: value for name, value in _plain(asdict(trial)).items() if name != "curve"}


def _plain(value: Any) -> Any:
    """The same with lists for tuples and None for what JSON has no number for."""
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
