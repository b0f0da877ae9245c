"""A run from its first step, or from where it stopped, to its result."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import transformers
from rich.console import Console

from smht.distributed.processes import Processes, ToldError, as_if_alone
from smht.errors import SmhtError, UsageError
from smht.training import files
from smht.training.announcement import announce, check_disk
from smht.training.budget import Budget
from smht.training.calibration import Calibration, calibrate, slowest
from smht.training.callbacks import Recorder, SaveAtStart, Schedule
from smht.training.checkpoint import checkpoint_path, find_checkpoint, remove_newer, step_of
from smht.training.distillation import Distillation, keep_teacher, read_distillation
from smht.training.interrupt import StopRequest
from smht.training.plots import draw_plots
from smht.training.preparation import Prepared, Settings, copy_standard_input, prepare, prepare_again
from smht.training.progress import TrainingDisplay
from smht.training.record import new_record, results_of
from smht.training.request import TrainRequest
from smht.training.run_folder import RunFolder, writing
from smht.training.tensorboard import tensorboard
from smht.training.together import (
    agree_on,
    check_shared,
    locked_by_first,
    refuse_standard_input,
    refuse_teacher,
    refuse_uneven,
    refuse_unsharable,
)
from smht.training.trainer import DivergedError, Job, Optimisation, SmhtTrainer
from smht.training.trainers import trainer_for

_ROWS_PER_EVALUATION = 10
_DEFAULT_WARMUP = 100


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        run: its folder.
        status: `finished` or `interrupted`.
        record: what `run.json` says.
        prepared: what it was trained on, and what made it.
    """

    run: RunFolder
    status: str
    record: dict[str, Any]
    prepared: Prepared


def start(request: TrainRequest, output: Path, console: Console, processes: Processes | None = None) -> Outcome:
    """Begin a run in the folder `output` and train it to the end of its budget.

    Args:
        request: what to train.
        output: a folder that is empty or not there yet.
        console: where progress goes.
        processes: those that train together, each of which has to call this; this one alone if not given.

    Raises:
        UsageError: something was asked for wrongly; nothing has been written then.
        SmhtError: the loss diverged, or the disk is full; what was learned is saved.
    """
    processes = processes or Processes()
    chosen = processes.first(lambda: output)
    processes.first(RunFolder(chosen).refuse_if_taken)  # before the data, which take a while
    prepared = processes.together(lambda: _prepare_new(request, processes))
    agree_on(prepared, processes)
    return begin(prepared, request.to_dict(), request.budget, chosen, console, processes=processes)


def begin(
    prepared: Prepared,
    asked: dict[str, Any],
    budget: Budget,
    output: Path,
    console: Console,
    distillation: Distillation | None = None,
    notes: dict[str, Any] | None = None,
    processes: Processes | None = None,
) -> Outcome:
    """Begin a run with what is prepared already; see `start`.

    Args:
        prepared: what to train, and on what.
        asked: what `run.json` is to keep of the request; `from_run` says where weights came from that are not fresh.
        budget: how long.
        output: a folder that is empty or not there yet.
        console: where progress goes.
        distillation: a teacher, which is kept in the run's folder.
        notes: what `run.json` is to hold besides.
        processes: see `start`.
    """
    processes = processes or Processes()
    run = RunFolder(output)
    processes.first(run.refuse_if_taken)
    costs = _calibrate(prepared, distillation, processes)
    prepared = replace(prepared, settings=processes.together(lambda: _settle(prepared, budget, costs)))
    announce(prepared, costs, run, console, 0, processes.mesh)
    processes.first(lambda: check_disk(prepared, run))

    def make_folder() -> None:
        record = {**new_record(asked, prepared, processes), **(notes or {})}
        with writing("the run folder", advice="free some space"), run.claimed():
            files.fill_folder(run.path, lambda folder: _fill_new_run(RunFolder(folder), prepared, record, distillation))

    processes.first(make_folder)
    try:
        check_shared(run, processes)
    except SmhtError:
        if processes.is_first:
            shutil.rmtree(run.path)  # as if nothing had been asked for
        raise
    with locked_by_first(run, processes):
        keep_start = asked["from_run"] is not None
        return _train(run, run.read_record(), prepared, None, console, distillation, processes, keep_start)


