"""Pictures of a ladder of sizes: what was measured, the laws through it, and what they foretell."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from smht.comparison.report.document import Figure
from smht.comparison.report.figure_style import FAINT, LineStyle, scale_x
from smht.comparison.report.figure_svg import draw_figure
from smht.comparison.report.ladder import Ladder, Laws
from smht.comparison.report.numbers import write_number, write_short
from smht.comparison.statistics import LEVEL

REACH = 10.0
"""How many times the largest size laws are drawn up to."""
_PLACES = 60


def draw_laws(ladder: Ladder, styles: Mapping[str, LineStyle]) -> tuple[Figure, ...]:
    """Loss against size, a picture an axis; nothing without laws.

    Raises:
        UsageError: matplotlib is missing.
    """
    figures = []
    for laws in ladder.laws:
        if not laws.fits:
            continue
        ends = "; ".join(
            f"{name} {write_number(fit.loss(fit.largest).value)} at {write_short(fit.largest)}, foretold "
            f"{write_number(fit.loss(REACH * fit.largest).value)} at {write_short(REACH * fit.largest)}"
            for name, fit in laws.fits.items()
        )
        title, description = f"Loss against {laws.axis.label}", f"{len(laws.fits)} laws, one a variant. {ends}."
        shown = {name: styles[name] for name in laws.fits}
        draw = _drawer(laws, ladder.has_intervals, styles)
        figures.append(draw_figure(f"laws-{laws.axis.name}", title, description, draw, shown))
    return tuple(figures)


def _drawer(laws: Laws, has_intervals: bool, styles: Mapping[str, LineStyle]) -> Callable[[Any], None]:
    smallest = min(fit.smallest for fit in laws.fits.values())
    largest = max(fit.largest for fit in laws.fits.values())

    def draw(panel: Any) -> None:
        for name, fit in laws.fits.items():
            style = styles[name]
            measured = np.geomspace(fit.smallest, fit.largest, _PLACES)
            beyond = np.geomspace(fit.largest, REACH * largest, _PLACES)
            panel.plot(measured, fit.law.loss(measured), color=style.color, linewidth=1.8)
            panel.plot(beyond, fit.law.loss(beyond), color=style.color, linewidth=1.4, linestyle=(0, (2, 2)))
            if has_intervals:
                whole = np.concatenate([measured, beyond])
                losses = np.stack([law.loss(whole) for law in fit.replicates])
                low, high = np.quantile(losses, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
                panel.fill_between(whole, low, high, color=style.color, alpha=0.15, linewidth=0)
            sizes, points = [point.size for point in fit.points], [point.loss for point in fit.points]
            panel.plot(sizes, points, linestyle="none", marker=style.marker, color=style.color, markersize=4.5)
        for crossing in laws.crossings:
            if crossing.size is not None and crossing.size <= REACH * largest:
                panel.axvline(crossing.size, color=FAINT, linewidth=1)
        scale_x(panel, [smallest, REACH * largest], is_log=True)
        panel.set_xlabel(laws.axis.label)
        panel.set_ylabel("validation loss, nats")

    return draw
