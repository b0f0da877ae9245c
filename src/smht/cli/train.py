"""`smht train`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from smht.cli.architecture import with_architecture
from smht.cli.output import print_json, progress_console, quieten_libraries, result_console

_SAMPLE_TOKENS = 160


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="train")(train)


@with_architecture
def train(
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files, folders, globs or - for standard input; none for the Python standard library's source.",
            show_default=False,
        ),
    ] = None,
    *,
    dataset: Annotated[str | None, typer.Option(help="A Hugging Face dataset instead of texts.")] = None,
    validation: Annotated[
        list[str] | None, typer.Option(help="Text to evaluate on, instead of holding out a part.")
    ] = None,
    validation_fraction: Annotated[
        float | None, typer.Option(help="Part of the text to hold out: 0.1, at most 128 KiB.", show_default=False)
    ] = None,
    errors: Annotated[
        str | None, typer.Option(help="strict, or replace: what to do with bytes that are not UTF-8.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="byte, bpe (default) or char.", show_default=False)] = None,
    vocab_size: Annotated[
        int | None, typer.Option(help="Tokens of the bpe tokenizer: 2048.", show_default=False)
    ] = None,
    preset: Annotated[str | None, typer.Option(help="Named architecture; `smht presets` lists them.")] = None,
    from_run: Annotated[
        str | None, typer.Option("--from", metavar="RUN", help="Start from the weights of another run.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with a run exactly where it stopped.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Budget in optimizer steps.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Budget in passes over the text.")] = None,
    time: Annotated[
        str | None, typer.Option(help="Budget in time, like 90s, 2m, 1h30m: 3m if no budget is given.")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Tokens in a training window.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Windows a step; about 2,048 tokens if not given.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Peak learning rate: 8e-3 for split models, 3e-3 for dense.")
    ] = None,
    warmup: Annotated[int | None, typer.Option(help="Steps of rising learning rate: 100, or a tenth.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="AdamW's weight decay: 0.1.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Sets both hidden and attention dropout.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, or bfloat16 for autocast.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random: 0.")] = None,
    evaluate_every: Annotated[
        int | None, typer.Option(help="Steps between evaluations; a tenth of the run if not given.")
    ] = None,
    keep_checkpoints: Annotated[int | None, typer.Option(help="How many checkpoints to keep: 3.")] = None,
    output: Annotated[Path | None, typer.Option(help="Run folder; runs/run-1 and so on if not given.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    architecture: dict[str, Any],
) -> None:
    """Train a language model on text, or go on with a run."""
    given = {
        "texts": tuple(texts) if texts else None,
        "dataset": dataset,
        "validation_texts": tuple(validation) if validation else None,
        "validation_fraction": validation_fraction,
        "errors": errors,
        "tokenizer": tokenizer,
        "vocab_size": vocab_size,
        "preset": preset,
        "from_run": from_run,
        "context": context,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "warmup": warmup,
        "weight_decay": weight_decay,
        "dtype": dtype,
        "device": device,
        "seed": seed,
        "evaluate_every": evaluate_every,
        "keep_checkpoints": keep_checkpoints,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if dropout is not None:
        architecture = {"hidden_dropout": dropout, "attention_dropout": dropout, **architecture}
    _run(given, architecture, {"steps": steps, "epochs": epochs, "time": time}, resume, output, json)


def _run(
    given: dict[str, Any],
    architecture: dict[str, Any],
    budgets: dict[str, Any],
    resume: Path | None,
    output: Path | None,
    json: bool,
) -> None:
    quieten_libraries()
    from smht.errors import UsageError
    from smht.training import train as training
    from smht.training.budget import Budget, parse_duration
    from smht.training.request import TrainRequest

    seconds = None if budgets["time"] is None else parse_duration(budgets["time"])
    budget = Budget(budgets["steps"], budgets["epochs"], seconds)
    console = progress_console()
    if resume is not None:
        if output is not None and output.absolute() != resume.absolute():
            raise UsageError("--resume goes on in the run's own folder: leave --output out")
        outcome = training.resume(resume, budget, {**given, **architecture}, console)
    else:
        request = TrainRequest(**given, architecture=architecture, budget=budget)
        outcome = training.start(request, output or _next_folder(Path("runs")), console)
    _report(outcome, json)


def _report(outcome: Any, json: bool) -> None:
    """The sample, the results, and what to type next."""
    run, record = outcome.run, outcome.record
    interrupted = outcome.status == "interrupted"
    if json:
        print_json({"run": str(run.path), "status": outcome.status, **record["results"]})
    elif not interrupted:
        console = result_console()
        console.print("\n[bold]sample[/]")
        console.print(_sample(run), markup=False, highlight=False, soft_wrap=True)
        console.print(_table(record))
        console.print(f"next:   smht generate {run.path} 'def '", highlight=False, soft_wrap=True)
    if interrupted:
        progress_console().print(
            f"stopped after step {record['results']['steps']:,} and saved; go on with: smht train --resume {run.path}",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(130)


def _sample(run: Any) -> str:
    from smht.tasks.generation import Sampling, encode_prompt, stream_text

    tokenizer = run.load_tokenizer()
    sampling = Sampling(max_new_tokens=_SAMPLE_TOKENS)
    return "".join(stream_text(run.load_model(), tokenizer, encode_prompt(tokenizer, b""), sampling))


def _table(record: dict[str, Any]) -> Any:
    from rich.table import Table

    from smht.training.budget import format_duration

    results = record["results"]
    table = Table(show_header=False)
    rows = {
        "validation loss": f"{results['validation_loss']:.4f} nats per token",
        "bits per byte": f"{results['bits_per_byte']:.4f}",
        "best at step": f"{results['best_step']:,} of {results['steps']:,}",
        "trained on": f"{results['tokens']:,} tokens",
        "time": f"{format_duration(results['seconds'])}, {results['tokens_per_second']:,} tokens/s",
        "parameters": f"{record['model']['parameters']:,}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _next_folder(parent: Path) -> Path:
    number = 1
    while (parent / f"run-{number}").exists():
        number += 1
    return parent / f"run-{number}"
