"""`smht scaling`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from smht.cli import comparison_options as options
from smht.cli.architecture import with_architecture
from smht.cli.output import new_table, print_json, progress_console, quieten_libraries, result_console
from smht.cli.sections import SectionedCommand, option

if TYPE_CHECKING:
    from rich.table import Table

    from smht.comparison.report.ladder import Ladder
    from smht.comparison.scaling_law import Estimate


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="scaling", cls=SectionedCommand)(scaling)


@with_architecture
@options.with_training
def scaling(
    call: typer.Context,
    *,
    variants: options.Variants = None,
    sizes: Annotated[
        list[str] | None,
        option(
            "Comparison",
            "Four sizes or more, separated by commas: parameters (100k,200k,400k,800k), multiplications=... "
            "(multiply-adds a token) or width=...",
            metavar="AMOUNTS",
        ),
    ] = None,
    tokens_per_parameter: Annotated[
        float | None, option("Comparison", "How long to train at each size.", default="20")
    ] = None,
    budget: Annotated[
        list[str] | None,
        option(
            "Comparison",
            "The same length at every size instead: tokens=1.5M, time=2m or training-multiplications=3e12.",
        ),
    ] = None,
    seeds: options.Seeds = None,
    rates: options.Rates = None,
    search_share: options.SearchShare = None,
    search_at: Annotated[
        Literal["every", "smallest"] | None,
        option(
            "Comparison",
            "Try them at every size, or at the smallest alone and carry the best factor of the default rate over, "
            "which the rates of --parametrisation mup are made for.",
            default="every",
        ),
    ] = None,
    solve_depth: options.SolveDepth = False,
    output: Annotated[
        Path | None,
        option("Comparison", "The folder; the same command goes on there.", default="comparisons/scaling-NAME"),
    ] = None,
    json: options.Json = False,
    training: dict[str, Any],
    architecture: dict[str, Any],
) -> None:
    """Fit laws of loss over size, and find where they cross."""
    chosen = options.given(
        seeds=seeds,
        rates=rates,
        search_share=search_share,
        solve_depth=solve_depth or None,
        tokens_per_parameter=tokens_per_parameter,
    )
    ladder = {"sizes": sizes or [], "search_at": search_at or "every"}
    _run(
        training,
        architecture,
        chosen,
        variants or [options.DEFAULT_VARIANTS],
        budget or [],
        ladder,
        output,
        json,
        call.obj,
    )


def _run(
    training: dict[str, Any],
    architecture: dict[str, Any],
    chosen: dict[str, Any],
    variants: list[str],
    budgets: list[str],
    ladder: dict[str, Any],
    output: Path | None,
    json: bool,
    command: tuple[str, ...],
) -> None:
    quieten_libraries()
    from smht.comparison import scaling as scaling_runs
    from smht.comparison.budget import parse_length, parse_sizes
    from smht.comparison.report import check_extras, tell_crossings, write_ladder_report, write_report
    from smht.comparison.request import CompareRequest
    from smht.comparison.scaling_law import LEAST_SIZES
    from smht.comparison.variants import parse_variants
    from smht.errors import SmhtError, UsageError
    from smht.training.request import TrainRequest

    if budgets and "tokens_per_parameter" in chosen:
        raise UsageError("--budget and --tokens-per-parameter both say how long to train: give one of them")
    parsed, sizes = parse_variants(variants), parse_sizes(ladder["sizes"], LEAST_SIZES)
    comparison = CompareRequest(
        TrainRequest(**training, architecture=architecture), parsed, parse_length(budgets), **chosen
    )
    request = scaling_runs.ScalingRequest(comparison, sizes, ladder["search_at"])
    check_extras()
    climbed = scaling_runs.climb(request, output, progress_console(), ("smht", *command))
    for outcome in climbed.outcomes:
        if outcome.status == "finished":
            write_report(outcome.folder)
    found = write_ladder_report(climbed.folder)
    if json:
        print_json({"folder": str(climbed.folder), "status": climbed.status, **found.to_dict()})
    elif climbed.status == "finished":
        console = result_console()
        console.print(_table(found))
        for line in tell_crossings(found):
            console.print(f"\n{line.text}", markup=False, highlight=False, soft_wrap=True)
        console.print(f"\nreport: {climbed.folder / 'report.html'}", markup=False, highlight=False, soft_wrap=True)
    options.stop_where_interrupted(climbed.status, climbed.folder, command)
    if found.unfitted:
        raise SmhtError(f"no law of {' and '.join(found.unfitted)}: too few sizes have a result; report.md says why")


def _table(found: "Ladder") -> "Table":
    """The laws over what the sizes are of: what is left at any size, the exponent, and the loss ten times as large."""
    from rich.text import Text

    table = new_table("variant", "E, nats", "exponent", "loss, largest", "loss, 10 times")
    table.columns[0].overflow = "fold"
    for column in table.columns[1:]:
        column.justify = "right"
    for name, fit in found.laws[0].fits.items():
        values = (fit.irreducible, fit.exponent, fit.loss(fit.largest), fit.loss(10 * fit.largest))
        table.add_row(Text(name), *(_cell(value, found.has_intervals) for value in values))
    return table


def _cell(estimate: "Estimate", has_interval: bool) -> str:
    interval = f"\n[{estimate.low:.3f}, {estimate.high:.3f}]" if has_interval else ""
    return f"{estimate.value:.3f}{interval}"
