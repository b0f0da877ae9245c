"""A comparison from its first trial, or from where it stopped, to its last."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from smht.comparison import search
from smht.comparison.folder import ComparisonFolder
from smht.comparison.measurement import Measured
from smht.comparison.progress import ComparisonDisplay, Work, announce
from smht.comparison.record import conditions_of, default_folder, go_on, new_record
from smht.comparison.request import CompareRequest
from smht.comparison.results import TrialResult
from smht.comparison.rounds import Rounds, Stopped
from smht.comparison.setting import Setting, prepare
from smht.errors import UsageError
from smht.inspection.accounting import account
from smht.training import files
from smht.training.interrupt import StopRequest
from smht.training.quantities import format_size

_BYTES_PER_PARAMETER = 12
"""A weight and AdamW's two moments, in a checkpoint."""


@dataclass(frozen=True)
class Outcome:
    """How a comparison ended.

    Attributes:
        folder: where everything is.
        status: `finished` or `interrupted`.
        record: what `comparison.json` says.
        results: of all trials so far.
    """

    folder: Path
    status: str
    record: dict[str, Any]
    results: tuple[TrialResult, ...]


def compare(request: CompareRequest, output: Path | None, console: Console, command: Sequence[str] = ()) -> Outcome:
    """Make a comparison, or go on with the one in the folder; finished trials are not made again.

    Args:
        request: what to compare.
        output: the folder; if not given, one below `comparisons` that is the same for the same request.
        console: where progress goes.
        command: what was typed, word by word, to be kept beside the results.

    Raises:
        UsageError: something was asked for wrongly; nothing has been written then.
        SmhtError: the disk is full; what was learned up to the last save is there.
    """
    if output is not None:
        ComparisonFolder(output).refuse_if_taken()  # before the data, which take a while
    setting = prepare(request)
    folder = ComparisonFolder(output or default_folder(new_record(setting, command)))
    check(setting, folder, command)
    return carry_out(setting, folder, setting.measure(), console, command)


def check(setting: Setting, folder: ComparisonFolder, command: Sequence[str] = ()) -> None:
    """Make sure that a comparison can begin, or go on, in a folder.

    Raises:
        UsageError: it cannot.
    """
    folder.refuse_if_taken()
    _read(folder, new_record(setting, command))
    _check_disk(setting, folder)


def carry_out(
    setting: Setting,
    folder: ComparisonFolder,
    measured: dict[str, Measured],
    console: Console,
    command: Sequence[str] = (),
) -> Outcome:
    """Make a comparison that is prepared, or go on with it.

    Args:
        setting: what to compare.
        folder: where; `check` has had a look at it.
        measured: costs by variant.
        console: where progress goes.
        command: see `compare`.

    Raises:
        UsageError: another process is at work there.
        SmhtError: the disk is full; what was learned up to the last save is there.
    """
    new = new_record(setting, command)
    with folder.locked():
        record, results = _read(folder, new)
        if record["evaluation_windows"] is None:
            record["evaluation_windows"] = setting.evaluation_windows(measured)
        work = _work(setting, record, measured, results)
        announce(setting, record, measured, _disk_bytes(setting), str(folder.path), work, console)
        folder.write_record(record)
        with StopRequest() as stop, ComparisonDisplay(console, work, measured) as display:
            rounds = Rounds(setting, conditions_of(record), measured, folder, results, display, stop)
            try:
                record = _search(setting, record, rounds, display)
                folder.write_record(record)
                _train(setting, record, rounds)
                record = {**record, "status": "finished"}
            except Stopped:
                record = {**record, "status": "interrupted"}
        folder.write_record(record)
        return Outcome(folder.path, record["status"], record, rounds.results)


def _search(setting: Setting, record: dict[str, Any], rounds: Rounds, display: ComparisonDisplay) -> dict[str, Any]:
    """Try rates; the record with the best of them by variant, and what there is to say about that."""
    searched = _try_rates(setting, rounds, display)
    factors = [searched["chosen"][solved.variant.name] for solved in setting.solved]
    rates = [
        None if factor is None else setting.learning_rate(solved, factor)
        for solved, factor in zip(setting.solved, factors, strict=True)
    ]
    variants = [{**variant, "learning_rate": rate} for variant, rate in zip(record["variants"], rates, strict=True)]
    return {**record, "variants": variants, "search": searched}


