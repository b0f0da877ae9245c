"""The loss on windows of other lengths than were trained on: a table and a picture. The picture needs matplotlib."""

from collections.abc import Mapping, Sequence
from typing import Any

from smht.comparison.report.document import Figure, Table
from smht.comparison.report.figure_style import INK, LineStyle, scale_x
from smht.comparison.report.figure_svg import draw_figure
from smht.comparison.report.numbers import NOTHING, write_interval
from smht.comparison.report.outcomes import Outcome
from smht.comparison.statistics import Interval, mean_interval


def losses_by_length(outcome: Outcome) -> dict[int, Interval | None]:
    """Mean loss over seeds at each length that was tried; None where no seed has one."""
    found: dict[int, list[float]] = {}
    for trial in outcome.finals:
        for point in trial.lengths:
            losses = found.setdefault(int(point["length"]), [])
            if point["validation_loss"] is not None:
                losses.append(float(point["validation_loss"]))
    return {length: mean_interval(losses) if losses else None for length, losses in sorted(found.items())}


def length_table(outcomes: Sequence[Outcome], context: int | None) -> Table | None:
    """Loss at each length; None where none was tried."""
    by_variant = {outcome.variant: losses_by_length(outcome) for outcome in outcomes if outcome.finals}
    lengths = sorted({length for losses in by_variant.values() for length in losses})
    if not lengths:
        return None
    rows = [(name, *(write_interval(losses.get(length)) for length in lengths)) for name, losses in by_variant.items()]
    reasons = dict.fromkeys(
        f"{outcome.variant} at {point['length']}: {point['why_not']}"
        for outcome in outcomes
        for trial in outcome.finals
        for point in trial.lengths
        if point["why_not"] is not None
    )
    note = "Everything held out, in windows of each length, so that longer ones also give more to look back at. "
    note += f"{NOTHING}: {'; '.join(reasons)}." if reasons else ""
    headers = (f"{length} (trained)" if length == context else str(length) for length in lengths)
    return Table("Validation loss by length of window, nats", ("variant", *headers), rows, note=note.strip())


def draw_lengths(
    outcomes: Sequence[Outcome], styles: Mapping[str, LineStyle], context: int | None
) -> tuple[Figure, ...]:
    """Loss against length; nothing where none was tried.

    Raises:
        UsageError: matplotlib is missing.
    """
    lines = {}
    for outcome in outcomes:
        points = [(length, loss) for length, loss in losses_by_length(outcome).items() if loss is not None]
        if points:
            lines[outcome.variant] = points
    if not lines:
        return ()

    def draw(panel: Any) -> None:
        for name, points in lines.items():
            x, y = [length for length, _ in points], [interval.mean for _, interval in points]
            panel.plot(x, y, **styles[name].sample)
            for length, interval in points:
                if interval.half_width is not None:
                    panel.plot([length, length], [interval.low, interval.high], color=styles[name].color, linewidth=1)
        if context is not None:
            panel.axvline(context, color=INK, linewidth=1, linestyle=":")
        lengths = sorted({length for points in lines.values() for length, _ in points})
        scale_x(panel, [float(length) for length in lengths], is_log=True)
        panel.set_xticks(lengths, [str(length) for length in lengths])
        panel.set_xlabel("tokens a window (dotted: as trained)")
        panel.set_ylabel("validation loss, nats")

    ends = "; ".join(f"{name} {write_interval(points[-1][1])} at {points[-1][0]}" for name, points in lines.items())
    return (draw_figure("lengths", "Loss against length of window", f"At the longest: {ends}.", draw, styles),)
