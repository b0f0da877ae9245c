"""`smht summary`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from smht.cli.architecture import with_architecture
from smht.cli.output import print_json, quieten_libraries, result_console
from smht.cli.sections import SectionedCommand


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="summary", cls=SectionedCommand)(summary)


@with_architecture
def summary(
    run: Annotated[
        Path | None, typer.Argument(help="Run folder; none for a preset or flags.", show_default=False)
    ] = None,
    *,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Named architecture; `smht presets` lists them.",
            rich_help_panel="Architecture",
            show_default="smht-small",
        ),
    ] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Number of tokens V.", rich_help_panel="Architecture")] = None,
    context: Annotated[int | None, typer.Option(help="Number of positions.", rich_help_panel="Architecture")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
    architecture: dict[str, Any],
) -> None:
    """Count parameters, multiply-adds and cache, split beside dense."""
    quieten_libraries()
    from rich.markup import escape

    from smht.inspection import compare
    from smht.inspection.tables import render_table

    flags = {**architecture, "vocab_size": vocab_size, "context": context}
    flags = {name: value for name, value in flags.items() if value is not None}
    config, title = _configuration(run, preset, flags)
    comparison = compare(config)
    if json:
        print_json({"model": title, "config": config.to_diff_dict(), **comparison.to_dict()})
        return
    console = result_console()
    console.print(render_table(comparison, title=escape(title), width=console.width))


def _configuration(run: Path | None, preset: str | None, flags: dict[str, Any]) -> tuple[Any, str]:
    from smht.errors import UsageError
    from smht.models import preset_config
    from smht.tasks.language_modelling import LanguageModelling
    from smht.training.run_folder import RunFolder

    if run is None:
        name = preset or LanguageModelling.preset
        fields = {"max_position_embeddings" if flag == "context" else flag: value for flag, value in flags.items()}
        return preset_config(name, **fields), f"{name}, changed" if flags else name
    given = ["preset"] if preset is not None else list(flags)
    if given:
        raise UsageError(f"{run} has its own architecture: leave out --{given[0].replace('_', '-')}")
    if not run.is_dir():
        raise UsageError(f"there is no run folder {run}; `smht runs` lists the runs below a folder")
    return RunFolder(run).load_config(), str(run)
