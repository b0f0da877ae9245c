"""A rank that is gone or silent, named by those that are left.

A collective that fails says that somebody did not answer, not who. So each rank that sees it fail leaves a note in the
store at which all of them met, which outlives them, and waits a moment: who has left no note is the one that is lost.

Where groups of ranks speak apart from each other, as in a mesh, a rank may wait for one that waits for the lost one,
and see nothing fail. So a thread of each rank answers for it as soon as there is a note of another one. A process that
is killed or stopped does not answer; one that hangs by itself does, and has still left no note.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from smht.distributed.processes import Processes, ToldError
from smht.errors import SmhtError, first_line

_SIGNS_OF_LOSS = ("connection closed", "connection reset", "connection refused", "broken pipe", "timed out")
"""What gloo's errors, plain `RuntimeError`s, say when another process is gone or silent."""

_GRACE_SECONDS = 3.0
_POLL_SECONDS = 0.05
_WATCH_SECONDS = 0.5
_WAITED, _CUT_OFF = b"waited", b"cut off"
_LOSS, _TELLERS = "smht/loss", "smht/tellers"


@contextmanager
def lost_ranks_in_one_line(processes: Processes, timeout: float) -> Iterator[None]:
    """Turn what torch.distributed says of a rank that is gone or silent into one line, told by one rank.

    Args:
        processes: all of them.
        timeout: seconds after which a silent rank counts as lost, for the line.

    Raises:
        SmhtError: a rank is gone, or did not answer in time.
    """
    try:
        with answering(processes, dist.distributed_c10d._get_default_store()):
            yield
    except RuntimeError as error:
        text = str(error).lower()
        if not isinstance(error, dist.DistError) and not any(sign in text for sign in _SIGNS_OF_LOSS):
            raise
        message, tells = explain_loss(processes, "timed out" in text, timeout, first_line(error))
        if not tells:
            raise ToldError(message, SmhtError.exit_code) from error
        raise SmhtError(message) from error


@contextmanager
def answering(processes: Processes, store: Any) -> Iterator[None]:
    """While entered, a thread shows that this rank is alive once another one has seen a loss.

    Args:
        processes: all of them.
        store: the one that the ranks met at.
    """
    # With a connection of its own: one call at a time goes over a connection, and ours may wait for long.
    own, ended = store.clone(), threading.Event()

    def answer() -> None:
        with suppress(RuntimeError):  # the store has gone, and with it whoever asked
            while not ended.wait(_WATCH_SECONDS):
                if own.check([_LOSS]):
                    own.set(_alive(processes.rank), "")
                    return

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_GRACE_SECONDS)  # what it calls is not to outlive the store


def explain_loss(
    processes: Processes, waited: bool, timeout: float, reason: str, store: Any = None
) -> tuple[str, bool]:
    """What to tell the user, and whether this rank is the one to tell it; every rank that sees a loss has to call it.

    Args:
        processes: all of them.
        waited: whether this rank waited until its patience ended, and was not cut off before.
        timeout: how long it waited, in seconds.
        reason: what torch.distributed said.
        store: where notes are left; the one that the ranks met at if not given.
    """
    store = store or dist.distributed_c10d._get_default_store()
    try:
        notes, silent = _exchange_notes(store, processes, waited)
        tells = store.add(_TELLERS, 1) == 1
    except (RuntimeError, ValueError):
        is_first = processes.is_first
        return f"rank {processes.rank} of {processes.size} lost the others: {reason}; go on with --resume", is_first
    lost = silent or [rank for rank in range(processes.size) if rank not in notes]
    if not lost:
        return f"the {processes.size} ranks lost each other: {reason}; go on with --resume", tells
    who = f"{'rank' if len(lost) == 1 else 'ranks'} {', '.join(map(str, lost))} of {processes.size}"
    if _WAITED in notes.values():
        what = f"did not answer within {timeout:g} s"
    else:
        what = f"{'is' if len(lost) == 1 else 'are'} gone"
    return f"{who} {what}; go on with --resume", tells


def _exchange_notes(store: Any, processes: Processes, waited: bool) -> tuple[dict[int, bytes], list[int]]:
    """The notes of those that saw a loss, by rank; and who gives no sign of life."""
    store.set_timeout(timedelta(seconds=_GRACE_SECONDS))
    names = [f"smht/left/{rank}" for rank in range(processes.size)]
    store.set(names[processes.rank], _WAITED if waited else _CUT_OFF)
    store.set(_LOSS, "")
    deadline = time.monotonic() + _GRACE_SECONDS
    while True:
        there = [rank for rank, name in enumerate(names) if store.check([name])]
        if len(there) == processes.size or time.monotonic() > deadline:
            silent = [rank for rank in range(processes.size) if rank not in there and not store.check([_alive(rank)])]
            return {rank: store.get(names[rank]) for rank in there}, silent
        time.sleep(_POLL_SECONDS)


def _alive(rank: int) -> str:
    return f"smht/alive/{rank}"
