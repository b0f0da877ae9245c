"""Bytes and messages of collectives, whoever calls them: this package, DTensor, DDP or FSDP."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class Collective:
    """One call of a collective.

    Attributes:
        kind: `all-reduce`, `all-gather`, `reduce-scatter`, `all-to-all`, `broadcast` or `gather`.
        bytes: what a rank sends by the algorithm that sends least (see `Traffic`).
    """

    kind: str
    bytes: float


class Traffic(TorchDispatchMode):
    """Counts the collectives that this rank takes part in while it is entered, its backward passes included.

    Bytes are those that a rank sends by the algorithms of least traffic, rings and direct exchange; `X` is the size of
    the whole tensor, gathered or to be scattered, and `P` the number of ranks:

    | kind | bytes sent by a rank |
    |---|---|
    | all-reduce | 2·X·(P−1)/P |
    | all-gather, reduce-scatter | X·(P−1)/P |
    | all-to-all | what goes to other ranks |
    | broadcast, gather | X·(P−1)/P, on the average of all ranks |

    Attributes:
        collectives: each call, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.collectives: list[Collective] = []

    @property
    def bytes(self) -> float:
        """What the rank sends, of all kinds together."""
        return sum(collective.bytes for collective in self.collectives)

    @property
    def messages(self) -> int:
        """How many collectives there were."""
        return len(self.collectives)

    def by_kind(self) -> dict[str, tuple[float, int]]:
        """Bytes and messages of each kind that occurred."""
        sent: Counter[str] = Counter()
        calls: Counter[str] = Counter()
        for collective in self.collectives:
            sent[collective.kind] += collective.bytes  # pyright: ignore[reportArgumentType]
            calls[collective.kind] += 1
        return {kind: (sent[kind], calls[kind]) for kind in calls}

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if any(_is_distributed_tensor(kind) for kind in types):
            # It turns into plain tensors and collectives, which come here by themselves.
            return NotImplemented
        namespace, _, name = getattr(func, "name", lambda: "")().partition("::")
        name = name.partition(".")[0]
        if namespace in _READERS and name not in _SILENT:
            if name not in _READERS[namespace]:
                raise NotImplementedError(f"Traffic does not know what {namespace}::{name} sends: add it to _READERS")
            self.collectives.append(_READERS[namespace][name](args))
        return func(*args, **(kwargs or {}))


def _is_distributed_tensor(kind: type) -> bool:
    return kind.__module__.startswith("torch.distributed.tensor")


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _collective(kind: str, whole: float, ranks: int) -> Collective:
    ways = 2 if kind == "all-reduce" else 1
    return Collective(kind, ways * whole * (ranks - 1) / ranks)


def _of_group(kind: str, tensors: Callable[[Sequence[Any]], Sequence[Tensor]], place: int = 1) -> Any:
    """Reads a call of `torch.ops.c10d`, where `tensors` finds the whole and `place` says where the group stands."""

    def read(args: Sequence[Any]) -> Collective:
        group = dist.ProcessGroup.unbox(args[place])
        return _collective(kind, sum(map(_size, tensors(args))), group.size())

    return read


def _exchange(output: Tensor, given: Tensor, sizes: Sequence[int], group: dist.ProcessGroup) -> Collective:
    """An all-to-all sends all rows but those that stay."""
    stays = _size(given) / group.size() if not len(sizes) else _size(given) * sizes[group.rank()] / sum(sizes)
    return Collective("all-to-all", _size(given) - stays)


def _read_exchange(args: Sequence[Any]) -> Collective:
    output, given, group, _, sent = args[:5]
    return _exchange(output, given, sent, dist.ProcessGroup.unbox(group))


def _read_gather(args: Sequence[Any]) -> Collective:
    ranks = dist.ProcessGroup.unbox(args[2]).size()
    return _collective("gather", _size(args[1][0]) * ranks, ranks)


def _named_group(name: Any) -> dist.ProcessGroup:
    resolve: Any = dist.distributed_c10d._resolve_process_group  # pyright: ignore[reportPrivateImportUsage]
    return resolve(name) if isinstance(name, str) else name


def _functional(kind: str, is_part: bool = False) -> Any:
    """Reads a call of `torch.ops._c10d_functional`: tensor first, group last; the tensor may be a rank's part."""

    def read(args: Sequence[Any]) -> Collective:
        ranks = _named_group(args[-1]).size()
        return _collective(kind, _size(args[0]) * (ranks if is_part else 1), ranks)

    return read


def _read_functional_exchange(args: Sequence[Any]) -> Collective:
    given, _, sent, group = args
    return _exchange(given, given, sent, _named_group(group))


_READERS: dict[str, dict[str, Callable[[Sequence[Any]], Collective]]] = {
    "c10d": {
        "allreduce_": _of_group("all-reduce", lambda args: args[0]),
        "allreduce_coalesced_": _of_group("all-reduce", lambda args: args[0]),
        "_allgather_base_": _of_group("all-gather", lambda args: [args[0]], place=2),
        "allgather_": _of_group("all-gather", lambda args: args[0][0], place=2),
        "_reduce_scatter_base_": _of_group("reduce-scatter", lambda args: [args[1]], place=2),
        "reduce_scatter_": _of_group("reduce-scatter", lambda args: args[1][0], place=2),
        "alltoall_base_": _read_exchange,
        "broadcast_": _of_group("broadcast", lambda args: args[0]),
        "gather_": _read_gather,
    },
    "_c10d_functional": {
        "all_reduce": _functional("all-reduce"),
        "all_reduce_": _functional("all-reduce"),
        "all_gather_into_tensor": _functional("all-gather", is_part=True),
        "reduce_scatter_tensor": _functional("reduce-scatter"),
        "all_to_all_single": _read_functional_exchange,
        "broadcast": _functional("broadcast"),
    },
}
"""By namespace and name of the op, how to read its arguments."""

_SILENT = ("wait_tensor", "_wrap_tensor_autograd", "barrier", "monitored_barrier_")
"""Ops that send no tensor."""
