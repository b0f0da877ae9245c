"""A rank that is gone or silent, named by those that are left.

A collective that fails says that somebody did not answer, not who. So each rank that sees it fail leaves a note in the
store at which all of them met, which outlives them, and waits a moment: who has left no note is the one that is lost.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from smht.distributed.processes import Processes, ToldError
from smht.errors import SmhtError, first_line

_SIGNS_OF_LOSS = ("connection closed", "connection reset", "connection refused", "broken pipe", "timed out")
"""What gloo's errors, plain `RuntimeError`s, say when another process is gone or silent."""

_GRACE_SECONDS = 3.0
_POLL_SECONDS = 0.05
_WAITED, _CUT_OFF = b"waited", b"cut off"


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
        yield
    except RuntimeError as error:
        text = str(error).lower()
        if not isinstance(error, dist.DistError) and not any(sign in text for sign in _SIGNS_OF_LOSS):
            raise
        message, teller = explain_loss(processes, "timed out" in text, timeout, first_line(error))
        if processes.rank != teller:
            raise ToldError(message, SmhtError.exit_code) from error
        raise SmhtError(message) from error


def explain_loss(processes: Processes, waited: bool, timeout: float, reason: str, store: Any = None) -> tuple[str, int]:
    """What to tell the user, and which rank is to tell it; every rank that is left has to call it.

    Args:
        processes: all of them.
        waited: whether this rank waited until its patience ended, and was not cut off before.
        timeout: how long it waited, in seconds.
        reason: what torch.distributed said.
        store: where notes are left; the one that the ranks met at if not given.
    """
    try:
        notes = _exchange_notes(store or dist.distributed_c10d._get_default_store(), processes, waited)
    except (RuntimeError, ValueError):
        return f"rank {processes.rank} of {processes.size} lost the others: {reason}; go on with --resume", 0
    lost = [str(rank) for rank in range(processes.size) if rank not in notes]
    if not lost:
        return f"the {processes.size} ranks lost each other: {reason}; go on with --resume", 0
    who = f"{'rank' if len(lost) == 1 else 'ranks'} {', '.join(lost)} of {processes.size}"
    if _WAITED in notes.values():
        what = f"did not answer within {timeout:g} s"
    else:
        what = f"{'is' if len(lost) == 1 else 'are'} gone"
    return f"{who} {what}; go on with --resume", min(notes)


def _exchange_notes(store: Any, processes: Processes, waited: bool) -> dict[int, bytes]:
    """The notes of those that are left, by rank."""
    store.set_timeout(timedelta(seconds=_GRACE_SECONDS))
    names = [f"smht/left/{rank}" for rank in range(processes.size)]
    store.set(names[processes.rank], _WAITED if waited else _CUT_OFF)
    deadline = time.monotonic() + _GRACE_SECONDS
    while True:
        there = [rank for rank, name in enumerate(names) if store.check([name])]
        if len(there) == processes.size or time.monotonic() > deadline:
            return {rank: store.get(names[rank]) for rank in there}
        time.sleep(_POLL_SECONDS)
