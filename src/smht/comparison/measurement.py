"""What training a model costs on this machine, by a few steps of a copy that is thrown away."""

import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from smht.comparison.loop import Recipe, Training
from smht.models import SmhtConfig, SmhtForCausalLM
from smht.tasks.task import Examples

_TIMED_STEPS = 3
_TIMED_SECONDS = 0.3


@dataclass(frozen=True)
class Measured:
    """Measured costs.

    Attributes:
        step_seconds: one training step, the shortest of a few: anything else that runs here makes them longer.
        window_seconds: evaluating one window.
        peak_memory_bytes: tensors alive at once in a training step: weights, gradients, the optimizer's moments and
            what backward needs. The workspace inside of an operation is not among them.
    """

    step_seconds: float
    window_seconds: float
    peak_memory_bytes: int


def measure(config: SmhtConfig, examples: Examples, batch_size: int, device: str) -> Measured:
    """Measure a fresh model."""
    model: Any = SmhtForCausalLM(config)
    model = model.to(device).train()
    training = Training(model, examples, Recipe(learning_rate=1e-6, batch_size=batch_size, steps=10**6))
    training.step()
    with _peak_memory(torch.device(device), [*model.buffers(), *tree_leaves(training.state_dict())]) as peak:
        training.step()
    times: list[float] = []
    while len(times) < _TIMED_STEPS or sum(times) < _TIMED_SECONDS:
        before = training.seconds
        training.step()
        times.append(training.seconds - before)
    windows = min(examples.timed_part[0], examples.validation_items)
    started = time.perf_counter()
    examples.score(model, windows)
    return Measured(min(times), (time.perf_counter() - started) / windows, peak())


@contextmanager
def _peak_memory(device: torch.device, present: Iterable[Any]) -> Iterator[Any]:
    """Gives a function that tells the most bytes of tensors while entered, those that were `present` included."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield lambda: torch.cuda.max_memory_allocated(device)
    else:
        with LiveTensors(tensor for tensor in present if isinstance(tensor, Tensor)) as live:
            yield lambda: live.peak


class LiveTensors(TorchDispatchMode):
    """While entered, follows the memory of all tensors that operations return, until nobody holds them any more.

    PyTorch counts the memory that it gives out on a GPU, and on no processor.

    Args:
        present: tensors that are there already.
    """

    def __init__(self, present: Iterable[Tensor]) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._known: set[int] = set()
        for tensor in present:
            self._add(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and look at what it returns."""
        returned = func(*args, **(kwargs or {}))
        for value in tree_leaves(returned):
            if isinstance(value, Tensor):
                self._add(value)
        return returned

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        place, size = storage._cdata, storage.nbytes()
        if place in self._known:
            return
        self._known.add(place)
        self.bytes += size
        self.peak = max(self.peak, self.bytes)
        # Python's object of a storage lives as long as the storage itself.
        weakref.finalize(storage, self._forget, place, size).atexit = False

    def _forget(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.bytes -= size