def resume(
    path: Path,
    budget: Budget,
    given: dict[str, Any],
    console: Console,
    processes: Processes | None = None,
    is_restart: bool = False,
) -> Outcome:
    """Go on with a run exactly as if it had never stopped, or extend a finished one.

    Args:
        path: the run's folder.
        budget: a new budget; with none, what the run began with. Steps and epochs count from the run's beginning,
            a time counts from now.
        given: settings that the user repeated; each must be what the run has.
        console: where progress goes.
        processes: as in `start`; with another number than before all is as it was but for dropout.
        is_restart: a launcher repeats a command because a process was lost; a run that has finished is no mistake then.

    Raises:
        UsageError: there is no such run, it is damaged beyond resuming, its text has changed, or a setting differs.
        SmhtError: as in `start`.
    """
    processes = processes or Processes()
    run = RunFolder(path)
    record = processes.together(run.read_record)
    check_shared(run, processes)
    processes.together(lambda: _refuse_changes(run, record, given))
    found = find_checkpoint(run.checkpoints)
    for line in found.damaged:
        console.print(f"warning: checkpoint {line}; it is not used", soft_wrap=True, markup=False, highlight=False)
    first_step = step_of(found.newest_good) if found.newest_good else 0
    if found.newest_good is None:
        processes.together(lambda: _begin_again(run, record, console))
    is_at_its_end = not budget.is_given and first_step >= record["settings"]["steps"]
    has_finished = is_at_its_end and record["status"] == "finished"
    if has_finished and not is_restart:
        message = f"{path} has finished its {first_step} steps: extend it by --resume {path} --steps N"
        raise UsageError(message) if processes.is_first else ToldError(message, UsageError.exit_code)
    prepared = processes.together(lambda: prepare_again(run, record))
    if has_finished:
        return Outcome(run, "finished", record, prepared)
    if is_at_its_end:
        # Stopped between its last checkpoint and the last line of its record.
        return _finish(run, record, "finished", prepared, processes)
    distillation = processes.together(lambda: read_distillation(run, record))
    processes.together(lambda: refuse_uneven(prepared.settings.batch_size, processes))
    processes.together(lambda: refuse_unsharable(prepared, budget, processes))
    processes.together(lambda: refuse_teacher(distillation is not None, processes))
    agree_on(prepared, processes)
    costs = _calibrate(prepared, distillation, processes)
    if budget.is_given:
        steps = _extended_steps(prepared, budget, costs, first_step)
        prepared = replace(prepared, settings=replace(prepared.settings, steps=steps))
    announce(prepared, costs, run, console, first_step, processes.mesh)
    processes.first(lambda: check_disk(prepared, run))
    record = {
        **record,
        "status": "running",
        "settings": prepared.settings.to_dict(),
        "processes": processes.size,
    }

    def clear() -> None:
        with writing("the run folder"):
            remove_newer(run.checkpoints, first_step)
            run.write_record(record)

    with locked_by_first(run, processes):
        processes.first(clear)
        return _train(run, record, prepared, found.newest_good, console, distillation, processes)


def _prepare_new(request: TrainRequest, processes: Processes) -> Prepared:
    refuse_standard_input(request, processes)
    prepared = prepare(request)
    refuse_uneven(prepared.settings.batch_size, processes)
    refuse_unsharable(prepared, request.budget, processes)
    return prepared


