"""`smht train`."""

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from smht.cli.architecture import with_architecture
from smht.cli.output import harmless, new_table, print_json, progress_console, quieten_libraries, result_console
from smht.cli.sections import SectionedCommand, option
from smht.errors import UsageError

_PATIENCE = "30m"
_LONGEST_PATIENCE = 365 * 24 * 3600.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="train", cls=SectionedCommand)(train)


@with_architecture
def train(
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files, folders, globs or - for standard input; none for the task's own: the Python standard "
            "library's source, or numbers:id-sv for translation.",
            show_default=False,
        ),
    ] = None,
    *,
    task: Annotated[
        Literal["language-modelling", "translation", "classification"] | None,
        option(
            "Text",
            "What to learn: the next token; the target of tab-separated or JSONL pairs, numbers:LANG-LANG or "
            "dates:LANG-LANG; the label of CSV or JSONL texts, or movie-reviews.",
            default="language-modelling",
        ),
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
        Literal["byte", "bpe", "char"] | None,
        option("Text", "What a token is.", default="bpe; char for translation"),
    ] = None,
    vocab_size: Annotated[
        int | None, option("Text", "Tokens of the bpe tokenizer.", default="2048; 8192 for classification")
    ] = None,
    steps: Annotated[int | None, option("Budget", "Optimizer steps.")] = None,
    epochs: Annotated[float | None, option("Budget", "Passes over the text.")] = None,
    time: Annotated[
        str | None, option("Budget", "Time, like 90s, 2m, 1h30m.", default="3m if no budget is given")
    ] = None,
    from_run: Annotated[
        str | None, option("Run", "Start from the weights of another run.", "--from", metavar="RUN")
    ] = None,
    resume: Annotated[Path | None, option("Run", "Go on with a run exactly where it stopped.", metavar="RUN")] = None,
    output: Annotated[Path | None, option("Run", "The run's folder.", default="runs/run-1 and so on")] = None,
    keep_checkpoints: Annotated[int | None, option("Run", "How many checkpoints to keep.", default="3")] = None,
    processes: Annotated[
        int | None, option("Run", "Train in several processes, each with its share of every batch.", default="1")
    ] = None,
    mesh: Annotated[
        str | None,
        option(
            "Run",
            "How many processes share the batch, and of those how many every parameter too (shard), or how many a "
            "model's heads.",
            default="data=PROCESSES",
        ),
    ] = None,
    rank_timeout: Annotated[
        str | None, option("Run", "How long to wait for a process that is silent, like 90s.", default="30m")
    ] = None,
    context: Annotated[int | None, option("Training", "Tokens in a window.", default="the preset's")] = None,
    batch_size: Annotated[
        int | None, option("Training", "Windows, pairs or texts a step.", default="the task's")
    ] = None,
    learning_rate: Annotated[float | None, option("Training", "Its peak.", default="the task's")] = None,
    parametrisation: Annotated[
        Literal["standard", "mup"] | None,
        option(
            "Training",
            "mup sets first weights and rates by fan-in, so that one learning rate serves every width and number of "
            "heads (Maximal Update).",
            default="standard",
        ),
    ] = None,
    warmup: Annotated[
        int | None,
        option("Training", "Steps of rising learning rate.", default="100, at most a tenth of the run"),
    ] = None,
    weight_decay: Annotated[float | None, option("Training", "AdamW's.", default="0.1")] = None,
    dropout: Annotated[float | None, option("Training", "Sets hidden and attention dropout.", default="0")] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16"] | None,
        option("Training", "bfloat16 is autocast.", default="bfloat16 on cuda, else float32"),
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"] | None, option("Training", "Where to train.", default="auto")
    ] = None,
    seed: Annotated[int | None, option("Training", "Of everything random.", default="0")] = None,
    evaluate_every: Annotated[
        int | None, option("Training", "Steps between evaluations.", default="a tenth of the run")
    ] = None,
    preset: Annotated[
        str | None, option("Architecture", "Named architecture; `smht presets` lists them.", default="the task's")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    call: typer.Context,
    architecture: dict[str, Any],
) -> None:
    """Train a model on text, or go on with a run."""
    from smht.distributed.launch import started_by_a_launcher

    started = started_by_a_launcher()
    patience = _patience(rank_timeout)
    if processes is not None and processes != started:
        if started > 1:
            raise UsageError(f"{started} processes were started already: leave --processes {processes} out")
        raise typer.Exit(_launch(processes, mesh, call.obj))
    given = {
        "task": task,
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
        "parametrisation": parametrisation,
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
    budgets = {"steps": steps, "epochs": epochs, "time": time}
    is_restart = resume is None and _is_restart(output)
    if is_restart:
        resume, budgets = output, dict.fromkeys(budgets)

    def run() -> None:
        _run(given, architecture, budgets, resume, output, json, mesh, is_restart)

    if started == 1:
        run()
    else:
        _run_together(device, patience, run)


def _patience(rank_timeout: str | None) -> float:
    """Seconds to wait for a silent process.

    Raises:
        UsageError: no duration, or one that overflows where PyTorch counts nanoseconds.
    """
    from smht.training.quantities import parse_duration

    seconds = parse_duration(rank_timeout or _PATIENCE)
    if seconds > _LONGEST_PATIENCE:
        raise UsageError(f"rank_timeout = {rank_timeout!r} is longer than a year: give a shorter one, like {_PATIENCE}")
    return seconds


def _launch(processes: int, mesh: str | None, arguments: tuple[str, ...]) -> int:
    """The exit code of the same command in several processes; what can be told beforehand is told once, here."""
    from smht.distributed.launch import launch, warning_about_cores
    from smht.distributed.mesh import Mesh

    if processes > 0:
        Mesh.parse(mesh, processes)
    warning = warning_about_cores(processes)
    if warning is not None:
        progress_console().print(warning, soft_wrap=True, markup=False, highlight=False)
    return launch(processes, arguments)


def _is_restart(output: Path | None) -> bool:
    """Whether torchrun calls the same command again because a process was lost, and there is something to go on with.

    Raises:
        UsageError: nobody said where the run is.
    """
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return False
    if output is None:
        raise UsageError("torchrun begins again after a loss, and cannot tell which run is meant: give --output")
    return (output / "run.json").exists()


def _run_together(device: str | None, patience: float, run: Callable[[], None]) -> None:
    """The same in each of several processes; the first one speaks."""
    quieten_libraries()
    from smht.distributed.launch import started_by_launch, warning_about_cores
    from smht.distributed.lost import lost_ranks_in_one_line
    from smht.distributed.processes import join_processes, leave_processes

    processes = join_processes(device, patience)
    warning = warning_about_cores(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    if processes.is_first and warning is not None and not started_by_launch():
        progress_console().print(warning, soft_wrap=True, markup=False, highlight=False)
    try:
        with lost_ranks_in_one_line(processes, patience):
            run()
    finally:
        leave_processes()


def _run(
    given: dict[str, Any],
    architecture: dict[str, Any],
    budgets: dict[str, Any],
    resume: Path | None,
    output: Path | None,
    json: bool,
    mesh: str | None,
    is_restart: bool,
) -> None:
    quieten_libraries()
    from smht.training import train as training
    from smht.training.request import TrainRequest

    processes = _on_all(mesh)
    console = progress_console(quiet=not processes.is_first)
    budget = processes.together(lambda: _budget(given, budgets))
    if resume is not None:
        processes.together(lambda: _refuse_other_output(output, resume))
        outcome = training.resume(resume, budget, {**given, **architecture}, console, processes, is_restart)
    else:
        request = processes.together(lambda: TrainRequest(**given, architecture=architecture, budget=budget))
        outcome = training.start(request, output or _next_folder(Path("runs")), console, processes)
    _report(outcome, json, processes.is_first, go_on(outcome.run.path, processes.size, mesh))


def _on_all(mesh: str | None) -> Any:
    """The processes with their mesh, or the same refusal on all of them."""
    from smht.distributed.processes import Processes

    return Processes().together(lambda: Processes(mesh))


def _budget(given: dict[str, Any], budgets: dict[str, Any]) -> Any:
    from smht.training.budget import Budget
    from smht.training.quantities import parse_duration

    if {"validation_texts", "validation_fraction"} <= given.keys():
        raise UsageError("--validation and --validation-fraction exclude each other: give one of them")
    seconds = None if budgets["time"] is None else parse_duration(budgets["time"])
    return Budget(budgets["steps"], budgets["epochs"], seconds)


def _refuse_other_output(output: Path | None, resume: Path) -> None:
    if output is not None and output.absolute() != resume.absolute():
        raise UsageError("--resume goes on in the run's own folder: leave --output out")


def go_on(run: Path, processes: int, mesh: str | None) -> str:
    """The command that goes on with a run in as many processes: one may not have the room for its model."""
    from smht.distributed.launch import started_by_launch

    options = ["--resume", str(run)]
    if started_by_launch():
        options += ["--processes", str(processes), *(["--mesh", mesh] if mesh is not None else [])]
    return shlex.join(["smht", "train", *options])


def _report(outcome: Any, json: bool, is_first: bool, command_to_go_on: str) -> None:
    """The sample, the results, and what to type next; one of several processes tells."""
    run, record = outcome.run, outcome.record
    interrupted = outcome.status == "interrupted"
    if not is_first:
        if interrupted:
            raise typer.Exit(130)
        return
    if json:
        print_json({"run": str(run.path), "status": outcome.status, **record["results"]})
    elif not interrupted:
        console = result_console()
        console.print("\n[bold]sample[/]")
        console.print(harmless(_sample(outcome)), markup=False, highlight=False, soft_wrap=True)
        console.print("\n[bold]results[/]")
        console.print(_table(record, outcome.prepared.task))
        console.print()
        command = outcome.prepared.task.next_command(str(run.path), outcome.prepared.data)
        console.print(f"next: {command}", markup=False, highlight=False, soft_wrap=True)
    if interrupted:
        progress_console().print(
            f"stopped after step {record['results']['steps']:,} and saved; go on with: {command_to_go_on}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(130)


def _sample(outcome: Any) -> str:
    prepared, run = outcome.prepared, outcome.run
    return prepared.task.sample(run.load_model(), prepared.tokenizer, prepared.data)


def _table(record: dict[str, Any], task: Any) -> Any:
    from smht.training.quantities import format_duration

    results = record["results"]
    table = new_table()
    rows = {
        "validation loss": f"{results['validation_loss']:.4f} {task.loss_unit.replace('/', ' per ')}",
        **{metric.label: metric.template.format(results[metric.name]) for metric in task.metrics},
        "best at step": f"{results['best_step']:,} of {results['steps']:,}",
        "trained on": f"{results['tokens']:,} tokens",
        "time": f"{format_duration(results['seconds'])}, evaluations included",
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
