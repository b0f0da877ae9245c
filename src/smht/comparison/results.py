"""What came out of each trial: one object a line in `results.jsonl`."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from smht.errors import UsageError
from smht.training import files

Purpose = Literal["search", "final", "superseded"]
"""`superseded`: a final training at a rate that a wider search has since found not to be the best."""
Status = Literal["done", "diverged", "failed"]


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
        names = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or values.keys() != names:
            raise ValueError("it is no result of this version of smht")
        return cls(**values)


def read_results(path: Path) -> list[TrialResult]:
    """All results in a `results.jsonl`; none if there is no file.

    Raises:
        UsageError: a line is damaged; the message says which.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    results = []
    for number, line in enumerate(lines, 1):
        try:
            results.append(TrialResult.from_json(line))
        except ValueError as error:
            raise UsageError(
                f"{path}, line {number}, is damaged ({error}): delete the line, and its trial is made again"
            ) from None
    return results


def write_results(path: Path, results: Iterable[TrialResult]) -> None:
    """Replace the file; a crash leaves the old one or the new one."""
    files.write_bytes(path, "".join(result.to_json() + "\n" for result in results).encode())