def _begin_again(run: RunFolder, record: dict[str, Any], console: Console) -> None:
    """Without a whole checkpoint a run can only go through the same steps again, if it ever went through any.

    Raises:
        UsageError: it is finished, or began with weights that are gone.
    """
    if record["status"] == "finished":
        raise UsageError(f"{run.path} is finished and has no whole checkpoint to go on from: use --from {run.path}")
    if record["asked"]["from_run"] is not None:
        raise UsageError(f"{run.path} has no whole checkpoint, and its first weights came from another run: begin anew")
    if run.read_metrics():
        console.print("warning: there is no whole checkpoint; beginning again at step 0", soft_wrap=True)


def _fill_new_run(
    run: RunFolder, prepared: Prepared, record: dict[str, Any], distillation: Distillation | None
) -> None:
    run.checkpoints.mkdir()
    prepared.tokenizer.save_pretrained(run.path)
    prepared.model.config.save_pretrained(run.path)
    copy_standard_input(prepared.data, run.path)
    if distillation is not None:
        record = {**record, "distillation": keep_teacher(run, distillation)}
    run.write_record(record)


def _train(
    run: RunFolder,
    record: dict[str, Any],
    prepared: Prepared,
    checkpoint: Path | None,
    console: Console,
    distillation: Distillation | None,
    processes: Processes,
    keep_start: bool = False,
) -> Outcome:
    settings = prepared.settings
    assert settings.evaluate_every is not None
    first_step = step_of(checkpoint) if checkpoint else 0
    rows = processes.first(lambda: run.cut_metrics(first_step))
    display = TrainingDisplay(console, settings.steps, first_step, prepared.task)
    with StopRequest() as stop, display, as_if_alone(processes.mesh):
        recorder = Recorder(
            run,
            settings.batch_size * prepared.examples.tokens_per_item,
            [metric.name for metric in prepared.task.metrics if not metric.is_final],
            rows,
            display.show,
        )
        log_every = max(1, settings.evaluate_every // _ROWS_PER_EVALUATION)
        job = Job(
            prepared.examples,
            checkpoints=run.checkpoints,
            keep=settings.keep_checkpoints,
            callbacks=[
                Schedule(log_every, settings.evaluate_every, stop, processes),
                *([recorder, *tensorboard(run)] if processes.is_first else []),
            ],
            distillation=distillation,
            processes=processes,
        )
        optimisation = _optimisation(settings, processes.mesh.batch_shares)
        trainer = trainer_for(processes.mesh)(prepared.model, optimisation, job)
        trainer.remove_callback(transformers.PrinterCallback)
        try:
            if keep_start:
                trainer.add_callback(SaveAtStart(trainer.save_checkpoint))
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except DivergedError as error:
            explained = _explain_divergence(error, trainer, run, record, processes)
            raise explained if processes.is_first else ToldError(str(explained), explained.exit_code) from error
        except BaseException as error:
            if processes.is_first:
                stopped = isinstance(error, KeyboardInterrupt)
                run.write_record({**record, "status": "interrupted" if stopped else "failed"})
            raise
    status = "finished" if trainer.state.global_step >= settings.steps else "interrupted"
    return _finish(run, record, status, prepared, processes)


def _finish(run: RunFolder, record: dict[str, Any], status: str, prepared: Prepared, processes: Processes) -> Outcome:
    if not processes.is_first:
        return Outcome(run, status, record, prepared)
    results = results_of(run, [metric.name for metric in prepared.task.metrics])
    if status == "finished":
        model = run.load_model(device=prepared.settings.device)
        if any(metric.is_final for metric in prepared.task.metrics):
            results |= prepared.examples.score(model, is_final=True).metrics
        with writing("the plots"):
            draw_plots(run.path / "plots", run.read_metrics(), prepared.task, prepared.examples, model)
    record = {**record, "status": status, "results": results}
    run.write_record(record)
    return Outcome(run, status, record, prepared)


def _calibrate(prepared: Prepared, distillation: Distillation | None, processes: Processes) -> Calibration:
    alone = _optimisation(prepared.settings, processes=1)
    share = replace(alone, batch_size=alone.batch_size // processes.mesh.batch_shares)
    return slowest(processes.collect(calibrate(prepared.model, prepared.examples, share, distillation)))


def _optimisation(settings: Settings, processes: int) -> Optimisation:
    return Optimisation(
        steps=settings.steps,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        parametrisation=settings.parametrisation,
        warmup=settings.warmup or 0,
        weight_decay=settings.weight_decay,
        dtype=settings.dtype,
        device=settings.device,
        seed=settings.seed,
        processes=processes,
    )


def _settle(prepared: Prepared, budget: Budget, costs: Calibration) -> Settings:
    """Settings with the number of steps that the budget comes to, and what follows from it."""
    steps = _to_steps(prepared, budget, costs)
    settings = prepared.settings
    if settings.warmup is not None and settings.warmup >= steps:
        raise UsageError(f"warmup = {settings.warmup} leaves nothing of the run's {steps} steps: lower it")
    return replace(
        settings,
        steps=steps,
        warmup=min(_DEFAULT_WARMUP, steps // 10) if settings.warmup is None else settings.warmup,
        evaluate_every=settings.evaluate_every or max(1, -(-steps // budget.evaluations(costs.evaluation_seconds))),
    )


def _to_steps(prepared: Prepared, budget: Budget, costs: Calibration) -> int:
    return budget.to_steps(
        windows_per_epoch=prepared.examples.items_per_epoch,
        batch_size=prepared.settings.batch_size,
        step_seconds=costs.step_seconds,
        evaluation_seconds=costs.evaluation_seconds,
        evaluate_every=prepared.settings.evaluate_every,
    )


def _extended_steps(prepared: Prepared, budget: Budget, costs: Calibration, first_step: int) -> int:
    steps = _to_steps(prepared, budget, costs) + (first_step if budget.seconds is not None else 0)
    if steps <= first_step:
        raise UsageError(f"the run has taken {first_step} steps already; a budget of {steps} leaves nothing to do")
    return steps


def _explain_divergence(
    error: DivergedError, trainer: SmhtTrainer, run: RunFolder, record: dict[str, Any], processes: Processes
) -> SmhtError:
    """Save the weights as they were before the bad step, if they are; say how to go on."""
    has_checkpoints = run.checkpoints.is_dir() and any(run.checkpoints.iterdir())
    saved = f"the checkpoints in {run.checkpoints} are from before it" if has_checkpoints else "nothing was learned yet"
    if error.weights_are_good:
        saved = f"the weights before it are saved in {run.checkpoints}"
        # One that is there already has the random state of before the bad step.
        if not checkpoint_path(run.checkpoints, trainer.state.global_step).exists():
            try:
                trainer.save_checkpoint()
            except SmhtError as disk:
                saved = str(disk)
    processes.first(lambda: run.write_record({**record, "status": "failed"}))
    rate = record["settings"]["learning_rate"]
    return SmhtError(f"{error}; {saved}; begin a new run with a --learning-rate below {rate:g}")


def _refuse_changes(run: RunFolder, record: dict[str, Any], given: dict[str, Any]) -> None:
    """A resumed run is the same run: whoever wants other hyperparameters wants a new one."""
    if not given:
        return
    places = (record["asked"], record["settings"], record["model"], run.load_config().to_dict())
    for name, value in given.items():
        known = [place[name] for place in places if place.get(name) is not None]
        if any(_plain(there) == _plain(value) for there in known):
            continue
        there = f"has {name} = {known[0]}" if known else f"was begun without {name}"
        raise UsageError(
            f"{run.path} {there}, and --resume goes on with the same run: leave {name} = {value} out, "
            "or begin a new run"
        )


def _plain(value: Any) -> Any:
    """Lists for tuples, as JSON has them."""
    return list(value) if isinstance(value, tuple) else value
