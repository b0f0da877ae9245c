"""How benchmarks time variants of a computation, and what the machine can do at most."""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from reporting import parser
from torch import Tensor

from smht import ops

_COPIED_NUMBERS = 1 << 25
"""128 MiB of fp32 on either side of a copy: several times what caches hold."""


class Seconds(NamedTuple):
    """How long a call took in several tries.

    Ratios of variants are those of medians. Shares of a limit are those of the shortest try, as is the limit itself:
    what interrupts a measurement is no property of the machine.
    """

    median: float
    shortest: float


def timing_parser(description: str | None, rounds: int) -> argparse.ArgumentParser:
    """A parser with `--rounds`, `--threads` and `--json`."""
    made = parser(description)
    made.add_argument("--rounds", type=int, default=rounds, help="calls of each variant")
    made.add_argument("--threads", type=int, default=2)
    return made


def alternate(functions: Sequence[Callable[[], object]], rounds: int) -> list[Seconds]:
    """How long each function takes, called in turns; the first call of each does not count."""
    clock = clock_of_choice()
    taken: list[list[float]] = [[] for _ in functions]
    for function in functions:
        function()
    for _ in range(rounds):
        for function, seconds in zip(functions, taken, strict=True):
            start = clock()
            function()
            seconds.append(clock() - start)
    return [Seconds(statistics.median(seconds), min(seconds)) for seconds in taken]


def clock_of_choice() -> Callable[[], float]:
    """With one thread that of the processor's time, which leaves out what other programs do meanwhile."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def peak(dtype: torch.dtype, rounds: int) -> float:
    """Multiplications a second of the fastest matrix product: large ones of PyTorch's, or heads of the kernels'."""
    medium, large = torch.randn(768, 768).to(dtype), torch.randn(960, 960).to(dtype)
    x, weight = torch.randn(512, 1024).to(dtype), torch.randn(4, 256, 256).to(dtype)
    products = {
        768**3: lambda: medium @ medium,
        960**3: lambda: large @ large,
        512 * 1024 * 256: lambda: ops.split_linear(x, weight),
    }
    # Many calls: a peak that was seen in a slow moment would be a limit that a fast one passes.
    taken = alternate(list(products.values()), max(60, 3 * rounds))
    return max(count / seconds.shortest for count, seconds in zip(products, taken, strict=True))


def copy_bandwidth(rounds: int) -> float:
    """Bytes a second, read and written ones together, of a copy that no cache holds."""
    source, target = torch.zeros(_COPIED_NUMBERS), torch.zeros(_COPIED_NUMBERS)
    (copy,) = alternate([lambda: target.copy_(source)], rounds)
    return 2 * source.numel() * source.element_size() / copy.shortest


def with_gradients(
    function: Callable[[Tensor], Tensor], x: Tensor, weights: Sequence[Tensor], gradient: Tensor
) -> tuple[Tensor, ...]:
    """The gradients of `function(x)` by `x` and the weights, given that of its output."""
    return torch.autograd.grad(function(x), [x, *weights], gradient)


def timed_dtypes() -> tuple[torch.dtype, ...]:
    """float32, and bf16 where PyTorch has fast products of it; elsewhere they are a hundred times slower, and all else
    would be seen to be as many times as fast."""
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.float32, torch.bfloat16
    print("bf16 is left out: PyTorch has no fast products of it on this processor", file=sys.stderr)
    return (torch.float32,)


def short_name(dtype: torch.dtype) -> str:
    """`float32`, `bfloat16`."""
    return str(dtype).removeprefix("torch.")
