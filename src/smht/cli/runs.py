"""`smht runs`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smht.cli.output import new_table, print_json, result_console

if TYPE_CHECKING:
    from rich.table import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="runs")(runs)


def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look, at any depth.")] = Path("runs"),
    *,
    json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List the runs below a folder, the best first."""
    from smht.errors import UsageError

    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; `smht train` makes runs in ./runs")
    # A folder that begins with a dot is a run that was killed while it was made.
    found = [path.parent for path in folder.rglob("run.json") if not path.parent.name.startswith(".")]
    rows = sorted((_row(path) for path in found), key=_by_task_and_score)
    if json:
        print_json(rows)
        return
    console = result_console()
    console.print(_table(rows, console.width) if rows else f"no runs below {folder}", markup=False, highlight=False)


def _table(rows: list[dict[str, Any]], width: int) -> "Table":
    """A row a run; on a narrow terminal without the text's description, so that a run stays on one line."""
    from rich.text import Text

    headers = ["run", "task", "status", "step", "result", "loss", "parameters", "text"]
    headers = headers if width >= _WIDE else headers[:-1]
    table = new_table(*headers)
    table.columns[0].overflow = "fold"  # a name that is cut off cannot be typed again
    for column in table.columns[1:7]:
        column.no_wrap = True
    for column in table.columns[3:7]:
        column.justify = "right"
    for row in rows:
        cells = [
            row["task"],
            row["status"],
            row["step"],
            _result(row),
            row["validation_loss"],
            row["parameters"],
            row["text"],
        ]
        shown = [Text(_cell(cell), overflow="ellipsis", no_wrap=True) for cell in cells[: len(headers) - 1]]
        table.add_row(Text(row["run"]), *shown)
    return table


def _result(row: dict[str, Any]) -> str | None:
    from smht.tasks.table import find_task

    if row["score"] is None:
        return None
    metric = next(metric for metric in find_task(row["task"]).metrics if metric.name == row["metric"])
    return metric.format(row["score"])


def _row(path: Path) -> dict[str, Any]:
    from smht.training.run_folder import RunFolder

    run = RunFolder(path)
    try:
        return {"run": str(path), **_describe(run.read_record(), run.read_metrics())}
    except (ValueError, KeyError, TypeError, AttributeError, OSError):  # the list goes on after a damaged run
        return dict.fromkeys(_NAMES) | {"run": str(path), "status": "damaged"}


def _describe(record: dict[str, Any], metrics: list[dict[str, Any]]) -> dict[str, Any]:
    from smht.tasks.table import find_task
    from smht.training.run_folder import find_best

    best = find_best(metrics) or {}
    metric = find_task(record["task"]).metrics[0]
    return {
        "task": record["task"],
        "status": record["status"],
        "step": metrics[-1]["step"] if metrics else 0,
        "metric": metric.name,
        "score": best.get(metric.name),
        "validation_loss": best.get("validation_loss"),
        "parameters": record["model"]["parameters"],
        "text": record["data"]["text"]["description"],
    }


_WIDE = 110
_NAMES = ("run", "task", "status", "step", "metric", "score", "validation_loss", "parameters", "text")


def _by_task_and_score(row: dict[str, Any]) -> tuple[bool, str, float, str]:
    """Within a task the best first: by bits per byte, which tokenizers have in common, or else by loss."""
    value = row["score"] if row["metric"] == "bits_per_byte" else row["validation_loss"]
    return value is None, "" if value is None else row["task"], value or 0.0, row["run"]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
