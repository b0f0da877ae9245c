"""Learning from a teacher: its probabilities beside the text's own tokens (Hinton et al. 2015, arXiv:1503.02531).

The loss is `w·T²·KL(teacher ‖ student) + (1 − w)·cross-entropy`, with the logits of both models divided by the
temperature `T` in the first term; `T²` keeps its gradient as large as that of the second.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from smht.errors import UsageError
from smht.models.labels import IGNORED
from smht.training import files
from smht.training.run_folder import WEIGHTS, RunFolder

TEACHER = "teacher"
"""The folder of a run that holds the teacher."""


@dataclass(frozen=True)
class Recipe:
    """How to learn from a teacher.

    Attributes:
        weight: `w`, of the teacher's probabilities; the rest is that of the tokens.
        temperature: `T`.

    Raises:
        UsageError: a weight outside 0 to 1, or a temperature that is not above 0.
    """

    weight: float = 0.9
    temperature: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise UsageError(f"teacher-weight = {self.weight:g} must be from 0 to 1")
        if not 0 < self.temperature < float("inf"):
            raise UsageError(f"temperature = {self.temperature:g} must be above 0 and finite")


class Distillation:
    """The loss of a student beside its teacher.

    Args:
        teacher: gives the logits of the same batches; put into evaluation mode.
        recipe: how much they count.
    """

    def __init__(self, teacher: PreTrainedModel, recipe: Recipe) -> None:
        self.teacher = teacher.eval()
        self.teacher.requires_grad_(False)
        self.recipe = recipe

    def add(self, loss: Tensor, logits: Tensor, batch: dict[str, Any]) -> Tensor:
        """The whole loss.

        Args:
            loss: mean cross-entropy of the student, nats.
            logits: the student's, `[..., V]`.
            batch: what the student was given; `labels` `[...]` say which places count.
        """
        weight, temperature = self.recipe.weight, self.recipe.temperature
        with torch.no_grad():
            theirs = nn.Module.to(self.teacher, logits.device)(**with_logits(batch)).logits
        counted = batch["labels"] != IGNORED
        ours = F.log_softmax(logits[counted].float() / temperature, dim=-1)
        theirs = F.log_softmax(theirs[counted].float() / temperature, dim=-1)
        divergence = F.kl_div(ours, theirs, reduction="batchmean", log_target=True)
        return weight * temperature**2 * divergence + (1 - weight) * loss

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> Tensor:
        """The same of a batch, the student's forward pass included."""
        outputs = model(**with_logits(batch))
        return self.add(outputs.loss, outputs.logits, batch)


def with_logits(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch that gives logits beside the loss."""
    return {name: value for name, value in batch.items() if name != "skip_logits"}


def keep_teacher(run: RunFolder, distillation: Distillation) -> dict[str, Any]:
    """Save the teacher in a run's folder; what `run.json` has to say of it is returned."""
    folder = run.path / TEACHER
    distillation.teacher.save_pretrained(folder)
    return {**asdict(distillation.recipe), "sha256": files.sha256(folder / WEIGHTS)}


def read_distillation(run: RunFolder, record: dict[str, Any]) -> Distillation | None:
    """What a run learns from besides its text; None for a run without a teacher.

    Raises:
        UsageError: the teacher is gone or damaged.
    """
    entry = record.get("distillation")
    if entry is None:
        return None
    folder = run.path / TEACHER
    if not (folder / WEIGHTS).exists():
        raise UsageError(f"the teacher of {run.path} is gone: {Path(TEACHER) / WEIGHTS} is missing")
    if files.sha256(folder / WEIGHTS) != entry.get("sha256"):
        raise UsageError(f"the teacher of {run.path} is damaged: {folder / WEIGHTS} is not what was written")
    return Distillation(RunFolder(folder).load_model(), Recipe(entry["weight"], entry["temperature"]))
