"""Which implementation runs behind the contracts, chosen once a process.

What is chosen is a name: `auto` (the default) or a backend of `BACKENDS`. A backend computes the calls that fulfil its
conditions, the reference all others; under `auto` it also leaves to the reference what that does faster. `explain` says
which backends each op runs on and what their calls must fulfil.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from smht.errors import UsageError, did_you_mean
from smht.ops import cpu_backend, gpu_backend, reference
from smht.ops.call import Call, Condition, Worth, always, never

AUTO = "auto"
REFERENCE = "reference"
OPS = (
    "split_linear",
    "split_feed_forward",
    "split_attention",
    "linear_cross_entropy",
    "permute_channels",
    "split_decode",
)


@dataclass(frozen=True)
class Backend:
    """One implementation of some or all ops, with the signatures of `smht.ops.reference`.

    Attributes:
        name: its name in `BACKENDS`.
        functions: by op, called only where the conditions hold.
        why_unavailable: what keeps it from running on this machine, or None. Builds what has to be built.
        conditions: what calls must fulfil, by op.
        worthwhile: what calls must fulfil besides under `auto`, by op: elsewhere the reference is as fast. Ops that are
            not there are always worth it.
    """

    name: str
    functions: dict[str, Callable[..., Tensor]]
    why_unavailable: Callable[[], str | None]
    conditions: dict[str, tuple[Condition, ...]]
    worthwhile: dict[str, Worth]


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
    "gpu": Backend(
        name="gpu",
        functions=_functions_of(gpu_backend),
        why_unavailable=gpu_backend.why_unavailable,
        conditions=gpu_backend.CONDITIONS,
        worthwhile=gpu_backend.WORTHWHILE,
    ),
}
"""Every backend by name; after the reference, in the order in which they are asked. Adding one is adding a row."""


_chosen: str | None = None
_FIRST_LOOKS: dict[str, dict[str, list[tuple[int, Callable[[tuple[Any, ...]], bool]]]]] = {}
"""By choice and op, what backends take at first sight: so many numbers in the first tensor, and arguments of some kind.

