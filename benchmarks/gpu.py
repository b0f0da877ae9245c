"""The GPU kernels: errors against float64, and time beside the reference and dense layers.

Dense layers are cuBLAS products and PyTorch's attention; the reference also runs compiled (`torch.compile`). Every
figure comes from one run, in which the ways to compute an op take turns. Kernels are compiled beforehand by several
processes at once, as tile sizes are chosen by measuring. What there is no time left for is named at the end. Ends with
exit code 1 if a result is wrong or missing; a speed below its goal is told, and no failure.

    benchmarks/gpu.sh [--minutes 7.5] [--output figures.json]
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import gpu_cases as cases
import gpu_measure as measure
import torch
import triton  # pyright: ignore[reportMissingImports]
from reporting import Figure

from smht import ops
from smht.ops.gpu import attention_backward, attention_forward, attention_rotation, feed_forward_kernels, linear
from smht.ops.gpu_backend import DEVICE, INTERPRETED

WARM_UP_SHARE, WARM_UP_PROCESSES = 0.45, 14
TOO_LATE = "not compiled in time"
COMPILED_DTYPES = ("bf16",)
SPEED = "x"
"""Unit of the ratios of times, whose goals are no checks."""
ODD_SIZES = [(64, 197, 3), (20, 77, 2)]
"""Head width, tokens and heads of the checks of options."""


class Benchmark:
    """One run: its figures so far, and the time that is left."""

    def __init__(self, minutes: float, is_smoke: bool, output: Path | None) -> None:
        self.start = time.monotonic()
        self.seconds = minutes * 60
        self.is_smoke = is_smoke
        self.output = output
        # In shapes as small as the smoke test's one unlucky rounding decides.
        self.error_goal = "<= 4" if is_smoke else "<= 2"
        self.figures: list[Figure] = []
        self.left_out: list[str] = []

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    def has_time(self, what: str, seconds: float) -> bool:
        """Whether so many seconds are left; what there is no time for is remembered."""
        if self.elapsed + seconds <= self.seconds:
            return True
        self.left_out.append(what)
        return False

    def add(self, name: str, value: float | None, unit: str = "", goal: str | None = None) -> None:
        """Record a figure and print it."""
        figure = Figure(name, value, unit, goal)
        self.figures.append(figure)
        verdict = {True: "holds", False: "FAILS", None: ""}[figure.holds]
        shown = "-" if value is None else f"{value:.4g}"
        print(f"{self.elapsed:6.0f} s  {name:<84} {shown:>10} {unit:<6} {goal or '':<6} {verdict}", flush=True)

    def save(self) -> None:
        """Write the figures so far: a run that is killed leaves them."""
        if self.output:
            rows = [{**asdict(figure), "holds": figure.holds} for figure in self.figures]
            self.output.write_text(json.dumps(rows, indent=2) + "\n")

    def jobs(self) -> Iterator[tuple[str, cases.Shape, str]]:
        """Dtype, shape and op of every timing, the most telling first."""
        if self.is_smoke:
            yield from (("fp32", shape, op) for shape in cases.SMOKE_SHAPES for op in cases.OPS)
            return
        for dtype in ("bf16", "fp32", "fp32x3"):
            yield from ((dtype, shape, op) for shape in cases.ISSUE_SHAPES for op in cases.OPS)
        yield from (("bf16", shape, op) for shape in cases.MORE_SHAPES for op in cases.OPS)
        yield from (("fp16", cases.ISSUE_SHAPES[0], op) for op in cases.OPS)


Job = tuple[str, cases.Shape, str]
"""Dtype, shape and op of a comparison."""


def warm_up(bench: Benchmark) -> set[Job]:
    """Compile kernels and compiled references into the caches on disk, in parallel.

    Returns:
        The comparisons for which something could not be compiled, or not in time.
    """
    # A block's kernels are those of its ops; only its compiled reference is its own.
    jobs = [job for job in bench.jobs() if job[2] != "block" or job[0] in COMPILED_DTYPES]
    commands = [["--warm", dtype, json.dumps(asdict(shape)), op] for dtype, shape, op in jobs]
    sizes = range(len(ODD_SIZES))
    variants = [["--warm-variants", dtype, str(number)] for dtype in ("bf16", "fp32", "fp16") for number in sizes]
    deadline = bench.start + WARM_UP_SHARE * bench.seconds
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}

    def warm(command: list[str]) -> str | None:
        try:
            left = max(0.1, deadline - time.monotonic())
            run = subprocess.run(
                [sys.executable, __file__, *command], capture_output=True, text=True, timeout=left, env=environment
            )
        except subprocess.TimeoutExpired:
            return TOO_LATE
        return run.stderr[-800:] if run.returncode else None

    with ThreadPoolExecutor(WARM_UP_PROCESSES) as pool:
        problems = list(pool.map(warm, [*variants, *commands]))
    for command, problem in zip([*variants, *commands], problems, strict=True):
        if problem:
            print(f"{' '.join(command)}: {problem}", flush=True)
            if problem != TOO_LATE:
                bench.add(f"compiled: {' '.join(command[1:])}", 0, goal=">= 1")
    print(f"{bench.elapsed:6.0f} s  kernels compiled", flush=True)
    return {job for job, problem in zip(jobs, problems[len(variants) :], strict=True) if problem}


def check_variants(bench: Benchmark, dtype_name: str) -> None:
    """Options and odd sizes: errors against PyTorch's own, with the first tile sizes."""
    dtype = cases.use_precision(dtype_name)
    for head_dim, tokens, heads in [(4, 7, 2)] if bench.is_smoke else ODD_SIZES:
        for variant in cases.variants(DEVICE, head_dim, tokens, heads):
            name = f"error ÷ PyTorch's, {dtype_name} {variant.name}"

            def check(name: str = name, variant: cases.Variant = variant) -> None:
                check_error(bench, name, variant.ours, variant.theirs, dtype)

            attempt(bench, name, 3, check)


