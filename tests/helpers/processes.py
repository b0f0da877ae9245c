"""Processes that stay for all tests, so that starting them is paid once: worlds of gloo, and programs that they run.

They are forked from one process that has imported everything and computed nothing (`helpers.forks`). A program is a
function of a module that the processes can import; it gets its `Ranks` and what the test gave. A process that fails
sends its traceback; the others, which may wait for it, are killed then, and new ones are made for the next test.
"""

import gc
import multiprocessing.connection
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from helpers import forks

SECONDS = 120
"""How long a program may take, the first one with the start of the processes, and a process wait for another."""


class Worlds:
    """A world of 2 and one of 4 processes, each started when a test first needs it."""

    def __init__(self) -> None:
        self._worlds = {2: World(2), 4: World(4)}

    def run(self, size: int, program: Callable[..., Any], *arguments: Any) -> list[Any]:
        """`World.run` in the smallest world with enough processes; of them, the first `size`."""
        return self._worlds[2 if size <= 2 else 4].run(size, program, *arguments)

    def stop(self) -> None:
        """End all processes."""
        for world in self._worlds.values():
            world.stop()


class World:
    """Processes that know of each other; a program may take the first few only.

    Args:
        size: how many.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def run(self, size: int, program: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `program(ranks, *arguments)` returned on each of the first `size` processes.

        Raises:
            AssertionError: one failed, with its traceback, or was not done in time.
        """
        if not self._processes:
            self._start()
        for pipe in self._pipes[:size]:
            pipe.send((size, program, arguments))
        results: list[Any] = []
        deadline = time.monotonic() + SECONDS
        waiting = dict(enumerate(self._pipes[:size]))
        answers: dict[int, tuple[bool, Any]] = {}
        while waiting and all(succeeded for succeeded, _ in answers.values()):
            ready = multiprocessing.connection.wait(list(waiting.values()), max(0, deadline - time.monotonic()))
            if not ready:
                self.stop()
                raise AssertionError(f"rank {', '.join(map(str, waiting))} of {size} not done after {SECONDS} seconds")
            for rank in [rank for rank, pipe in waiting.items() if pipe in ready]:
                answers[rank] = _receive(waiting.pop(rank))
        for rank, (succeeded, result) in sorted(answers.items()):
            if not succeeded:
                self.stop()
                raise AssertionError(f"rank {rank} of {size} failed:\n{result}")
            results.append(result)
        return results

    def stop(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.join()
            pipe.close()
        self._processes, self._pipes = [], []
        if self._folder is not None:
            self._folder.cleanup()

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        context = forks.context()
        for rank in range(self.size):
            here, there = context.Pipe()
            store = str(Path(self._folder.name) / "store")
            process = context.Process(target=_serve, args=(there, rank, self.size, store), daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            self._pipes.append(here)


def _receive(pipe: Connection) -> tuple[bool, Any]:
    try:
        return pipe.recv()
    except EOFError:
        return False, "the process died without a word"


def _serve(pipe: Connection, rank: int, size: int, store: str) -> None:
    """Run programs until the other end of the pipe is gone."""
    gc.freeze()  # else each collection goes through all that was imported
    # Read when the processor's kernels are first looked for; they are no concern here and take time to compile.
    os.environ["SMHT_BACKEND"] = "reference"
    import torch
    import torch.distributed as dist

    from smht.distributed.ranks import Ranks

    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", timedelta(seconds=SECONDS), world_size=size, rank=rank)
    groups = {count: dist.new_group(list(range(count))) for count in range(1, size + 1)}
    while True:
        try:
            count, program, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, program(Ranks(groups[count]), *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
