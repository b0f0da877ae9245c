"""What the ranks send, counted."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as funcol

from helpers.head_parallel import make_batch, make_models, tiny_config
from smht.distributed.ranks import Ranks, _all_gather, _reduce_scatter
from smht.distributed.traffic import Collective, Traffic


def one_of_each(ranks: Ranks) -> list[Collective]:
    """Each collective once, on 24 numbers of four bytes a rank."""
    x, group = torch.arange(24, dtype=torch.float32), ranks.group
    whole, part = torch.empty(24 * ranks.size), torch.empty(24 // ranks.size)
    sent = [24] + [0] * (ranks.size - 1)  # all to the first, who keeps its own
    received = [24 if ranks.rank == 0 else 0] * ranks.size
    with Traffic() as traffic:
        dist.all_reduce(x.clone(), group=group)
        _all_gather(whole, x, group=group)
        dist.all_gather(list(whole.chunk(ranks.size)), x, group=group)
        _reduce_scatter(part, x, group=group)
        dist.all_to_all_single(torch.empty(24), x, group=group)
        dist.all_to_all_single(torch.empty(sum(received)), x, received, sent, group=group)
        dist.broadcast(x, group=group, group_src=0)
        dist.gather(x, list(whole.chunk(ranks.size)) if ranks.rank == 0 else None, group=group, group_dst=0)
        funcol.wait_tensor(torch.ops._c10d_functional.all_reduce(x, "sum", group.group_name))
        funcol.wait_tensor(torch.ops._c10d_functional.all_gather_into_tensor(x, ranks.size, group.group_name))
        funcol.wait_tensor(torch.ops._c10d_functional.reduce_scatter_tensor(x, "sum", ranks.size, group.group_name))
        each = [24 // ranks.size] * ranks.size
        funcol.wait_tensor(torch.ops._c10d_functional.all_to_all_single(x, each, each, group.group_name))
        funcol.wait_tensor(funcol.all_reduce(x, "sum", group))
    dist.all_reduce(x, group=group)  # not entered any more
    return traffic.collectives


def of_a_step(ranks: Ranks, changes: dict[str, Any]) -> tuple[dict, dict]:
    """Bytes and messages by kind of a forward and a backward pass on 3 rows of 10 tokens, in float32."""
    config = tiny_config(**changes)
    _, part = make_models(config, ranks, torch.float32)
    batch = make_batch(config, seed=0)
    with Traffic() as forward:
        loss = part(**batch, skip_logits=True).loss
    with Traffic() as backward:
        loss.backward()
    return forward.by_kind(), backward.by_kind()


def of_something_unknown(ranks: Ranks) -> None:
    """A collective that the counter was not told of."""
    with Traffic():
        dist.reduce(torch.zeros(1), group=ranks.group, group_dst=0)
