"""`smht presets`."""

from typing import Annotated

import typer

from smht.cli.output import new_table, print_json, quieten_libraries, result_console


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="presets")(presets)


def presets(json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False) -> None:
    """List the named architectures."""
    quieten_libraries()
    from smht.inspection.accounting import account
    from smht.models import PRESETS, preset_config

    parameters = {name: account(preset_config(name)).total.parameters for name in PRESETS}
    if json:
        rows = [
            {"name": name, "description": preset.description, "parameters": parameters[name], "fields": preset.fields}
            for name, preset in PRESETS.items()
        ]
        print_json(rows)
        return
    table = new_table("preset", "parameters", "what for")
    table.columns[1].justify = "right"
    for name, preset in PRESETS.items():
        table.add_row(name, f"{parameters[name]:,}", preset.description)
    result_console().print(table)
