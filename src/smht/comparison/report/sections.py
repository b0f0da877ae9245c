"""What stands in a report, in order."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from smht.comparison.report.curves import draw_curves
from smht.comparison.report.document import (
    Block,
    Bullets,
    Cell,
    Code,
    Document,
    Figure,
    Findings,
    Gallery,
    Paragraph,
    Section,
    Table,
)
from smht.comparison.report.figure_style import LineStyle, line_style
from smht.comparison.report.figure_svg import draw_legend
from smht.comparison.report.figures import draw_differences, draw_pareto, draw_rates
from smht.comparison.report.lengths import draw_lengths, length_table
from smht.comparison.report.notes import name_limit
from smht.comparison.report.numbers import write_count
from smht.comparison.report.record import Limit, Record
from smht.comparison.report.summary import Summary
from smht.comparison.report.tables import (
    cost_table,
    data_table,
    difference_table,
    failure_table,
    final_table,
    pareto_table,
    search_table,
    size_table,
)
from smht.tasks.corpus import counted
from smht.training.quantities import format_duration

_MOST_NAMES = 4
_MOST_PAIRED = 12


def compose(summary: Summary) -> Document:
    """The whole report.

    Raises:
        UsageError: matplotlib is missing.
    """
    styles = {outcome.variant: line_style(place) for place, outcome in enumerate(summary.outcomes)}
    names = list(styles)
    title = " against ".join(names) if 0 < len(names) <= 2 else ", ".join(names)
    sections = {
        "Findings": _findings(summary),
        "Results": _results(summary, styles),
        "Curves": _curves(summary, styles),
        **_lengths(summary, styles),
        "Costs": _costs(summary, styles),
        "Learning rates": _rates(summary, styles),
        "Failures": _failures(summary),
        "Sizes": [size_table(summary)] if summary.record.solved else [Paragraph("No sizes were recorded.")],
        "Data": _data(summary),
        "Repeat": _repeat(summary),
    }
    return Document(
        title=title if 0 < len(names) <= _MOST_NAMES else f"A comparison of {len(names)} variants",
        lead=_lead(summary),
        sections=tuple(Section(heading, tuple(blocks)) for heading, blocks in sections.items()),
    )


def _lead(summary: Summary) -> str:
    limits = [limit for limit in (summary.record.size, summary.record.length) if limit is not None]
    finals = sum(len(outcome.finals) + len(outcome.failed) for outcome in summary.outcomes)
    asked = finals + sum(len(outcome.missing) for outcome in summary.outcomes)
    searches = sum(trial.purpose == "search" for trial in summary.trials)
    seconds = sum(trial.seconds or 0.0 for trial in summary.trials)
    seeds = len(summary.record.seeds)
    parts = [f"{name_limit(limit)} = {_amount(limit)}" for limit in limits]
    parts.append("1 seed" if seeds == 1 else f"{seeds} seeds")
    parts.append(f"{finals} of {asked} final trials, {searches} in the rate search")
    if seconds < float("inf"):
        parts.append(f"{format_duration(seconds)} of training")
    return " · ".join(parts)


def _amount(limit: Limit) -> str:
    return format_duration(limit.amount) if limit.kind == "time" else write_count(limit.amount)


def _findings(summary: Summary) -> list[Block]:
    blocks: list[Block] = []
    if summary.sentences:
        sentences = zip(summary.sentences, summary.differences, strict=True)
        blocks.append(Findings(tuple(Cell(sentence, difference.is_told) for sentence, difference in sentences)))
    elif summary.reference is not None:
        blocks.append(Paragraph(f"{summary.reference} is the only variant: there is nothing to compare it with."))
    if summary.notes:
        blocks.append(Bullets(summary.notes))
    return blocks


def _results(summary: Summary, styles: Mapping[str, LineStyle]) -> list[Block]:
    if not any(outcome.finals for outcome in summary.outcomes):
        return [Paragraph("No final trial has come to a result yet.")]
    blocks: list[Block] = [final_table(summary)]
    if summary.differences:
        blocks.append(difference_table(summary.differences, f"Paired differences to {summary.reference}"))
        blocks += _gallery(draw_differences(summary.differences, styles), {})
    if summary.pairs and len(summary.outcomes) <= _MOST_PAIRED:
        blocks.append(difference_table(summary.pairs, "Every pair"))
    return blocks


def _curves(summary: Summary, styles: Mapping[str, LineStyle]) -> list[Block]:
    text = (
        "Mean over seeds, as far as all of them go; the band reaches from the lowest seed to the highest. The first "
        "part, which is steep, is left out. The last point of a seed is over everything held out, those before it may "
        "be over a part, so that the last step may be a jump. A cross ends a trial that failed or diverged."
    )
    gallery = _gallery(draw_curves(summary.outcomes, styles), styles)
    return [Paragraph(text), *gallery] if gallery else [Paragraph("No final trial has a curve yet.")]


def _lengths(summary: Summary, styles: Mapping[str, LineStyle]) -> dict[str, list[Block]]:
    """The section about windows of other lengths, where any were looked at."""
    context = summary.record.settings.get("context")
    table = length_table(summary.outcomes, context)
    if table is None:
        return {}
    return {"Lengths": [table, *_gallery(draw_lengths(summary.outcomes, styles, context), styles)]}


def _costs(summary: Summary, styles: Mapping[str, LineStyle]) -> list[Block]:
    if not any(outcome.finals for outcome in summary.outcomes):
        return [Paragraph("No final trial has come to a result yet.")]
    pictures = _gallery(draw_pareto(summary.outcomes, styles), styles)
    if not pictures:
        return [cost_table(summary), Paragraph("No costs differ by more than 2%, so there is no Pareto front.")]
    text = (
        "Filled points are on the Pareto front, which the line joins; bars are intervals of the loss. What all "
        "variants have alike within 2% has no front."
    )
    return [cost_table(summary), Paragraph(text), *pictures, pareto_table(summary)]


def _rates(summary: Summary, styles: Mapping[str, LineStyle]) -> list[Block]:
    if not any(outcome.search.rates for outcome in summary.outcomes):
        return [Paragraph("No rates were tried.")]
    said = [Bullets(summary.record.search_notes)] if summary.record.search_notes else []
    return [*_gallery(draw_rates(summary.outcomes, styles), styles), search_table(summary), *said]


def _failures(summary: Summary) -> list[Block]:
    return [failure_table(summary)] if summary.failures else [Paragraph("No trial failed or diverged.")]


def _data(summary: Summary) -> list[Block]:
    return [data_table(summary.record.data)] if summary.record.data else [Paragraph("No data were recorded.")]


def _repeat(summary: Summary) -> list[Block]:
    kinds = sorted({(trial.backend, trial.threads) for trial in summary.trials})
    software = [
        *summary.record.versions.items(),
        *(("backend", f"{name}, {counted(threads, 'thread')}") for name, threads in kinds),
    ]
    blocks: list[Block] = [Code(summary.record.command)] if summary.record.command else []
    if software:
        blocks.append(Table("Software", ("name", "version"), software, text_columns=frozenset({1})))
    if summary.record.settings:
        blocks.append(settings_table(summary.record, "Settings"))
    return blocks or [Paragraph("Neither command nor versions were recorded.")]


def settings_table(record: Record, title: str) -> Table:
    """All that makes two comparisons the same."""
    rows = [(name, _describe(value)) for name, value in record.settings.items()]
    return Table(title, ("name", "value"), rows, text_columns=frozenset({1}))


def _describe(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _gallery(figures: Sequence[Figure], styles: Mapping[str, LineStyle]) -> list[Block]:
    return [Gallery(draw_legend(f"legend-{figures[0].name}", styles), tuple(figures))] if figures else []
