"""`smht summary`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from smht.cli.architecture import with_architecture
from smht.cli.output import print_json, quieten_libraries, result_console


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="summary")(summary)


@with_architecture
def summary(
    run: Annotated[
        Path | None, typer.Argument(help="Run folder; none for a preset or flags.", show_default=False)
    ] = None,
    *,
    preset: Annotated[str | None, typer.Option(help="Named architecture; `smht presets` lists them.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Number of tokens V.")] = None,
    context: Annotated[int | None, typer.Option(help="Tokens in the context.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
    architecture: dict[str, Any],
) -> None:
    """Count parameters, multiply-adds and cache by part, split beside dense."""
    quieten_libraries()
    from smht.inspection import compare
    from smht.inspection.tables import render_table

    changes = {**architecture, "vocab_size": vocab_size, "max_position_embeddings": context}
    changes = {name: value for name, value in changes.items() if value is not None}
    config, title = _configuration(run, preset, changes)
    comparison = compare(config)
    if json:
        print_json({"model": title, "config": config.to_diff_dict(), **comparison.to_dict()})
        return
    console = result_console()
    console.print(render_table(comparison, title=title, width=console.width))


def _configuration(run: Path | None, preset: str | None, changes: dict[str, Any]) -> tuple[Any, str]:
    from smht.errors import UsageError
    from smht.models import preset_config
    from smht.training.preparation import DEFAULT_PRESET
    from smht.training.run_folder import RunFolder

    if run is None:
        name = preset or DEFAULT_PRESET
        return preset_config(name, **changes), name
    if preset is not None or changes:
        raise UsageError(f"{run} has its architecture: leave out {'--preset' if preset else next(iter(changes))}")
    return RunFolder(run).load_config(), str(run)
