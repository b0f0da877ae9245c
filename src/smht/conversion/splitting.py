"""From a dense run to a split one: deal channels, cut, learn from the dense model; each stage's loss is recorded."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import set_seed

from smht.conversion.assignment import Deal, find_deal
from smht.conversion.models import cut, permuted, split_config
from smht.conversion.permutation import pose, why_residual_is_fixed
from smht.conversion.request import SplitRequest
from smht.conversion.source import Source, write_converted
from smht.errors import UsageError
from smht.models import SmhtConfig, SmhtPreTrainedModel
from smht.training import files
from smht.training import train as training
from smht.training.announcement import disk_bytes
from smht.training.budget import Budget
from smht.training.distillation import Distillation
from smht.training.memory import refuse_if_too_large
from smht.training.preparation import Prepared
from smht.training.quantities import format_size
from smht.training.run_folder import WEIGHTS, RunFolder, writing

REPORT = "split.json"
SCRATCH = "scratch"
"""The folder, in the split run's, of the same model trained from fresh weights."""


@dataclass(frozen=True)
class Splitting:
    """How it went.

    Attributes:
        run: the split run's folder.
        status: `finished` or `interrupted`.
        report: what `split.json` says: `stages`, each with its loss, and what was asked.
    """

    run: Path
    status: str
    report: dict[str, Any]


def split_run(request: SplitRequest, output: Path, console: Console) -> Splitting:
    """Make a split run of a dense one, or go on where the same request was stopped.

    Args:
        request: what to do.
        output: a folder that is empty or not there yet, or holds what the same request left.
        console: where progress goes.

    Raises:
        UsageError: something was asked for wrongly; nothing has been written then.
        SmhtError: the loss diverged, or the disk is full.
    """
    source = Source.read(Path(request.run))
    asked = {**request.to_dict(), "sha256": files.sha256(source.run.path / WEIGHTS)}
    if _was_begun(output, asked):
        return _go_on(request, source, output, console)
    RunFolder(output).refuse_if_taken()
    try:
        target = split_config(source.model.config, request.heads, request.split, request.mixing)
    except UsageError as error:
        raise UsageError(f"{source.run.path}: {error}") from None
    prepared = source.prepare(source.model)
    if not request.is_cut_alone:
        _check_disk(request, replace(prepared, model=cut(source.model, target)), source.model, output)
    console.print(f"dealing {target.hidden_size} channels to {target.num_attention_heads} blocks", highlight=False)
    student, stages = _convert(source.model, target, prepared)
    notes = {"conversion": {"asked": asked, "stages": stages, "fixed": why_residual_is_fixed(target)}}
    if request.is_cut_alone:
        write_converted(source, output, student, notes, stages[-1]["scores"])
        return _train_from_scratch(request, source, output, console)
    to_train = _prepare_training(request, source, prepared, student)
    teacher, budget = Distillation(source.model, request.recipe), _budget(request, to_train)
    outcome = training.begin(to_train, _asked(request, source), budget, output, console, teacher, notes)
    if outcome.status != "finished":
        return Splitting(output, outcome.status, _report(output))
    return _train_from_scratch(request, source, output, console)


def _convert(
    model: SmhtPreTrainedModel, target: SmhtConfig, prepared: Prepared
) -> tuple[SmhtPreTrainedModel, list[dict[str, Any]]]:
    """The split model with the weights that the best order found keeps, and what each stage on the way comes to."""
    problem = pose(model, target)
    deal, identity = find_deal(problem), Deal.identity(problem)
    dealt = permuted(model, deal)
    student = cut(dealt, target)
    stages = [
        _stage("dense", model, prepared),
        _stage("permuted", dealt, prepared),
        _stage("cut, unpermuted", cut(model, target), prepared, identity.share(problem)),
        _stage("cut", student, prepared, deal.share(problem)),
    ]
    return student, stages


def _go_on(request: SplitRequest, source: Source, output: Path, console: Console) -> Splitting:
    status = "finished" if request.is_cut_alone else _resume(output, console)
    if status != "finished":
        return Splitting(output, status, _report(output))
    return _train_from_scratch(request, source, output, console)


