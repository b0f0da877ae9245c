"""A plain training loop for any model that takes a task's batches, so that unlike models get the same treatment."""

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from smht.comparison.parametrisation import WEIGHT_DECAY
from smht.errors import SmhtError, UsageError
from smht.tasks.task import Examples
from smht.training.parametrisation import STANDARD, parameter_groups

_BETAS = (0.9, 0.99)
_LOWEST = 0.1


@dataclass(frozen=True)
class Recipe:
    """How to train; one of `steps` and `seconds` is the budget.

    Attributes:
        learning_rate: its peak, after which it falls along a cosine to a tenth.
        batch_size: items a step.
        steps: optimizer steps.
        seconds: training time.
        weight_decay: AdamW's, of weights with two or more axes.
        seed: of the order of items.
        warmup: part of the budget over which the rate rises to its peak.
        parametrisation: how the rate is spread over the weights (`smht.training.parametrisation`).
    """

    learning_rate: float
    batch_size: int
    steps: int | None = None
    seconds: float | None = None
    weight_decay: float = WEIGHT_DECAY
    seed: int = 0
    warmup: float = 0.05
    parametrisation: str = STANDARD

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.seconds is None):
            raise UsageError("give steps or seconds, one of the two")


@dataclass(frozen=True)
class Trained:
    """What a training took.

    Attributes:
        steps: optimizer steps.
        seconds: of training.
        losses: of each step, in nats.
    """

    steps: int
    seconds: float
    losses: tuple[float, ...]

    @property
    def last_loss(self) -> float:
        """The mean over the last tenth of the steps."""
        last = self.losses[-max(1, self.steps // 10) :]
        return sum(last) / max(1, len(last))


class Training:
    """A training that goes step by step, in place.

    Args:
        model: to train, put into training mode by whoever calls `step`.
        examples: what to learn.
        recipe: how.
    """

    def __init__(self, model: nn.Module, examples: Examples, recipe: Recipe) -> None:
        self.model, self.examples, self.recipe = model, examples, recipe
        self.steps, self.seconds = 0, 0.0
        most = recipe.steps or 10**9
        self._items = examples.dataset(recipe.seed, most * recipe.batch_size, recipe.batch_size)
        groups = parameter_groups(model, recipe.learning_rate, recipe.weight_decay, recipe.parametrisation)
        self._peaks = [group["lr"] for group in groups]
        self._optimizer = torch.optim.AdamW(groups, betas=_BETAS, fused=True)

    @property
    def done(self) -> float:
        """The part of the budget that is spent; 1 or more when all is."""
        if self.recipe.steps is not None:
            return self.steps / self.recipe.steps
        assert self.recipe.seconds is not None
        return self.seconds / self.recipe.seconds

    def step(self) -> float:
        """Take one step, and return its loss in nats, which may be no number."""
        started = time.perf_counter()
        factor = rate_at(self.done, self.recipe.warmup)
        for group, peak in zip(self._optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
        loss = self.model(**self._batch()).loss
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        value = loss.item()
        self.steps += 1
        self.seconds += time.perf_counter() - started
        return value

    def _batch(self) -> dict[str, Any]:
        size = self.recipe.batch_size
        batch = self.examples.collate([self._items[self.steps * size + i] for i in range(size)])
        device = next(self.model.parameters()).device
        return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}

    def state_dict(self) -> dict[str, Any]:
        """All that going on exactly takes, but for the random numbers of dropout."""
        return {
            "steps": self.steps,
            "seconds": self.seconds,
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.steps, self.seconds = state["steps"], state["seconds"]
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])


def train(model: nn.Module, examples: Examples, recipe: Recipe) -> Trained:
    """Train in place, from the first step to the last.

    Raises:
        SmhtError: the loss became no number.
    """
    training = Training(model, examples, recipe)
    model.train()
    losses: list[float] = []
    while training.done < 1:
        losses.append(training.step())
        if not math.isfinite(losses[-1]):
            raise SmhtError(f"the loss became {losses[-1]} at step {len(losses)}: lower the learning rate")
    return Trained(len(losses), training.seconds, tuple(losses))


def rate_at(done: float, warmup: float) -> float:
    """The learning rate as a part of its peak, when a part `done` of the budget is spent."""
    if done < warmup:
        return (done + 1e-3) / (warmup + 1e-3)
    cosine = (1 + math.cos(math.pi * (done - warmup) / (1 - warmup))) / 2
    return _LOWEST + (1 - _LOWEST) * cosine
