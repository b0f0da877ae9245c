"""Processes on this machine that train together: what torchrun does, for one machine and with nothing to configure."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import psutil

from smht.errors import SmhtError, UsageError

_GRACE_SECONDS = 10
_POLL_SECONDS = 0.05
_LAUNCHED = "SMHT_LAUNCHED"


def started_by_a_launcher() -> int:
    """How many processes torchrun, or another launcher, says there are; 1 without one.

    Raises:
        UsageError: it says something that is no number.
    """
    value = os.environ.get("WORLD_SIZE", "1")
    if not value.isdigit() or int(value) < 1:
        raise UsageError(f"the environment says WORLD_SIZE = {value!r}: a launcher sets it to the number of processes")
    return int(value)


def check_launcher(processes: int) -> None:
    """Refuse what a launcher says of this process and of where to meet, if it makes no sense.

    Args:
        processes: how many it says there are.

    Raises:
        UsageError: something is missing, or no number, or too large a one.
    """
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise UsageError(f"the environment sets WORLD_SIZE but not {missing[0]}: start with torchrun, or --processes")
    largest = {"RANK": processes - 1, "LOCAL_RANK": processes - 1, "LOCAL_WORLD_SIZE": processes, "MASTER_PORT": 65535}
    for name, most in largest.items():
        value = os.environ.get(name, "0")
        if not value.isdecimal() or int(value) > most:
            raise UsageError(
                f"the environment says {name} = {value!r}, which is no number up to {most}: "
                "start with torchrun, or --processes"
            )


def started_by_launch() -> bool:
    """Whether `launch` started this process, and not torchrun or the like."""
    return _LAUNCHED in os.environ


def warning_about_cores(processes: int) -> str | None:
    """A line for the user where there are more processes than cores."""
    cores = _cores()
    if processes <= cores:
        return None
    return f"warning: {processes} processes share {cores} core{'s' if cores != 1 else ''}, so they wait for each other"


def _cores() -> int:
    """How many this process may use, which may be fewer than there are."""
    allowed = psutil.Process().cpu_affinity() if hasattr(psutil.Process, "cpu_affinity") else None
    return len(allowed or []) or os.cpu_count() or 1


def launch(processes: int, arguments: Sequence[str]) -> int:
    """Call `smht` with these arguments in several processes that know of each other; return the exit code.

    Each has its rank in the environment, as torchrun would set it. They meet at a port that the system chooses and
    that this process holds. Ctrl-C reaches them by the terminal, SIGTERM through this process. Where one fails, the
    others are stopped.

    Args:
        processes: how many, at least 1.
        arguments: what follows `smht` on the command line.

    Raises:
        UsageError: fewer than 1.
        SmhtError: the system killed one of them.
    """
    if processes < 1:
        raise UsageError(f"processes = {processes} must be at least 1")
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    # Held for as long as they run.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    threads = max(1, _cores() // processes)
    shared = {
        _LAUNCHED: "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
    }
    workers: list[subprocess.Popen[bytes]] = []
    stopping = _Stopping(workers)
    with stopping:
        for rank in range(processes):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [sys.executable, "-m", "smht", *arguments]
            # Rank 0 has our standard input; the others would read what it is to read.
            stdin = None if rank == 0 else subprocess.DEVNULL
            workers.append(subprocess.Popen(command, env={**os.environ, **shared, **own}, stdin=stdin))
        code, rank = _wait(workers)
    if code < 0 and not stopping.was_asked:
        raise SmhtError(f"rank {rank} was ended by {signal.Signals(-code).name}; the others were stopped")
    return code if code >= 0 else 128 - code


def _wait(workers: list[subprocess.Popen[bytes]]) -> tuple[int, int]:
    """The exit code and rank of the first to fail, or 0 and 0; none is left running."""
    try:
        while any(worker.poll() is None for worker in workers):
            failed = [rank for rank, worker in enumerate(workers) if worker.poll()]
            if failed:
                _stop(workers)
                return workers[failed[0]].returncode, failed[0]
            time.sleep(_POLL_SECONDS)
    except BaseException:
        _stop(workers)
        raise
    codes = [worker.returncode for worker in workers]
    code = next(filter(None, codes), 0)
    return code, codes.index(code)


def _stop(workers: list[subprocess.Popen[bytes]]) -> None:
    """Let them end by themselves, having lost each other; then make them."""
    deadline = time.monotonic() + _GRACE_SECONDS
    for worker in workers:
        try:
            worker.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


class _Stopping:
    """While entered, Ctrl-C is left to the workers, and SIGTERM is passed on to them."""

    def __init__(self, workers: list[subprocess.Popen[bytes]]) -> None:
        self.was_asked = False
        self._workers = workers
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._previous[number] = signal.signal(number, self._pass_on)
            except ValueError:  # not the main thread
                break

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            if handler is not None:
                signal.signal(number, handler)

    def _pass_on(self, number: int, frame: object) -> None:
        self.was_asked = True
        if number == signal.SIGTERM:
            for worker in self._workers:
                worker.send_signal(number)
