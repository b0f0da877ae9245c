"""What the ranks of a sharded model compute, beside the whole model in the same process."""

import copy
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.head_parallel import adamw, make_batch, share_first, tiny_config
from smht import SmhtForCausalLM
from smht.distributed.cuts import assemble
from smht.distributed.mesh import Mesh, make_groups
from smht.distributed.ranks import Ranks
from smht.distributed.sharded import (
    clip_sharded_grad_norm,
    device_mesh_of,
    gathered,
    join_shards,
    shard_model,
    units_of,
)
from smht.models import SmhtForSeq2SeqLM

ROWS = 4


def make_models(kind: Any, mesh: Mesh, changes: dict[str, Any]) -> tuple[Any, Any]:
    """The whole model with weights, norms included, that are all different, and the same sharded; float64."""
    torch.manual_seed(1)
    whole = kind(tiny_config(**changes)).double()
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return whole, shard_model(copy.deepcopy(whole), mesh, "cpu")


def share_of(batch: dict[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    each = ROWS // ranks.size
    return {name: tensor[ranks.rank * each : (ranks.rank + 1) * each] for name, tensor in batch.items()}


def train_both(
    ranks: Ranks, mesh: Mesh, changes: dict[str, Any], steps: int
) -> tuple[list[tuple[float, float]], list[tuple[float, float]], float]:
    """Losses and gradient norms of a model, which rank 0 trains, and of the same one sharded; how far its last weights
    are off."""
    whole, part = make_models(SmhtForCausalLM, mesh, changes)
    assert len(list(units_of(part))) == whole.config.num_hidden_layers + 1
    assert all(2 * own.to_local().numel() == own.numel() for own in part.parameters())
    optimizers = [adamw(model) for model in (whole, part)]
    expected, found = [], []
    for step in range(steps):
        batch = make_batch(whole.config, seed=step, rows=ROWS)
        labels = int((batch["labels"][:, 1:] != -100).sum())
        if ranks.rank == 0:
            loss = _backward(whole, batch, labels)
            expected.append((loss.item(), float(nn.utils.clip_grad_norm_(whole.parameters(), 1.0))))
            optimizers[0].step()
        total = _backward(part, share_of(batch, ranks), labels).detach().clone()
        ranks.start_sum(total).wait()
        found.append((total.item(), float(clip_sharded_grad_norm(part, 1.0))))
        optimizers[1].step()
    share_first(whole, ranks)
    differences = [
        float((join_shards(own) - parameter).abs().max().detach())
        for parameter, own in zip(whole.parameters(), part.parameters(), strict=True)
    ]
    return expected, found, max(differences)


def _backward(model: Any, batch: dict[str, Tensor], labels: int) -> Tensor:
    model.zero_grad()
    loss = model(**batch, num_items_in_batch=labels, skip_logits=True).loss
    loss.backward()
    return loss


def round_trip(ranks: Ranks, mesh: Mesh, changes: dict[str, Any]) -> bool:
    """Whether joining and assembling give back every number."""
    whole, part = make_models(SmhtForCausalLM, mesh, changes)
    state = {name: join_shards(own) for name, own in part.named_parameters()}
    again = assemble(SmhtForCausalLM, whole.config, state)
    return all(torch.equal(*pair) for pair in zip(again.parameters(), whole.parameters(), strict=True))


def generated(ranks: Ranks, mesh: Mesh) -> tuple[list[list[int]], list[list[int]], float]:
    """What a translator and the same one sharded generate after a training step, and how far their next losses are."""
    changes = {"stack": "encoder_decoder", "num_hidden_layers": 1, "tie_word_embeddings": True}
    changes |= {"bos_token_id": 1, "pad_token_id": 0}
    whole, part = make_models(SmhtForSeq2SeqLM, mesh, changes)
    # Padding on the right.
    batch = {name: tensor.flip(1) for name, tensor in make_batch(whole.config, seed=0, rows=ROWS).items()}
    tokens, losses = [], []
    for model, gathering in ((whole, nullcontext()), (part, gathered(part))):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        # Every rank has the whole batch, and their gradients are summed.
        (model(**batch).loss / (1 if model is whole else ranks.size)).backward()
        optimizer.step()
        with torch.inference_mode(), gathering:
            tokens.append(model.eval().generate(batch["input_ids"], max_new_tokens=6, do_sample=False))
        losses.append(model.train()(**batch).loss)
        losses[-1].backward()
    return tokens[0].tolist(), tokens[1].tolist(), float((losses[0] - losses[1]).detach().abs())


def patience_of_groups(ranks: Ranks, mesh: Mesh) -> set[float]:
    """How many seconds a rank waits in its groups of a mesh, and among all."""
    device_mesh = device_mesh_of(mesh, "cpu")
    groups = [dist.group.WORLD, *make_groups(mesh.size, mesh.shard), *device_mesh.get_all_groups()]
    return {group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in groups}
