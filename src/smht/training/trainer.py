"""transformers' `Trainer` with checkpoints that can be trusted, our validation metric, and a stop before bad steps."""

import math
import shutil
import tempfile
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import SequentialSampler
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.trainer_callback import TrainerCallback

from smht.distributed.checkpoint import load_parts, save_parts
from smht.distributed.processes import Processes, keep_constants_home
from smht.errors import SmhtError, first_line
from smht.tasks.task import Examples, Score
from smht.training.checkpoint import checkpoint_path, write_checkpoint
from smht.training.distillation import Distillation, with_logits
from smht.training.moments import MOMENTS, moments_of, without_moments
from smht.training.parametrisation import STANDARD, parameter_groups
from smht.training.run_folder import writing

TRAINER_STATE = "trainer_state.json"
OPTIMIZER, SCHEDULER, RANDOM_STATE = "optimizer.pt", "scheduler.pt", "rng_state.pth"
"""Where transformers' Trainer looks for what a single process saved; of the optimizer, all but its moments."""


class DivergedError(SmhtError):
    """The loss or a gradient is no number any more.

    Attributes:
        weights_are_good: whether this was seen before the step that would have spoilt the weights.
    """

    def __init__(self, what: str, step: int, weights_are_good: bool = True) -> None:
        self.weights_are_good = weights_are_good
        super().__init__(f"{what} at step {step}")


@dataclass(frozen=True)
class Optimisation:
    """Hyperparameters of training.

    Attributes:
        steps: how many steps the schedule is made for.
        batch_size: windows a step, of all processes together.
        learning_rate: its peak.
        parametrisation: how it is spread over the weights.
        warmup: steps over which it rises from 0; then it falls along a cosine to a tenth of the peak.
        weight_decay: AdamW's, of weights with two or more axes.
        dtype: `float32`, or `bfloat16` for autocast.
        device: `cpu`, `cuda` or `mps`.
        seed: of initialisation, data order and dropout.
        processes: how many train together; each takes as many windows of a step.
    """

    steps: int
    batch_size: int
    learning_rate: float
    parametrisation: str
    warmup: int
    weight_decay: float
    dtype: str
    device: str
    seed: int
    processes: int = 1

    def to_arguments(self, folder: Path) -> TrainingArguments:
        """The same for transformers. Logging, evaluation and saving are decided by a callback of ours."""
        arguments = TrainingArguments(
            output_dir=str(folder),
            max_steps=self.steps,
            per_device_train_batch_size=self.batch_size // self.processes,
            ddp_find_unused_parameters=False,
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup,
            lr_scheduler_type="cosine_with_min_lr",
            lr_scheduler_kwargs={"min_lr_rate": 0.1},
            weight_decay=self.weight_decay,
            adam_beta1=0.9,
            adam_beta2=0.99,
            max_grad_norm=1.0,
            bf16=self.dtype == "bfloat16",
            use_cpu=self.device == "cpu",
            seed=self.seed,
            logging_strategy="no",
            eval_strategy="no",
            save_strategy="no",
            logging_nan_inf_filter=False,
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=self.device == "cuda",
        )
        # Reading the device counts the GPUs; of several, Trainer would use all, with as many times the batch.
        if arguments.device.type == "cuda":
            arguments._n_gpu = 1
        return arguments


@dataclass(frozen=True)
class Job:
    """What a training loop works with beside a model and its hyperparameters.

    Attributes:
        examples: what to train and validate on.
        checkpoints: the folder of all checkpoints.
        keep: how many checkpoints to keep.
        callbacks: what decides when to log, evaluate and save, and what is told about it.
        distillation: a teacher's part in the loss, if there is one; a model of which each rank has a part has none.
        processes: those that train together, whose mesh says who shares what; the first evaluates and writes.
    """

    examples: Examples
    checkpoints: Path
    keep: int
    callbacks: list[TrainerCallback]
    distillation: Distillation | None = None
    processes: Processes = field(default_factory=Processes)