def _train_from_scratch(request: SplitRequest, source: Source, output: Path, console: Console) -> Splitting:
    """The control, for as many steps as the split run took; then the report."""
    status = "finished"
    if request.scratch and not request.is_cut_alone:
        status = _control(request, source, output, console)
    report = _report(output)
    if status == "finished":
        with writing(str(output / REPORT), "free some space, then give the same command again"):
            files.write_json(output / REPORT, report)
    return Splitting(output, status, report)


def _control(request: SplitRequest, source: Source, output: Path, console: Console) -> str:
    folder = output / SCRATCH
    if RunFolder(folder).holds_a_run:
        return _resume(folder, console)
    run = RunFolder(output)
    console.print("the same split model from fresh weights", highlight=False)
    set_seed(request.seed)
    fresh = type(source.model)(run.load_config())
    prepared = _prepare_training(request, source, source.prepare(fresh), fresh)
    steps = run.read_record()["settings"]["steps"]
    asked = {**_asked(request, source), "from_run": None}
    return training.begin(prepared, asked, Budget(steps=steps), folder, console).status


def _resume(folder: Path, console: Console) -> str:
    """The status of a run after going on with it, if it was not finished."""
    status = RunFolder(folder).read_record()["status"]
    return status if status == "finished" else training.resume(folder, Budget(), {}, console).status


def _prepare_training(
    request: SplitRequest, source: Source, prepared: Prepared, model: SmhtPreTrainedModel
) -> Prepared:
    rate = request.learning_rate or prepared.task.default_learning_rate(model.config)
    settings = replace(
        prepared.settings, learning_rate=rate, warmup=None, seed=request.seed, steps=0, evaluate_every=None
    )
    refuse_if_too_large(model.config, settings.batch_size, settings.context, settings.device)
    return replace(prepared, model=model, settings=settings)


def _asked(request: SplitRequest, source: Source) -> dict[str, Any]:
    """What `run.json` keeps as asked: what the dense run was asked, but for what is otherwise now."""
    changes = {"from_run": request.run, "learning_rate": request.learning_rate, "seed": request.seed}
    return {**source.record["asked"], **changes, "preset": None, "budget": asdict(request.budget)}


def _budget(request: SplitRequest, prepared: Prepared) -> Budget:
    if request.tokens is None:
        return request.budget
    return Budget(steps=math.ceil(request.tokens / (prepared.settings.batch_size * prepared.examples.tokens_per_item)))


def _check_disk(request: SplitRequest, prepared: Prepared, teacher: SmhtPreTrainedModel, output: Path) -> None:
    """Refuse what the disk cannot hold: the split run, its teacher, and the control.

    Raises:
        UsageError: less is free.
    """
    needed = disk_bytes(prepared) * (2 if request.scratch else 1) + 4 * teacher.num_parameters()
    free = files.free_bytes(output)
    if free < needed:
        raise UsageError(
            f"{output} needs {format_size(needed)} of disk and {format_size(free)} are free: free some space, or name "
            "another --output"
        )


def _stage(name: str, model: SmhtPreTrainedModel, prepared: Prepared, share: float | None = None) -> dict[str, Any]:
    score = prepared.examples.score(model)
    scores = {"validation_loss": score.loss, **score.metrics}
    return {"stage": name, "parameters": model.num_parameters(), "share_kept": share, "tokens": 0, "scores": scores}


def _was_begun(output: Path, asked: dict[str, Any]) -> bool:
    """Whether the folder holds what the same request left."""
    if not RunFolder(output).record_path.exists():
        return False
    conversion = RunFolder(output).read_record().get("conversion")
    return isinstance(conversion, dict) and conversion.get("asked") == asked


def _report(output: Path) -> dict[str, Any]:
    """What there is to report so far."""
    record = RunFolder(output).read_record()
    conversion = record["conversion"]
    stages = list(conversion["stages"])
    runs: dict[str, Callable[[], dict[str, Any]]] = {"distilled": lambda: record}
    if RunFolder(output / SCRATCH).record_path.exists():
        runs["from scratch"] = RunFolder(output / SCRATCH).read_record
    for name, read in runs.items():
        results = read()["results"]
        if results.get("tokens"):
            names = stages[0]["scores"]
            scores = {metric: results.get(metric) for metric in names}
            stages.append(
                {
                    "stage": name,
                    "parameters": record["model"]["parameters"],
                    "share_kept": None,
                    "tokens": results["tokens"],
                    "scores": scores,
                }
            )
    return {"run": str(output), "status": record["status"], **conversion, "stages": stages}
