"""What a user asks of a comparison."""

from dataclasses import dataclass

from smht.comparison.budget import Budget
from smht.comparison.variants import CHOSEN_BY_VARIANTS, Variant
from smht.errors import UsageError
from smht.training.request import LARGEST_SEED, TrainRequest

MOST_RATES = 25


@dataclass(frozen=True)
class CompareRequest:
    """A comparison of language models.

    Attributes:
        training: text, tokenizer, context, batch size, device, the first seed, and the architecture that the variants
            change.
        variants: what to compare.
        budget: what is equal between them.
        seeds: how many times to train each.
        rates: how many learning rates to try for each; 1 for its default rate and no search.
        solve_depth: whether the number of blocks is to choose too.
        lengths: multiples of the context, windows of which the trained models are evaluated on; if not given,
            `lengths.MULTIPLES` where the variants differ in their positions, else none.
    """

    training: TrainRequest
    variants: tuple[Variant, ...]
    budget: Budget
    seeds: int = 3
    rates: int = 5
    solve_depth: bool = False
    lengths: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name, value, most in (("seeds", self.seeds, 1000), ("rates", self.rates, MOST_RATES)):
            if not 1 <= value <= most:
                raise UsageError(f"{name} = {value} must be from 1 to {most}")
        if self.training.seed + self.seeds - 1 > LARGEST_SEED:
            raise UsageError(f"seed = {self.training.seed} and {self.seeds - 1} after it pass {LARGEST_SEED}")
        self._refuse_ignored()

    def _refuse_ignored(self) -> None:
        """Refuse what would have no effect."""
        given, size = self.training.architecture, self.budget.size
        for name in CHOSEN_BY_VARIANTS:
            if name in given:
                raise UsageError(f"variants say what {name} is: leave {_flag(name)} out")
        if size is not None and size.kind == "width" and self.solve_depth:
            raise UsageError("--solve-depth finds a width and a depth, and budget width gives the width: leave one out")
        for name in ("hidden_size", "intermediate_size"):
            if size is not None and name in given and not self.solve_depth:
                raise UsageError(f"budget {size.kind} says how wide models are: leave {_flag(name)} out")

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """Each of them."""
        return tuple(range(self.training.seed, self.training.seed + self.seeds))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
