"""Which variants nothing else beats in loss and in cost at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smht.comparison.fits import MET
from smht.comparison.report.outcomes import Outcome

_SAME = 1 + 2 * MET


@dataclass(frozen=True)
class Cost:
    """What a low loss is paid for with.

    Attributes:
        name: one word.
        label: for an axis.
        measure: of an outcome, the mean over its seeds.
    """

    name: str
    label: str
    measure: Callable[[Outcome], float | None]


COSTS = (
    Cost("seconds", "seconds of training", lambda outcome: outcome.mean(lambda trial: trial.seconds)),
    Cost("parameters", "parameters", lambda outcome: outcome.mean(lambda trial: trial.parameters)),
    Cost(
        "multiplications",
        "training multiplications",
        lambda outcome: outcome.mean(lambda trial: trial.training_multiply_adds),
    ),
)


def priced(outcomes: Sequence[Outcome], cost: Cost) -> dict[str, tuple[float, float]]:
    """Cost and mean loss of every variant that has both."""
    measured = [(outcome, cost.measure(outcome)) for outcome in outcomes if outcome.loss is not None]
    return {o.variant: (price, o.loss.mean) for o, price in measured if price is not None and o.loss is not None}


def telling_costs(outcomes: Sequence[Outcome]) -> list[Cost]:
    """The costs in which variants differ by more than a budget that all meet explains."""
    telling = []
    for cost in COSTS:
        prices = [price for price, _ in priced(outcomes, cost).values()]
        if prices and max(prices) > _SAME * min(prices):
            telling.append(cost)
    return telling


def pareto_front(points: dict[str, tuple[float, float]]) -> list[str]:
    """Those that no other is at least as good as in both and better in one, by rising cost."""
    front = [
        name
        for name, point in points.items()
        if not any(other[0] <= point[0] and other[1] <= point[1] and other != point for other in points.values())
    ]
    return sorted(front, key=lambda name: points[name])
