"""What stands in the report of a ladder of sizes, in order."""

import math
import shlex
from collections.abc import Mapping

from smht.comparison.report.document import (
    Block,
    Bullets,
    Cell,
    Code,
    Document,
    Findings,
    Gallery,
    Paragraph,
    Section,
    Table,
)
from smht.comparison.report.figure_style import LineStyle, line_style
from smht.comparison.report.figure_svg import draw_legend
from smht.comparison.report.ladder import Axis, Ladder, Laws, Rung, name_size
from smht.comparison.report.ladder_figures import REACH, draw_laws
from smht.comparison.report.notes import name_limit
from smht.comparison.report.numbers import NOTHING, write_count, write_interval, write_number, write_short
from smht.comparison.report.sections import settings_table
from smht.comparison.report.tables import data_table, failure_table
from smht.comparison.scaling_law import LEAST_SIZES, STEEPEST, Crossing, Estimate
from smht.comparison.statistics import LEVEL
from smht.training.quantities import format_duration

_FACTORS = (1.0, 3.0, 10.0, 30.0)
"""How many times the largest size the table of what is foretold goes up to."""
_CAUTION = "Laws are fitted to the sizes measured; that they hold beyond, no interval says."


def compose_ladder(ladder: Ladder) -> Document:
    """The whole report.

    Raises:
        UsageError: matplotlib is missing.
    """
    styles = {name: line_style(place) for place, name in enumerate(ladder.variants)}
    sections = {
        "Findings": _findings(ladder),
        "Laws": _laws(ladder, styles),
        "Foretold": _foretold(ladder),
        "Sizes": [_size_table(ladder)] if ladder.rungs else [Paragraph("No size has been begun yet.")],
        "Failures": _failures(ladder),
        "Data": [data_table(ladder.rungs[0].summary.record.data)] if ladder.rungs else [],
        "Repeat": _repeat(ladder),
    }
    return Document(
        title=f"Scaling of {', '.join(ladder.variants)}",
        lead=_lead(ladder),
        sections=tuple(Section(heading, tuple(blocks)) for heading, blocks in sections.items() if blocks),
    )


def _lead(ladder: Ladder) -> str:
    trials = [trial for rung in ladder.rungs for trial in rung.summary.trials]
    smallest, largest = ladder.sizes[0], ladder.sizes[-1]
    seeds = "1 seed" if len(ladder.seeds) == 1 else f"{len(ladder.seeds)} seeds"
    return " · ".join(
        [
            f"{len(ladder.sizes)} sizes",
            f"{write_short(smallest.amount)} to {write_short(largest.amount)} {name_limit(largest)}",
            seeds,
            f"{len(trials)} trials",
            f"{format_duration(math.fsum(trial.seconds or 0.0 for trial in trials))} of training",
        ]
    )


def _findings(ladder: Ladder) -> list[Block]:
    told, notes = tell_crossings(ladder), _notes(ladder)
    blocks: list[Block] = [Findings(told)] if told else []
    return [*blocks, Bullets(notes)] if notes else blocks


def tell_crossings(ladder: Ladder) -> tuple[Cell, ...]:
    """A sentence for each variant beside the reference, marked where the interval lets one tell something."""
    if not ladder.laws:
        return ()
    laws = ladder.laws[0]
    return tuple(_tell_crossing(crossing, laws.axis, ladder.has_intervals) for crossing in laws.crossings)


