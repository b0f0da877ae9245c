"""From what was asked to what can be compared: data, tokenizer, sizes, and how long each trial is. Writes nothing."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transformers.utils import logging as transformers_logging

from smht.comparison.budget import Limit
from smht.comparison.fits import cost_of
from smht.comparison.lengths import MULTIPLES, to_tokens
from smht.comparison.measurement import Measured, measure
from smht.comparison.parametrisation import base_learning_rate
from smht.comparison.request import CompareRequest
from smht.comparison.results import Purpose
from smht.comparison.search import rate
from smht.comparison.sizes import Solved, change, solve
from smht.comparison.trial import Trial
from smht.comparison.variants import Variant
from smht.errors import UsageError
from smht.inspection.accounting import account
from smht.models import SmhtConfig
from smht.tasks.language_modelling import LanguageModelling
from smht.tasks.task import Examples, TaskData
from smht.training.budget import MOST_STEPS
from smht.training.device import resolve_device
from smht.training.memory import refuse_if_too_large
from smht.training.preparation import configuration, data_request, fit_to_data, make_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

POINTS = 10
"""How many points a final training's curve has; a search trial's has the last alone."""

_EVALUATION_SHARE = 0.2
_FEWEST_WINDOWS = 16
# A training step computes the forward pass and twice as much backward.
_FORWARD_SHARE = 1 / 3


@dataclass(frozen=True)
class Setting:
    """All that a comparison needs.

    Attributes:
        request: what was asked.
        data: as it was read.
        tokenizer: the one of all models.
        examples: the data in tokens.
        base: the architecture that the variants change.
        size: the budget for size.
        length: the budget for the length of a final training.
        solved: the variants with their sizes.
        context: tokens a window.
        batch_size: windows a step.
        device: where to train.
        lengths: in tokens, windows of which the trained models are evaluated on.
    """

    request: CompareRequest
    data: TaskData
    tokenizer: "PreTrainedTokenizerFast"
    examples: Examples
    base: SmhtConfig
    size: Limit
    length: Limit
    solved: tuple[Solved, ...]
    context: int
    batch_size: int
    device: str
    lengths: tuple[int, ...] = ()

    def search_trials(self, factor: float) -> list[Trial]:
        """A trial a variant, at a factor of its default rate."""
        seed = self.request.training.seed
        return [self._trial(solved, "search", seed, self.learning_rate(solved, factor)) for solved in self.solved]

    def final_trials(self, seed: int, rates: dict[str, float]) -> list[Trial]:
        """A trial for each variant that has a rate."""
        chosen = [solved for solved in self.solved if solved.variant.name in rates]
        return [self._trial(solved, "final", seed, rates[solved.variant.name]) for solved in chosen]

    def learning_rate(self, solved: Solved, factor: float) -> float:
        """A factor of a variant's default rate."""
        return rate(self.base_learning_rate(solved), factor)

    def base_learning_rate(self, solved: Solved) -> float:
        """A variant's default rate."""
        return base_learning_rate(solved.config, self.request.training.parametrisation)

    def _trial(self, solved: Solved, purpose: Purpose, seed: int, learning_rate: float) -> Trial:
        share = self.request.search_share if purpose == "search" else 1.0
        return Trial(
            variant=solved.variant.name,
            config=to_plain(solved.config),
            purpose=purpose,
            seed=seed,
            learning_rate=learning_rate,
            parametrisation=self.request.training.parametrisation,
            steps=None if self.length.kind == "time" else self.steps(solved, share),
            seconds=self.length.amount * share if self.length.kind == "time" else None,
            evaluations=1 if purpose == "search" else POINTS,
        )

    def steps(self, solved: Solved, share: float = 1.0) -> int:
        """How many steps of a variant a part of the length comes to, where that is no time.

        Raises:
            UsageError: the whole is less than a step, or more than anybody will live to see.
        """
        each = self.batch_size * self.context
        if self.length.kind == "training-multiplications":
            each *= 3 * account(solved.config, self.context).total.multiply_adds
        steps = round(self.length.amount / each)
        if steps < 1:
            raise UsageError(
                f"a budget of {self.length} is less than one step of {solved.variant.name}, {each:,}: "
                "give more, or a smaller --batch-size"
            )
        if steps > MOST_STEPS:
            raise UsageError(f"a budget of {self.length} is {steps:,} steps, more than the {MOST_STEPS:,} that can be")
        return max(1, round(steps * share))

    def measure(self) -> dict[str, Measured]:
        """Measured costs by variant."""
        return {
            solved.variant.name: measure(solved.config, self.examples, self.batch_size, self.device)
            for solved in self.solved
        }

    def evaluation_windows(self, measured: dict[str, Measured]) -> int | None:
        """How many validation windows to look at for a point on the way; None for all.

        The points cost no variant more than about a fifth of its training. Where steps are counted, it is they that
        tell, so that the number is the same whenever it is computed.
        """
        share = _EVALUATION_SHARE / (POINTS - 1)
        if self.length.kind == "time":
            windows = share * self.length.amount / max(each.window_seconds for each in measured.values())
        else:
            windows = share / _FORWARD_SHARE * self.batch_size * min(map(self.steps, self.solved))
        count = max(_FEWEST_WINDOWS, int(windows))
        return None if count >= self.examples.validation_items else count

    def expected_seconds(self, trial: Trial, measured: Measured, windows: int | None) -> float:
        """How long a trial will take, evaluations included."""
        training = trial.seconds if trial.steps is None else trial.steps * measured.step_seconds
        assert training is not None
        on_the_way = (trial.evaluations - 1) * (windows or self.examples.validation_items)
        passes = 1 + (len(self.lengths) if trial.purpose == "final" else 0)
        return training + (on_the_way + passes * self.examples.validation_items) * measured.window_seconds


