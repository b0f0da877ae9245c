"""`smht heads`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from smht.cli.output import new_table, print_json, quieten_libraries, result_console
from smht.cli.reading import load, text_windows
from smht.errors import UsageError

_STATISTICS = ("entropy", "distance", "previous", "first", "bracket")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="heads")(heads)


@dataclass
class _Sum:
    """A statistic of a head over windows, of which some may lack it."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float | None) -> None:
        """Count a window."""
        if value is not None:
            self.total, self.count = self.total + value, self.count + 1

    @property
    def mean(self) -> float | None:
        """Over the windows that have it."""
        return self.total / self.count if self.count else None


def heads(
    run: Annotated[Path, typer.Argument(help="Run folder of a language model or an encoder.")],
    texts: Annotated[
        list[str], typer.Argument(help="Files, folders, globs or - for standard input, read as plain text.")
    ],
    *,
    by: Annotated[
        Literal["entropy", "distance", "previous", "first", "bracket"], typer.Option(help="What to rank by.")
    ] = "previous",
    windows: Annotated[int, typer.Option(help="At most so many windows of text.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """Rank a model's heads by what they attend to."""
    quieten_libraries()
    if windows < 1:
        raise UsageError(f"windows = {windows} must be at least 1")
    model, tokenizer = load(run)
    if model.config.is_encoder_decoder:
        raise UsageError(f"{run} is an encoder-decoder, whose attention `smht attention` draws sentence by sentence")
    rows = _measure(model, tokenizer, texts, windows)
    rows.sort(key=lambda row: (row[by] is None, -(row[by] or 0.0)))
    if json:
        print_json(rows)
        return
    table = new_table("layer", "head", "entropy, bits", "distance, tokens", "previous", "first", "bracket")
    for column in table.columns:
        column.justify = "right"
    for row in rows:
        cells = ["-" if row[name] is None else f"{row[name]:.3f}" for name in _STATISTICS]
        table.add_row(str(row["layer"]), str(row["head"]), *cells)
    result_console().print(table)


def _measure(model: Any, tokenizer: Any, texts: list[str], most: int) -> list[dict[str, Any]]:
    """Means over windows of the context, a row a head."""
    from smht.inspection.attention_maps import attention_maps, head_statistics, matching_brackets
    from smht.tokenization import decode_bytes

    sums: dict[tuple[int, int], dict[str, _Sum]] = {}
    for ids in text_windows(model, tokenizer, texts, most):
        pieces = [decode_bytes(tokenizer, [i]) for i in ids[0].tolist()]
        weights = attention_maps(model, input_ids=ids).of()
        for one in head_statistics(weights, matching_brackets(pieces)):
            own = sums.setdefault((one.layer, one.head), {name: _Sum() for name in _STATISTICS})
            for name in _STATISTICS:
                own[name].add(asdict(one)[name])
    return [
        {"layer": layer, "head": head, **{name: value.mean for name, value in own.items()}}
        for (layer, head), own in sums.items()
    ]
