"""`smht dense`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from smht.cli.output import new_table, print_json, quieten_libraries, result_console


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="dense")(dense)


def dense(
    run: Annotated[Path, typer.Argument(help="Folder of a split run.")],
    *,
    output: Annotated[Path, typer.Option(help="The dense run's folder; must not be there, or be empty.")],
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Turn a split run into a dense one that computes the same."""
    quieten_libraries()
    from smht.conversion.reverse import make_dense

    made = make_dense(run, output)
    before, after = made.parameters
    if json:
        parameters = {"split": before, "dense": after}
        print_json({"run": str(made.run), "parameters": parameters, "largest_difference": made.difference})
        return
    console, table = result_console(), new_table()
    table.add_row("parameters", f"{before:,} split, {after:,} dense")
    table.add_row("difference", f"{made.difference:.1e} of the largest logit, from rounding")
    console.print(table)
    console.print(
        f"\nnext: smht train TEXT --from {shlex.quote(str(made.run))}", markup=False, highlight=False, soft_wrap=True
    )
