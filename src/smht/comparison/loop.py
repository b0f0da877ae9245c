"""A plain training loop for any model that takes a task's batches, so that unlike models get the same treatment."""

import math
import time
from dataclasses import dataclass

import torch
from torch import nn

from smht.errors import SmhtError, UsageError
from smht.tasks.task import Examples

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
    """

    learning_rate: float
    batch_size: int
    steps: int | None = None
    seconds: float | None = None
    weight_decay: float = 0.1
    seed: int = 0
    warmup: float = 0.05

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


def train(model: nn.Module, examples: Examples, recipe: Recipe) -> Trained:
    """Train in place.

    Raises:
        SmhtError: the loss became no number.
    """
    most = recipe.steps or 10**9
    items = examples.dataset(recipe.seed, most * recipe.batch_size, recipe.batch_size)
    optimizer = _optimizer(model, recipe)
    model.train()
    losses: list[float] = []
    started = time.perf_counter()
    while True:
        step, elapsed = len(losses), time.perf_counter() - started
        done = step / recipe.steps if recipe.steps else elapsed / (recipe.seconds or 1.0)
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * rate_at(done, recipe.warmup)
        first = step * recipe.batch_size
        loss = model(**examples.collate([items[first + i] for i in range(recipe.batch_size)])).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise SmhtError(f"the loss became {losses[-1]} at step {len(losses)}: lower the learning rate")
    return Trained(len(losses), time.perf_counter() - started, tuple(losses))


def rate_at(done: float, warmup: float) -> float:
    """The learning rate as a part of its peak, when a part `done` of the budget is spent."""
    if done < warmup:
        return (done + 1e-3) / (warmup + 1e-3)
    cosine = (1 + math.cos(math.pi * (done - warmup) / (1 - warmup))) / 2
    return _LOWEST + (1 - _LOWEST) * cosine


def _optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    weights = list(model.parameters())
    groups = [
        {"params": [w for w in weights if w.dim() > 1], "weight_decay": recipe.weight_decay},
        {"params": [w for w in weights if w.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=_BETAS, fused=True)
