"""`smht split`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from smht.cli.architecture import parse_split
from smht.cli.output import new_table, print_json, progress_console, quieten_libraries, result_console
from smht.cli.sections import SectionedCommand, option

if TYPE_CHECKING:
    from rich.table import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="split", cls=SectionedCommand)(split)


def split(
    call: typer.Context,
    run: Annotated[str, typer.Argument(help="Folder of a dense run.")],
    *,
    output: Annotated[Path, option("Run", "The split run's folder; the same command goes on there after a stop.")],
    heads: Annotated[
        int | None, option("Architecture", "Blocks a projection: the run's number of heads.", default="that number")
    ] = None,
    parts: Annotated[
        str | None,
        option("Architecture", "Projections to split: any of qkv,output,feed_forward.", "--split", default="all"),
    ] = None,
    mixing: Annotated[
        Literal["none", "shuffle"], typer.Option(help="As in `smht train`.", rich_help_panel="Architecture")
    ] = "none",
    tokens: Annotated[
        str | None,
        option("Budget", "Tokens to learn from the dense model, like 500k; 0 for the cut alone.", metavar="N"),
    ] = None,
    steps: Annotated[int | None, option("Budget", "The same in steps.")] = None,
    time: Annotated[
        str | None, option("Budget", "The same as a time, like 90s, 2m.", default="3m if no budget is given")
    ] = None,
    teacher_weight: Annotated[
        float, typer.Option(help="Part of the loss that the dense model gives.", rich_help_panel="Training")
    ] = 0.9,
    temperature: Annotated[
        float, typer.Option(help="What logits are divided by in it.", rich_help_panel="Training")
    ] = 2.0,
    learning_rate: Annotated[
        float | None, option("Training", "Its peak.", default="the task's for the split model")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.", rich_help_panel="Training")] = 0,
    scratch: Annotated[
        bool,
        typer.Option(
            "--scratch/--no-scratch",
            help="Train the same model from fresh weights beside, to compare with.",
            rich_help_panel="Training",
        ),
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Turn a dense run into a split one that learns from it."""
    quieten_libraries()
    from smht.conversion.request import SplitRequest
    from smht.conversion.splitting import split_run
    from smht.layers.block import SPLITTABLE
    from smht.training.budget import Budget
    from smht.training.distillation import Recipe
    from smht.training.quantities import parse_amount, parse_duration

    request = SplitRequest(
        run=run,
        heads=heads,
        split=SPLITTABLE if parts is None else parse_split(parts),
        mixing=mixing,
        tokens=None if tokens is None else round(parse_amount(tokens, "tokens", least=0)),
        budget=Budget(steps=steps, seconds=None if time is None else parse_duration(time)),
        recipe=Recipe(teacher_weight, temperature),
        learning_rate=learning_rate,
        seed=seed,
        scratch=scratch,
    )
    made = split_run(request, output, progress_console())
    if json:
        print_json(made.report)
    elif made.status == "finished":
        _show(made)
    if made.status != "finished":
        command = shlex.join(["smht", *call.obj])
        progress_console().print(
            f"stopped, and saved in {made.run}; go on with: {command}", markup=False, highlight=False, soft_wrap=True
        )
        raise typer.Exit(130)


def _show(made: Any) -> None:
    console = result_console()
    console.print()
    console.print(_table(made.report["stages"]))
    if made.report["fixed"]:
        console.print(f"the residual channels stayed in their places: {made.report['fixed']}", soft_wrap=True)
    console.print(
        f"\nreport: {made.run / 'split.json'}\nnext: smht generate {shlex.quote(str(made.run))} TEXT",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _table(stages: list[dict[str, Any]]) -> "Table":
    names = [name for name in stages[0]["scores"] if name != "validation_loss"]
    table = new_table(
        "stage", "loss", *(name.replace("_", " ") for name in names), "weight kept", "parameters", "tokens"
    )
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for stage in stages:
        share = stage["share_kept"]
        table.add_row(
            stage["stage"],
            *(_number(stage["scores"].get(name)) for name in ("validation_loss", *names)),
            "" if share is None else f"{share:.1%}",
            f"{stage['parameters']:,}",
            f"{stage['tokens']:,}" if stage["tokens"] else "",
        )
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