class SmhtTrainer(Trainer):
    """The training loop, in one process or, by PyTorch's `DistributedDataParallel`, in each of several.

    Args:
        model: what to train.
        optimisation: hyperparameters.
        job: the rest.
    """

    def __init__(self, model: PreTrainedModel, optimisation: Optimisation, job: Job) -> None:
        self._processes = job.processes
        self._examples = job.examples
        self._distillation = job.distillation
        self._parametrisation = optimisation.parametrisation
        self._checkpoints = job.checkpoints
        self._keep = job.keep
        if self._processes.size > 1:
            keep_constants_home(model)
        super().__init__(
            model=model,
            args=optimisation.to_arguments(job.checkpoints),
            train_dataset=job.examples.dataset(
                optimisation.seed, optimisation.steps * optimisation.batch_size, optimisation.batch_size
            ),
            data_collator=job.examples.collate,
            callbacks=job.callbacks,
        )
        if self._processes.rank:
            # The same seed made the same weights; what is dropped is to differ.
            torch.manual_seed(optimisation.seed + self._processes.rank)

    def save_checkpoint(self) -> None:
        """Save everything that resume needs, now."""
        self._save_checkpoint(self._network, None)

    @property
    def _network(self) -> PreTrainedModel:
        assert isinstance(self.model, PreTrainedModel)
        return self.model

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """As in transformers, with rates by weight where the parametrisation has them."""
        if self._parametrisation == STANDARD or self.optimizer is not None:
            return super().create_optimizer(model)
        arguments = self.args
        groups = parameter_groups(self._network, arguments.learning_rate, arguments.weight_decay, self._parametrisation)
        kind, options = self.get_optimizer_cls_and_kwargs(arguments, self._network)
        self.optimizer = kind(groups, **options)
        return self.optimizer

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        # The dataset shuffles by itself, so that item i does not depend on how many there are.
        items: Any = self.train_dataset if train_dataset is None else train_dataset
        return SequentialSampler(items)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The model's own loss, and a teacher's part in it where there is one."""
        if self._distillation is None:
            return super().compute_loss(model, inputs, *args, **kwargs)
        outputs = model(**with_logits(inputs))
        return self._distillation.add(outputs.loss, outputs.logits, inputs)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Forward and backward; refuses to go on to the optimizer with a loss that is no number."""
        loss = super().training_step(*args, **kwargs)
        # One of several would leave the others waiting; the gradient's norm, which all have, will show it.
        if self._processes.size == 1 and not torch.isfinite(loss):
            raise DivergedError(f"the loss became {loss.item()}", self.state.global_step + 1)
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        if norm is not None and not math.isfinite(float(norm)):
            raise DivergedError(f"the gradient's norm became {float(norm)}", self.state.global_step + 1)
        return norm

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The validation loss over all that is held out, and the task's metrics."""
        result = self._score()
        if not math.isfinite(result.loss):
            what = f"the validation loss became {result.loss}"
            raise DivergedError(what, self.state.global_step, weights_are_good=False)
        metrics = {"eval_loss": result.loss, **{f"eval_{name}": value for name, value in result.metrics.items()}}
        self.log(metrics.copy())
        self.callback_handler.model = self._whole_model()  # pyright: ignore[reportAttributeAccessIssue]
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Like the method of `Trainer`, but whole or not at all, and without pickles of arbitrary objects."""

        def fill(folder: Path) -> None:
            assert whole is not None
            whole.save_pretrained(folder)
            moments.rename(folder / MOMENTS)
            self._save_optimizer_and_scheduler(str(folder))
            for name, contents in chain(*random_states):
                (folder / name).write_bytes(contents)
            self.state.save_to_json(str(folder / TRAINER_STATE))

        def write() -> None:
            with writing(what):
                write_checkpoint(self._checkpoints, step, fill, self._keep)

        self.store_flos()
        step = self.state.global_step
        what = f"the checkpoint of step {step}"
        whole = self._whole_model()
        random_states = self._processes.collect(self._random_state())
        moments = self._checkpoints / f".{checkpoint_path(self._checkpoints, step).name}.{MOMENTS}.partial"
        try:
            self._save_moments(moments, what)
            self._processes.together(lambda: write() if self._processes.is_first else None)
        finally:
            shutil.rmtree(moments, ignore_errors=True)

    def _save_moments(self, folder: Path, what: str) -> None:
        """Write the optimizer's moments into a new folder, every rank what it has."""

        def prepare() -> None:
            with writing(what):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)

        def save() -> None:
            with writing(what):
                save_parts(self._moments(), folder)

        self._processes.first(prepare)
        self._processes.together(save)

    def _moments(self) -> dict[str, Tensor]:
        """AdamW's, by name, as they are saved and loaded."""
        found = moments_of(self.optimizer, dict(self._network.named_parameters()))
        return {f"{name}.{kind}": self._as_saved(name, tensor) for (name, kind), tensor in found.items()}

    def _as_saved(self, name: str, tensor: Tensor) -> Tensor:
        """How what this process has of the parameter `name`, or of its moments, goes to disk and comes from there."""
        return tensor

    def _read(self, tensors: dict[str, Tensor], folder: Path) -> None:
        """Fill tensors from a checkpoint's files.

        Raises:
            SmhtError: they are not there, cannot be read, or are of another model.
        """
        if tensors and not folder.is_dir():
            raise SmhtError(f"{folder} is missing: another version of smht wrote this checkpoint; start the run anew")
        try:
            load_parts(tensors, folder)
        except OSError as error:
            raise SmhtError(f"{folder} cannot be read: {first_line(error)}") from error
        except (RuntimeError, ValueError) as error:
            raise SmhtError(f"the checkpoint does not fit the run's config.json: {first_line(error)}") from error

    def _score(self) -> Score:
        return self._processes.first(lambda: self._examples.score(self._network))

    def _whole_model(self) -> PreTrainedModel | None:
        """What is saved, on the first process."""
        return self._network

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Like the method of `Trainer`, without the moments."""
        optimizer, scheduler = self.optimizer, self.lr_scheduler
        assert isinstance(optimizer, torch.optim.Optimizer)
        assert isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR)
        torch.save(without_moments(optimizer.state_dict()), Path(output_dir) / OPTIMIZER)
        torch.save(scheduler.state_dict(), Path(output_dir) / SCHEDULER)

    def _random_state(self) -> list[tuple[str, bytes]]:
        """This process's files of random states; the first one's also by the name that a single process looks for."""
        with tempfile.TemporaryDirectory() as folder:
            self._save_rng_state(folder)
            files = [(path.name, path.read_bytes()) for path in sorted(Path(folder).iterdir())]
        if self._processes.size > 1 and self._processes.is_first:
            files += [(RANDOM_STATE, contents) for _, contents in files]
        return files

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        self._processes.together(lambda: self._read(self._moments(), Path(checkpoint) / MOMENTS))
        # The optimizer remembers the rate of the schedule that it was saved under; an extended run has another.
        scheduler, optimizer = self.lr_scheduler, self.optimizer
        assert isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR)
        assert isinstance(optimizer, torch.optim.Optimizer)
        for group, peak, factor in zip(optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True):
            group["lr"] = peak * factor(scheduler.last_epoch)
        scheduler._last_lr = [group["lr"] for group in optimizer.param_groups]

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse weights of another model. Tied weights are saved once, so one of their names is missing."""
        wrong = sorted(
            {*load_result.missing_keys, *load_result.unexpected_keys} - self._network.all_tied_weights_keys.keys()
        )
        if wrong:
            raise SmhtError(f"the checkpoint does not fit the run's config.json: see {wrong[0]}")
