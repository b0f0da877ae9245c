"""What has to hold where several processes train one run: the same code, data and settings, one folder, even shares."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from smht.distributed.head_parallel import refuse_indivisible
from smht.distributed.processes import Processes, code_hash
from smht.errors import UsageError
from smht.tasks.text_files import STANDARD_INPUT
from smht.training import files
from smht.training.budget import Budget
from smht.training.parametrisation import STANDARD
from smht.training.preparation import Prepared
from smht.training.request import TrainRequest
from smht.training.run_folder import RunFolder


def refuse_standard_input(request: TrainRequest, processes: Processes) -> None:
    """Refuse a text that only one process can read.

    Raises:
        UsageError: the text is standard input.
    """
    if processes.size > 1 and STANDARD_INPUT in request.texts:
        raise UsageError(f"{processes.size} processes cannot all read standard input: write the text to a file")


def refuse_uneven(batch_size: int, processes: Processes) -> None:
    """Refuse a batch that cannot be dealt out evenly: its mean loss would not be the mean of theirs.

    Raises:
        UsageError: the number of those who share it does not divide it.
    """
    size = processes.mesh.batch_shares
    if batch_size % size:
        below = batch_size // size * size
        nearest = f"nearest are {below} and {below + size}" if below else f"nearest is {size}"
        raise UsageError(f"batch_size = {batch_size} cannot be dealt out evenly to {size} processes; the {nearest}")


def refuse_teacher(has_teacher: bool, processes: Processes) -> None:
    """Refuse to share what a teacher takes part in.

    Raises:
        UsageError: there is one, and several processes.
    """
    if has_teacher and processes.size > 1:
        raise UsageError("a run with a teacher trains in one process: leave --processes out")


def refuse_unsharable(prepared: Prepared, budget: Budget, processes: Processes) -> None:
    """Refuse what cannot be trained by ranks with parts of the model, where that is asked for.

    Raises:
        UsageError: a budget in time; head-parallel also: `P` does not divide `H`, a projection is dense, no language
            model, or rates that depend on widths.
    """
    if processes.mesh.head > 1:
        refuse_indivisible(prepared.model.config, processes.mesh.head)
        if prepared.settings.parametrisation != STANDARD:
            raise UsageError(
                f"parametrisation = {prepared.settings.parametrisation!r} sets rates by widths, of which each rank has "
                "a part: train data-parallel, or with the standard one"
            )
    if processes.mesh.shares_model and budget.seconds is not None:
        how = "head-parallel" if processes.mesh.head > 1 else "sharded"
        raise UsageError(f"{how} steps are not timed beforehand: give --steps or --epochs instead of --time")


def facts_of(prepared: Prepared) -> dict[str, str]:
    """What all processes have to have in common, by a name for the user; long things as SHA-256."""
    data = prepared.data.manifest()
    config = {**prepared.model.config.to_diff_dict(), "_name_or_path": None, "name_or_path": None}
    return {
        "smht's code": code_hash(),
        "PyTorch's version": torch.__version__,
        "the text's SHA-256": data["text"]["sha256"],
        "the validation text's SHA-256": data["validation"]["sha256"],
        "the tokenizer's SHA-256": _hash(prepared.tokenizer.backend_tokenizer.to_str()),
        "the architecture's SHA-256": _hash(json.dumps(config, sort_keys=True, default=str)),
        "the settings' SHA-256": _hash(json.dumps(prepared.settings.to_dict(), sort_keys=True)),
    }


def agree_on(prepared: Prepared, processes: Processes) -> None:
    """Refuse ranks with other code, data, tokenizer, architecture or settings than rank 0.

    Raises:
        UsageError: something differs.
    """
    if processes.size > 1:
        processes.agree(facts_of(prepared))


def check_shared(run: RunFolder, processes: Processes) -> None:
    """Make sure that all ranks see the run folder that rank 0 sees.

    Raises:
        UsageError: a rank sees none, or another one.
    """
    if processes.size == 1:
        return
    expected = processes.first(lambda: files.sha256(run.record_path))

    def compare() -> None:
        if not run.record_path.exists() or files.sha256(run.record_path) != expected:
            raise UsageError(
                f"{run.path.absolute()} is not the folder that rank 0 writes to: "
                "name an --output on a disk that all machines share"
            )

    processes.together(compare)


@contextmanager
def locked_by_first(run: RunFolder, processes: Processes) -> Iterator[None]:
    """Keep others from training the same run: rank 0 holds the lock.

    Raises:
        UsageError: others are at it.
    """
    with ExitStack() as held:
        processes.first(lambda: held.enter_context(run.locked()))
        yield


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
