"""The report's tables."""

from collections.abc import Callable, Mapping
from typing import Any

from smht.comparison.report.document import Cell, Table
from smht.comparison.report.notes import name_limit
from smht.comparison.report.numbers import (
    NOTHING,
    write_count,
    write_interval,
    write_number,
    write_p,
    write_seconds,
    write_share,
    write_short,
)
from smht.comparison.report.outcomes import SIZE_FIELDS, Outcome, RateSearch
from smht.comparison.report.pareto import pareto_front, priced, telling_costs
from smht.comparison.report.summary import Summary
from smht.comparison.report.trials import how_it_ended
from smht.comparison.results import TrialResult
from smht.comparison.statistics import LEVEL, PairedDifference
from smht.training.quantities import format_size

_INTERVAL = f"{LEVEL:.0%} interval (Student's t over seeds)"


def final_table(summary: Summary) -> Table:
    """Loss and bits per byte of each variant; the terminal's table too."""
    losses = [outcome.loss.mean for outcome in summary.outcomes if outcome.loss]
    rows = []
    by_variant = {difference.variant: difference for difference in summary.differences}
    for outcome in summary.outcomes:
        is_best = outcome.loss is not None and len(losses) > 1 and outcome.loss.mean == min(losses)
        difference = by_variant.get(outcome.variant)
        rows.append(
            (
                outcome.variant,
                Cell(write_interval(outcome.loss), is_best),
                write_interval(outcome.bits_per_byte),
                write_interval(difference.interval, signed=True) if difference else NOTHING,
                _seed_count(outcome),
                write_short(outcome.mean(lambda trial: trial.learning_rate)),
            )
        )
    return Table(
        "Result",
        ("variant", "validation loss, nats", "bits per byte", f"loss − {summary.reference}", "seeds", "learning rate"),
        rows,
        note=f"Mean ± half the {_INTERVAL}; with one seed no interval. Bold: the lowest mean, which says nothing of "
        "chance. Differences are paired by seed.",
    )


def cost_table(summary: Summary) -> Table:
    """What each variant is and took: means over its finished seeds."""
    columns: dict[str, Callable[[Outcome], str]] = {
        "parameters": _mean(lambda trial: trial.parameters, write_count),
        "without embeddings": _mean(lambda trial: trial.parameters_without_embeddings, write_count),
        "multiply-adds a token": _mean(lambda trial: trial.multiply_adds_per_token, write_count),
        "cache a token": _mean(lambda trial: trial.cache_bytes_per_token, _size),
        "training tokens": _mean(lambda trial: trial.tokens, write_count),
        "training multiplications": _mean(lambda trial: trial.training_multiply_adds, write_count),
        "training seconds": _mean(lambda trial: trial.seconds, write_seconds),
        "tokens/s": _mean(lambda trial: trial.tokens_per_second, write_count),
        "peak memory": _mean(lambda trial: trial.peak_memory_bytes, _size),
        "passes over the text": _mean(lambda trial: trial.repeats, lambda value: write_number(value, 0.1)),
    }
    rows = [(o.variant, *(write(o) for write in columns.values())) for o in summary.outcomes if o.finals]
    note = (
        "Multiply-adds a token: of a forward pass. Training multiplications: 3 × forward × tokens. Seconds are of "
        "training alone. Without embeddings: blocks and norms. Peak memory: tensors alive at once in a training step."
    )
    return Table("Costs, means over seeds", ("variant", *columns), rows, note=note)


def difference_table(differences: tuple[PairedDifference, ...], title: str) -> Table:
    """Paired differences with interval and test."""
    tested = sum(difference.p_value is not None for difference in differences)
    headers = ["difference", "loss, nats", "seeds", "p"]
    note = f"Negative: the first is better. ± half the {_INTERVAL}, p of the two-sided paired t-test. "
    if tested > 1:
        headers.append("p, Holm")
        note += f"Last column: after Holm's correction for {tested} comparisons. Bold: it is below {1 - LEVEL:.2g}, "
        note += "and the interval excludes zero."
    else:
        note += "Bold: the interval excludes zero."
    rows = []
    for difference in differences:
        name = f"{difference.variant} − {difference.reference}"
        value = Cell(write_interval(difference.interval, signed=True), difference.is_told)
        row = [name, value, str(len(difference.seeds)), write_p(difference.p_value)]
        rows.append(row + ([write_p(difference.corrected_p)] if tested > 1 else []))
    return Table(title, tuple(headers), rows, note=note)


