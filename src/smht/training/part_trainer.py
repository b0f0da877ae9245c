"""Training a model of which each of several ranks has a part.

The Trainer of transformers is told of one process alone: this one's part of the model, on this one's share of the
batch. What the ranks have in common goes through `smht.distributed` here. Checkpoints are of the whole model, so they
resume on any number of ranks and any mesh, one process included.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from smht.distributed.ranks import Ranks
from smht.tasks.task import Item, Score
from smht.training.run_folder import WEIGHTS
from smht.training.trainer import OPTIMIZER, RANDOM_STATE, SCHEDULER, Job, Optimisation, SmhtTrainer

_MOMENTS = ("exp_avg", "exp_avg_sq")


class ShareOfBatches(Dataset[Item]):
    """One share of each batch.

    Args:
        items: of all batches, in order.
        batch_size: items of a batch.
        share: which share, `0..shares-1`.
        shares: how many there are.
    """

    def __init__(self, items: Any, batch_size: int, share: int, shares: int) -> None:
        self._items, self._batch_size, self._each = items, batch_size, batch_size // shares
        self._first = share * self._each

    def __len__(self) -> int:
        return len(self._items) // self._batch_size * self._each

    def __getitem__(self, index: int) -> Item:
        batch, place = divmod(index, self._each)
        return self._items[batch * self._batch_size + self._first + place]


@dataclass(frozen=True)
class Part:
    """This rank's part of a parameter.

    Attributes:
        name: the whole parameter's.
        parameter: the part.
        join: the whole of a tensor that is cut like it, on rank 0 at least; every rank has to call it.
        cut: this rank's part of a whole tensor that every rank has.
    """

    name: str
    parameter: nn.Parameter
    join: Callable[[Tensor], Tensor | None]
    cut: Callable[[Tensor], Tensor]


class PartTrainer(SmhtTrainer):
    """The training loop of a rank that has a part of the model; a subclass says which.

    Args:
        model: this rank's part.
        optimisation: hyperparameters; the batch is that of all ranks together.
        job: the rest.
        replicas: those that have the other shares of the batch.
    """

    def __init__(self, model: PreTrainedModel, optimisation: Optimisation, job: Job, replicas: Ranks) -> None:
        self._replicas = replicas
        self._grad_norm = 0.0
        super().__init__(model, optimisation, job)
        # The norm is that of all ranks' gradients, which the Trainer does not know.
        self._max_grad_norm, self.args.max_grad_norm = self.args.max_grad_norm, 0.0
        self.train_dataset = ShareOfBatches(self.train_dataset, optimisation.batch_size, replicas.rank, replicas.size)

    def _parts(self) -> Iterator[Part]:
        """Each parameter, tied ones once."""
        raise NotImplementedError

    def _sum_over_replicas(self, loss: Tensor) -> None:
        """Make the loss, and the gradients where they are not yet, those of the whole batch."""
        raise NotImplementedError

    def _clip(self) -> Tensor:
        """Clip the gradients; the norm that they had, all ranks' together."""
        raise NotImplementedError

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor | int | None:
        """The labels of all replicas, by which each divides its summed loss."""
        counted = super()._get_num_items_in_batch(batch_samples, device)
        if counted is None:
            return None
        total = torch.as_tensor(counted, device=device).clone()
        self._replicas.start_sum(total).wait()
        return total

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Forward and backward; loss and gradients are then those of the whole batch, and clipped."""
        loss = super().training_step(*args, **kwargs)
        self._sum_over_replicas(loss)
        self._grad_norm = float(self._clip())
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        return super()._get_grad_norm(model, grad_norm=self._grad_norm)

    def _score(self) -> Score:
        return self._processes.together(lambda: self._examples.score(self._network))

    def _fill_optimizer(self) -> Callable[[Path], None]:
        """What the optimizer remembers of the whole model, gathered on the first rank; and how to write it."""
        optimizer: Any = self.optimizer
        state = optimizer.state_dict()
        numbers = _numbers_of(optimizer)
        for part in self._parts():
            number = numbers[id(part.parameter)]
            own = state["state"].get(number)
            if own is not None:
                state["state"][number] = {**own, **{name: part.join(own[name]) for name in _MOMENTS}}

        def write(folder: Path) -> None:
            scheduler: Any = self.lr_scheduler
            torch.save(state, folder / OPTIMIZER)
            torch.save(scheduler.state_dict(), folder / SCHEDULER)

        return write

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        optimizer: Any = self.optimizer
        for part in self._parts():
            own = optimizer.state.get(part.parameter)
            if own:
                own.update({name: part.cut(own[name]).clone() for name in _MOMENTS})

    @torch.no_grad()
    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        whole = load_file(Path(resume_from_checkpoint) / WEIGHTS)
        for part in self._parts():
            part.parameter.copy_(part.cut(whole[part.name]))

    def _random_state(self) -> list[tuple[str, bytes]]:
        """As if the Trainer knew of the other ranks."""
        files = super()._random_state()
        named = [(f"rng_state_{self._processes.rank}.pth", contents) for _, contents in files]
        return [*named, *(files if self._processes.is_first else [])]

    def _load_rng_state(self, checkpoint: str | None) -> None:
        own = None if checkpoint is None else Path(checkpoint) / f"rng_state_{self._processes.rank}.pth"
        if own is None or not own.exists():
            return
        # The Trainer, which believes to be alone, reads one file.
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(own, Path(folder) / RANDOM_STATE)
            super()._load_rng_state(folder)


def _numbers_of(optimizer: Any) -> dict[int, int]:
    """The number that an optimizer saves a parameter under, by the parameter's identity."""
    parameters: Sequence[Any] = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {id(parameter): number for number, parameter in enumerate(parameters)}
