"""Programs in processes of their own that begin as copies of one that has imported everything and computed nothing.

Importing PyTorch, transformers and the Trainer takes many times what a tiny model takes to train.
"""

import gc
import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

_IMPORTED_ONCE = [
    *("smht.cli.main", "smht.training.train", "smht.distributed.head_parallel", "transformers.trainer"),
    *("smht.comparison.comparison", "torch.distributed.run", "torch.utils.tensorboard"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg", "pydantic"),
]


def context() -> ForkServerContext:
    """Makes processes that have imported everything."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(_IMPORTED_ONCE)
    with patch.dict(os.environ, OMP_NUM_THREADS="1"):  # read on import
        multiprocessing.forkserver.ensure_running()
    return made


class Program:
    """What `python` would run, in a copy of a process; to be used like a `subprocess.Popen`.

    Args:
        arguments: `-c` and code, `-m` and a module, or a file; and what it gets.
        environment: all of it.
        folder: where it runs.
        out: the file for what it prints; what this process has if not given.
        err: the same for its errors.
        of: makes the process; from the one that has imported everything if not given.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        out: Path | None = None,
        err: Path | None = None,
        of: Any = None,
    ) -> None:
        called = (list(arguments), dict(environment), str(folder), {1: out, 2: err})
        self._process: Any = (of or context()).Process(target=_become, args=called)
        self._process.start()
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the signal's number; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The same."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it and all that it has started, if it has not ended."""
        with suppress(psutil.NoSuchProcess):
            for started in psutil.Process(self.pid).children(recursive=True):
                started.kill()
        self._process.kill()
        self._process.join()


def run(*arguments: object, timeout: float, environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """The exit code of a `Program`, what it printed, and its errors.

    Raises:
        subprocess.TimeoutExpired: it was not done in time, and is killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        words = [str(word) for word in arguments]
        started = Program(words, os.environ if environment is None else environment, Path.cwd(), out, err)
        try:
            code = started.wait(timeout)
        finally:
            started.kill()
        return code, out.read_text(), err.read_text()


def _become(arguments: list[str], environment: dict[str, str], folder: str, outputs: dict[int, Path | None]) -> None:
    gc.freeze()  # else each collection goes through all that was imported
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in outputs.items():
        if path is not None:
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    match arguments:
        case ["-c", code, *rest]:
            sys.argv = ["-c", *rest]
            exec(code, {"__name__": "__main__"})
        case ["-m", module, *rest]:
            sys.argv = [module, *rest]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [path, *rest]:
            sys.argv = [path, *rest]
            sys.path.insert(0, str(Path(path).parent))
            runpy.run_path(path, run_name="__main__")
