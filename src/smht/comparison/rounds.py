"""Trials side by side: in slices of about a second, in rotating order, so that a noisy machine hits all alike."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from smht.comparison.folder import ADVICE, ComparisonFolder
from smht.comparison.measurement import Measured
from smht.comparison.progress import ComparisonDisplay
from smht.comparison.results import TrialResult
from smht.comparison.setting import Setting
from smht.comparison.trial import Conditions, Trial, TrialRun
from smht.errors import first_line
from smht.training.interrupt import StopRequest
from smht.training.run_folder import writing

SLICE_SECONDS = 1.0
"""How long a trial goes on before the next one has its turn."""

SAVE_SECONDS = 60.0
"""How much work a crash may cost."""

_MOST_SAVING = 0.05


class Stopped(Exception):  # noqa: N818 - asked for, so no error
    """The user or the system asked to stop; what is under way has been saved."""


class Rounds:
    """Runs trials of a comparison, round by round, and keeps their results.

    Args:
        setting: what is compared.
        conditions: those of all trials.
        measured: costs by variant.
        folder: where results and what is under way are kept.
        results: those that there are.
        display: is told how it goes.
        stop: tells whether to stop.
    """

    def __init__(
        self,
        setting: Setting,
        conditions: Conditions,
        measured: dict[str, Measured],
        folder: ComparisonFolder,
        results: Iterable[TrialResult],
        display: ComparisonDisplay,
        stop: StopRequest,
    ) -> None:
        self._setting, self._conditions, self._measured = setting, conditions, measured
        self._folder, self._display, self._stop = folder, display, stop
        self._results = {result.key: result for result in results}
        self._saved, self._save_after = time.monotonic(), SAVE_SECONDS
        for result in self._results.values():
            folder.remove_trial(result.key)  # a crash came between its result and this

    @property
    def results(self) -> tuple[TrialResult, ...]:
        """All so far."""
        return tuple(self._results.values())

    def run(self, trials: Sequence[Trial]) -> list[TrialResult]:
        """Make those of the trials that are not finished, side by side; the results of all of them.

        Raises:
            Stopped: see there.
            SmhtError: the disk is full; what was saved before is untouched.
        """
        started = [self._start(trial) for trial in trials if not self._is_finished(trial)]
        under_way = [run for run in started if run is not None]
        turn = 0
        while under_way:
            first = turn % len(under_way)
            for run in under_way[first:] + under_way[:first]:
                if self._stop.received is not None:
                    self._save(under_way)
                    raise Stopped
                self._advance(run)
            under_way = [run for run in under_way if run.outcome is None]
            if time.monotonic() - self._saved >= self._save_after:
                self._save(under_way)
            turn += 1
        return [self._results[trial.key(self._conditions)] for trial in trials]

    def expect(self, trials: Iterable[Trial], count: int) -> None:
        """Tell the display of trials that were not reckoned with (1), or of some that will not be made (-1)."""
        work = self._display.work
        for trial in trials:
            finished = self._is_finished(trial)
            work.add(count, 0.0 if finished else count * self._expected(trial))
            if finished:
                work.finish()

    def keep_finals(self, trials: Iterable[Trial]) -> None:
        """Have only these as final trainings; others were at rates that are not the best any more."""
        wanted = {trial.key(self._conditions) for trial in trials}
        for key, result in self._results.items():
            if result.purpose != "search":
                self._results[key] = replace(result, purpose="final" if key in wanted else "superseded")
        self._folder.write_results(self.results)

    def _is_finished(self, trial: Trial) -> bool:
        """Whether there is a result; what failed is made again, by a new call."""
        result = self._results.get(trial.key(self._conditions))
        return result is not None and result.status != "failed"

    def _start(self, trial: Trial) -> TrialRun | None:
        """The trial under way; None where it failed at once."""
        try:
            run = TrialRun(trial, self._setting.examples, self._conditions)
        except (RuntimeError, MemoryError) as error:
            self._finish(trial.result(self._conditions, "failed", first_line(error)))
            return None
        for line in run.restore(self._folder.trial(trial.key(self._conditions))):
            self._display.say(f"warning: {line}; {trial.variant} begins again")
        self._display.work.do(run.done * self._expected(trial))
        return run

    def _advance(self, run: TrialRun) -> None:
        before = run.done
        try:
            point = run.advance(SLICE_SECONDS)
        except (RuntimeError, MemoryError) as error:  # what PyTorch raises where memory or a kernel fails
            run.fail(first_line(error))
            point = None
        self._display.work.do((run.done - before) * self._expected(run.trial))
        if run.outcome is not None:
            self._finish(run.outcome)
        elif point is not None:
            self._display.show_point(run, point)
        self._display.move()

    def _finish(self, result: TrialResult) -> None:
        result = replace(result, peak_memory_bytes=self._measured[result.variant].peak_memory_bytes)
        self._results[result.key] = result
        self._folder.write_results(self.results)
        self._folder.remove_trial(result.key)
        self._display.work.finish()
        self._display.show_result(result)

    def _save(self, runs: Sequence[TrialRun]) -> None:
        started = time.monotonic()
        for run in runs:
            if run.outcome is None:
                with writing(f"the state of {run.trial.variant}", ADVICE):
                    run.save(self._folder.trial(run.trial.key(self._conditions)))
        self._saved = time.monotonic()
        self._save_after = max(SAVE_SECONDS, (self._saved - started) / _MOST_SAVING)

    def _expected(self, trial: Trial) -> float:
        measured = self._measured[trial.variant]
        return self._setting.expected_seconds(trial, measured, self._conditions.evaluation_windows)