def check_error(
    bench: Benchmark, name: str, ours: cases.Contestant, theirs: cases.Contestant, dtype: torch.dtype
) -> None:
    """Outputs and gradients, all by the kernels."""
    with cases.nothing_left_to_the_reference():
        bench.add(name, measure.error_ratio(ours, theirs, dtype), goal=bench.error_goal)


def check_dropout(bench: Benchmark) -> None:
    """The share of weights kept, and lost tokens: what the reference cannot be compared in."""
    tokens = 16 if bench.is_smoke else 128
    x = torch.eye(tokens, device=DEVICE)[None]
    zero, one = torch.zeros(1, tokens, tokens, device=DEVICE), torch.eye(tokens, device=DEVICE)[None]
    ops.set_backend("gpu")
    torch.manual_seed(0)
    with cases.nothing_left_to_the_reference():
        kept = ops.split_attention(x, zero, zero, one, one, dropout=0.25, scale=1.0) * tokens * 0.75
    spread = math.sqrt(0.25 * 0.75) / tokens
    bench.add("dropout: share kept - 0.75", abs(kept.round().mean().item() - 0.75) / spread, "σ", "<= 4")
    nothing = torch.zeros(1, 1, tokens, tokens, dtype=torch.bool, device=DEVICE)
    with cases.nothing_left_to_the_reference():
        lost = ops.split_attention(x, one, one, one, one, mask=nothing, scale=1.0)
    bench.add("tokens that may see nothing: largest output", lost.abs().max().item(), goal="<= 0")


def compare(bench: Benchmark, dtype_name: str, shape: cases.Shape, op: str) -> None:
    """Error and times of one op."""
    dtype = cases.use_precision(dtype_name)
    label = f"{dtype_name} {shape.name} {op}"
    ours = cases.split_contestant(op, "gpu", shape, DEVICE)
    theirs = cases.split_contestant(op, "reference", shape, DEVICE)
    contestants = {"kernels": ours, "reference": theirs, "dense": cases.dense_contestant(op, shape, DEVICE)}
    if dtype_name in COMPILED_DTYPES:
        contestants["compiled"] = compiled(theirs)
    check_error(bench, f"error ÷ PyTorch's, {label}", ours, theirs, dtype)
    rounds = 1 if bench.is_smoke else 20
    for kind, make in (("forward", measure.forward), ("forward+backward", measure.forward_backward)):
        runs = {name: make(contestant, dtype) for name, contestant in contestants.items()}
        times = measure.time_alternately(runs, DEVICE, rounds)
        for name, milliseconds in times.items():
            bench.add(f"{label} {kind}: {name}", milliseconds, "ms")
        for name in times.keys() - {"kernels"}:
            goal = ">= 1" if name == "reference" else None
            bench.add(f"{label} {kind}: kernels against {name}", times[name] / times["kernels"], SPEED, goal)
        if op == "block":
            for name in ("kernels", "reference", "dense"):
                eager = measure.time_eagerly(runs[name], DEVICE, rounds)
                bench.add(f"{label} {kind}: {name}, launches included", eager, "ms")