def _tell_crossing(crossing: Crossing, axis: Axis, has_interval: bool) -> Cell:
    smallest, largest = write_short(crossing.smallest), write_short(crossing.largest)
    end = f"stays there up to {largest}"
    if crossing.size is not None:
        end = f"from {write_short(crossing.size)} on it no longer does"
    fits = f"{smallest} {axis.label} the law of {crossing.better} lies below that of {crossing.worse}, and {end}"
    if not has_interval:
        return Cell(f"At {fits} (one seed: no interval).")
    basis = f"{crossing.share:.0%} of the bootstrap's samples cross between {smallest} and {largest}"
    if crossing.size is None:
        is_told = crossing.stays > LEVEL  # samples in which the other is ahead from the start speak against it too
        basis += f", and {crossing.stays:.0%} agree"
    else:
        is_told = crossing.low > 0 and crossing.high < math.inf
        ends = f"{_end(crossing.low, crossing)} to {_end(crossing.high, crossing)}"
        basis += f"; {LEVEL:.0%} interval of the crossing: {ends}"
    doubt = "Whether and where the laws cross cannot be told. By the best fits, at"
    return Cell(f"{'At' if is_told else doubt} {fits} ({basis}).", is_told)


def _end(size: float, crossing: Crossing) -> str:
    if size == 0:
        return f"below {write_short(crossing.smallest)}"
    return f"beyond {write_short(crossing.largest)}" if math.isinf(size) else write_short(size)


def _notes(ladder: Ladder) -> tuple[str, ...]:
    """What a reader has to know before believing the laws."""
    notes = [
        f"{name}: no law, since {count} sizes have a result, and a law takes {LEAST_SIZES}."
        for name, count in ladder.unfitted.items()
    ]
    if not ladder.has_intervals:
        notes.append("One seed: no interval is claimed for any number here.")
    begun = {rung.size for rung in ladder.rungs}
    missing = [name_size(size) for size in ladder.sizes if size not in begun]
    if missing:
        notes.append(f"Not begun yet: {', '.join(missing)}. The same command again goes on.")
    for rung in ladder.rungs:
        said = [note for note in rung.summary.notes if ladder.has_intervals or "no interval" not in note]
        notes += [f"At {name_size(rung.size)}: {note}" for note in said]
    if ladder.search_at == "smallest":
        notes.append(
            "Learning rates were tried at the smallest size alone, and its best factors of the default rates taken at "
            "all. Where they fit larger sizes worse, laws and crossings show that, and no interval says so: "
            "--search-at every tries rates at each size, and those of --parametrisation mup are made to carry over."
        )
    return tuple(notes)


def _laws(ladder: Ladder, styles: Mapping[str, LineStyle]) -> list[Block]:
    figures = draw_laws(ladder, styles)
    if not figures:
        return [Paragraph(f"No variant has results at {LEAST_SIZES} sizes yet.")]
    text = (
        "loss(N) = E + A · N^(−α). Points are trials, lines the laws, dotted beyond the sizes measured"
        f"{f', bands their {LEVEL:.0%} intervals' if ladder.has_intervals else ''}; an upright line is a crossing. "
    )
    gallery = Gallery(draw_legend("legend-laws", {name: styles[name] for name in ladder.laws[0].fits}), figures)
    return [Paragraph(text + _CAUTION), gallery, *(_law_table(ladder, laws) for laws in ladder.laws)]


def _law_table(ladder: Ladder, laws: Laws) -> Table:
    rows = []
    for name, fit in laws.fits.items():
        sizes = f"{write_short(fit.smallest)} to {write_short(fit.largest)}"
        values = (
            _estimate(ladder, fit.irreducible),
            write_number(fit.law.log_coefficient),
            _estimate(ladder, fit.exponent),
        )
        rows.append((name, sizes, *values, str(len(fit.points))))
    note = (
        f"In brackets the {LEVEL:.0%} interval, from a bootstrap of residuals. A lower E goes with a smaller α: the "
        f"two are less sure than the losses that they make. α is sought from 0 to {STEEPEST:g}."
        if ladder.has_intervals
        else "One seed: no intervals."
    )
    headers = ("variant", "N", "E, nats", "ln A", "α", "trials")
    return Table(f"Laws over {laws.axis.label}", headers, rows, text_columns=frozenset({1}), note=note)


