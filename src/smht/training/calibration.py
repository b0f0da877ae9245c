"""What a run will take: a few steps on a copy of the model, thrown away."""

import copy
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from smht.tasks.task import Examples
from smht.training.distillation import Distillation
from smht.training.trainer import Optimisation

_WARM_STEPS = 3
_TIMED_STEPS = 5
_TIMED_SECONDS = 1.5
_TIMED_SCORES = 3
# The Trainer's own work around a step: logging, callbacks, gradient norm.
_OVERHEAD_SECONDS = 0.001


@dataclass(frozen=True)
class Calibration:
    """Measured costs.

    Attributes:
        step_seconds: one training step.
        evaluation_seconds: one evaluation over the held-out text.
        memory_bytes: the process's peak so far; on a GPU, the GPU's.
    """

    step_seconds: float
    evaluation_seconds: float
    memory_bytes: int


def slowest(costs: Sequence[Calibration]) -> Calibration:
    """What processes that wait for each other take together: the slowest one's time, the memory of all."""
    return Calibration(
        step_seconds=max(cost.step_seconds for cost in costs),
        evaluation_seconds=max(cost.evaluation_seconds for cost in costs),
        memory_bytes=sum(cost.memory_bytes for cost in costs),
    )


def calibrate(
    model: nn.Module, examples: Examples, optimisation: Optimisation, distillation: Distillation | None = None
) -> Calibration:
    """Time training steps and a part of an evaluation on a copy of `model`; the model itself is left as it is."""
    device = torch.device(optimisation.device)
    trial = copy.deepcopy(model).to(device).train()
    optimizer = torch.optim.AdamW(trial.parameters(), lr=0.0, fused=True)
    size = optimisation.batch_size
    items = examples.dataset(optimisation.seed, size, size)
    batch = examples.collate([items[i] for i in range(size)])
    batch = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=optimisation.dtype == "bfloat16"):
            loss = trial(**batch).loss if distillation is None else distillation.loss(trial, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(trial.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(_WARM_STEPS):
        step()
    step_seconds = _median_seconds(step) + _OVERHEAD_SECONDS
    limit, factor = examples.timed_part
    examples.score(trial, limit)
    # The fastest of a few: anything else that runs here makes one slower, and never one faster.
    evaluation_seconds = factor * min(_seconds(lambda: examples.score(trial, limit)) for _ in range(_TIMED_SCORES))
    return Calibration(step_seconds, evaluation_seconds, _peak_memory(device))


def _median_seconds(step: Callable[[], None]) -> float:
    times: list[float] = []
    while len(times) < _TIMED_STEPS or sum(times) < _TIMED_SECONDS:
        times.append(_seconds(step))
    return sorted(times)[len(times) // 2]


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
