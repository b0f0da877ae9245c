"""What a user asks of a comparison."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from smht.comparison.budget import TOKENS_PER_PARAMETER, Budget
from smht.comparison.search import SHARE
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
        search_share: how long to try each of them, as a part of the length.
        solve_depth: whether the number of blocks is to choose too.
        lengths: multiples of the context, windows of which the trained models are evaluated on; if not given,
            `lengths.MULTIPLES` where the variants differ in their positions, else none.
        tokens_per_parameter: how long to train where the budget gives no length, by the first variant's parameters.
        factors: by variant, what its default rate is multiplied with where no rates are tried; 1 for those left out.
    """

    training: TrainRequest
    variants: tuple[Variant, ...]
    budget: Budget
    seeds: int = 3
    rates: int = 5
    search_share: float = SHARE
    solve_depth: bool = False
    lengths: tuple[float, ...] | None = None
    tokens_per_parameter: float = TOKENS_PER_PARAMETER
    factors: Mapping[str, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value, most in (("seeds", self.seeds, 1000), ("rates", self.rates, MOST_RATES)):
            if not 1 <= value <= most:
                raise UsageError(f"{name} = {value} must be from 1 to {most}")
        if not 0 < self.search_share <= 1:
            raise UsageError(f"search_share = {self.search_share} must be above 0 and at most 1, the whole length")
        if not 0 < self.tokens_per_parameter < math.inf:
            raise UsageError(f"tokens_per_parameter = {self.tokens_per_parameter} must be above 0 and finite")
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
