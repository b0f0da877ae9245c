"""The split ops: kernels beside the plain PyTorch reference beside dense layers of the same width.

One process, alternately, medians; forward, and forward with backward. A dense layer has full matrices: one fused
projection for queries, keys and values, PyTorch's attention, a full output; or two linear layers around a GELU. The
limit is the multiplications of the split op over the speed of the fastest matrix product measured here, PyTorch's or a
kernel's.

    python benchmarks/ops.py [--rounds 15] [--threads 2] [--json]
"""

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from reporting import Figure, parser, report
from torch import Tensor

from smht import ops
from smht.ops import reference

SHAPES = [(4, 512, 12, 768), (8, 256, 8, 256)]
"""Batch, tokens, heads, hidden size; the feed-forward is four times as wide."""
GOALS = {("sub-layers", torch.float32, 768): ">= 5", ("sub-layers", torch.bfloat16, 768): ">= 3.5"}
GOALS |= {("sub-layers", torch.float32, 256): ">= 3.5", ("sub-layers", torch.bfloat16, 256): ">= 2.5"}
REFERENCE_GOAL = ">= 1.6"

Call = Callable[[Tensor], Tensor]


def alternate(
    functions: list[Callable[[], object]], rounds: int, choose: Callable[[list[float]], float] = statistics.median
) -> list[float]:
    """Median (or other choice of) seconds of each function, called in turns."""
    seconds: list[list[float]] = [[] for _ in functions]
    for function in functions:
        function()
    for _ in range(rounds):
        for function, taken in zip(functions, seconds, strict=True):
            start = time.perf_counter()
            function()
            taken.append(time.perf_counter() - start)
    return [choose(taken) for taken in seconds]


def calls(
    shape: tuple[int, int, int, int], dtype: torch.dtype
) -> tuple[Tensor, dict[str, list[tuple[Call, list[Tensor]]]]]:
    """`x`, and for each op the kernel, the reference and the dense layer, each with its weights."""
    batch, tokens, heads, hidden = shape
    width = hidden // heads

    def weights(*sizes: int) -> Tensor:
        return (torch.randn(sizes) / sizes[-2] ** 0.5).to(dtype).requires_grad_()

    q, k, v, o = split = [weights(heads, width, width) for _ in range(4)]
    up, down = weights(heads, width, 4 * width), weights(heads, 4 * width, width)
    qkv, out = weights(hidden, 3 * hidden), weights(hidden, hidden)
    dense_up, dense_down = weights(hidden, 4 * hidden), weights(4 * hidden, hidden)

    def dense_attention(x: Tensor) -> Tensor:
        query, key, value = (x @ qkv).view(batch, tokens, 3, heads, width).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, tokens, hidden) @ out

    return torch.randn(batch, tokens, hidden).to(dtype).requires_grad_(), {
        "feed-forward": [
            (lambda x: ops.split_feed_forward(x, up, down), [up, down]),
            (lambda x: reference.split_feed_forward(x, up, down, "gelu", None, None), [up, down]),
            (lambda x: F.gelu(x @ dense_up) @ dense_down, [dense_up, dense_down]),
        ],
        "attention": [
            (lambda x: ops.split_attention(x, *split, is_causal=True), split),
            (lambda x: reference.split_attention(x, q, k, v, o, True, None, 0.0, width**-0.5), split),
            (dense_attention, [qkv, out]),
        ],
    }


def multiplications(op: str, shape: tuple[int, int, int, int]) -> tuple[float, float]:
    """Of the split op: forward, and forward with backward; causal attention has half of its pairs."""
    batch, tokens, heads, hidden = shape
    projected = batch * tokens * hidden * hidden / heads
    if op == "feed-forward":
        return 8 * projected, 24 * projected
    pairs = batch * tokens * (tokens + 1) / 2 * hidden
    return 4 * projected + 2 * pairs, 12 * projected + 7 * pairs


def peak(dtype: torch.dtype, rounds: int) -> float:
    """Multiplications a second of the fastest matrix product: a large one of PyTorch's, or heads of the kernels'."""
    square = torch.randn(1024, 1024).to(dtype)
    x, weight = torch.randn(2048, 1024).to(dtype), torch.randn(4, 256, 256).to(dtype)
    # The shortest: what interrupts a measurement is no property of the machine.
    large, heads = alternate([lambda: square @ square, lambda: ops.split_linear(x, weight)], 3 * rounds, min)
    return max(1024**3 / large, 2048 * 1024 * 256 / heads)


def measure(shape: tuple[int, int, int, int], dtype: torch.dtype, rounds: int) -> list[Figure]:
    """Figures of both ops, and of the two sub-layers together."""
    torch.manual_seed(0)
    x, table = calls(shape, dtype)
    speed = peak(dtype, rounds)
    figures, totals = [], [0.0, 0.0, 0.0]
    title = f"{str(dtype)[6:]} D={shape[3]}"
    gradient = torch.randn_like(x)
    for op, variants in table.items():
        with torch.no_grad():
            forward = alternate([lambda call=call: call(x) for call, _ in variants], rounds)
        both = alternate(
            [
                lambda call=call, held=held: torch.autograd.grad(call(x), [x, *held], gradient)
                for call, held in variants
            ],
            rounds,
        )
        totals = [total + taken for total, taken in zip(totals, both, strict=True)]
        for kind, taken, count in zip(
            ("forward", "forward+backward"), (forward, both), multiplications(op, shape), strict=True
        ):
            name = f"{title} {op} {kind}"
            figures += [
                Figure(f"{name}, kernel", taken[0] * 1e3, "ms"),
                Figure(f"{name}, against the reference", taken[1] / taken[0], "times as fast"),
                Figure(f"{name}, against dense", taken[2] / taken[0], "times as fast"),
                Figure(f"{name}, share of the limit", count / speed / taken[0]),
            ]
    goal = GOALS.get(("sub-layers", dtype, shape[3]))
    name = f"{title} both sub-layers forward+backward"
    return [
        *figures,
        Figure(f"{name}, against the reference", totals[1] / totals[0], "times as fast", REFERENCE_GOAL),
        Figure(f"{name}, against dense", totals[2] / totals[0], "times as fast", goal),
    ]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=15, help="calls of each variant")
    arguments.add_argument("--threads", type=int, default=2)
    given = arguments.parse_args()
    torch.set_num_threads(given.threads)
    ops.set_backend("cpu")
    figures = []
    for dtype in (torch.float32, torch.bfloat16):
        for shape in SHAPES:
            figures += measure(shape, dtype, given.rounds)
    report(figures, given.json)


if __name__ == "__main__":
    main()