def compiled(contestant: cases.Contestant) -> cases.Contestant:
    """The same by `torch.compile`, forgotten with it."""
    torch.compiler.reset()
    return replace(contestant, function=torch.compile(contestant.function, fullgraph=True))


def warm_one(dtype_name: str, shape: str, op: str) -> None:
    """In a process of its own: run once all that `compare` will."""
    dtype = cases.use_precision(dtype_name)
    contestants = [cases.split_contestant(op, "gpu", cases.Shape(**json.loads(shape)), "cuda")]
    if dtype_name in COMPILED_DTYPES:
        contestants.append(compiled(cases.split_contestant(op, "reference", cases.Shape(**json.loads(shape)), "cuda")))
    for contestant in contestants:
        measure.forward(contestant, dtype)()
        measure.forward_backward(contestant, dtype)()


def warm_variants(dtype_name: str, number: int) -> None:
    """In a process of its own: compile all that `check_variants` will use."""
    dtype = cases.use_precision(dtype_name)
    with small_tiles():
        for variant in cases.variants("cuda", *ODD_SIZES[number]):
            measure.outcomes(variant.ours, dtype)


@contextmanager
def small_tiles() -> Iterator[None]:
    """For checks: one choice of tile sizes, the last, so that many variants compile in little time."""
    kernels = [
        attention_forward.forward_kernel, attention_backward.query_kernel, attention_backward.key_kernel,
        attention_rotation.turn_kernel, attention_rotation.turn_back_kernel,
        feed_forward_kernels.forward_kernel, feed_forward_kernels.input_gradient_kernel,
        feed_forward_kernels.weight_gradient_kernel, linear.product_kernel, linear.weight_gradient_kernel,
    ]  # fmt: skip
    before = [kernel.configs for kernel in kernels]
    for kernel in kernels:
        kernel.configs = kernel.configs[-1:]
    yield
    for kernel, configurations in zip(kernels, before, strict=True):
        kernel.configs = configurations


def attempt(bench: Benchmark, what: str, seconds: float, work: Callable[[], None]) -> None:
    """Do it if there is time; a failure is a figure that fails, and not the end of the run."""
    if not bench.has_time(what, seconds):
        return
    try:
        work()
    except Exception as error:
        print(f"{what}: {type(error).__name__}: {str(error)[-600:]}", flush=True)
        bench.add(f"ran: {what}", 0, goal=">= 1")
    bench.save()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=7.5, help="time for all of it")
    parser.add_argument("--output", type=Path, help="write the figures to this file as JSON")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes, in Triton's interpreter too")
    parser.add_argument("--warm", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--warm-variants", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_all(bench: Benchmark) -> None:
    """Compile, check, compare."""
    failed = set() if bench.is_smoke else warm_up(bench)
    with small_tiles():
        for dtype_name in ("fp32",) if bench.is_smoke else ("bf16", "fp32", "fp16"):
            check_variants(bench, dtype_name)
        attempt(bench, "dropout and lost tokens", 10, lambda: check_dropout(bench))
    for job in bench.jobs():
        dtype_name, shape, op = job
        name = f"{dtype_name} {shape.name} {op}"
        if {(dtype_name, shape, part) for part in (op, "attention", "feed_forward")} & failed:
            bench.left_out.append(name)
            continue
        attempt(bench, name, 12, lambda job=job: compare(bench, *job))


def main() -> int:
    """Run it all; the exit code says whether every check held."""
    chosen = arguments()
    if reason := ops.BACKENDS["gpu"].why_unavailable():
        print(f"the kernels cannot run here: {reason}", file=sys.stderr)
        return 2
    if chosen.warm:
        warm_one(*chosen.warm)
        return 0
    if chosen.warm_variants:
        warm_variants(chosen.warm_variants[0], int(chosen.warm_variants[1]))
        return 0
    bench = Benchmark(chosen.minutes, chosen.smoke, chosen.output)
    device = "Triton's interpreter" if INTERPRETED else torch.cuda.get_device_name()
    print(f"{device}, torch {torch.__version__}, Triton {triton.__version__}", flush=True)
    run_all(bench)
    failing = [figure for figure in bench.figures if figure.holds is False]
    wrong = [figure.name for figure in failing if figure.unit != SPEED]
    slow = [figure.name for figure in failing if figure.unit == SPEED]
    print(f"{len(bench.figures)} figures; checks that fail: {len(wrong)}", *wrong, sep="\n  ")
    print(f"slower than their goal: {len(slow)}", *slow, sep="\n  ")
    print(f"left out for want of time: {len(bench.left_out)}", *bench.left_out, sep="\n  ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
