"""One training of a comparison: what it is, and how it goes on, slice by slice, from wherever it was saved."""

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from smht.comparison.lengths import evaluate_lengths
from smht.comparison.loop import Recipe, Training
from smht.comparison.results import Purpose, Status, TrialResult
from smht.inspection.accounting import account
from smht.models import SmhtConfig, SmhtForCausalLM
from smht.tasks.language_modelling import WindowedText
from smht.tasks.task import Examples
from smht.training.checkpoint import find_checkpoint, write_checkpoint

STATE = "state.pt"
_EMBEDDINGS = ("token embedding", "position embedding", "language-model head")


@dataclass(frozen=True)
class Conditions:
    """What all trials of a comparison have in common.

    Attributes:
        context: tokens a window.
        batch_size: windows a step.
        data: hashes of training text, validation text and tokenizer.
        evaluation_windows: how much of the validation text to look at on the way; None for all of it.
        device: where to train.
        backend: what computes split projections.
        threads: of the processor.
        lengths: tokens of the windows that a finished final training is looked at with, besides its own.
    """

    context: int
    batch_size: int
    data: tuple[str, str, str]
    evaluation_windows: int | None
    device: str
    backend: str
    threads: int
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class Trial:
    """One training.

    Attributes:
        variant: the name of what is trained.
        config: its architecture, as a dictionary.
        purpose: `search` or `final`.
        seed: of weights, order of the data and dropout.
        learning_rate: its peak.
        steps: how many; None where the seconds are given.
        seconds: of training.
        evaluations: how many points the curve has.
    """

    variant: str
    config: dict[str, Any]
    purpose: Purpose
    seed: int
    learning_rate: float
    steps: int | None
    seconds: float | None
    evaluations: int

    def key(self, conditions: Conditions) -> str:
        """A name for the trial that holds for no other."""
        machine = {"device", "backend", "threads"}
        given = {name: value for name, value in asdict(conditions).items() if name not in machine}
        whole = json.dumps({**asdict(self), **given}, sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()[:32]

    def result(self, conditions: Conditions, status: Status, error: str | None = None, **outcome: Any) -> TrialResult:
        """How it ended; `outcome` is what its steps came to, if it had any."""
        costs = account(SmhtConfig(**self.config), conditions.context)
        embeddings = sum(part.costs.parameters for part in costs.parts if part.name in _EMBEDDINGS)
        nothing = {"tokens": 0, "steps": 0, "seconds": 0.0, "tokens_per_second": 0.0, "training_multiply_adds": 0}
        nothing |= {"validation_loss": None, "bits_per_byte": None, "repeats": 0.0, "curve": [], "lengths": []}
        return TrialResult(
            key=self.key(conditions),
            variant=self.variant,
            purpose=self.purpose,
            seed=self.seed,
            learning_rate=self.learning_rate,
            status=status,
            error=error,
            config=self.config,
            parameters=costs.total.parameters,
            parameters_without_embeddings=costs.total.parameters - embeddings,
            multiply_adds_per_token=costs.total.multiply_adds,
            cache_bytes_per_token=costs.cache_bytes,
            peak_memory_bytes=None,
            backend=conditions.backend,
            threads=conditions.threads,
            **{**nothing, **outcome},
        )


class TrialRun:
    """A trial under way. Between slices it leaves the random numbers of the process alone.

    Args:
        trial: what to train.
        examples: the text.
        conditions: those of the comparison.
    """

    def __init__(self, trial: Trial, examples: Examples, conditions: Conditions) -> None:
        self.trial, self.examples, self.conditions = trial, examples, conditions
        self.outcome: TrialResult | None = None
        self.curve: list[dict[str, Any]] = []
        self._passed = 0
        self._device = torch.device(conditions.device)
        config = SmhtConfig(**trial.config)
        self._training_costs = 3 * account(config, conditions.context).total.multiply_adds
        with self._forked():
            torch.manual_seed(trial.seed)
            model: Any = SmhtForCausalLM(config)
            model = model.to(self._device)
            self._random = self._read_random()
        recipe = Recipe(
            trial.learning_rate, conditions.batch_size, steps=trial.steps, seconds=trial.seconds, seed=trial.seed
        )
        self.training = Training(model.train(), examples, recipe)

    @property
    def done(self) -> float:
        """The part of the trial that lies behind it."""
        return 1.0 if self.outcome is not None else min(1.0, self.training.done)

    def advance(self, seconds: float) -> dict[str, Any] | None:
        """Train for about so long, or up to the next point of the curve, which is returned, or to the end.

        At the end, which may be that the loss became no number, `outcome` says how it was.
        """
        end = self.training.seconds + seconds
        with self._own_random_numbers():
            while self.training.seconds < end:
                loss = self.training.step()
                if not math.isfinite(loss):
                    self._diverge(f"the loss became {loss} at step {self.training.steps}")
                    return None
                if self.training.done >= 1:
                    return self._finish()
                passed = self._points_passed()
                if passed > self._passed:
                    self._passed = passed
                    return self._evaluate(self.conditions.evaluation_windows)
        return None

    def fail(self, error: str) -> None:
        """End it: something else than its loss went wrong."""
        self.outcome = self.trial.result(self.conditions, "failed", error, **self._progress())

    def save(self, folder: Path) -> None:
        """Put a checkpoint into the trial's folder, in place of the last.

        Raises:
            OSError: the disk is full or cannot be written; the last one is untouched.
        """
        state = {**self.training.state_dict(), "random": self._random, "curve": self.curve, "passed": self._passed}
        write_checkpoint(folder, self.training.steps, lambda beside: torch.save(state, beside / STATE), keep=1)

    def restore(self, folder: Path) -> tuple[str, ...]:
        """Go on where the last whole checkpoint was saved, if there is one; lines about damaged ones are returned."""
        found = find_checkpoint(folder)
        if found.newest_good is not None:
            state = torch.load(found.newest_good / STATE, map_location="cpu", weights_only=True)
            self.training.load_state_dict(state)
            self._random, self.curve, self._passed = state["random"], state["curve"], state["passed"]
        return found.damaged

    def _finish(self) -> dict[str, Any] | None:
        point = self._evaluate(None)
        if point is not None:
            scores = {name: point[name] for name in ("validation_loss", "bits_per_byte")}
            self.outcome = self.trial.result(
                self.conditions, "done", **self._progress(), **scores, lengths=self._evaluate_lengths()
            )
        return point

    def _diverge(self, error: str) -> None:
        self.outcome = self.trial.result(self.conditions, "diverged", error, **self._progress())

    def _evaluate(self, windows: int | None) -> dict[str, Any] | None:
        """A new point of the curve."""
        score = self.examples.score(self.training.model, windows)
        if not math.isfinite(score.loss):
            self._diverge(f"the validation loss became {score.loss} at step {self.training.steps}")
            return None
        progress = self._progress()
        point = {name: progress[name] for name in ("tokens", "seconds", "training_multiply_adds")}
        bits = score.metrics["bits_per_byte"]
        point = {"step": self.training.steps, **point, "validation_loss": score.loss, "bits_per_byte": bits}
        self.curve.append(point)
        return point

    def _evaluate_lengths(self) -> list[dict[str, Any]]:
        if self.trial.purpose != "final" or not self.conditions.lengths:
            return []
        model: Any = self.training.model
        assert isinstance(self.examples, WindowedText)
        return evaluate_lengths(model, self.examples, self.conditions.lengths)

    def _progress(self) -> dict[str, Any]:
        steps, seconds = self.training.steps, self.training.seconds
        items = steps * self.conditions.batch_size
        tokens = items * self.conditions.context
        return {
            "steps": steps,
            "tokens": tokens,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds if seconds else 0.0,
            "training_multiply_adds": tokens * self._training_costs,
            "repeats": items / self.examples.items_per_epoch,
            "curve": self.curve,
        }

    def _points_passed(self) -> int:
        """How many points of the curve lie behind, in whole numbers where steps are counted."""
        if self.trial.steps is not None:
            return self.training.steps * self.trial.evaluations // self.trial.steps
        return int(self.training.done * self.trial.evaluations)

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """The process's generators go on as the trial's, and are put back after."""
        with self._forked():
            torch.set_rng_state(self._random["cpu"])
            if "cuda" in self._random:
                torch.cuda.set_rng_state(self._random["cuda"], self._device)
            yield
            self._random = self._read_random()

    def _forked(self) -> Any:
        return torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else [])

    def _read_random(self) -> dict[str, torch.Tensor]:
        cuda = {"cuda": torch.cuda.get_rng_state(self._device)} if self._device.type == "cuda" else {}
        return {"cpu": torch.get_rng_state(), **cuda}
