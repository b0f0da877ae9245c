"""Ranks meet in a part of the store that no earlier meeting has used.

torchrun keeps one store for all its restarts, and how often it restarted differs from machine to machine. Ranks that
meet again would find the addresses of those that are gone, and be refused. So rank 0 makes a name for this meeting and
gives it to each process that is there now, known by a number that the process has just drawn.
"""

import time
import uuid
from typing import Any

from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]

from smht.errors import SmhtError

_POLL_SECONDS = 0.02


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