def prepare(request: CompareRequest) -> Setting:
    """Read the data, make the tokenizer, find the sizes.

    Raises:
        UsageError: anything that cannot be compared as asked, in one line.
    """
    return prepare_all([request])[0]


def prepare_all(requests: Sequence[CompareRequest]) -> list[Setting]:
    """The same for several requests that ask for one training and the same variants: the data are read once.

    Raises:
        UsageError: anything that cannot be compared as asked, in one line.
    """
    transformers_logging.disable_progress_bar()
    training, variants, task = requests[0].training, requests[0].variants, LanguageModelling()
    device = resolve_device(training.device)
    base = configuration(training, task)
    _refuse_same(variants, base)  # before the data, which take a while
    data = task.read(data_request(training))
    tokenizer = make_tokenizer(training, task, data)
    base = fit_to_data(base, tokenizer, data)
    default = Limit("parameters", cost_of(change(base, variants[0]), "parameters"))
    sizes = [request.budget.size or default for request in requests]
    solved = [
        tuple(solve(variant, base, size, request.solve_depth) for variant in variants)
        for request, size in zip(requests, sizes, strict=True)
    ]
    context = base.max_position_embeddings
    batch_size = training.batch_size or task.default_batch_size(context)
    for each in itertools.chain.from_iterable(solved):
        refuse_if_too_large(each.config, batch_size, context, device)
    examples = data.encode(tokenizer, context, training.errors)
    settings = []
    for request, size, found in zip(requests, sizes, solved, strict=True):
        length = request.budget.length or _default_length(request, found)
        lengths = _lengths(request, found, context)
        setting = Setting(
            request, data, tokenizer, examples, base, size, length, found, context, batch_size, device, lengths
        )
        if length.kind != "time":
            for each in found:
                setting.steps(each)
        settings.append(setting)
    return settings


def _refuse_same(variants: Sequence[Variant], base: SmhtConfig) -> None:
    """Keep a model from being compared with itself, under a name that says what the architecture has anyway.

    Raises:
        UsageError: two variants are one model, or a variant makes none.
    """
    found: list[tuple[str, dict[str, Any]]] = []
    for variant in variants:
        fields = to_plain(change(base, variant))
        for name, others in found:
            if fields == others:
                raise UsageError(f"variants {name} and {variant.name} are the same model here: leave one of them out")
        found.append((variant.name, fields))


def _default_length(request: CompareRequest, solved: Sequence[Solved]) -> Limit:
    return Limit("tokens", round(request.tokens_per_parameter * cost_of(solved[0].config, "parameters")))


def _lengths(request: CompareRequest, solved: tuple[Solved, ...], context: int) -> tuple[int, ...]:
    differ = len({each.config.position_embedding for each in solved}) > 1
    multiples = (MULTIPLES if differ else ()) if request.lengths is None else request.lengths
    return to_tokens(multiples, context)


def to_plain(config: SmhtConfig) -> dict[str, Any]:
    """The configuration as a dictionary that is the same with every version of transformers."""
    return {name: value for name, value in config.to_diff_dict().items() if name != "transformers_version"}
