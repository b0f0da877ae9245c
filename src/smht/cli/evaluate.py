"""`smht evaluate`."""

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

from smht.cli.output import new_table, print_json, quieten_libraries, result_console


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="evaluate")(evaluate)


def evaluate(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    texts: Annotated[list[str], typer.Argument(help="Files, folders, globs or - for standard input.")],
    *,
    context: Annotated[int | None, typer.Option(help="Tokens in a window; the model's context if not given.")] = None,
    stride: Annotated[
        int | None, typer.Option(help="Tokens from window to window; below the context, windows overlap.")
    ] = None,
    errors: Annotated[
        Literal["strict", "replace"], typer.Option(help="What to do with bytes that are not UTF-8.")
    ] = "strict",
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="Where to run.")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure how well a trained model predicts a text."""
    quieten_libraries()
    from smht.errors import UsageError
    from smht.tasks import language_modelling
    from smht.tasks.text_files import read_texts
    from smht.training.device import resolve_device
    from smht.training.run_folder import RunFolder

    place = resolve_device(device)
    folder = RunFolder(run)
    model = folder.load_model(place)
    tokenizer = folder.load_tokenizer()
    longest = model.config.max_position_embeddings
    if context is not None and not 1 <= context <= longest:
        raise UsageError(f"context = {context} must be at least 1 and at most the model's {longest}")
    stream = language_modelling.tokenize(tokenizer, read_texts(texts), errors)
    result = language_modelling.evaluate(model, stream, context or longest, stride)
    values = {
        "loss": result.loss,
        "perplexity": result.perplexity if math.isfinite(result.perplexity) else None,  # JSON has no infinity
        "bits_per_byte": result.bits_per_byte,
        "tokens": result.tokens,
        "bytes": result.bytes,
    }
    if json:
        print_json(values)
        return
    table = new_table()
    table.add_row("loss", f"{result.loss:.4f} nats per token")
    table.add_row("perplexity", f"{result.perplexity:.3f}")
    table.add_row("bits per byte", f"{result.bits_per_byte:.4f}")
    table.add_row("predicted", f"{result.tokens:,} tokens, {result.bytes:,} bytes")
    result_console().print(table)
