"""What came out of each trial: one object a line in `results.jsonl`."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from smht.errors import UsageError, first_line
from smht.training import files

Purpose = Literal["search", "final", "superseded"]
"""`superseded`: a final training at a rate that a wider search has since found not to be the best."""
Status = Literal["done", "diverged", "failed"]
_CURVE_FIELDS = dict.fromkeys(("tokens", "seconds", "training_multiply_adds", "validation_loss"), float | None)
_LENGTH_FIELDS = {"length": int, "validation_loss": float | None, "why_not": str | None}
_ABSENT = ()


@dataclass(frozen=True)
class TrialResult:
    """How a trial ended.

    Attributes:
        key: a hash of all that determines the trial.
        variant: its name.
        purpose: what it was for.
        seed: of weights, order of the data and dropout.
        learning_rate: its peak.
        status: whether it came to its end.
        error: why not.
        config: the architecture, as a dictionary.
        parameters: all of them.
        parameters_without_embeddings: those of blocks and norms: no embeddings, no head.
        multiply_adds_per_token: of a forward pass over windows of the context.
        cache_bytes_per_token: of keys and values.
        tokens: learned from, counting repeats.
        steps: of the optimizer.
        seconds: of training alone, evaluations and saving left out.
        tokens_per_second: in that time.
        peak_memory_bytes: tensors alive at once in a training step; None where it was not measured.
        training_multiply_adds: 3 times those of a forward pass, a token.
        validation_loss: nats a token over everything held out; None unless done.
        bits_per_byte: the same for bytes of text.
        repeats: passes over the training text.
        curve: the same figures on the way, over a part of what is held out; the last is over everything.
        backend: what computed split projections.
        threads: of the processor.
        lengths: of a final training, what `smht.comparison.lengths` measured.
    """

    key: str
    variant: str
    purpose: Purpose
    seed: int
    learning_rate: float
    status: Status
    error: str | None
    config: dict[str, Any]
    parameters: int
    parameters_without_embeddings: int
    multiply_adds_per_token: int
    cache_bytes_per_token: int
    tokens: int
    steps: int
    seconds: float
    tokens_per_second: float
    peak_memory_bytes: int | None
    training_multiply_adds: int
    validation_loss: float | None
    bits_per_byte: float | None
    repeats: float
    curve: list[dict[str, Any]]
    backend: str
    threads: int
    lengths: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> str:
        """One line, without its end."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> "TrialResult":
        """The result that `to_json` wrote.

        Raises:
            ValueError: the line is no JSON, or not of a result of this version.
        """
        values = json.loads(line)
        names = {each.name for each in fields(cls)}
        if not isinstance(values, dict) or values.keys() != names:
            raise ValueError("it is no result of this version of smht")
        return cls(**values)


@dataclass(frozen=True)
class Lines:
    """What a `results.jsonl` says.

    Attributes:
        results: in the order of the file.
        torn: the number of the last line, from 1, where it was cut short and left out; None for a whole file.
    """

    results: tuple[TrialResult, ...]
    torn: int | None


def read_lines(path: Path) -> Lines:
    """All results in a `results.jsonl`; none if there is no file. A last line without its end was cut by a kill.

    Raises:
        UsageError: the file cannot be read, or another line is damaged; the message says which.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        return Lines((), None)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {first_line(error)}") from None
    results = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            result = TrialResult.from_json(line)
            _check(result)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            if number == len(lines):
                return Lines(tuple(results), number)
            raise UsageError(
                f"{path}, line {number}, is damaged ({first_line(error)}): delete the line, and the same command "
                "makes its trial again"
            ) from None
        results.append(result)
    return Lines(tuple(results), None)


def read_results(path: Path) -> list[TrialResult]:
    """The results of `read_lines`."""
    return list(read_lines(path).results)


def write_results(path: Path, results: Iterable[TrialResult]) -> None:
    """Replace the file; a crash leaves the old one or the new one."""
    files.write_bytes(path, "".join(result.to_json() + "\n" for result in results).encode())


def _check(result: TrialResult) -> None:
    """Refuse, by ValueError or OverflowError, fields of another kind than can be reckoned with."""
    for each in fields(result):
        _check_kind(each.name, getattr(result, each.name), each.type)
    for points, kinds in ((result.curve, _CURVE_FIELDS), (result.lengths, _LENGTH_FIELDS)):
        for point in points:
            for name, kind in kinds.items():
                there = isinstance(point, dict) and name in point
                _check_kind(name, point[name] if there else _ABSENT, kind)


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
