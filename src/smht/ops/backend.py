"""Which implementation runs behind the contracts, chosen once a process."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from smht.errors import UsageError, did_you_mean
from smht.ops import reference


@dataclass(frozen=True)
class Backend:
    """One implementation of every op, with the signatures of `smht.ops.reference`."""

    name: str
    split_linear: Callable[..., Tensor]
    split_feed_forward: Callable[..., Tensor]
    split_attention: Callable[..., Tensor]


BACKENDS: dict[str, Backend] = {
    "reference": Backend(
        name="reference",
        split_linear=reference.split_linear,
        split_feed_forward=reference.split_feed_forward,
        split_attention=reference.split_attention,
    ),
}
"""Every backend by name. Adding one is adding a row."""

_chosen: Backend | None = None


def set_backend(name: str) -> None:
    """Use the backend called `name` for every op of this process from now on.

    Raises:
        UsageError: there is no backend of that name.
    """
    global _chosen
    if name not in BACKENDS:
        raise UsageError(f"no backend is called {name!r}: {did_you_mean(name, BACKENDS)}")
    _chosen = BACKENDS[name]


def get_backend() -> Backend:
    """The backend in use: the last one set, else the one that `SMHT_BACKEND` names, else `reference`."""
    if _chosen is None:
        set_backend(os.environ.get("SMHT_BACKEND") or "reference")
    assert _chosen is not None
    return _chosen