Small calls notice how long they are looked at: a microsecond here is five among cold caches, a tenth of what they take.
"""


def set_backend(name: str) -> None:
    """Use the backend called `name`, or the best one for each call (`auto`), for every op of this process from now on.

    Raises:
        UsageError: there is no backend of that name, or it cannot run on this machine.
    """
    global _chosen
    _prepare(name)
    _chosen = name


def _prepare(name: str) -> None:
    if not isinstance(name, str):
        raise UsageError(f"a backend is named by a string, one of {', '.join([AUTO, *BACKENDS])}; got {name!r}")
    if name != AUTO:
        if name not in BACKENDS:
            raise UsageError(f"no backend is called {name!r}: {did_you_mean(name, [AUTO, *BACKENDS])}")
        if reason := BACKENDS[name].why_unavailable():
            raise UsageError(f"the backend {name!r} cannot run here: {reason}")
    _FIRST_LOOKS[name] = {op: _first_looks(op, name) for op in OPS}


def _first_looks(op: str, chosen: str) -> list[tuple[int, Callable[[tuple[Any, ...]], bool]]]:
    backends = [
        backend
        for name, backend in BACKENDS.items()
        if name != REFERENCE and chosen in (AUTO, name) and op in backend.functions
    ]
    whatever = Worth("", always)
    worths = [backend.worthwhile.get(op, whatever) if chosen == AUTO else whatever for backend in backends]
    return [(worth.least_numbers, worth.holds) for worth in worths if worth.holds is not never]


def get_backend() -> str:
    """The name of the choice in force: the last one set, else what `SMHT_BACKEND` says, else `auto`."""
    if _chosen is None:
        set_backend(_named_outside())
    assert _chosen is not None
    return _chosen


def _named_outside() -> str:
    return os.environ.get("SMHT_BACKEND") or AUTO


def run(op: str, *arguments: Any) -> Tensor:
    """Compute a call whose shapes the contract has checked, on the first backend that takes it."""
    chosen = _chosen if _chosen is not None else _first_choice()
    for least_numbers, may_take in _FIRST_LOOKS[chosen][op]:
        if arguments[0].numel() >= least_numbers and may_take(arguments):
            return _backend_of(Call(op, arguments), chosen).functions[op](*arguments)
    return BACKENDS[REFERENCE].functions[op](*arguments)


def _first_choice() -> str:
    # A graph holds only while what it has read of this module stays as it was: compiling sets nothing.
    return _compiled_choice() if torch.compiler.is_compiling() else get_backend()


@torch.compiler.assume_constant_result
def _compiled_choice() -> str:
    name = _named_outside()
    if name not in _FIRST_LOOKS:
        _prepare(name)  # which may build a library: nothing to trace
    return name


def kernel_for(op: str, *arguments: Any) -> Callable[..., Tensor] | None:
    """What computes a call, if that is a kernel rather than the reference."""
    backend = _backend_of(Call(op, arguments), get_backend())
    return None if backend.name == REFERENCE else backend.functions[op]


def _backend_of(call: Call, chosen: str) -> Backend:
    if chosen != REFERENCE:
        for name, backend in BACKENDS.items():
            if name != REFERENCE and chosen in (AUTO, name) and _takes(backend, call, chosen):
                return backend
    return BACKENDS[REFERENCE]


def _takes(backend: Backend, call: Call, chosen: str) -> bool:
    if call.op not in backend.functions:
        return False
    worth = backend.worthwhile.get(call.op)
    if chosen == AUTO and worth is not None and not worth.is_given(call.arguments):
        return False
    for rule in backend.conditions.get(call.op, ()):
        if not rule.holds(call):
            return False
    # Availability last, because it may build: nobody waits for a backend that their calls do not need.
    return _is_available(backend.name)


@torch.compiler.assume_constant_result
def _is_available(name: str) -> bool:
    # Without a word: a machine without a compiler is no mistake. `explain`, `smht doctor` and `smht train` say it.
    return BACKENDS[name].why_unavailable() is None


@dataclass(frozen=True)
class OpChoice:
    """Which backends an op runs on.

    Attributes:
        op: the op.
        backends: what calls a backend takes, by its name: those that need nothing else. The first that takes a call
            computes it; the last one, the reference, takes all.
        why_not: why each other backend does not run, by its name.
    """

    op: str
    backends: dict[str, tuple[str, ...]]
    why_not: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{self.op}:"]
        for name, needs in self.backends.items():
            others = "all other calls" if len(self.backends) > 1 else "all calls"
            takes = f"calls that need nothing else than: {'; '.join(needs)}" if needs else others
            lines.append(f"  {name} for {takes}")
        lines += [f"  not {name}: {reason}" for name, reason in self.why_not.items()]
        return "\n".join(lines)


def explain() -> list[OpChoice]:
    """Which backends each op runs on, for which calls, and why not on the others. `str` of an item is text.

    Builds the backends that have to be built.
    """
    return [_explain_op(op, get_backend()) for op in OPS]


def _explain_op(op: str, chosen: str) -> OpChoice:
    reasons = {name: _why_not(name, op, chosen) for name in _in_turn()}
    running = [BACKENDS[name] for name, reason in reasons.items() if reason is None]
    return OpChoice(
        op,
        {backend.name: _needs(backend, op, chosen) for backend in running},
        {name: reason for name, reason in reasons.items() if reason is not None},
    )


def _needs(backend: Backend, op: str, chosen: str) -> tuple[str, ...]:
    worth = [backend.worthwhile[op]] if chosen == AUTO and op in backend.worthwhile else []
    return tuple(rule.needs for rule in (*worth, *backend.conditions.get(op, ())))


def _in_turn() -> list[str]:
    """The backends in the order in which they are asked."""
    return [*list(BACKENDS)[1:], "reference"]


def _why_not(name: str, op: str, chosen: str) -> str | None:
    if name == "reference":
        return None
    if op not in BACKENDS[name].functions:
        return "it has no kernel for this op"
    if chosen not in (AUTO, name):
        return f"{chosen!r} was chosen by set_backend or SMHT_BACKEND"
    return BACKENDS[name].why_unavailable()
