"""What a comparison lets one say, and what must be said with it."""

from collections.abc import Callable, Iterable, Sequence

from smht.comparison.fits import MET
from smht.comparison.report.numbers import write_interval, write_number, write_p, write_share, write_short, write_width
from smht.comparison.report.outcomes import Outcome
from smht.comparison.report.record import Limit, Record
from smht.comparison.report.trials import RESULTS, Trials, how_it_ended, is_done
from smht.comparison.results import TrialResult
from smht.comparison.statistics import PairedDifference
from smht.tasks.corpus import counted

_WORDS = {
    "parameters": "parameters",
    "multiplications": "multiplications a token",
    "width": "width",
    "tokens": "tokens",
    "time": "training time",
    "training-multiplications": "training multiplications",
}
_TOLERANCE = 2 * MET
"""A budget that all meet needs no mention: one may be as far above it as another below."""
_ONE_SEED = "one seed: no interval"


def name_limit(limit: Limit) -> str:
    """What a budget limits, in words."""
    return _WORDS.get(limit.kind, limit.kind)


def find_sentences(
    record: Record, outcomes: Sequence[Outcome], differences: Sequence[PairedDifference]
) -> tuple[str, ...]:
    """One sentence a difference: who beats whom only where the interval of the paired difference excludes zero."""
    by_name = {outcome.variant: outcome for outcome in outcomes}
    tested = sum(difference.p_value is not None for difference in differences)
    return tuple(
        _sentence(record, by_name[difference.variant], by_name[difference.reference], difference, tested)
        for difference in differences
    )


def find_notes(record: Record, outcomes: Sequence[Outcome], trials: Trials) -> tuple[str, ...]:
    """What a reader has to know before believing the tables."""
    finals = [trial for outcome in outcomes for trial in outcome.finals]
    return (
        *_damage(trials.torn_line),
        *_incompleteness(outcomes),
        *_failures(trials.results),
        *_seeds(outcomes),
        *_unequal_budgets(record, outcomes),
        *_unequal_searches(outcomes),
        *_edges(outcomes),
        *_repeats(finals),
        *_machines(finals),
    )


def _sentence(record: Record, variant: Outcome, reference: Outcome, difference: PairedDifference, tested: int) -> str:
    names = f"{variant.variant} against {reference.variant}"
    interval = difference.interval
    lost = "".join(_lost_seeds(outcome) for outcome in (variant, reference))
    if interval is None:
        return f"{names}: no difference can be told: no seed is finished for both{lost}."
    if interval.half_width is None:
        return (
            f"{names}: no difference can be told: {write_number(interval.mean, signed=True)} nats, {_ONE_SEED}{lost}."
        )
    basis = f"{len(difference.seeds)} seeds, paired"
    if not difference.is_told:
        reason = f" among {tested} comparisons" if difference.excludes_zero else ""
        p_value = f", p = {write_p(difference.corrected_p)} after Holm's correction" if reason else ""
        value = write_interval(interval, signed=True)
        return f"{names}: no difference can be told{reason}: {value} nats ({basis}{p_value}){lost}."
    winner, loser = (variant, reference) if interval.mean < 0 else (reference, variant)
    who = f"{winner.variant} beats {loser.variant}"
    gain = f"{write_number(abs(interval.mean), interval.half_width)} ± {write_width(interval.half_width)} nats"
    return f"At equal {_equal(record, variant, reference)}, {who} by {gain} ({basis}){lost}."


def _lost_seeds(outcome: Outcome) -> str:
    """The end of a sentence that leaves out seeds which failed."""
    if not outcome.failed:
        return ""
    tried = len(outcome.finals) + len(outcome.failed)
    ways = " or ".join(sorted({how_it_ended(trial) for trial in outcome.failed}))
    return f"; {len(outcome.failed)} of {tried} trials of {outcome.variant} {ways} and cannot count"


def _equal(record: Record, variant: Outcome, reference: Outcome) -> str:
    """`parameters and tokens`; what is not met says how closely."""
    words = []
    for limit, measure in _limits(record):
        values = [value for outcome in (variant, reference) if (value := measure(outcome)) is not None]
        spread = _spread(values)
        words.append(name_limit(limit) + (f" (within {write_share(spread)})" if spread > _TOLERANCE else ""))
    return " and ".join(words) or "budgets"


