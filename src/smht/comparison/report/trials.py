"""The trials of a folder as its report reads them: what is damaged is left out and named, not refused."""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from smht.comparison.results import TrialResult
from smht.errors import UsageError, first_line

RESULTS = "results.jsonl"
CURVE_FIELDS = ("tokens", "seconds", "training_multiply_adds", "validation_loss")


@dataclass(frozen=True)
class Trials:
    """What `results.jsonl` says.

    Attributes:
        results: the newest line of each key, in the order of the file.
        damaged_lines: numbers of lines that cannot be read, from 1.
    """

    results: tuple[TrialResult, ...]
    damaged_lines: tuple[int, ...]


def read_trials(folder: Path) -> Trials:
    """All trials that have ended; none where there is no file yet.

    Raises:
        UsageError: the file cannot be read.
    """
    path = folder / RESULTS
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        return Trials((), ())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {first_line(error)}") from None
    results: dict[str, TrialResult] = {}
    damaged = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            result = TrialResult.from_json(line)
            _check(result)
        except (ValueError, TypeError, OverflowError, RecursionError):
            damaged.append(number)
            continue
        results.pop(result.key, None)
        results[result.key] = result
    return Trials(tuple(results.values()), tuple(damaged))


def is_done(result: TrialResult) -> bool:
    """Whether it ended well, with a loss that is a number."""
    return result.status == "done" and result.validation_loss is not None and math.isfinite(result.validation_loss)


def how_it_ended(result: TrialResult) -> str:
    """`done`, `diverged` or `failed`; a trial that ended with a loss that is no number has diverged."""
    return "diverged" if result.status == "done" and not is_done(result) else result.status


def _check(result: TrialResult) -> None:
    """Refuse, by ValueError, fields of another kind than the report reckons with."""
    for field in fields(result):
        _check_kind(field.name, getattr(result, field.name), field.type)
    for point in result.curve:
        for name in CURVE_FIELDS:
            _check_kind(name, point[name] if isinstance(point, dict) and name in point else "nothing", float | None)


def _check_kind(name: str, value: Any, kind: Any) -> None:
    if get_origin(kind) is Literal:
        fits = value in get_args(kind)
    else:
        parts = get_args(kind) if isinstance(kind, UnionType) else (kind,)
        kinds = tuple(get_origin(part) or part for part in parts)
        fits = isinstance(value, kinds + ((int,) if float in kinds else ())) and not isinstance(value, bool)
    if not fits:
        raise ValueError(f"{name} = {value!r}")
    if isinstance(value, int):
        float(value)  # OverflowError: nothing could be reckoned with it
