"""Ranks meet in a part of the store that no earlier meeting has used.

torchrun keeps one store for all its restarts, and how often it restarted differs from machine to machine. Ranks that
meet again would find the addresses of those that are gone, and be refused. So rank 0 makes a name for this meeting and
gives it to each process that is there now, known by a number that the process has just drawn.
"""

import socket
import time
import uuid
from typing import Any

from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]

from smht.errors import SmhtError

_POLL_SECONDS = 0.02
_RETRY_SECONDS = 0.2


def wait_for_listener(host: str, port: int, timeout: float) -> None:
    """Wait until the store can be reached: PyTorch, which waits too, logs stack traces of C++ where nobody comes.

    Args:
        host: where the store is to be.
        port: of the store.
        timeout: seconds to wait.

    Raises:
        OSError: nobody listened in all that time.
    """
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        try:
            socket.create_connection((host, port), max(left, _RETRY_SECONDS)).close()
            return
        except OSError:
            if left < 0:
                raise
        time.sleep(_RETRY_SECONDS)


def meet(store: Store, rank: int, size: int, timeout: float) -> Store:
    """A store for this meeting alone; every rank has to call it.

    Args:
        store: that all ranks see, and earlier ones have seen.
        rank: of this process.
        size: how many there are.
        timeout: seconds to wait for the others.

    Raises:
        SmhtError: some did not come; they are named on rank 0.
    """
    if rank == 0:
        return PrefixStore(_welcome(store, size, timeout), store)
    drawn = uuid.uuid4().hex
    store.set(f"smht/hello/{rank}", drawn)
    name = store.get(f"smht/welcome/{drawn}").decode()  # waits
    store.set(f"smht/here/{name}/{rank}", "")
    return PrefixStore(name, store)


def _welcome(store: Any, size: int, timeout: float) -> str:
    name = uuid.uuid4().hex
    missing = set(range(1, size))
    deadline = time.monotonic() + timeout
    while missing:
        for rank in sorted(missing):
            if store.check([f"smht/hello/{rank}"]):
                # What an earlier process drew is answered too, and nobody hears it.
                store.set(f"smht/welcome/{store.get(f'smht/hello/{rank}').decode()}", name)
            if store.check([f"smht/here/{name}/{rank}"]):
                missing.remove(rank)
        if time.monotonic() > deadline:
            who = ", ".join(map(str, sorted(missing)))
            raise SmhtError(f"{'rank' if len(missing) == 1 else 'ranks'} {who} of {size} did not come in {timeout:g} s")
        time.sleep(_POLL_SECONDS)
    return name
