"""What tests on comparisons share: tiny ones that take a second, and what of their results can be compared."""

import random
from pathlib import Path
from typing import Any

from rich.console import Console

from smht.comparison.budget import SIZES, parse_budgets
from smht.comparison.comparison import Outcome, compare
from smht.comparison.measurement import Measured
from smht.comparison.request import CompareRequest
from smht.comparison.results import TrialResult
from smht.comparison.variants import parse_variants
from smht.training.request import TrainRequest

MEASURED = Measured(step_seconds=0.001, window_seconds=0.001, peak_memory_bytes=1_000_000)
"""Spares a comparison the seconds that measuring takes."""

_SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_dropout": 0.1}
_TAKES_TIME = ("seconds", "tokens_per_second")


def write_text(folder: Path, words: int = 1500) -> Path:
    """A text of a few kilobytes."""
    path = folder / "text.txt"
    path.write_text(" ".join(random.Random(0).choices(["a", "bc", "def", "é", "\n"], k=words)), encoding="utf-8")
    return path


def make_request(text: Path, **changes: Any) -> CompareRequest:
    """Two variants, two seeds, three rates, 20 steps of two windows; `changes` may be of what a training asks too."""
    training: dict[str, Any] = {"tokenizer": "byte", "context": 16, "batch_size": 2, "device": "cpu"}
    asked: dict[str, Any] = {"variants": "split+shuffle,dense", "budget": "tokens=640", "seeds": 2, "rates": 3}
    for name, value in changes.items():
        (asked if name in CompareRequest.__dataclass_fields__ else training)[name] = value
    has_size = asked["budget"].startswith(tuple(SIZES))
    sizes = {name: size for name, size in _SIZES.items() if name != "hidden_size" or not has_size}
    training["architecture"] = {**sizes, **training.get("architecture", {})}
    variants, budget = parse_variants([asked.pop("variants")]), parse_budgets([asked.pop("budget")])
    return CompareRequest(TrainRequest(texts=(str(text),), **training), variants, budget, **asked)


def run(request: CompareRequest, folder: Path) -> Outcome:
    """Make it without a word."""
    return compare(request, folder, Console(quiet=True))


def without_time(result: TrialResult) -> dict[str, Any]:
    """All of a result but what a clock says."""
    values = {name: value for name, value in vars(result).items() if name not in _TAKES_TIME}
    curve = [{name: value for name, value in point.items() if name != "seconds"} for point in result.curve]
    return {**values, "curve": curve}


def by_key(outcome: Outcome) -> dict[str, dict[str, Any]]:
    """Results that can be compared, by key."""
    return {result.key: without_time(result) for result in outcome.results}
