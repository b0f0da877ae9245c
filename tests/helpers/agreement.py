"""What ranks do that have to agree, one of which does something else."""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch.distributed as dist

from smht.distributed import processes as module
from smht.distributed.processes import Processes
from smht.distributed.ranks import Ranks
from smht.errors import SmhtError, UsageError
from smht.training.run_folder import RunFolder
from smht.training.together import check_shared


def outcome(action: Any) -> tuple[str, str, int, bool]:
    """What an action came to: `ok` and its result, or an error with its exit code and whether it is told already."""
    try:
        return "ok", repr(action()), 0, False
    except SmhtError as error:
        return type(error).__name__, str(error), error.exit_code, error.is_told


def processes_of(ranks: Ranks) -> Processes:
    """All processes of the test's world, which is larger than a test's share of it at times."""
    processes = Processes()
    assert processes.size == ranks.size == dist.get_world_size()
    return processes


def one_fails(ranks: Ranks, failing: int, usage: bool) -> tuple[str, str, int, bool]:
    """An action that fails on one rank."""

    def act() -> int:
        if ranks.rank == failing:
            raise (UsageError if usage else SmhtError)("no good")
        return ranks.rank

    return outcome(lambda: processes_of(ranks).together(act))


def first_acts(ranks: Ranks, fails: bool) -> tuple[str, str, int, bool]:
    """Something that rank 0 does for all."""

    def act() -> int:
        assert ranks.rank == 0
        if fails:
            raise SmhtError("the disk is full")
        return 7

    return outcome(lambda: processes_of(ranks).first(act))


def differing(ranks: Ranks, odd: int) -> tuple[str, str, int, bool]:
    """One rank has other data."""
    facts = {"smht's code": "a" * 64, "the text's SHA-256": ("b" if ranks.rank == odd else "c") * 64}
    return outcome(lambda: processes_of(ranks).agree(facts))


def flags(ranks: Ranks, which: int) -> bool:
    """Whether some rank raised its flag."""
    return processes_of(ranks).any(ranks.rank == which)


def folders(ranks: Ranks, shared: str | None) -> tuple[str, str, int, bool]:
    """A run folder that all see, or one on each machine."""
    with tempfile.TemporaryDirectory() as own:
        run = RunFolder(Path(shared or own))
        if shared is None or ranks.rank == 0:
            run.record_path.write_text(f"made by {os.getpid()}")
        return outcome(lambda: check_shared(run, processes_of(ranks)))


def code() -> str:
    """The hash of this package's code."""
    return module.code_hash()
