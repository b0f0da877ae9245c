"""The split ops: kernels beside the plain PyTorch reference beside dense layers of the same width.

One process, alternately, medians; forward, and forward with backward. A dense layer has full matrices: one fused
projection for queries, keys and values, PyTorch's attention, a full output; or two linear layers around a GELU. The
limit is the multiplications of the split op over the speed of the fastest matrix product measured here, PyTorch's or a
kernel's.

    python benchmarks/ops.py [--rounds 15] [--threads 2] [--json]
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from measure import alternate, peak, short_name, timed_dtypes, timing_parser, with_gradients
from reporting import Figure, report
from torch import Tensor

from smht import ops
from smht.ops import reference

SHAPES = [(4, 512, 12, 768), (8, 256, 8, 256)]
"""Batch, tokens, heads, hidden size; the feed-forward is four times as wide."""
GOALS = {("sub-layers", torch.float32, 768): ">= 5", ("sub-layers", torch.bfloat16, 768): ">= 3.5"}
GOALS |= {("sub-layers", torch.float32, 256): ">= 3.5", ("sub-layers", torch.bfloat16, 256): ">= 2.5"}
REFERENCE_GOAL = ">= 1.6"

Call = Callable[[Tensor], Tensor]


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
    """The fewest of the split op that are known: forward, and forward with backward.

    Causal attention has half of its pairs, and two products of a head's weights in place of its four.
    """
    batch, tokens, heads, hidden = shape
    projected = batch * tokens * hidden * hidden / heads
    if op == "feed-forward":
        return 8 * projected, 24 * projected
    pairs = batch * tokens * (tokens + 1) / 2 * hidden
    return 2 * projected + 2 * pairs, 6 * projected + 7 * pairs


def measure(shape: tuple[int, int, int, int], dtype: torch.dtype, rounds: int) -> list[Figure]:
    """Figures of both ops, and of the two sub-layers together."""
    torch.manual_seed(0)
    x, table = calls(shape, dtype)
    speed = peak(dtype, rounds)
    figures, totals = [], [0.0, 0.0, 0.0]
    title = f"{short_name(dtype)} D={shape[3]}"
    gradient = torch.randn_like(x)
    for op, variants in table.items():
        with torch.no_grad():
            forward = alternate([lambda call=call: call(x) for call, _ in variants], rounds)
        both = alternate(
            [lambda call=call, held=held: with_gradients(call, x, held, gradient) for call, held in variants], rounds
        )
        totals = [total + taken.median for total, taken in zip(totals, both, strict=True)]
        for kind, taken, count in zip(
            ("forward", "forward+backward"), (forward, both), multiplications(op, shape), strict=True
        ):
            name = f"{title} {op} {kind}"
            kernel, plain, dense = taken
            figures += [
                Figure(f"{name}, kernel", kernel.median * 1e3, "ms"),
                Figure(f"{name}, against the reference", plain.median / kernel.median, "times as fast"),
                Figure(f"{name}, against dense", dense.median / kernel.median, "times as fast"),
                Figure(f"{name}, share of the limit", count / speed / kernel.shortest),
            ]
    goal = GOALS.get(("sub-layers", dtype, shape[3]))
    name = f"{title} both sub-layers forward+backward"
    return [
        *figures,
        Figure(f"{name}, against the reference", totals[1] / totals[0], "times as fast", REFERENCE_GOAL),
        Figure(f"{name}, against dense", totals[2] / totals[0], "times as fast", goal),
    ]


def main() -> None:
    given = timing_parser(__doc__, rounds=15).parse_args()
    torch.set_num_threads(given.threads)
    ops.set_backend("cpu")
    figures = []
    for dtype in timed_dtypes():
        for shape in SHAPES:
            figures += measure(shape, dtype, given.rounds)
    report(figures, given.json)


if __name__ == "__main__":
    main()
