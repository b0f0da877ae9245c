"""Help with a section for each group of options."""

from typing import Any

import typer
from typer.core import TyperCommand

OPTIONS = "Options"


def option(section: str, text: str, *declarations: str, default: str | None = None, metavar: str | None = None) -> Any:
    """An option of a section, with a default that is said in words."""
    return typer.Option(
        *declarations, help=text, show_default=default or False, metavar=metavar, rich_help_panel=section
    )


class SectionedCommand(TyperCommand):
    """A command whose plain help groups options by `rich_help_panel`.

    Typer by itself groups them only in boxes, which cut long names off at 80 columns.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section a group, in the order of the command's signature; ungrouped options come last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                sections.setdefault(_section(parameter), []).append(record)
        for name in sorted(sections, key=lambda name: name == OPTIONS):
            with formatter.section(name):
                formatter.write_dl(sections[name])


def _section(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    return parameter.rich_help_panel or OPTIONS
