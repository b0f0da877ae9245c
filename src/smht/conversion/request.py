"""What a user asks of a dense run that is to be split."""

from dataclasses import asdict, dataclass, field
from typing import Any

from smht.errors import UsageError
from smht.layers.block import SPLITTABLE
from smht.training.budget import Budget
from smht.training.distillation import Recipe
from smht.training.request import LARGEST_SEED


@dataclass(frozen=True)
class SplitRequest:
    """A dense run to split.

    Attributes:
        run: its folder.
        heads: blocks a projection; the run's number of heads.
        split: which projections become block-diagonal.
        mixing: `none` or `shuffle`.
        tokens: how many to learn from the teacher; 0 for the cut alone. None where `budget` says how long.
        budget: the same in steps, epochs or time.
        recipe: how the teacher counts.
        learning_rate: its peak; the task's default for the split model if not given.
        seed: of the order of the data, and of the model from scratch.
        scratch: whether the same split model is trained from fresh weights beside, for the same tokens.
    """

    run: str
    heads: int | None = None
    split: tuple[str, ...] = SPLITTABLE
    mixing: str = "none"
    tokens: int | None = None
    budget: Budget = field(default_factory=Budget)
    recipe: Recipe = field(default_factory=Recipe)
    learning_rate: float | None = None
    seed: int = 0
    scratch: bool = True

    def __post_init__(self) -> None:
        if self.tokens is not None and self.budget.is_given:
            raise UsageError("--tokens is a budget too: give one of --tokens, --steps, --epochs and --time")
        if self.tokens is not None and self.tokens < 0:
            raise UsageError(f"tokens = {self.tokens} must be at least 0")
        if self.learning_rate is not None and not 0 < self.learning_rate < float("inf"):
            raise UsageError(f"learning-rate = {self.learning_rate:g} must be above 0 and finite")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise UsageError(f"seed = {self.seed} must be from 0 to {LARGEST_SEED}")

    @property
    def is_cut_alone(self) -> bool:
        """Whether nothing is to be trained."""
        return self.tokens == 0

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "split": list(self.split)}
