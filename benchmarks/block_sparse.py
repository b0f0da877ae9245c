"""How time and memory of attention grow with the text: block-sparse beside full.

Forward and backward of one causal attention, 4 heads of 64 channels, blocks of the square root of the length. The
exponent is the slope of a straight line through the logarithms. Memory is what autograd keeps for the backward pass
and the largest tensor made on the way, counted, not sampled.

    python benchmarks/block_sparse.py [--longest 16384] [--json]
"""

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from reporting import Figure, parser, report
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from smht import ops

HEADS, WIDTH, SHORTEST, ROUNDS = 4, 64, 1024, 5
GOAL = 1.6


class LargestTensor(TorchDispatchMode):
    """The bytes of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self.bytes = max(self.bytes, tensor.numel() * tensor.element_size())
        return result


def sparse(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Blocks of √T."""
    block_size = round(math.sqrt(query.shape[2]))
    return ops.block_sparse_attention(query, key, value, block_size=block_size, is_causal=True)


def full(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """PyTorch's own."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def inputs(length: int) -> list[Tensor]:
    """Query, key and value."""
    torch.manual_seed(0)
    return [torch.randn(1, HEADS, length, WIDTH, requires_grad=True) for _ in range(3)]


def time_once(attention: Callable[..., Tensor], length: int) -> float:
    """Seconds of one forward and backward."""
    tensors = inputs(length)
    started = time.perf_counter()
    attention(*tensors).sum().backward()
    return time.perf_counter() - started


def kept_bytes(attention: Callable[..., Tensor], length: int) -> int:
    """What autograd keeps, each storage once, and the largest tensor of forward and backward."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with LargestTensor() as largest, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        attention(*inputs(length)).sum().backward()
    return sum(kept.values()) + largest.bytes


def exponent(lengths: list[int], values: list[float]) -> float:
    """The slope of log(value) over log(length), by least squares."""
    return statistics.linear_regression([math.log(x) for x in lengths], [math.log(y) for y in values]).slope


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--longest", type=int, default=16384)
    chosen = arguments.parse_args()
    lengths = [SHORTEST * 2**i for i in range(int(math.log2(chosen.longest / SHORTEST)) + 1)]
    kinds: dict[str, Callable[..., Tensor]] = {"block-sparse": sparse, "full": full}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    memory: dict[str, list[float]] = {name: [] for name in kinds}
    for length in lengths:
        rounds = [{name: time_once(kind, length) for name, kind in kinds.items()} for _ in range(ROUNDS + 1)][1:]
        for name, kind in kinds.items():
            times[name].append(statistics.median(each[name] for each in rounds))
            memory[name].append(kept_bytes(kind, length))
    figures = [
        Figure(f"{name}: {length:,} tokens", times[name][i] * 1e3, "ms")
        for name in kinds
        for i, length in enumerate(lengths)
    ]
    for name in kinds:
        goal = f"<= {GOAL}" if name == "block-sparse" else None
        figures.append(Figure(f"{name}: exponent of time", exponent(lengths, times[name]), "", goal))
        figures.append(Figure(f"{name}: exponent of memory", exponent(lengths, memory[name]), "", goal))
        figures.append(Figure(f"{name}: memory at {lengths[-1]:,} tokens", memory[name][-1] / 1e6, "MB"))
    report(figures, chosen.json)


if __name__ == "__main__":
    main()
