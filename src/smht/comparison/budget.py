"""What is equal between the models compared: one budget for their size, one for the length of their training."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from smht.errors import UsageError, did_you_mean
from smht.training.quantities import format_duration, parse_amount, parse_duration

SIZES = {
    "parameters": "parameters, embeddings included",
    "multiplications": "multiply-adds a token in a forward pass",
    "width": "channels",
}
LENGTHS = {
    "tokens": "tokens to learn from",
    "time": "seconds of training",
    "training-multiplications": "multiply-adds in all",
}
TOKENS_PER_PARAMETER = 20
"""How long to train where only a size is given: Hoffmann et al. 2022, arXiv:2203.15556."""


@dataclass(frozen=True)
class Limit:
    """One budget.

    Attributes:
        kind: a key of `SIZES` or of `LENGTHS`.
        amount: how much of it; seconds for a time.
    """

    kind: str
    amount: float

    def __str__(self) -> str:
        if self.kind == "time":
            return f"{format_duration(self.amount) if self.amount >= 1 else f'{self.amount:g} s'} of training"
        return f"{self.amount:,.0f} {(SIZES | LENGTHS)[self.kind]}"


@dataclass(frozen=True)
class Budget:
    """Both budgets; None for one that was not given, of which one at most is."""

    size: Limit | None
    length: Limit | None


def parse_budgets(texts: Sequence[str]) -> Budget:
    """The budgets in texts like `parameters=0.8M` and `tokens=1.5M`, or in comma-separated lists of them.

    Raises:
        UsageError: none at all, two for size or two for length, a kind that does not exist (the nearest are offered),
            or an amount that is no positive number.
    """
    limits = [_parse(part.strip()) for text in texts for part in text.split(",") if part.strip()]
    if not limits:
        raise UsageError("give a --budget, such as parameters=0.8M, time=2m, or tokens=1.5M with a size")
    found: list[Limit | None] = []
    for name, kinds in (("size", SIZES), ("length of training", LENGTHS)):
        these = [limit for limit in limits if limit.kind in kinds]
        if len(these) > 1:
            raise UsageError(f"{these[0].kind} and {these[1].kind} are both budgets for the {name}: give one")
        found.append(these[0] if these else None)
    return Budget(*found)


def parse_length(texts: Sequence[str]) -> Budget:
    """The budget for length alone, if one is given, in texts as for `parse_budgets`.

    Raises:
        UsageError: what `parse_budgets` refuses, or a budget for size.
    """
    if not texts:
        return Budget(None, None)
    found = parse_budgets(texts)
    if found.size is not None:
        raise UsageError(f"--sizes say how large models are: leave the budget {found.size.kind} out")
    return found


def parse_sizes(texts: Sequence[str], least: int) -> tuple[Limit, ...]:
    """The sizes of a ladder, in rising order, in texts like `100k,200k,400k,800k` or `multiplications=100k,200k`.

    Args:
        texts: amounts separated by commas; the first may name what all of them are of, parameters if it does not.
        least: how many there have to be.

    Raises:
        UsageError: fewer, the same twice, two kinds, or an amount that is no positive number.
    """
    parts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    kind, sign, first = (parts[0] if parts else "").rpartition("=")
    kind = kind.strip() if sign else "parameters"
    if kind not in SIZES:
        raise UsageError(f"sizes cannot be of {kind!r}: {did_you_mean(kind, SIZES)}")
    amounts = [first, *parts[1:]] if parts else []
    for amount in amounts:
        if "=" in amount:
            raise UsageError(f"sizes are of one kind, {kind}: write {amount!r} without it")
    limits = sorted((_parse(f"{kind}={amount}") for amount in amounts), key=lambda limit: limit.amount)
    for one, other in itertools.pairwise(limits):
        if one == other:
            raise UsageError(f"size {one} is there twice: name each once")
    if len(limits) < least:
        raise UsageError(
            f"a power law needs at least {least} sizes, not {len(limits)}: give --sizes such as 100k,200k,400k,800k"
        )
    return tuple(limits)


def _parse(text: str) -> Limit:
    kind, sign, amount = (part.strip() for part in text.partition("="))
    if kind not in SIZES | LENGTHS:
        raise UsageError(f"there is no budget {kind!r}: {did_you_mean(kind, SIZES | LENGTHS)}")
    if not sign:
        raise UsageError(f"budget {text!r} says no amount: write it like {kind}={_example(kind)}")
    if kind == "time":
        try:
            return Limit(kind, parse_duration(amount))
        except UsageError as error:
            raise UsageError(f"budget time={amount}: {error}") from None
    return Limit(kind, _parse_count(kind, amount))


def _parse_count(kind: str, text: str) -> int:
    amount = parse_amount(text, f"budget {kind}", _example(kind))
    if kind == "width" and amount != int(amount):
        raise UsageError(f"budget width={text} must be a whole number")
    return round(amount)


def _example(kind: str) -> str:
    return {"width": "256", "time": "2m", "training-multiplications": "3e12"}.get(kind, "1.5M")
