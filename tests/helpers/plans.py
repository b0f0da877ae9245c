"""A training step of each way to share one, and what the ranks sent in it."""

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import Replicate
from torch.nn.parallel import DistributedDataParallel

from helpers.head_parallel import tiny_config
from smht import SmhtForCausalLM
from smht.distributed.head_parallel import clip_grad_norm, head_parallel
from smht.distributed.mesh import Mesh
from smht.distributed.processes import keep_constants_home
from smht.distributed.ranks import Ranks
from smht.distributed.sharded import shard_model
from smht.distributed.traffic import Traffic
from smht.models import dense_twin

TENSOR_PARALLEL = {
    "self_attn": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)),
    **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
    "self_attn.o_proj": RowwiseParallel(),
    "mlp.up_proj": ColwiseParallel(),
    "mlp.down_proj": RowwiseParallel(),
}


def of_a_step(ranks: Ranks, way: str, changes: dict[str, Any], batch_size: int, tokens: int) -> tuple[float, int]:
    """Bytes and messages of a training step in float32, the third one: DDP and FSDP set up in those before."""
    torch.manual_seed(0)
    model = SmhtForCausalLM(tiny_config(**changes))
    own = batch_size // ranks.size if way in ("data", "sharded") else batch_size
    ids = torch.randint(model.config.vocab_size, (own, tokens), generator=torch.Generator().manual_seed(1))
    trained = _shared(way, model, ranks)
    with Traffic() as traffic:
        for _ in range(3):
            traffic.collectives.clear()
            trained(input_ids=ids, labels=ids, skip_logits=True).loss.backward()
            if way == "head":
                clip_grad_norm(trained, 1.0, ranks)
    return traffic.bytes, traffic.messages


def held(ranks: Ranks, way: str, changes: dict[str, Any]) -> int:
    """Numbers of the model that this rank holds."""
    trained = _shared(way, SmhtForCausalLM(tiny_config(**changes)), ranks)
    unique = {id(parameter): parameter for parameter in trained.parameters()}.values()
    return sum(getattr(parameter, "_local_tensor", parameter).numel() for parameter in unique)


def _shared(way: str, model: SmhtForCausalLM, ranks: Ranks) -> Any:
    if way == "head":
        return head_parallel(model, ranks)
    if way == "data":
        keep_constants_home(model)
        return DistributedDataParallel(model, process_group=ranks.group)
    if way == "sharded":
        return shard_model(model, Mesh(shard=ranks.size), "cpu")
    mesh = DeviceMesh.from_group(ranks.group, "cpu")
    twin = SmhtForCausalLM(dense_twin(model.config))
    for block in twin.model.layers:
        parallelize_module(block, mesh, TENSOR_PARALLEL)
    return twin
