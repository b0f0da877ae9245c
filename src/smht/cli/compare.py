"""`smht compare`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from smht.cli.architecture import with_architecture
from smht.cli.output import new_table, print_json, progress_console, quieten_libraries, result_console
from smht.cli.sections import SectionedCommand, option

if TYPE_CHECKING:
    from rich.table import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="compare", cls=SectionedCommand)(compare)


@with_architecture
def compare(
    call: typer.Context,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files, folders, globs or - for standard input; none for the Python standard library's source.",
            show_default=False,
        ),
    ] = None,
    *,
    variants: Annotated[
        list[str] | None,
        option(
            "Comparison",
            "Names separated by commas, each of words joined by +: split or dense, then any of shuffle, head-norm, "
            "dense-output, dense-qkv, dense-feed-forward, a position encoding (learned, sinusoidal, relative, rotary, "
            "no-positions), H=8 (heads). `ladder` and `positions` are several.",
            default="split,split+shuffle,dense",
            metavar="NAMES",
        ),
    ] = None,
    budget: Annotated[
        list[str] | None,
        option(
            "Comparison",
            "What is equal: parameters=0.8M, multiplications=2M (multiply-adds a token) or width=256, and tokens=1.5M, "
            "time=2m or training-multiplications=3e12; one of either kind, one at least.",
        ),
    ] = None,
    seeds: Annotated[
        int | None, option("Comparison", "How often to train each, with other seeds.", default="3")
    ] = None,
    rates: Annotated[
        int | None,
        option("Comparison", "Learning rates to try for each, on a fifth of the length; 1 for no search.", default="5"),
    ] = None,
    lengths: Annotated[
        str | None,
        option(
            "Comparison",
            "Multiples of the context to evaluate the trained models at, such as 0.5,1,2,4, or none.",
            default="0.5,1,2,4 where positions differ",
        ),
    ] = None,
    solve_depth: Annotated[
        bool, option("Comparison", "Find the number of blocks too, from 2 to 16.", "--solve-depth")
    ] = False,
    output: Annotated[
        Path | None, option("Comparison", "The folder; the same command goes on there.", default="comparisons/NAME")
    ] = None,
    dataset: Annotated[
        str | None,
        option("Text", "A Hugging Face dataset instead of texts; options follow: NAME?config=C&split=S&column=C."),
    ] = None,
    validation: Annotated[
        list[str] | None,
        option("Text", "Text to evaluate on, instead of holding out a part; may be repeated.", metavar="TEXT"),
    ] = None,
    validation_fraction: Annotated[
        float | None, option("Text", "Part of the text to hold out.", default="0.1, at most 128 KiB")
    ] = None,
    errors: Annotated[
        Literal["strict", "replace"] | None,
        option("Text", "Refuse bytes that are not UTF-8, or put U+FFFD in their place.", default="strict"),
    ] = None,
    tokenizer: Annotated[
        Literal["byte", "bpe", "char"] | None, option("Text", "What a token is.", default="bpe")
    ] = None,
    vocab_size: Annotated[int | None, option("Text", "Tokens of the bpe tokenizer.", default="2048")] = None,
    context: Annotated[int | None, option("Training", "Tokens in a window.", default="the preset's")] = None,
    batch_size: Annotated[int | None, option("Training", "Windows a step.", default="about 2,048 tokens")] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"] | None, option("Training", "Where to train.", default="auto")
    ] = None,
    seed: Annotated[int | None, option("Training", "The first of the seeds.", default="0")] = None,
    preset: Annotated[
        str | None,
        option("Architecture", "What the variants change; `smht presets` lists them.", default="smht-small"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    architecture: dict[str, Any],
) -> None:
    """Compare split and dense models at equal budgets."""
    training = {
        "texts": tuple(texts) if texts else None,
        "dataset": dataset,
        "validation_texts": tuple(validation) if validation else None,
        "validation_fraction": validation_fraction,
        "errors": errors,
        "tokenizer": tokenizer,
        "vocab_size": vocab_size,
        "preset": preset,
        "context": context,
        "batch_size": batch_size,
        "device": device,
        "seed": seed,
    }
    chosen = {"seeds": seeds, "rates": rates, "solve_depth": solve_depth or None, "lengths": lengths}
    _run(
        {name: value for name, value in training.items() if value is not None},
        architecture,
        {name: value for name, value in chosen.items() if value is not None},
        variants or ["split,split+shuffle,dense"],
        budget or [],
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
    output: Path | None,
    json: bool,
    command: tuple[str, ...],
) -> None:
    quieten_libraries()
    from smht.comparison import comparison
    from smht.comparison.budget import parse_budgets
    from smht.comparison.lengths import parse_multiples
    from smht.comparison.report import check_extras, write_report
    from smht.comparison.request import CompareRequest
    from smht.comparison.variants import parse_variants
    from smht.errors import SmhtError, UsageError
    from smht.training.request import TrainRequest

    if {"validation_texts", "validation_fraction"} <= training.keys():
        raise UsageError("--validation and --validation-fraction exclude each other: give one of them")
    if "lengths" in chosen:
        chosen["lengths"] = parse_multiples(chosen["lengths"])
    parsed = parse_variants(variants), parse_budgets(budgets)
    request = CompareRequest(TrainRequest(**training, architecture=architecture), *parsed, **chosen)
    check_extras()
    outcome = comparison.compare(request, output, progress_console(), ("smht", *command))
    if outcome.status == "finished":
        write_report(outcome.folder)
    rows = _rows(outcome)
    if json:
        print_json({"folder": str(outcome.folder), "status": outcome.status, "variants": rows})
    elif outcome.status == "finished":
        console = result_console()
        console.print(_table(rows))
        console.print(f"\nreport: {outcome.folder / 'report.html'}", markup=False, highlight=False, soft_wrap=True)
    if outcome.status == "interrupted":
        progress_console().print(
            f"stopped, and saved in {outcome.folder}; go on with: {shlex.join(['smht', *command])}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(130)
    nothing = [row["name"] for row in rows if not row["finished"]]
    if nothing:
        raise SmhtError(f"no final training of {' and '.join(nothing)} came to its end: results.jsonl says why")


def _rows(outcome: Any) -> list[dict[str, Any]]:
    """What came out for each variant, over the seeds that came to their end."""
    rows = []
    for variant in outcome.record["variants"]:
        finals = [r for r in outcome.results if r.purpose == "final" and r.variant == variant["name"]]
        done = [result for result in finals if result.status == "done"]
        names = ("validation_loss", "bits_per_byte", "tokens", "seconds", "tokens_per_second")
        means = {name: sum(getattr(r, name) for r in done) / len(done) if done else None for name in names}
        counts = {"finished": len(done), "not_finished": len(finals) - len(done)}
        losses = [result.validation_loss for result in done]
        rows.append({**variant, **counts, **means, "validation_losses": losses})
    return rows


def _table(rows: list[dict[str, Any]]) -> "Table":
    from rich.text import Text

    table = new_table("variant", "rate", "loss", "bits/byte", "seeds", "parameters", "tokens/s")
    table.columns[0].overflow = "fold"
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for row in rows:
        missing = f" of {row['finished'] + row['not_finished']}" if row["not_finished"] else ""
        table.add_row(
            Text(row["name"]),
            _cell(row["learning_rate"], "g"),
            _cell(row["validation_loss"], ".4f"),
            _cell(row["bits_per_byte"], ".4f"),
            f"{row['finished']}{missing}",
            _cell(row["parameters"], ","),
            _cell(row["tokens_per_second"], ",.0f"),
        )
    return table


def _cell(value: Any, template: str) -> str:
    return "-" if value is None else format(value, template)
