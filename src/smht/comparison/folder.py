"""The folder of a comparison.

```
comparison.json               what was asked, and the sizes that were found
results.jsonl                 one object a finished trial
trials/KEY/step-000500/       a trial under way: a checkpoint with the hashes of its files
report.md report.html         once all trials are over
```
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from smht.comparison.results import TrialResult, read_results, write_results
from smht.errors import UsageError, first_line
from smht.training import files
from smht.training.run_folder import writing

ADVICE = "free some space, then give the same command again"
_RECORD = {"asked": dict, "variants": list, "seeds": list, "started": str}
"""What a record of a comparison has whatever was asked."""


class ComparisonFolder:
    """The files of one comparison.

    Args:
        path: the folder.
    """

    holds = "a comparison"

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.record_path = self.path / "comparison.json"
        self.results_path = self.path / "results.jsonl"
        self.trials = self.path / "trials"

    def refuse_if_taken(self) -> None:
        """Keep a comparison from a place that is no folder, or holds something else.

        Raises:
            UsageError: it is, or does.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{self.path} is no folder: name another --output")
        if self.path.is_dir() and not self.record_path.exists() and any(self.path.iterdir()):
            raise UsageError(f"{self.path} holds something else than {self.holds}: name another --output")
        for parent in self.path.absolute().parents:
            if parent.exists() and not parent.is_dir():
                raise UsageError(f"{parent} is a file, so there can be no {self.path}: name another --output")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder if need be, and keep other processes from it; a killed process leaves no lock behind.

        Raises:
            UsageError: one is at it.
            SmhtError: the folder cannot be made.
        """
        with writing(str(self.path), ADVICE):
            self.path.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise UsageError(f"{self.path} is at work in another process: wait for it, or stop it") from None
        finally:
            os.close(folder)

    def read_record(self) -> dict[str, Any] | None:
        """What `comparison.json` says; None if there is none.

        Raises:
            UsageError: it is damaged.
        """
        try:
            record = json.loads(self.record_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (ValueError, OSError) as error:
            raise self.damaged(first_line(error)) from None
        if not _is_record(record):
            raise self.damaged("it is no record of a comparison")
        return record

    def damaged(self, why: str) -> UsageError:
        """What to raise where the record cannot be read."""
        return UsageError(f"{self.record_path} is damaged ({why}): restore it, or name another --output")

    def write_record(self, record: dict[str, Any]) -> None:
        """Replace `comparison.json`.

        Raises:
            SmhtError: the disk is full or cannot be written; the old file is untouched.
        """
        with writing(str(self.record_path), ADVICE):
            files.write_json(self.record_path, record)

    def read_results(self) -> list[TrialResult]:
        """See `smht.comparison.results`."""
        return read_results(self.results_path)

    def write_results(self, results: Iterable[TrialResult]) -> None:
        """Replace `results.jsonl`.

        Raises:
            SmhtError: the disk is full or cannot be written; the old file is untouched.
        """
        with writing(str(self.results_path), ADVICE):
            write_results(self.results_path, results)

    def trial(self, key: str) -> Path:
        """Where a trial under way keeps its checkpoint."""
        return self.trials / key

    def remove_trial(self, key: str) -> None:
        """Delete what a trial has saved; its result is written."""
        shutil.rmtree(self.trial(key), ignore_errors=True)
        with suppress(OSError):  # others are under way, or there never was one
            self.trials.rmdir()


def _is_record(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(name), kind) for name, kind in _RECORD.items())
        and all(isinstance(variant, dict) and "name" in variant for variant in value["variants"])
        and all(isinstance(seed, int) for seed in value["seeds"])
        and isinstance(value.get("evaluation_windows"), int | None)
    )
