"""Is the backend that is chosen by itself ever slower than plain PyTorch? Every op at 60 shapes of all sizes.

Shapes are spread evenly over the logarithms of 1 to 2,048 tokens, 1 to 64 heads, 4 to 128 channels a head and 1 to 32
sequences, without those that take long, and with the corners that do not. Each op (the feed-forward four times as
wide, attention causal) runs forward, and forward with backward, in float32 and bf16, on `auto` and on the reference
in turns; short calls many times in one measurement. A ratio is the median of those of the turns. A case counts as
slower if it takes more than 1.05 times the reference's time; one that seems to is measured up to five times more, with
four times as many turns and some time after, and the median is that of all turns.

`--backend reference` measures the reference against itself: what it finds is what the machine's noise can do.
`--backend cpu` measures the kernels where `auto` would not use them: that is how `WORTHWHILE` in
`smht.ops.cpu_backend` is chosen. `--every` prints all cases.

    python benchmarks/sweep.py [--rounds 7] [--threads 2] [--backend auto] [--every] [--json]
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from measure import clock_of_choice, short_name, timing_parser, with_gradients
from reporting import Figure, report
from torch import Tensor

from smht import ops

OPS = ("split_linear", "split_feed_forward", "split_attention")
COUNT = 60
TOLERANCE = 1.05
KINDS = ("forward", "forward+backward")
_MOST_TOKENS, _MOST_HEADS, _WIDTHS, _MOST_SEQUENCES = 2048, 64, (4, 128), 32
_MOST_WORK = 2e9
_SHORTEST_SAMPLE, _LONGEST_CASE, _FEWEST_ROUNDS = 5e-4, 0.2, 3
_ATTEMPTS, _MORE_ROUNDS = 6, 4


class Shape(NamedTuple):
    """Sequences, tokens, heads, channels a head."""

    batch: int
    tokens: int
    heads: int
    width: int

    @property
    def work(self) -> float:
        """About what all ops take, in multiplications; numbers that are not multiplied count as 16 more channels."""
        projections, pairs = 36 * self.width, 7 * self.tokens
        return self.batch * self.tokens * self.heads * (projections + pairs) * (self.width + 16)

    def __str__(self) -> str:
        return f"B={self.batch} T={self.tokens} H={self.heads} K={self.width}"


CORNERS = (
    Shape(1, 1, 1, 4),
    Shape(1, 1, 1, 128),
    Shape(1, 1, 64, 4),
    Shape(1, 1, 64, 128),
    Shape(1, 2048, 1, 4),
    Shape(1, 2048, 1, 128),
)


def shapes() -> list[Shape]:
    """The corners, then as many points of an additive recurrence as make `COUNT`.

    Multiples of the powers of 1/g, where g⁵ = g + 1, fill the four-dimensional cube evenly (M. Roberts, 2018, "The
    unreasonable effectiveness of quasirandom sequences").
    """
    g = 1.1673039782614187
    found = list(CORNERS)
    for i in itertools.count(1):
        if len(found) == COUNT:
            return found
        b, t, h, k = ((0.5 + i * g**-power) % 1 for power in (1, 2, 3, 4))
        low, high = _WIDTHS
        shape = Shape(
            round(_MOST_SEQUENCES**b), round(_MOST_TOKENS**t), round(_MOST_HEADS**h), round(low * (high / low) ** k)
        )
        if shape.work <= _MOST_WORK and shape not in found:
            found.append(shape)
    raise AssertionError("never reached")


class Case(NamedTuple):
    """One measurement: an op, how it is called, and on what."""

    op: str
    kind: str
    dtype: torch.dtype
    shape: Shape

    def __str__(self) -> str:
        return f"{self.op} {short_name(self.dtype)} {self.kind}, {self.shape}"

    def function(self) -> Callable[[], object]:
        """The call, with tensors of its own."""
        batch, tokens, heads, width = self.shape
        torch.manual_seed(0)
        has_backward = self.kind == KINDS[1]

        def tensor(*sizes: int) -> Tensor:
            return (torch.randn(sizes) / width**0.5).to(self.dtype).requires_grad_(has_backward)

        x, square = tensor(batch, tokens, heads * width), (heads, width, width)
        if self.op == "split_linear":
            weights = [tensor(*square)]
        elif self.op == "split_feed_forward":
            weights = [tensor(heads, width, 4 * width), tensor(heads, 4 * width, width)]
        else:
            weights = [tensor(*square) for _ in range(4)]
        options = {"is_causal": True} if self.op == "split_attention" else {}
        op = getattr(ops, self.op)
        if not has_backward:
            return lambda: op(x, *weights, **options)
        gradient = torch.ones_like(x)
        return lambda: with_gradients(lambda x: op(x, *weights, **options), x, weights, gradient)


def cases(of: list[Shape]) -> Iterator[Case]:
    """Every op, kind and dtype at each shape."""
    for shape, op, dtype, kind in itertools.product(of, OPS, (torch.float32, torch.bfloat16), KINDS):
        yield Case(op, kind, dtype, shape)


def speedups(case: Case, backend: str, rounds: int) -> list[float]:
    """How many times as fast as the reference `backend` is, in each of the turns that they take."""
    function = case.function()
    names = (backend, "reference")
    for name in names:
        seconds_of(function, name, 1)
    once = seconds_of(function, backend, 1)
    repeats = math.ceil(_SHORTEST_SAMPLE / once)
    rounds = min(rounds, max(_FEWEST_ROUNDS, int(_LONGEST_CASE * rounds / (2 * repeats * once))))
    found, taken = [], [0.0, 0.0]
    for turn in range(rounds):
        # Each is the first as often as the second.
        for i in (0, 1) if turn % 2 else (1, 0):
            taken[i] = seconds_of(function, names[i], repeats)
        found.append(taken[1] / taken[0])
    return found


def seconds_of(function: Callable[[], object], backend: str, repeats: int) -> float:
    """How long that many calls take."""
    ops.set_backend(backend)
    clock = clock_of_choice()
    started = clock()
    for _ in range(repeats):
        function()
    return clock() - started


def measure(of: list[Shape], backend: str, rounds: int) -> dict[Case, float]:
    """The median speedup of every case; of one that seems slower, over all its attempts.

    An attempt comes when all others of its turn are over: what disturbs a machine lasts longer than one case.
    """
    found = {case: speedups(case, backend, rounds) for case in cases(of)}
    for _ in range(_ATTEMPTS - 1):
        for case in [case for case, ratios in found.items() if statistics.median(ratios) < 1 / TOLERANCE]:
            found[case] += speedups(case, backend, _MORE_ROUNDS * rounds)
    return {case: statistics.median(ratios) for case, ratios in found.items()}


def figures_of(found: dict[Case, float], every: bool) -> list[Figure]:
    """Of each op the typical and the worst ratio, then the cases that are slower, or all."""
    unit = "times as fast"
    figures = []
    for op in OPS:
        ratios = [ratio for case, ratio in found.items() if case.op == op]
        figures += [
            Figure(f"{op}: median of {len(ratios)} cases", statistics.median(ratios), unit),
            Figure(f"{op}: worst case", min(ratios), unit),
        ]
    slower = {case: ratio for case, ratio in found.items() if ratio < 1 / TOLERANCE}
    figures.append(Figure(f"cases slower than the reference, of {len(found)}", len(slower), "", "<= 0"))
    return figures + [Figure(str(case), ratio, unit) for case, ratio in (found if every else slower).items()]


def main() -> None:
    arguments = timing_parser(__doc__, rounds=7)
    arguments.add_argument("--backend", choices=["auto", *ops.BACKENDS], default="auto")
    arguments.add_argument("--every", action="store_true", help="print every case, not only slower ones")
    given = arguments.parse_args()
    torch.set_num_threads(given.threads)
    report(figures_of(measure(shapes(), given.backend, given.rounds), given.every), given.json)


if __name__ == "__main__":
    main()