def search_table(summary: Summary) -> Table:
    """Every rate that was tried, with its loss."""
    searched = [outcome for outcome in summary.outcomes if outcome.search.rates]
    most = max(len(outcome.search.rates) for outcome in searched)
    rows = []
    for outcome in searched:
        search = outcome.search
        cells = [_rate_cell(search, place) for place in range(len(search.rates))]
        edge = f"at the {search.edge} rate tried" if search.edge else "inside" if search.best is not None else NOTHING
        best = write_short(None if search.best is None else search.rates[search.best])
        rows.append((outcome.variant, best, edge, *cells, *[""] * (most - len(cells))))
    return Table(
        "Learning rates tried: rate, and validation loss on the search's budget",
        ("variant", "best", "where", *(f"rate {place + 1}" for place in range(most))),
        rows,
        text_columns=frozenset({2}),
        note="Bold: the best of its row, which the final trials use. Beyond an edge a better one may lie. Rates were "
        "tried with one seed and judged by the text held out, so that intervals over seeds leave this choice out.",
    )


def pareto_table(summary: Summary) -> Table:
    """Loss beside each cost in which the variants differ; bold where no other variant has both lower."""
    costs = telling_costs(summary.outcomes)
    points = {cost.name: priced(summary.outcomes, cost) for cost in costs}
    fronts = {name: pareto_front(prices) for name, prices in points.items()}
    rows = []
    for outcome in summary.outcomes:
        if outcome.loss is None:
            continue
        cells = [Cell(_price(points[c.name], outcome, c.name), outcome.variant in fronts[c.name]) for c in costs]
        rows.append((outcome.variant, write_number(outcome.loss.mean, outcome.loss.half_width), *cells))
    return Table(
        "Pareto front",
        ("variant", "validation loss, nats", *(cost.label for cost in costs)),
        rows,
        note="Bold: on the front, where no other variant is as good in loss and in that cost and better in one. "
        "It goes by means: how sure they are stands above.",
    )


def failure_table(summary: Summary) -> Table:
    """Trials that failed or diverged."""
    rows = [
        (
            trial.variant,
            trial.purpose,
            str(trial.seed),
            write_short(trial.learning_rate),
            how_it_ended(trial),
            write_count(trial.steps),
            trial.error or NOTHING,
        )
        for trial in summary.failures
    ]
    headers = ("variant", "purpose", "seed", "learning rate", "ended", "after steps", "what went wrong")
    return Table("Trials without a result", headers, rows, text_columns=frozenset({1, 4, 6}))


def size_table(summary: Summary) -> Table:
    """The budget for size: asked, reached, and the sizes that reach it."""
    limit = summary.record.size
    rows = []
    for name, solved in summary.record.solved.items():
        reached = _number(solved.get(SIZE_FIELDS.get(limit.kind, ""))) if limit else None
        off = write_share(reached / limit.amount - 1) if limit and reached is not None else NOTHING
        sizes = [_plain(solved.get(field)) for field in _SHAPE.values()]
        rows.append((name, write_count(limit.amount if limit else None), write_count(reached), off, *sizes))
    what = name_limit(limit) if limit else "size"
    return Table(f"Sizes: {what} asked and reached", ("variant", "asked", "reached", "off", *_SHAPE), rows)


def data_table(data: Mapping[str, Mapping[str, Any]]) -> Table:
    """Where the data came from, with hashes."""
    columns = ("bytes", "documents", "tokens")
    rows = [
        (
            name,
            str(part.get("description", NOTHING)),
            *(write_count(_number(part.get(key))) for key in columns),
            str(part.get("sha256", NOTHING)),
        )
        for name, part in data.items()
    ]
    headers = ("part", "description", *columns, "sha256")
    return Table("Data", headers, rows, text_columns=frozenset({1, len(headers) - 1}))


_SHAPE = {
    "width": "hidden_size",
    "feed-forward width": "intermediate_size",
    "heads": "num_attention_heads",
    "layers": "num_hidden_layers",
}


def _seed_count(outcome: Outcome) -> str:
    text = str(len(outcome.finals))
    gone = [f"{len(outcome.failed)} failed"] if outcome.failed else []
    gone += [f"{len(outcome.missing)} missing"] if outcome.missing else []
    return text + (f" ({', '.join(gone)})" if gone else "")


def _mean(
    measure: Callable[[TrialResult], float | None], write: Callable[[float | None], str]
) -> Callable[[Outcome], str]:
    return lambda outcome: write(outcome.mean(measure))


def _size(value: float | None) -> str:
    return NOTHING if value is None else format_size(value)


def _rate_cell(search: RateSearch, place: int) -> Cell:
    loss = search.losses[place]
    outcome = search.failures[place] if loss is None else write_number(loss)
    return Cell(f"{write_short(search.rates[place])}: {outcome}", place == search.best)


def _price(points: Mapping[str, tuple[float, float]], outcome: Outcome, cost: str) -> str:
    if outcome.variant not in points:
        return NOTHING
    price = points[outcome.variant][0]
    return write_seconds(price) if cost == "seconds" else write_count(price)


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _plain(value: Any) -> str:
    return NOTHING if value is None else f"{value:,}" if isinstance(value, int) else str(value)
