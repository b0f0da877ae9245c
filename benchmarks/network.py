"""Time and bytes over a slow link: a split model cut by head, beside its dense twin under tensor parallelism.

Two network namespaces joined by a veth pair whose ends let 100 Mbit/s out (`tc ... tbf`), a rank in each, gloo between
them. Both models compute the same number of training passes through their blocks, forward and backward, at equal
width; the bytes that the interface sent are put beside those that `smht.distributed.traffic` counts. Linux, with
iproute2 and the right to make namespaces (`unshare -Urnm`).

    python benchmarks/network.py [--rate 100mbit] [--hidden-size 768] [--layers 12] [--tokens 512] [--steps 3] [--json]
"""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
import torch.multiprocessing
from reporting import Figure, parser, report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module
from traffic import TENSOR_PARALLEL

from smht import SmhtConfig, SmhtForCausalLM
from smht.distributed.head_parallel import head_parallel
from smht.distributed.traffic import Traffic
from smht.models import dense_twin

RANKS, GOAL_TIME = 2, ">= 10"
SIZES = ("hidden-size", "heads", "layers", "tokens", "steps")
SETUP = r"""
set -e
mount -t tmpfs none /run
ip netns add rank0
ip netns add rank1
ip link add veth0 netns rank0 type veth peer name veth1 netns rank1
for rank in 0 1; do
    ip -n rank$rank addr add 10.9.0.$((rank + 1))/24 dev veth$rank
    ip -n rank$rank link set lo up
    ip -n rank$rank link set veth$rank up
    ip netns exec rank$rank tc qdisc add dev veth$rank root tbf rate RATE burst 64kb latency 400ms
done
"""
CLONE_NEWNET = 0x40000000
"""As Linux has it; before 3.12 Python has no `os.setns`."""


def enter(namespace: str) -> None:
    """Make a network namespace that of this process.

    Raises:
        OSError: the system does not let us.
    """
    with Path("/run/netns", namespace).open() as there:
        if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), there.name)


def sent_by(interface: str) -> int:
    """Bytes that have left an interface of this process's namespace."""
    return psutil.net_io_counters(pernic=True, nowrap=False)[interface].bytes_sent


def blocks_of(kind: str, chosen: Namespace) -> tuple[nn.ModuleList, int]:
    """This rank's part of the blocks, and how many channels go in."""
    config = SmhtConfig(
        vocab_size=2,
        hidden_size=chosen.hidden_size,
        num_attention_heads=chosen.heads,
        num_hidden_layers=chosen.layers,
        max_position_embeddings=chosen.tokens,
        mixing="shuffle" if kind == "shuffle" else "none",
    )
    if kind != "dense":
        part: Any = head_parallel(SmhtForCausalLM(config))
        return part.model.layers, chosen.hidden_size // RANKS
    twin: Any = SmhtForCausalLM(dense_twin(config))
    mesh = init_device_mesh("cpu", (RANKS,))
    for block in twin.model.layers:
        parallelize_module(block, mesh, TENSOR_PARALLEL)
    return twin.model.layers, chosen.hidden_size


def measure(kind: str, chosen: Namespace, interface: str) -> dict[str, float]:
    """Seconds and bytes of a step, counted and at the interface; the first one is not looked at."""
    blocks, width = blocks_of(kind, chosen)
    x = torch.randn(1, chosen.tokens, width, requires_grad=True)

    def step() -> None:
        y = x
        for block in blocks:
            y = block(y)
        y.sum().backward()

    with Traffic() as traffic:
        step()
    dist.barrier()
    before, began = sent_by(interface), time.perf_counter()
    for _ in range(chosen.steps):
        step()
    dist.barrier()
    seconds = (time.perf_counter() - began) / chosen.steps
    time.sleep(0.5)  # what stands in the queue
    return {
        "seconds": seconds,
        "interface": (sent_by(interface) - before) / chosen.steps,
        "counted": traffic.bytes,
        "messages": traffic.messages,
    }


def work(rank: int, chosen: Namespace) -> None:
    """What a rank does in its namespace; the first writes what it measured."""
    enter(f"rank{rank}")
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = interface = f"veth{rank}"
    dist.init_process_group("gloo", "tcp://10.9.0.1:29400", world_size=RANKS, rank=rank)
    measured = {kind: measure(kind, chosen, interface) for kind in ("none", "shuffle", "dense")}
    if rank == 0:
        Path(chosen.into).write_text(json.dumps(measured))
    dist.destroy_process_group()


def run_in_namespaces(chosen: Namespace) -> dict[str, dict[str, float]]:
    """What the first rank measured.

    Raises:
        SystemExit: this system does not let us.
    """
    with tempfile.TemporaryDirectory() as folder:
        into = str(Path(folder, "measured.json"))
        sizes = [f"--{name}={getattr(chosen, name.replace('-', '_'))}" for name in SIZES]
        program = f'exec "{sys.executable}" "{__file__}" --into "{into}" {" ".join(sizes)}'
        shell = SETUP.replace("RATE", chosen.rate) + program
        done = subprocess.run(["unshare", "-Urnm", "bash", "-c", shell], stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"no two namespaces with a link of {chosen.rate} here: {done.stderr.strip()}")
        return json.loads(Path(into).read_text())


def figures_of(measured: dict[str, dict[str, float]]) -> list[Figure]:
    """A step's time and bytes by each way, and how they compare."""
    names = {"dense": "tensor parallel, dense", "none": "by head", "shuffle": "by head, shuffle"}
    figures = []
    for kind, name in names.items():
        found = measured[kind]
        figures += [
            Figure(f"{name}: step", found["seconds"], "s"),
            Figure(f"{name}: counted", found["counted"], "bytes"),
            Figure(f"{name}: sent by the interface", found["interface"], "bytes"),
            Figure(f"{name}: collectives", found["messages"], ""),
        ]
        if kind != "dense":
            faster = measured["dense"]["seconds"] / found["seconds"]
            figures.append(Figure(f"dense : {name}, step", faster, "", GOAL_TIME if kind == "none" else None))
            figures.append(
                Figure(f"{name} : dense, interface", found["interface"] / measured["dense"]["interface"], "")
            )
    return figures


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--rate", default="100mbit", help="what tc calls it")
    arguments.add_argument("--hidden-size", type=int, default=768)
    arguments.add_argument("--heads", type=int, default=12)
    arguments.add_argument("--layers", type=int, default=12)
    arguments.add_argument("--tokens", type=int, default=512)
    arguments.add_argument("--steps", type=int, default=3)
    arguments.add_argument("--into", help="where a rank writes; for this program's own use")
    chosen = arguments.parse_args()
    if chosen.into is not None:
        # Copies of a process that has computed nothing; interpreters would import everything again.
        torch.multiprocessing.start_processes(work, (chosen,), RANKS, start_method="fork")  # pyright: ignore[reportPrivateImportUsage]
    else:
        report(figures_of(run_in_namespaces(chosen)), chosen.json)


if __name__ == "__main__":
    main()
