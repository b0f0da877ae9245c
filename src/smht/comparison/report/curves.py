"""Learning curves: the mean over seeds, and how far the seeds are apart."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smht.comparison.report.document import Figure
from smht.comparison.report.figure_style import LineStyle, scale_x
from smht.comparison.report.figure_svg import draw_figure
from smht.comparison.report.numbers import write_interval
from smht.comparison.report.outcomes import Outcome
from smht.comparison.results import TrialResult

_MOST_POINTS = 200
_LEFT_OUT = 0.25
"""The first part of the curves, too steep to be shown beside what differs."""


@dataclass(frozen=True)
class MeanCurve:
    """Losses over seeds, all arrays of one length.

    Attributes:
        x: places that every seed's curve covers.
        mean: over seeds.
        low: of the lowest seed.
        high: of the highest.
        seeds: how many.
    """

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: int


# Fields of a curve's points, and what they are called on an axis.
_ABSCISSAS = {
    "tokens": "training tokens",
    "training_multiply_adds": "training multiplications",
    "seconds": "seconds of training",
}


def draw_curves(outcomes: Sequence[Outcome], styles: Mapping[str, LineStyle]) -> tuple[Figure, ...]:
    """Validation loss against tokens, training multiplications and seconds; nothing where there are no curves.

    Raises:
        UsageError: matplotlib is missing.
    """
    ends = "; ".join(f"{o.variant} {write_interval(o.loss)}" for o in outcomes if o.loss is not None)
    figures = []
    for field, label in _ABSCISSAS.items():
        means = {o.variant: curve for o in outcomes if (curve := mean_curve(o.finals, field)) is not None}
        broken = [(o.variant, curve) for o in outcomes for trial in o.failed if len((curve := _curve(trial, field))[0])]
        if means or broken:
            figures.append(
                draw_figure(
                    f"curves-{field.replace('_', '-')}",
                    f"Loss against {label}",
                    f"{len(means)} lines, one a variant. Loss at the end: {ends or 'none'}.",
                    _drawer(label, means, broken, styles),
                    styles,
                )
            )
    return tuple(figures)


def mean_curve(trials: Sequence[TrialResult], field: str) -> MeanCurve | None:
    """The curves of several seeds as one, where all have points; between its points a curve is a straight line.

    Args:
        trials: a seed each.
        field: of a curve's points, what the loss is given against.
    """
    curves = [curve for trial in trials if len((curve := _curve(trial, field))[0])]
    if not curves:
        return None
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    places = np.unique(np.concatenate([x for x, _ in curves]))
    places = places[(places >= first) & (places <= last)]
    if not len(places):
        return None
    if len(places) > _MOST_POINTS:
        places = np.linspace(first, last, _MOST_POINTS)
    losses = np.stack([np.interp(places, x, y) for x, y in curves])
    return MeanCurve(places, losses.mean(0), losses.min(0), losses.max(0), len(curves))


def _curve(trial: TrialResult, field: str) -> tuple[np.ndarray, np.ndarray]:
    """Places in rising order and losses; points that are no numbers are left out."""
    points = [(point[field], point["validation_loss"]) for point in trial.curve]
    finite = {float(x): float(y) for x, y in points if None not in (x, y) and math.isfinite(x) and math.isfinite(y)}
    table = np.array(sorted(finite.items())).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _drawer(
    label: str,
    means: Mapping[str, MeanCurve],
    broken: Sequence[tuple[str, tuple[np.ndarray, np.ndarray]]],
    styles: Mapping[str, LineStyle],
) -> Callable[[Any], None]:
    def draw(panel: Any) -> None:
        for name, curve in means.items():
            style = styles[name]
            if curve.seeds > 1:
                panel.fill_between(curve.x, curve.low, curve.high, color=style.color, alpha=0.18, linewidth=0)
            panel.plot(curve.x, curve.mean, **style.line)
            panel.plot(curve.x[-1], curve.mean[-1], **style.sample)
        for name, (x, loss) in broken:
            panel.plot(x, loss, **styles[name].line | {"linewidth": 0.9})
            panel.plot(x[-1], loss[-1], color=styles[name].color, marker="x", markersize=8, markeredgewidth=2)
        curves = [(c.x, c.mean) for c in means.values()] + [curve for _, curve in broken]
        _zoom(panel, curves)
        scale_x(panel, [0.0])
        panel.set_xlabel(label)
        panel.set_ylabel("validation loss, nats")

    return draw


def _zoom(panel: Any, curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    """Leave out the steep beginning."""
    whole = max(float(x[-1]) for x, _ in curves)
    late = [float(np.interp(_LEFT_OUT * whole, x, loss)) for x, loss in curves]
    lowest = min(float(loss.min()) for _, loss in curves)
    highest = max(late)
    if whole > 0:
        panel.set_xlim(0, 1.04 * whole)
    if highest > lowest:
        panel.set_ylim(lowest - 0.05 * (highest - lowest), highest)
