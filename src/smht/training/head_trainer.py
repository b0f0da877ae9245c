"""Training a model whose heads are shared by several ranks, and whose batch by several such models."""

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from smht.distributed.cuts import axes_of, describe_part
from smht.distributed.head_parallel import HeadParallelCausalLM, clip_grad_norm, head_parallel
from smht.training.part_trainer import PartTrainer
from smht.training.trainer import Job, Optimisation


class HeadParallelTrainer(PartTrainer):
    """The training loop of a rank with some of the heads.

    Args:
        model: the whole model, the same on every rank.
        optimisation: hyperparameters; the batch is that of all ranks together.
        job: the rest.

    Raises:
        UsageError: the model cannot be cut by head.
    """

    def __init__(self, model: PreTrainedModel, optimisation: Optimisation, job: Job) -> None:
        replicas, model_ranks = job.processes.mesh.groups()
        cut_model = job.processes.together(
            lambda: head_parallel(model, model_ranks)  # pyright: ignore[reportArgumentType]
        )
        self._shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        self._axes = {name: axis for name, _, axis in axes_of(cut_model)}
        self._model_ranks = DeviceMesh.from_group(model_ranks.group, optimisation.device)
        super().__init__(cut_model, optimisation, job, replicas)

    @property
    def _part(self) -> HeadParallelCausalLM:
        assert isinstance(self.model, HeadParallelCausalLM)
        return self.model

    def _as_saved(self, name: str, tensor: Tensor) -> Tensor:
        return describe_part(tensor, self._axes[name], self._shapes[name], self._model_ranks)

    def _sum_over_replicas(self, loss: Tensor) -> None:
        if self._replicas.size == 1:
            return
        gradients = [parameter.grad for parameter in self._part.parameters() if parameter.grad is not None]
        sending = [self._replicas.start_sum(tensor) for tensor in (loss, *gradients)]
        for each in sending:
            each.wait()

    def _clip(self) -> Tensor:
        return clip_grad_norm(self._part, self._max_grad_norm, self._part.ranks)

    def _whole_model(self) -> PreTrainedModel | None:
        return self._part.whole_model()