def _foretold(ladder: Ladder) -> list[Block]:
    blocks: list[Block] = []
    for laws in ladder.laws:
        if laws.fits:
            blocks.append(_foretold_table(ladder, laws))
    if ladder.foretold:
        rows = [
            (
                each.variant,
                _estimate(ladder, each.loss),
                write_number(each.measured),
                write_number(each.measured - each.loss.value, signed=True),
            )
            for each in ladder.foretold
        ]
        headers = ("variant", "foretold by the smaller sizes", "measured", "off")
        blocks.append(Table(f"A check: the loss at {name_size(ladder.sizes[-1])}", headers, rows))
    return blocks or [Paragraph("There are no laws yet.")]


def _foretold_table(ladder: Ladder, laws: Laws) -> Table:
    largest = max(fit.largest for fit in laws.fits.values())
    rows = [
        (
            f"{write_short(factor * largest)} ({factor:g}×)",
            *(_estimate(ladder, fit.loss(factor * largest)) for fit in laws.fits.values()),
        )
        for factor in _FACTORS
    ]
    note = f"The mean loss, in nats; 1× is the largest size measured, and a picture goes up to {REACH:g}×. {_CAUTION}"
    return Table(f"Loss at sizes beyond, over {laws.axis.label}", (laws.axis.label, *laws.fits), rows, note=note)


def _estimate(ladder: Ladder, estimate: Estimate) -> str:
    value, low, high = (write_number(round(number, 4)) for number in (estimate.value, estimate.low, estimate.high))
    return f"{value} [{low}, {high}]" if ladder.has_intervals else value


def _size_table(ladder: Ladder) -> Table:
    """Every variant at every size."""
    rows = []
    for rung in ladder.rungs:
        losses = {o.variant: o.loss.mean for o in rung.summary.outcomes if o.loss is not None}
        for variant in ladder.variants:
            rows.append(_size_row(ladder, rung, variant, losses))
    headers = ("size", "variant", "validation loss, nats", "seeds", "learning rate", "parameters", "width", "tokens")
    note = (
        "Mean ± half the interval over seeds; bold: the lowest at its size, which says nothing of chance. Curves and "
        "tests are in the reports of each size, below sizes/."
    )
    return Table("Results by size", headers, rows, text_columns=frozenset({1}), note=note)


def _size_row(ladder: Ladder, rung: Rung, variant: str, losses: Mapping[str, float]) -> tuple[str | Cell, ...]:
    outcome = ladder.outcome(rung, variant)
    name = write_count(rung.size.amount)
    if outcome is None:
        return name, variant, *([NOTHING] * 6)
    is_best = len(losses) > 1 and losses.get(variant) == min(losses.values())
    failed = f" ({len(outcome.failed)} failed)" if outcome.failed else ""
    return (
        name,
        variant,
        Cell(write_interval(outcome.loss), is_best),
        f"{len(outcome.finals)}{failed}",
        write_short(outcome.mean(lambda trial: trial.learning_rate)),
        write_count(outcome.mean(lambda trial: trial.parameters)),
        write_count(outcome.mean(lambda trial: trial.config.get("hidden_size"))),
        write_count(outcome.mean(lambda trial: trial.tokens)),
    )


def _failures(ladder: Ladder) -> list[Block]:
    failed = [rung for rung in ladder.rungs if rung.summary.failures]
    blocks: list[Block] = []
    for rung in failed:
        blocks += [Paragraph(f"At {name_size(rung.size)}:"), failure_table(rung.summary)]
    return blocks or [Paragraph("No trial failed or diverged.")]


def _repeat(ladder: Ladder) -> list[Block]:
    blocks: list[Block] = [Code(shlex.join(ladder.command))] if ladder.command else []
    if ladder.rungs:
        record = ladder.rungs[0].summary.record
        versions = list(record.versions.items())
        blocks.append(Table("Software", ("name", "version"), versions, text_columns=frozenset({1})))
        blocks.append(settings_table(record, "Settings of the smallest size"))
    return blocks
