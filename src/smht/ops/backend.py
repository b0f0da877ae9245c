"""Which implementation runs behind the contracts, chosen once a process.

What is chosen is a name: `auto` (the default) or a backend of `BACKENDS`. A backend computes the calls that fulfil its
conditions, the reference all others; under `auto` it also leaves to the reference what that does faster. `explain` says
which backend each op runs on and what its calls must fulfil.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from smht.errors import UsageError, did_you_mean
from smht.ops import cpu_backend, reference
from smht.ops.call import Call, Condition

AUTO = "auto"
OPS = ("split_linear", "split_feed_forward", "split_attention", "split_decode")


@dataclass(frozen=True)
class Backend:
    """One implementation of some or all ops, with the signatures of `smht.ops.reference`.

    Attributes:
        name: its name in `BACKENDS`.
        functions: by op, called only where the conditions hold.
        why_unavailable: what keeps it from running on this machine, or None. Builds what has to be built.
        conditions: what calls must fulfil, by op.
        worthwhile: what calls must fulfil besides under `auto`, by op: elsewhere the reference is as fast.
    """

    name: str
    functions: dict[str, Callable[..., Tensor]]
    why_unavailable: Callable[[], str | None]
    conditions: dict[str, tuple[Condition, ...]]
    worthwhile: dict[str, tuple[Condition, ...]]


def _functions_of(module: ModuleType) -> dict[str, Callable[..., Tensor]]:
    return {op: getattr(module, op) for op in OPS if hasattr(module, op)}


BACKENDS: dict[str, Backend] = {
    "reference": Backend(
        name="reference",
        functions=_functions_of(reference),
        why_unavailable=lambda: None,
        conditions={},
        worthwhile={},
    ),
    "cpu": Backend(
        name="cpu",
        functions=_functions_of(cpu_backend),
        why_unavailable=cpu_backend.why_unavailable,
        conditions=cpu_backend.CONDITIONS,
        worthwhile=cpu_backend.WORTHWHILE,
    ),
}
"""Every backend by name. Adding one is adding a row."""

_chosen: str | None = None


def set_backend(name: str) -> None:
    """Use the backend called `name`, or the best one for each call (`auto`), for every op of this process from now on.

    Raises:
        UsageError: there is no backend of that name, or it cannot run on this machine.
    """
    global _chosen
    if name != AUTO:
        if name not in BACKENDS:
            raise UsageError(f"no backend is called {name!r}: {did_you_mean(name, [AUTO, *BACKENDS])}")
        if reason := BACKENDS[name].why_unavailable():
            raise UsageError(f"the backend {name!r} cannot run here: {reason}")
    _chosen = name


def get_backend() -> str:
    """The name of the choice in force: the last one set, else what `SMHT_BACKEND` says, else `auto`."""
    if _chosen is None:
        set_backend(os.environ.get("SMHT_BACKEND") or AUTO)
    assert _chosen is not None
    return _chosen


def run(op: str, *arguments: Any) -> Tensor:
    """Compute a call whose shapes the contract has checked, on the first backend that takes it."""
    return _backend_of(Call(op, arguments)).functions[op](*arguments)


def has_kernel(op: str, *arguments: Any) -> bool:
    """Whether a call is computed by a kernel rather than by the reference."""
    return _backend_of(Call(op, arguments)).name != "reference"


def _backend_of(call: Call) -> Backend:
    # A constant while compiling: choosing may build a library.
    chosen = _chosen if _chosen is not None else _choose()
    for backend in list(BACKENDS.values())[1:] if chosen == AUTO else [BACKENDS[chosen]]:
        if _takes(backend, call, chosen):
            return backend
    return BACKENDS["reference"]


@torch.compiler.assume_constant_result
def _choose() -> str:
    return get_backend()


def _takes(backend: Backend, call: Call, chosen: str) -> bool:
    if call.op not in backend.functions:
        return False
    rules = backend.conditions.get(call.op, ())
    if chosen == AUTO:
        # First, because small calls notice how long they are looked at.
        rules = backend.worthwhile.get(call.op, ()) + rules
    # Availability last, because it may build: nobody waits for a backend that their calls do not need.
    return all(rule.holds(call) for rule in rules) and _is_available(backend.name)


@torch.compiler.assume_constant_result
def _is_available(name: str) -> bool:
    # Without a word: a machine without a compiler is no mistake. `explain`, `smht doctor` and `smht train` say it.
    return BACKENDS[name].why_unavailable() is None


@dataclass(frozen=True)
class OpChoice:
    """Which backend an op runs on.

    Attributes:
        op: the op.
        backend: the backend that computes the calls that fulfil `conditions`.
        conditions: what calls must fulfil; the reference computes all others.
        why_not: why each other backend does not run, by its name.
    """

    op: str
    backend: str
    conditions: tuple[str, ...]
    why_not: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{self.op}: {self.backend}"]
        if self.conditions:
            lines.append(f"  where a call needs nothing else than: {'; '.join(self.conditions)}")
        lines += [f"  not {name}: {reason}" for name, reason in self.why_not.items()]
        return "\n".join(lines)


def explain() -> list[OpChoice]:
    """Which backend each op runs on, on which conditions, and why not on the others. `str` of an item is text.

    Builds the backends that have to be built.
    """
    chosen = get_backend()
    choices = []
    for op in OPS:
        reasons = {name: _why_not(name, op, chosen) for name in BACKENDS}
        running = next((name for name in reversed(BACKENDS) if reasons[name] is None), "reference")
        backend = BACKENDS[running]
        rules = backend.conditions.get(op, ()) + (backend.worthwhile.get(op, ()) if chosen == AUTO else ())
        why_not = {
            name: reason or f"{running!r} goes first where its conditions hold"
            for name, reason in reasons.items()
            if name != running
        }
        choices.append(OpChoice(op, running, tuple(rule.needs for rule in rules), why_not))
    return choices


def _why_not(name: str, op: str, chosen: str) -> str | None:
    if op not in BACKENDS[name].functions:
        return "it has no kernel for this op"
    if chosen not in (AUTO, name):
        return f"{chosen!r} was chosen by set_backend or SMHT_BACKEND"
    return BACKENDS[name].why_unavailable()
