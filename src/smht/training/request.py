"""What a user asks of a training run."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from smht.errors import UsageError, did_you_mean
from smht.tasks.table import DEFAULT_TASK, find_task
from smht.tasks.text_files import STANDARD_INPUT
from smht.training.budget import Budget
from smht.training.parametrisation import PARAMETRISATIONS, STANDARD

DTYPES = ("float32", "bfloat16")
LARGEST_SEED = 2**32 - 1
"""NumPy's limit, which transformers seeds too."""


@dataclass(frozen=True)
class TrainRequest:
    """A new run. What is None is chosen for the user.

    Attributes:
        task: a name in `smht.tasks.TASKS`.
        texts: files, folders, globs or `-`, or names that the task knows; none for the task's default.
        dataset: a Hugging Face dataset in place of texts.
        validation_texts: text to evaluate on; if none, a part of the training text is held out.
        validation_fraction: how much is held out.
        errors: `strict`, or `replace` for bytes that are not UTF-8.
        tokenizer: `byte`, `bpe` or `char`.
        vocab_size: for `bpe`.
        preset: a name in `smht.models.PRESETS`.
        architecture: fields of `SmhtConfig` that differ from the preset.
        from_run: a run whose model and tokenizer to start from.
        context: tokens in a training window.
        batch_size: windows a step.
        learning_rate: its peak.
        parametrisation: how the rate is spread over the weights, and how large they begin.
        warmup: steps of rising learning rate.
        weight_decay: AdamW's.
        dtype: `float32` or `bfloat16`.
        device: `auto`, `cpu`, `cuda` or `mps`.
        seed: of everything random.
        budget: how long.
        evaluate_every: steps between evaluations; a tenth of the run if not given.
        keep_checkpoints: how many.
    """

    task: str = DEFAULT_TASK
    texts: tuple[str, ...] = ()
    dataset: str | None = None
    validation_texts: tuple[str, ...] = ()
    validation_fraction: float = 0.1
    errors: str = "strict"
    tokenizer: str | None = None
    vocab_size: int | None = None
    preset: str | None = None
    architecture: dict[str, Any] = field(default_factory=dict)
    from_run: str | None = None
    context: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    parametrisation: str = STANDARD
    warmup: int | None = None
    weight_decay: float = 0.1
    dtype: str | None = None
    device: str = "auto"
    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    evaluate_every: int | None = None
    keep_checkpoints: int = 3

    def __post_init__(self) -> None:
        find_task(self.task)
        if self.texts and self.dataset:
            raise UsageError("texts and --dataset exclude each other: give one of them")
        if STANDARD_INPUT in self.validation_texts:
            raise UsageError("the text for --validation cannot come from standard input: name a file")
        # A window of one token may hold nothing to predict.
        if self.context == 1:
            raise UsageError("context = 1 must be at least 2")
        for name in ("vocab_size", "context", "batch_size", "learning_rate", "evaluate_every", "keep_checkpoints"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"{name} = {value} must be above 0 and finite")
        for name in ("warmup", "weight_decay", "seed"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise UsageError(f"{name} = {value} must be at least 0 and finite")
        if self.seed > LARGEST_SEED:
            raise UsageError(f"seed = {self.seed} must be at most {LARGEST_SEED}")
        if self.parametrisation not in PARAMETRISATIONS:
            known = did_you_mean(self.parametrisation, PARAMETRISATIONS)
            raise UsageError(f"parametrisation = {self.parametrisation!r}: {known}")
        if self.dtype not in (None, *DTYPES):
            raise UsageError(f"dtype = {self.dtype!r}: choose from {', '.join(DTYPES)}")

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)