def _train(setting: Setting, record: dict[str, Any], rounds: Rounds) -> None:
    """The final trainings, seed by seed."""
    found = {variant["name"]: variant["learning_rate"] for variant in record["variants"]}
    rates = {name: rate for name, rate in found.items() if rate is not None}
    finals = [setting.final_trials(seed, rates) for seed in record["seeds"]]
    rounds.keep_finals(trial for each in finals for trial in each)
    for each in finals:
        rounds.run(each)


def _try_rates(setting: Setting, rounds: Rounds, display: ComparisonDisplay) -> dict[str, Any]:
    """The factors of the default rate that were tried, the best of them by variant, and notes."""
    names = [solved.variant.name for solved in setting.solved]
    factors = search.grid(setting.request.rates)
    if len(factors) == 1:
        chosen = {name: setting.request.factors.get(name, 1.0) for name in names}
        return {"factors": list(factors), "chosen": chosen, "notes": []}
    losses: dict[str, dict[float, float | None]] = {name: {} for name in names}

    def best_of(factors: Iterable[float]) -> dict[str, float | None]:
        for factor in factors:
            for result in rounds.run(setting.search_trials(factor)):
                losses[result.variant][factor] = result.validation_loss
        return {name: search.best(tried) for name, tried in losses.items()}

    chosen = best_of(factors)
    more = search.extension(factors, chosen.values())
    notes = [search.explain_extension(factors, factor, chosen) for factor in more]
    rounds.expect((trial for factor in more for trial in setting.search_trials(factor)), 1)
    display.say(*notes)
    chosen = best_of(more)
    tried = sorted({*factors, *more})
    remarks = search.remarks(tried, chosen)
    display.say(*remarks)
    hopeless = dict.fromkeys((name for name in names if chosen[name] is None), 0.0)
    rounds.expect((trial for seed in setting.request.all_seeds for trial in setting.final_trials(seed, hopeless)), -1)
    return {"factors": tried, "chosen": chosen, "notes": notes + remarks}


def _read(folder: ComparisonFolder, new: dict[str, Any]) -> tuple[dict[str, Any], list[TrialResult]]:
    """The record to go on with, and the results that there are."""
    known = folder.read_record()
    return (new, []) if known is None else (go_on(known, new, folder.path), folder.read_results())


def _disk_bytes(setting: Setting) -> int:
    """What the trials of a round keep, each twice for a moment while it is saved."""
    return 2 * _BYTES_PER_PARAMETER * sum(account(solved.config).total.parameters for solved in setting.solved)


def _check_disk(setting: Setting, folder: ComparisonFolder) -> None:
    """Refuse a comparison whose trials under way the disk cannot hold.

    Raises:
        UsageError: less is free than they take.
    """
    needed, free = _disk_bytes(setting), files.free_bytes(folder.path)
    if free < needed:
        raise UsageError(
            f"{folder.path} needs {format_size(needed)} of disk and {format_size(free)} are free: free some space, "
            "or name another --output"
        )


def _work(setting: Setting, record: dict[str, Any], measured: dict[str, Measured], results: list[TrialResult]) -> Work:
    """All trials that are known of before the search."""
    rates, conditions = setting.request.rates, conditions_of(record)
    each = [setting.search_trials(factor) for factor in search.grid(rates)] if rates > 1 else []
    each += [setting.final_trials(seed, dict.fromkeys(measured, 0.0)) for seed in record["seeds"]]
    trials = [trial for together in each for trial in together]
    finished = [result for result in results if result.status != "failed"]
    keys = {result.key for result in finished}
    # The rates of final trainings are not known yet, but their variants and seeds are.
    finals = {(result.purpose, result.variant, result.seed) for result in finished if result.purpose == "final"}
    to_do = [
        trial
        for trial in trials
        if trial.key(conditions) not in keys and (trial.purpose, trial.variant, trial.seed) not in finals
    ]
    seconds = (
        setting.expected_seconds(trial, measured[trial.variant], conditions.evaluation_windows) for trial in to_do
    )
    return Work(len(trials), len(trials) - len(to_do), sum(seconds))
