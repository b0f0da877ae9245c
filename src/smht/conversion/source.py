"""The run that is converted, and a run folder for what becomes of it without training."""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from smht.errors import UsageError
from smht.models import SmhtPreTrainedModel
from smht.tokenization import tokenizer_kind
from smht.training import files
from smht.training.announcement import describe_architecture
from smht.training.preparation import STANDARD_INPUT_COPY, Prepared, prepare_again
from smht.training.quantities import format_size
from smht.training.run_folder import WEIGHTS, RunFolder, find_best, writing


@dataclass(frozen=True)
class Source:
    """A finished or stopped run.

    Attributes:
        run: its folder.
        record: what its `run.json` says.
        model: its best one.
    """

    run: RunFolder
    record: dict[str, Any]
    model: SmhtPreTrainedModel

    @classmethod
    def read(cls, path: Path) -> "Source":
        """The run in a folder.

        Raises:
            UsageError: there is none, or it is damaged.
        """
        run = RunFolder(path)
        run.check_model()
        return cls(run, run.read_record(), run.load_model())

    def prepare(self, model: SmhtPreTrainedModel) -> Prepared:
        """The run's data for another model.

        Raises:
            UsageError: the data is gone or has changed.
        """
        return replace(prepare_again(self.run, self.record), model=model)


def write_converted(
    source: Source,
    output: Path,
    model: SmhtPreTrainedModel,
    notes: dict[str, Any],
    scores: Mapping[str, float] | None = None,
) -> None:
    """A run folder with a model that was made of another run's, not trained.

    Every command takes it, and `smht train --from` goes on from it; there is no checkpoint to resume from.

    Args:
        source: where the model comes from.
        output: a folder that is empty or not there yet.
        model: made of the source's.
        notes: what `run.json` is to hold besides.
        scores: on the source's validation data, where they are not the source's.

    Raises:
        UsageError: the folder is taken, or the disk too full.
        SmhtError: the disk is full or cannot be written.
    """
    run = RunFolder(output)
    needed, free = 4 * model.num_parameters() + 1_000_000, files.free_bytes(output)
    if free < needed:
        raise UsageError(
            f"{output} needs {format_size(needed)} of disk and {format_size(free)} are free: free some space"
        )
    with writing("the run folder", advice="free some space"), run.claimed():
        files.fill_folder(output, _filler(source, model, notes, scores))


def _filler(
    source: Source, model: SmhtPreTrainedModel, notes: dict[str, Any], scores: Mapping[str, float] | None
) -> Callable[[Path], None]:
    tokenizer = source.run.load_tokenizer()
    row, results = find_best(source.run.read_metrics()), source.record["results"]
    if scores is not None:
        row = {"step": 0, "tokens": 0, "seconds": 0.0, "loss": None, "learning_rate": 0.0, **scores}
        results = {"steps": 0, "tokens": 0, "seconds": 0.0, "best_step": 0, **scores}

    def fill(folder: Path) -> None:
        run = RunFolder(folder)
        run.checkpoints.mkdir()
        run.save_model(model, tokenizer)
        copy = source.run.path / STANDARD_INPUT_COPY
        if copy.exists():
            shutil.copy(copy, folder)
        if row is not None:
            run.append_metrics(row)
        kept = {name: value for name, value in source.record.items() if name not in ("distillation", "conversion")}
        run.write_record(
            {
                **kept,
                "status": "finished",
                "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                "asked": {**source.record["asked"], "from_run": str(source.run.path)},
                "model": {
                    "parameters": model.num_parameters(),
                    "preset": None,
                    "tokenizer": tokenizer_kind(tokenizer),
                    "architecture": describe_architecture(model.config),
                },
                "results": {**results, "sha256": files.sha256(folder / WEIGHTS)},
                **notes,
            }
        )

    return fill
