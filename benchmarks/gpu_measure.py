"""How `gpu.py` measures: errors against float64, and time on the device."""

import math
import time
from collections.abc import Callable
from statistics import median

import torch
from gpu_cases import Contestant
from torch import Tensor

_FLUSHED_BYTES = 256 << 20
_HEAD_START_CYCLES = 4_000_000
"""About 2 ms in which the processor gets ahead of the device, so that launches do not count as the device's time."""


def outcomes(contestant: Contestant, dtype: torch.dtype, rounding: torch.dtype | None = None) -> list[Tensor]:
    """Output and gradients on the tensors in this dtype, after rounding them to another."""
    given = [tensor.to(rounding or dtype) for tensor in contestant.tensors]
    leaves = [tensor.to(dtype).requires_grad_() for tensor in given]
    output = contestant(*leaves)
    weighting = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.device, torch.float16)
    return [output.detach(), *torch.autograd.grad(output, leaves, weighting.to(output.dtype))]


def error_ratio(ours: Contestant, theirs: Contestant, dtype: torch.dtype) -> float:
    """The largest of our errors ÷ PyTorch's, over the output and the gradients; NaN if ours has a NaN.

    An error is ‖rounded - exact‖ ÷ ‖exact‖, where exact is the reference in float64 on the rounded inputs.
    """
    exact = outcomes(theirs, torch.float64, rounding=dtype)
    ratios = []
    for mine, other, truth in zip(outcomes(ours, dtype), outcomes(theirs, dtype), exact, strict=True):
        if not mine.isfinite().all():
            return math.nan
        floor = torch.finfo(dtype).eps * truth.norm() / 100
        ratios.append(((mine.double() - truth).norm() / ((other.double() - truth).norm() + floor)).item())
    return max(ratios)


def forward(contestant: Contestant, dtype: torch.dtype) -> Callable[[], object]:
    """The op alone, without a graph."""
    leaves = [tensor.detach() for tensor in contestant.leaves(dtype)]

    def run() -> object:
        with torch.no_grad():
            return contestant(*leaves)

    return run


def forward_backward(contestant: Contestant, dtype: torch.dtype) -> Callable[[], object]:
    """The op and the gradients of all of its tensors."""
    leaves = contestant.leaves(dtype)
    weighting = torch.randn_like(contestant(*leaves))
    return lambda: torch.autograd.grad(contestant(*leaves), leaves, weighting)


def time_alternately(runs: dict[str, Callable[[], object]], device: str, rounds: int) -> dict[str, float]:
    """Median milliseconds of each, taking turns, with a cold L2 cache.

    On a GPU only the device's time counts: events around the work, queued while the device still waits.
    """
    measure = _on_gpu if device == "cuda" else _on_cpu
    for run in runs.values():
        for _ in range(min(3, rounds)):
            run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(measure(run))
    return {name: median(taken) for name, taken in times.items()}


def time_eagerly(run: Callable[[], object], device: str, rounds: int) -> float:
    """Milliseconds of one call from Python when calls follow each other: launches count."""
    for _ in range(min(3, rounds)):
        run()
    _synchronize(device)
    start = time.perf_counter()
    for _ in range(rounds):
        run()
    _synchronize(device)
    return (time.perf_counter() - start) / rounds * 1e3


def _on_gpu(run: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.empty(_FLUSHED_BYTES, dtype=torch.int8, device="cuda").zero_()
    torch.cuda._sleep(_HEAD_START_CYCLES)
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def _on_cpu(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
