"""`smht evaluate`."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from smht.cli.output import new_table, print_json, quieten_libraries, result_console
from smht.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="evaluate")(evaluate)


def evaluate(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    texts: Annotated[list[str], typer.Argument(help="Texts, pairs or labelled texts, as `smht train` takes them.")],
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
    """Measure how well a trained model does on other data."""
    quieten_libraries()
    from smht.training.device import resolve_device
    from smht.training.run_folder import RunFolder

    place = resolve_device(device)
    folder = RunFolder(run)
    model, tokenizer = folder.load_model(device=place), folder.load_tokenizer()
    if folder.task == "language-modelling":
        _evaluate_text(model, tokenizer, texts, context, stride, errors, json)
        return
    if context is not None or stride is not None:
        raise UsageError(f"--context and --stride are for language models, and {run} is a {folder.task} run")
    _evaluate_task(folder.task, model, tokenizer, texts, json)


def _evaluate_text(
    model: Any, tokenizer: Any, texts: list[str], context: int | None, stride: int | None, errors: str, json: bool
) -> None:
    from smht.tasks import token_stream
    from smht.tasks.text_files import read_texts

    longest = model.config.max_position_embeddings
    if context is not None and not 1 <= context <= longest:
        raise UsageError(f"context = {context} must be at least 1 and at most the model's {longest}")
    stream = token_stream.tokenize(tokenizer, read_texts(texts), errors)
    result = token_stream.evaluate(model, stream, context or longest, stride)
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


def _evaluate_task(name: str, model: Any, tokenizer: Any, sources: list[str], json: bool) -> None:
    from smht.tasks.table import find_task

    task = find_task(name)
    examples = task.encode_for_evaluation(sources, model, tokenizer)
    score = examples.score(model, is_final=True)
    if json:
        print_json({"loss": score.loss, **score.metrics, "examples": examples.validation_items})
        return
    table = new_table()
    table.add_row("loss", f"{score.loss:.4f} {task.loss_unit.replace('/', ' per ')}")
    for metric in task.metrics:
        table.add_row(metric.label, metric.template.format(score.metrics[metric.name]))
    table.add_row("examples", f"{examples.validation_items:,}")
    result_console().print(table)
