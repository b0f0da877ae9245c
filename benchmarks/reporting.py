"""How benchmarks show what they measured: a table, or JSON with goals."""

import argparse
import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A measured value; `goal` is a comparison with a number, such as `>= 0.99`, or None."""

    name: str
    value: float | int | None
    unit: str = ""
    goal: str | None = None

    @property
    def holds(self) -> bool | None:
        """Whether the goal is reached; None without a goal."""
        if self.goal is None or self.value is None:
            return None
        relation, number = self.goal.split()
        return self.value <= float(number) if relation == "<=" else self.value >= float(number)


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with `--json`."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", action="store_true", help="print a list of figures instead of a table")
    return made


def report(figures: list[Figure], as_json: bool) -> None:
    """Print the figures."""
    if as_json:
        print(json.dumps([{**asdict(figure), "holds": figure.holds} for figure in figures], indent=2))
        return
    # Only here: machines that are lent for a benchmark may have nothing but PyTorch.
    from rich.console import Console
    from rich.table import Table

    table = Table("figure", "value", "unit", "goal", "holds")
    for figure in figures:
        holds = {True: "yes", False: "NO", None: "-"}[figure.holds]
        table.add_row(figure.name, _format(figure.value), figure.unit, figure.goal or "-", holds)
    Console(width=130).print(table)


def _format(value: Any) -> str:
    return "-" if value is None else f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"
