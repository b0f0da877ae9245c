"""Sharded data parallelism (FSDP, arXiv:2304.11277): ranks share the numbers of every parameter, and the batch.

PyTorch's `fully_shard` does the work: a parameter is cut along its first axis; a block's are gathered when it computes,
forward and again backward, and its gradients are dealt out to the ranks whose they are. What belongs to no block is
gathered once a step. Over several models (`data` of the mesh) the gradients are summed after that. AdamW is local.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from smht.distributed.mesh import Mesh, make_groups
from smht.models.base import SmhtBlock

M = TypeVar("M", bound=nn.Module)


def shard_model(model: M, mesh: Mesh, device: str) -> M:
    """Leave this rank its part of every parameter of a model that all ranks have as a whole.

    The gradients that come out of a backward pass are sums over all ranks, not means: a loss has to be divided by
    what all of them count.

    Args:
        model: the whole model, the same on every rank; changed in place.
        mesh: how many ranks share it, and how many such models there are.
        device: `cpu` or `cuda`, where it is to be.

    Returns:
        The model. Every rank has to call it, with its share of the batch.
    """
    ranks = device_mesh_of(mesh, device)
    for module in model.modules():
        if isinstance(module, SmhtBlock):
            fully_shard(module, mesh=ranks)
    fully_shard(model, mesh=ranks)
    for unit in units_of(model):
        # A factor alone would need an operation that gloo does not have.
        unit.set_force_sum_reduction_for_comms(True)
        unit.set_gradient_divide_factor(1.0)
    return model


def device_mesh_of(mesh: Mesh, device: str) -> DeviceMesh:
    """The ranks as `fully_shard` takes them; every rank has to call it."""
    if mesh.data == 1:
        return init_device_mesh(device, (mesh.shard,), mesh_dim_names=("shard",))
    groups = make_groups(mesh.size, mesh.shard)
    ranks = torch.arange(mesh.size).view(mesh.data, mesh.shard)
    return DeviceMesh.from_group(list(groups), device, ranks, mesh_dim_names=("data", "shard"))


def units_of(model: nn.Module) -> Iterator[FSDPModule]:
    """What is gathered at a time: each block, and the model with all that is in none."""
    return (module for module in model.modules() if isinstance(module, FSDPModule))


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """While entered, what belongs to no block is whole: `generate` calls parts of a model that gather nothing."""
    assert isinstance(model, FSDPModule)
    model.unshard()
    try:
        yield
    finally:
        # A forward pass that no backward pass follows leaves it gathered, too.
        model.reshard()


@torch.no_grad()
def join_shards(part: Tensor) -> Tensor:
    """The whole of a sharded parameter, gradient or moment; every rank has to call it."""
    assert isinstance(part, DTensor)
    return part.full_tensor()


def clip_sharded_grad_norm(model: nn.Module, max_norm: float) -> Tensor:
    """`torch.nn.utils.clip_grad_norm_` of a sharded model; the norm of the whole gradient, the same on every rank."""
    norm: Any = nn.utils.get_total_norm([each.grad for each in model.parameters() if each.grad is not None])
    whole = join_shards(norm) if isinstance(norm, DTensor) else norm
    nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, whole)
    return whole
