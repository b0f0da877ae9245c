"""`smht` called on ranks that are there already, and in processes that it starts itself."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, chdir, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from helpers import forks
from helpers.command_line import FOUR_STEPS, TINY, Result, smht
from smht.cli.main import main
from smht.distributed import launch
from smht.distributed import processes as module
from smht.distributed.processes import Processes
from smht.distributed.ranks import Ranks
from smht.training import together
from smht.training import train as training
from smht.training.calibration import Calibration

SIZES = (*TINY, *FOUR_STEPS, "--batch-size", "4", "--mixing", "shuffle")
SECONDS = 240
TEXT = "the split heads of a block return to the range\n" * 60


def on_rank(ranks: Ranks, folder: str, arguments: list[str], with_other_code: bool = False) -> Result:
    """`smht` as a launcher would call it on this rank, in a folder; `{rank}` in either is the rank.

    Ranks but the first may have other code than that.
    """
    folder, *arguments = [word.replace("{rank}", str(ranks.rank)) for word in (folder, *arguments)]
    environment = {
        "RANK": str(ranks.rank),
        "LOCAL_RANK": str(ranks.rank),
        "WORLD_SIZE": str(ranks.size),
        "LOCAL_WORLD_SIZE": "1",  # no warning about cores
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",  # nobody goes there: the ranks have met
    }
    with (
        chdir(folder),
        untimed(),
        patch.dict(os.environ, environment),
        patch.object(together, "code_hash", lambda: str(ranks.rank) * 64) if with_other_code else nullcontext(),
        patch.object(module, "join_processes", lambda *arguments: Processes()),
        patch.object(module, "leave_processes", lambda: None),
    ):
        return smht(*arguments)


def alone(folder: str | Path, arguments: list[str]) -> Result:
    """`smht` in this process, in a folder."""
    with chdir(folder), untimed():
        return smht(*arguments)


def untimed() -> AbstractContextManager[Any]:
    """While entered, nothing is timed before a run."""
    return patch.object(training, "calibrate", lambda *arguments: Calibration(0.01, 0.01, 1_000_000))


def environment_of_processes(**others: str) -> dict[str, str]:
    """What processes of their own have in their environment: one thread, nothing to compile."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "SMHT_BACKEND": "reference", **others}


def command(*arguments: object) -> list[str]:
    """`smht` as a program."""
    return [sys.executable, "-m", "smht", *map(str, arguments)]


def forked(folder: Path, errors: Path, *arguments: object) -> forks.Program:
    """`smht` in a copy of a process that has imported everything; so are the processes that it starts itself."""
    code = "from helpers import together; together.main_with_forks()"
    words = ["-c", code, *map(str, arguments)]
    return forks.Program(words, environment_of_processes(), folder, out=Path(os.devnull), err=errors)


def main_with_forks() -> None:
    """`smht`, which copies itself where it would start interpreters."""

    def fork(command: list[str], env: Mapping[str, str], stdin: int | None) -> forks.Program:
        return forks.Program(command[1:], env, Path.cwd(), of=multiprocessing.get_context("fork"))

    with (
        untimed(),
        patch.object(launch, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": fork})),
    ):
        main()
