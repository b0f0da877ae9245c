"""Bytes between ranks: a split model cut by head, beside its dense twin under tensor parallelism (arXiv:1909.08053).

The twin is cut by PyTorch's own `parallelize_module`: Q, K, V and the up projection by columns, the others by rows,
whole vectors summed over the ranks twice a block, forward and backward. Both run on gloo in as many processes as there
are ranks, on the same tokens; `smht.distributed.traffic` counts what each rank sends in all blocks.

    python benchmarks/traffic.py [--ranks 2 --ranks 4] [--hidden-size 768] [--heads 12] [--layers 12] [--json]
"""

import json
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from reporting import Figure, parser, report
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from smht import SmhtConfig, SmhtForCausalLM
from smht.distributed.head_parallel import head_parallel
from smht.distributed.traffic import Traffic
from smht.models import dense_twin

GOAL = "<= 0.01"
TENSOR_PARALLEL = {
    # Q, K and V share one input, and so one sum of its gradients.
    "self_attn": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)),
    "self_attn.q_proj": ColwiseParallel(),
    "self_attn.k_proj": ColwiseParallel(),
    "self_attn.v_proj": ColwiseParallel(),
    "self_attn.o_proj": RowwiseParallel(),
    "mlp.up_proj": ColwiseParallel(),
    "mlp.down_proj": RowwiseParallel(),
}


def count(blocks: nn.ModuleList, width: int, chosen: Namespace) -> dict[str, float]:
    """Bytes and collectives a block, forward and backward."""
    x = torch.randn(chosen.batch, chosen.tokens, width, requires_grad=True)
    with Traffic() as forward:
        y: Tensor = x
        for block in blocks:
            y = block(y)
    with Traffic() as backward:
        y.sum().backward()
    return {
        "forward": forward.bytes / len(blocks),
        "backward": backward.bytes / len(blocks),
        "messages": (forward.messages + backward.messages) / len(blocks),
    }


def work(rank: int, ranks: int, folder: str, chosen: Namespace) -> None:
    """What each process does; the first writes what it counted."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", world_size=ranks, rank=rank)
    config = SmhtConfig(
        vocab_size=2,
        hidden_size=chosen.hidden_size,
        num_attention_heads=chosen.heads,
        num_hidden_layers=chosen.layers,
        max_position_embeddings=chosen.tokens,
    )
    counted: dict[str, Any] = {}
    for mixing in ("none", "shuffle"):
        config.mixing = mixing
        part: Any = head_parallel(SmhtForCausalLM(config))
        counted[mixing] = count(part.model.layers, chosen.hidden_size // ranks, chosen)
    twin: Any = SmhtForCausalLM(dense_twin(config))
    mesh = init_device_mesh("cpu", (ranks,))
    for block in twin.model.layers:
        parallelize_module(block, mesh, TENSOR_PARALLEL)
    counted["dense"] = count(twin.model.layers, chosen.hidden_size, chosen)
    if rank == 0:
        Path(folder, "counted.json").write_text(json.dumps(counted))
    dist.destroy_process_group()


def figures_of(ranks: int, counted: dict[str, dict[str, float]]) -> list[Figure]:
    """A block's bytes by each way, and what part of the dense twin's they are."""
    names = {"dense": "tensor parallel, dense", "none": "by head", "shuffle": "by head, shuffle"}
    figures = []
    for kind, name in names.items():
        both = counted[kind]["forward"] + counted[kind]["backward"]
        figures += [
            Figure(f"{ranks} ranks, {name}: forward", counted[kind]["forward"], "bytes a block"),
            Figure(f"{ranks} ranks, {name}: backward", counted[kind]["backward"], "bytes a block"),
            Figure(f"{ranks} ranks, {name}: collectives", counted[kind]["messages"], "a block"),
        ]
        if kind != "dense":
            part = both / (counted["dense"]["forward"] + counted["dense"]["backward"])
            figures.append(Figure(f"{ranks} ranks, {name} : dense", part, "", GOAL if kind == "none" else None))
    return figures


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--ranks", type=int, action="append", help="processes; 2 and 4 if not given")
    arguments.add_argument("--batch", type=int, default=1)
    arguments.add_argument("--tokens", type=int, default=128)
    arguments.add_argument("--hidden-size", type=int, default=768)
    arguments.add_argument("--heads", type=int, default=12)
    arguments.add_argument("--layers", type=int, default=12)
    chosen = arguments.parse_args()
    figures = []
    for ranks in chosen.ranks or [2, 4]:
        with tempfile.TemporaryDirectory() as folder:
            # This process has computed nothing, so copies of it are sound; interpreters would import everything again.
            torch.multiprocessing.start_processes(work, (ranks, folder, chosen), ranks, start_method="fork")  # pyright: ignore[reportPrivateImportUsage]
            figures += figures_of(ranks, json.loads(Path(folder, "counted.json").read_text()))
    report(figures, chosen.json)


if __name__ == "__main__":
    main()
