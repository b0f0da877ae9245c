"""How each parameter is cut, declared by the type of the module that has it; cutting, and putting together again.

Every parameter of a split model belongs to some head or channel, so nothing is kept twice: the ranks' parts are the
model. Cutting is along one axis, into parts of equal size; the vocabulary's may differ (`Ranks.part`).
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from smht.distributed.norm import RankLayerNorm
from smht.distributed.ranks import Ranks
from smht.distributed.vocabulary import ChannelHead, VocabularyHead
from smht.layers import HeadLayerNorm, SplitLinear
from smht.layers.position import LearnedPositions

M = TypeVar("M", bound=nn.Module)

AXES: dict[type[nn.Module], dict[str, int]] = {
    SplitLinear: {"weight": 0, "bias": 0},
    RankLayerNorm: {"weight": 0, "bias": 0},
    HeadLayerNorm: {"weight": 0, "bias": 0},
    # Of tokens and positions by channel, of relative distances by head.
    nn.Embedding: {"weight": 1},
    LearnedPositions: {"weight": 1},
    ChannelHead: {"weight": 1},
    VocabularyHead: {"weight": 0},
}
"""The axis along which each parameter is cut, by the type of the module on a rank."""


def axes_of(part: nn.Module) -> Iterator[tuple[str, nn.Parameter, int]]:
    """Name, this rank's part and axis of every parameter, tied ones once."""
    seen: set[int] = set()
    for prefix, module in part.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{prefix}.{name}" if prefix else name, parameter, AXES[type(module)][name]


@torch.no_grad()
def load_cut(part: nn.Module, full: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Copy this rank's part of each tensor into `part`.

    Args:
        part: the rank's model, as `head_parallel` makes it.
        full: the whole model's tensors by parameter name.
        ranks: who has the rest.
    """
    for name, parameter, axis in axes_of(part):
        parameter.copy_(cut(full[name], axis, ranks))


def cut(full: Tensor, axis: int, ranks: Ranks) -> Tensor:
    """This rank's part of a whole tensor; a view."""
    part = ranks.part(full.shape[axis])
    return full.narrow(axis, part.start, part.stop - part.start)


def describe_part(part: Tensor, axis: int, whole: torch.Size, ranks: DeviceMesh) -> DTensor:
    """A rank's part as torch.distributed knows parts; nothing is copied or sent.

    Args:
        part: as `cut` makes it.
        axis: along which it was cut.
        whole: the shape that it was cut from.
        ranks: who has the rest, of one dimension.
    """
    stride = torch.empty(whole, device="meta").stride()
    return DTensor.from_local(part, ranks, [Shard(axis)], run_check=False, shape=whole, stride=stride)


@torch.no_grad()
def join(part: Tensor, axis: int, ranks: Ranks) -> Tensor | None:
    """The whole tensor on rank 0, None on the others; every rank has to call it."""
    sizes = [int(size) for size in ranks.collect(torch.tensor([part.shape[axis]], device=part.device))]
    shape = list(part.shape)
    shape[axis] = max(sizes)
    padded = part.new_zeros(shape)
    padded.narrow(axis, 0, part.shape[axis]).copy_(part)
    parts = [torch.empty_like(padded) for _ in sizes] if ranks.rank == 0 else None
    dist.gather(padded, parts, group=ranks.group, group_dst=0)
    if parts is None:
        return None
    return torch.cat([whole.narrow(axis, 0, size) for whole, size in zip(parts, sizes, strict=True)], dim=axis)


def join_all(part: nn.Module, ranks: Ranks) -> dict[str, Tensor]:
    """The whole model's parameters by name on rank 0, nothing on the others; every rank has to call it."""
    joined = {name: join(parameter, axis, ranks) for name, parameter, axis in axes_of(part)}
    return {name: tensor for name, tensor in joined.items() if tensor is not None}


def assemble(kind: type[M], config: Any, state: Mapping[str, Tensor]) -> M:
    """A whole model in this process; nothing random is drawn.

    Args:
        kind: its class.
        config: what that takes.
        state: its parameters by name.
    """
    with torch.random.fork_rng(devices=[]):
        whole = kind(config)
    nn.Module.to(whole, dtype=next(iter(state.values())).dtype)
    with torch.no_grad():
        for name, parameter in whole.named_parameters():
            parameter.copy_(state[name])
    return whole
