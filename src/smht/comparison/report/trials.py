"""The trials of a folder as its report reads them."""

import math
from dataclasses import dataclass
from pathlib import Path

from smht.comparison.results import TrialResult, read_lines

RESULTS = "results.jsonl"


@dataclass(frozen=True)
class Trials:
    """What `results.jsonl` says.

    Attributes:
        results: the newest line of each key, in the order of the file.
        torn_line: the number of the last line where a kill cut it short; None for a whole file.
    """

    results: tuple[TrialResult, ...]
    torn_line: int | None


def read_trials(folder: Path) -> Trials:
    """All trials that have ended; none where there is no file yet.

    Raises:
        UsageError: the file cannot be read, or a line is damaged; see `smht.comparison.results.read_lines`.
    """
    lines = read_lines(folder / RESULTS)
    results: dict[str, TrialResult] = {}
    for result in lines.results:
        results.pop(result.key, None)
        results[result.key] = result
    return Trials(tuple(results.values()), lines.torn)


def is_done(result: TrialResult) -> bool:
    """Whether it ended well, with a loss that is a number."""
    return result.status == "done" and result.validation_loss is not None and math.isfinite(result.validation_loss)


def how_it_ended(result: TrialResult) -> str:
    """`done`, `diverged` or `failed`; a trial that ended with a loss that is no number has diverged."""
    return "diverged" if result.status == "done" and not is_done(result) else result.status
