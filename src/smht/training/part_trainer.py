"""Training a model of which each of several ranks has a part.

The Trainer of transformers is told of one process alone: this one's part of the model, on this one's share of the
batch. What the ranks have in common goes through `smht.distributed` here. Checkpoints are those of one process, and
every rank reads its part, so they resume on any number of ranks and any mesh, one process included.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from smht.distributed.ranks import Ranks
from smht.tasks.task import Item, Score
from smht.training.trainer import RANDOM_STATE, Job, Optimisation, SmhtTrainer


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

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        own = {name: self._as_saved(name, each.detach()) for name, each in self._network.named_parameters()}
        self._processes.together(lambda: self._read(own, Path(resume_from_checkpoint)))

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
