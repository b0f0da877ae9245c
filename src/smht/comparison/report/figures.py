"""The report's other pictures: paired differences, learning rates, what a low loss costs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smht.comparison.report.document import Figure
from smht.comparison.report.figure_style import FAINT, INK, LineStyle, scale_x, shorten
from smht.comparison.report.figure_svg import draw_figure
from smht.comparison.report.numbers import write_interval, write_short
from smht.comparison.report.outcomes import Outcome
from smht.comparison.report.pareto import Cost, pareto_front, priced, telling_costs
from smht.comparison.statistics import PairedDifference

_LOSS = "validation loss, nats"
_FAR = 3.0
"""From which ratio on an axis is logarithmic."""


def draw_differences(differences: Sequence[PairedDifference], styles: Mapping[str, LineStyle]) -> tuple[Figure, ...]:
    """Each variant's difference to the reference with its interval, a line each; nothing without differences.

    Raises:
        UsageError: matplotlib is missing.
    """
    shown = [difference for difference in differences if difference.interval is not None]
    if not shown:
        return ()
    values = "; ".join(f"{difference.variant} {write_interval(difference.interval)}" for difference in shown)
    reference = shown[0].reference

    def draw(panel: Any) -> None:
        for row, difference in enumerate(reversed(shown)):
            interval, style = difference.interval, styles[difference.variant]
            assert interval is not None
            fill = style.color if difference.is_told else "none"
            if interval.half_width is not None:
                panel.plot([interval.low, interval.high], [row, row], color=style.color, linewidth=2)
            panel.plot(interval.mean, row, marker=style.marker, color=style.color, markerfacecolor=fill, markersize=7)
        panel.axvline(0, color=INK, linewidth=1)
        panel.set_yticks(range(len(shown)), [shorten(difference.variant, 24) for difference in reversed(shown)])
        panel.set_ylim(-0.6, len(shown) - 0.4)
        panel.locator_params(axis="x", nbins=4)
        panel.grid(axis="y", visible=False)
        panel.set_xlabel(f"loss − {shorten(reference, 24)}, nats (left: better)")

    title = f"Paired difference to {reference}"
    return (draw_figure("differences", title, f"In nats: {values}.", draw, {}, height=0.9 + 0.3 * len(shown)),)


def draw_rates(outcomes: Sequence[Outcome], styles: Mapping[str, LineStyle]) -> tuple[Figure, ...]:
    """Loss against learning rate; nothing where no rate has a loss.

    Raises:
        UsageError: matplotlib is missing.
    """
    searches = {outcome.variant: outcome.search for outcome in outcomes if outcome.search.best is not None}
    if not searches:
        return ()
    best = "; ".join(f"{name} {write_short(s.rates[s.best or 0])}" for name, s in searches.items())

    def draw(panel: Any) -> None:
        for name, search in searches.items():
            points = [(rate, loss) for rate, loss in zip(search.rates, search.losses, strict=True) if loss is not None]
            panel.plot(*zip(*points, strict=True), **styles[name].sample | {"markersize": 4})
            place = search.best or 0
            panel.plot(search.rates[place], search.losses[place], **styles[name].sample | {"markersize": 9})
        rates = [rate for search in searches.values() for rate in search.rates]
        scale_x(panel, rates, is_log=min(rates) > 0)
        panel.set_xlabel("learning rate")
        panel.set_ylabel(_LOSS)

    description = f"{len(searches)} lines, one a variant. Best rates: {best}."
    return (draw_figure("rates", "Loss against learning rate in the search", description, draw, styles),)


def draw_pareto(outcomes: Sequence[Outcome], styles: Mapping[str, LineStyle]) -> tuple[Figure, ...]:
    """Loss against what it costs, the front marked; a picture for each cost in which the variants differ.

    Raises:
        UsageError: matplotlib is missing.
    """
    figures = []
    for cost in telling_costs(outcomes):
        points = priced(outcomes, cost)
        front = pareto_front(points)
        description = f"{len(points)} points, one a variant. On the front: {', '.join(front)}."
        draw = _pareto_drawer(outcomes, points, front, cost, styles)
        figures.append(draw_figure(f"pareto-{cost.name}", f"Loss against {cost.label}", description, draw, styles))
    return tuple(figures)


def _pareto_drawer(
    outcomes: Sequence[Outcome],
    points: Mapping[str, tuple[float, float]],
    front: Sequence[str],
    cost: Cost,
    styles: Mapping[str, LineStyle],
) -> Callable[[Any], None]:
    intervals = {outcome.variant: outcome.loss for outcome in outcomes}

    def draw(panel: Any) -> None:
        panel.step(*zip(*(points[name] for name in front), strict=True), where="post", color=FAINT, linewidth=1.2)
        for name, (price, loss) in points.items():
            style, interval = styles[name], intervals[name]
            fill = style.color if name in front else "none"
            if interval is not None and interval.half_width is not None:
                panel.plot([price, price], [interval.low, interval.high], color=style.color, linewidth=1)
            panel.plot(price, loss, marker=style.marker, color=style.color, markerfacecolor=fill, markersize=8)
        prices = [price for price, _ in points.values()]
        scale_x(panel, prices, is_log=min(prices) > 0 and max(prices) / min(prices) > _FAR)
        panel.margins(x=0.12)
        panel.set_xlabel(cost.label)
        panel.set_ylabel(_LOSS)

    return draw
