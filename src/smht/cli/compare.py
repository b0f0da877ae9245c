"""`smht compare`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smht.cli import comparison_options as options
from smht.cli.architecture import with_architecture
from smht.cli.output import new_table, print_json, progress_console, quieten_libraries, result_console
from smht.cli.sections import SectionedCommand, option

if TYPE_CHECKING:
    from rich.table import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="compare", cls=SectionedCommand)(compare)


@with_architecture
@options.with_training
def compare(
    call: typer.Context,
    *,
    variants: options.Variants = None,
    budget: Annotated[
        list[str] | None,
        option(
            "Comparison",
            "What is equal: parameters=0.8M, multiplications=2M (multiply-adds a token) or width=256, and tokens=1.5M, "
            "time=2m or training-multiplications=3e12; one of either kind, one at least.",
        ),
    ] = None,
    seeds: options.Seeds = None,
    rates: options.Rates = None,
    search_share: options.SearchShare = None,
    lengths: Annotated[
        str | None,
        option(
            "Comparison",
            "Multiples of the context to evaluate the trained models at, such as 0.5,1,2,4, or none.",
            default="0.5,1,2,4 where positions differ",
        ),
    ] = None,
    solve_depth: options.SolveDepth = False,
    output: Annotated[
        Path | None, option("Comparison", "The folder; the same command goes on there.", default="comparisons/NAME")
    ] = None,
    json: options.Json = False,
    training: dict[str, Any],
    architecture: dict[str, Any],
) -> None:
    """Compare split and dense models at equal budgets."""
    chosen = options.given(
        seeds=seeds, rates=rates, search_share=search_share, solve_depth=solve_depth or None, lengths=lengths
    )
    _run(training, architecture, chosen, variants or [options.DEFAULT_VARIANTS], budget or [], output, json, call.obj)


def _run(
    training: dict[str, Any],
    architecture: dict[str, Any],
    chosen: dict[str, Any],
    variants: list[str],
    budgets: list[str],
    output: Path | None,
    json: bool,
    command: tuple[str, ...],
) -> None:
    quieten_libraries()
    from smht.comparison import comparison
    from smht.comparison.budget import parse_budgets
    from smht.comparison.lengths import parse_multiples
    from smht.comparison.report import check_extras, write_report
    from smht.comparison.request import CompareRequest
    from smht.comparison.variants import parse_variants
    from smht.errors import SmhtError
    from smht.training.request import TrainRequest

    if "lengths" in chosen:
        chosen["lengths"] = parse_multiples(chosen["lengths"])
    parsed = parse_variants(variants), parse_budgets(budgets)
    request = CompareRequest(TrainRequest(**training, architecture=architecture), *parsed, **chosen)
    check_extras()
    outcome = comparison.compare(request, output, progress_console(), ("smht", *command))
    if outcome.status == "finished":
        write_report(outcome.folder)
    rows = _rows(outcome)
    if json:
        print_json({"folder": str(outcome.folder), "status": outcome.status, "variants": rows})
    elif outcome.status == "finished":
        console = result_console()
        console.print(_table(rows))
        console.print(f"\nreport: {outcome.folder / 'report.html'}", markup=False, highlight=False, soft_wrap=True)
    options.stop_where_interrupted(outcome.status, outcome.folder, command)
    nothing = [row["name"] for row in rows if not row["finished"]]
    if nothing:
        raise SmhtError(f"no final training of {' and '.join(nothing)} came to its end: results.jsonl says why")


def _rows(outcome: Any) -> list[dict[str, Any]]:
    """What came out for each variant, over the seeds that came to their end."""
    rows = []
    for variant in outcome.record["variants"]:
        finals = [r for r in outcome.results if r.purpose == "final" and r.variant == variant["name"]]
        done = [result for result in finals if result.status == "done"]
        names = ("validation_loss", "bits_per_byte", "tokens", "seconds", "tokens_per_second")
        means = {name: sum(getattr(r, name) for r in done) / len(done) if done else None for name in names}
        counts = {"finished": len(done), "not_finished": len(finals) - len(done)}
        losses = [result.validation_loss for result in done]
        rows.append({**variant, **counts, **means, "validation_losses": losses})
    return rows


def _table(rows: list[dict[str, Any]]) -> "Table":
    from rich.text import Text

    table = new_table("variant", "rate", "loss", "bits/byte", "seeds", "parameters", "tokens/s")
    table.columns[0].overflow = "fold"
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for row in rows:
        missing = f" of {row['finished'] + row['not_finished']}" if row["not_finished"] else ""
        table.add_row(
            Text(row["name"]),
            _cell(row["learning_rate"], "g"),
            _cell(row["validation_loss"], ".4f"),
            _cell(row["bits_per_byte"], ".4f"),
            f"{row['finished']}{missing}",
            _cell(row["parameters"], ","),
            _cell(row["tokens_per_second"], ",.0f"),
        )
    return table


def _cell(value: Any, template: str) -> str:
    return "-" if value is None else format(value, template)