def _limits(record: Record) -> list[tuple[Limit, Callable[[Outcome], float | None]]]:
    """The budgets that were recorded, and what measures them in an outcome."""
    size, length = record.size, record.length
    found: list[tuple[Limit, Callable[[Outcome], float | None]]] = []
    if size is not None:
        found.append((size, lambda outcome: outcome.size(size)))
    if length is not None:
        found.append((length, lambda outcome: outcome.length(length)))
    return found


def _spread(values: Sequence[float]) -> float:
    """How far apart, as a part of the largest."""
    largest = max(map(abs, values), default=0.0)
    return (max(values) - min(values)) / largest if largest else 0.0


def _damage(torn_line: int | None) -> Iterable[str]:
    if torn_line is not None:
        yield f"Line {torn_line} of {RESULTS}, the last, was cut short: the same command makes its trial again."


def _incompleteness(outcomes: Sequence[Outcome]) -> Iterable[str]:
    hopeless = [outcome.variant for outcome in outcomes if outcome.search.is_hopeless]
    if hopeless:
        yield f"{', '.join(hopeless)}: every learning rate failed or diverged, so there is no final trial."
    missing = {o.variant: len(o.missing) for o in outcomes if o.missing and not o.search.is_hopeless}
    if missing:
        total = sum(missing.values())
        which = ", ".join(f"{count} of {name}" for name, count in missing.items())
        trials = "1 final trial is" if total == 1 else f"{total} final trials are"
        yield f"The comparison is unfinished: {trials} missing ({which}). The same command again goes on."
    superseded = sum(len(outcome.superseded) for outcome in outcomes)
    if superseded:
        trials = "1 final trial" if superseded == 1 else f"{superseded} final trials"
        yield f"{trials} at a learning rate that was replaced later: not counted."


def _failures(trials: Sequence[TrialResult]) -> Iterable[str]:
    failed = [how_it_ended(trial) for trial in trials if not is_done(trial)]
    if failed:
        ways = " and ".join(f"{failed.count(way)} {way}" for way in ("diverged", "failed") if way in failed)
        yield f"Of {len(trials)} trials {ways}: see Failures."


def _seeds(outcomes: Sequence[Outcome]) -> Iterable[str]:
    single = [outcome.variant for outcome in outcomes if len(outcome.finals) == 1]
    if single:
        yield f"{', '.join(single)}: {_ONE_SEED}."


def _unequal_budgets(record: Record, outcomes: Sequence[Outcome]) -> Iterable[str]:
    for limit, measure in _limits(record):
        values = {outcome.variant: value for outcome in outcomes if (value := measure(outcome)) is not None}
        spread = _spread(list(values.values()))
        if spread > _TOLERANCE:
            least, most = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
            unit = " s" if limit.kind == "time" else ""
            ends = f"{write_short(values[least])}{unit} in {least} to {write_short(values[most])}{unit} in {most}"
            verb = "is" if limit.kind in ("time", "width") else "are"
            yield f"The {name_limit(limit)} {verb} equal within {write_share(spread)} only: {ends}."


def _unequal_searches(outcomes: Sequence[Outcome]) -> Iterable[str]:
    counts = {outcome.variant: outcome.search.trials for outcome in outcomes}
    if len(set(counts.values())) > 1:
        efforts = ", ".join(f"{count} for {name}" for name, count in counts.items())
        yield f"The rate search is not of equal effort (yet): trials {efforts}."


def _edges(outcomes: Sequence[Outcome]) -> Iterable[str]:
    at_edge = [f"{outcome.variant} ({outcome.search.edge})" for outcome in outcomes if outcome.search.edge]
    if at_edge:
        names = ", ".join(at_edge)
        yield f"The best learning rate is at the edge of those tried, and a better one may lie beyond: {names}."


def _repeats(finals: Sequence[TrialResult]) -> Iterable[str]:
    most = max((trial.repeats for trial in finals if trial.repeats is not None), default=0.0)
    if most > 1:
        yield f"The training text was seen up to {most:.3g} times: beyond the first pass the data repeats."


def _machines(finals: Sequence[TrialResult]) -> Iterable[str]:
    kinds = {(trial.backend, trial.threads) for trial in finals}
    if len(kinds) > 1:
        names = ", ".join(f"{backend} with {counted(threads, 'thread')}" for backend, threads in sorted(kinds))
        yield f"Not all trials ran in the same way, so their times do not compare: {names}."
