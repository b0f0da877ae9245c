"""Training a model whose parameters are shared by the ranks that share its batch (FSDP)."""

from torch import Tensor
from transformers import PreTrainedModel

from smht.distributed.cuts import assemble
from smht.distributed.ranks import Ranks
from smht.distributed.sharded import clip_sharded_grad_norm, gathered, join_shards, shard_model
from smht.tasks.task import Score
from smht.training.part_trainer import PartTrainer
from smht.training.trainer import Job, Optimisation


class ShardedTrainer(PartTrainer):
    """The training loop of a rank with some of the numbers of every parameter.

    Args:
        model: the whole model, the same on every rank.
        optimisation: hyperparameters; the batch is that of all ranks together.
        job: the rest.
    """

    def __init__(self, model: PreTrainedModel, optimisation: Optimisation, job: Job) -> None:
        # `fully_shard` makes a class of its own.
        self._whole_kind = type(model)
        shard_model(model, job.processes.mesh, optimisation.device)
        super().__init__(model, optimisation, job, Ranks())

    def _sum_over_replicas(self, loss: Tensor) -> None:
        # The gradients are sums already.
        self._replicas.start_sum(loss).wait()

    def _clip(self) -> Tensor:
        return clip_sharded_grad_norm(self._network, self._max_grad_norm)

    def _score(self) -> Score:
        with gathered(self._network):
            return super()._score()

    def _whole_model(self) -> PreTrainedModel | None:
        state: dict[str, Tensor] = {}
        for name, parameter in self._network.named_parameters():
            whole = join_shards(parameter)
            if self._processes.is_first:
                state[name] = whole
        return assemble(self._whole_kind, self._network.config, state) if state else None
