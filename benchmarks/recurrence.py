"""Attention beside recurrence (seed 004): at which length they take the same time, and a sentence of 50 words.

The seed says that attention's n²·d multiplications are fewer than the n·d² of a recurrent layer "for long sequences",
and that a translator reads a sentence of 50 words five times as fast as an LSTM. Counted, attention to n tokens with
its four projections takes 4·d² + 2·n·d multiplications a token, an LSTM 8·d²: attention has fewer up to n = 2·d, so for
short sequences. What is timed is one layer of either, of the same width and without a mask, over so many sequences that
all lengths have the same number of tokens; then one sentence of 50 words, and 32.

Layers: `torch.nn.LSTM`, dense attention and split attention (8 heads each). One process, variants in turns, ratios of
medians.

    python benchmarks/recurrence.py [--rounds 5] [--threads 2] [--width 128] [--json]
"""

import itertools
import math
from collections.abc import Callable, Iterator

import torch
from measure import alternate, timing_parser
from reporting import Figure, report
from torch import Tensor, nn

from smht.layers import MultiHeadAttention

LENGTHS = (16, 64, 256, 1024, 2048, 4096, 8192)
TOKENS, HEADS = 8192, 8
WORDS, SENTENCES = 50, (1, 32)
CLAIMED = ">= 5"
KINDS = ("forward", "forward+backward")
RECURRENT, DENSE, SPLIT = "LSTM", "dense attention", "split attention"


def layers(width: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """One layer of each kind: `[B, T, D]` to `[B, T, D]`."""
    recurrent = nn.LSTM(width, width, batch_first=True)
    made: dict[str, Callable[[Tensor], Tensor]] = {RECURRENT: lambda x: recurrent(x)[0]}
    for name, split in ((DENSE, False), (SPLIT, True)):
        attention = MultiHeadAttention(width, HEADS, split_qkv=split, split_output=split, is_causal=False)
        made[name] = lambda x, attention=attention: attention(x)[0]
    return made


def call(layer: Callable[[Tensor], Tensor], kind: str, batch: int, length: int, width: int) -> Callable[[], object]:
    """One call, with numbers of its own."""
    x = torch.randn(batch, length, width)
    if kind == KINDS[0]:
        return lambda: torch.no_grad()(layer)(x)
    x.requires_grad_()
    return lambda: layer(x).sum().backward()


def seconds_of(kind: str, batch: int, length: int, width: int, rounds: int) -> dict[str, float]:
    """The median time of each layer."""
    made = layers(width)
    taken = alternate([call(layer, kind, batch, length, width) for layer in made.values()], rounds)
    return {name: seconds.median for name, seconds in zip(made, taken, strict=True)}


def crossing(ratios: dict[int, float]) -> float | None:
    """The length at which a ratio falls to 1, along straight lines between logarithms; None if it does not."""
    points = [(math.log(length), math.log(ratio)) for length, ratio in ratios.items()]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if y0 > 0 >= y1:
            return math.exp(x0 + (x1 - x0) * y0 / (y0 - y1))
    return None


def length_figures(width: int, rounds: int) -> Iterator[Figure]:
    """How many times as long the LSTM takes, by length, and where that is once."""
    taken = {length: seconds_of(KINDS[1], TOKENS // length, length, width, rounds) for length in LENGTHS}
    for name in (DENSE, SPLIT):
        ratios = {length: seconds[RECURRENT] / seconds[name] for length, seconds in taken.items()}
        for length, ratio in ratios.items():
            yield Figure(f"{name}, {length} tokens, against the LSTM", ratio, "times as fast")
        yield Figure(f"{name}: as fast as the LSTM at", crossing(ratios), "tokens")
    yield Figure("as many multiplications, dense attention and LSTM, at", 2 * width, "tokens")


def sentence_figures(width: int, rounds: int) -> Iterator[Figure]:
    """Sentences of 50 words."""
    for batch in SENTENCES:
        for kind in KINDS:
            taken = seconds_of(kind, batch, WORDS, width, 3 * rounds)
            for name in (DENSE, SPLIT):
                called = f"{batch} x {WORDS} words, {kind}, {name}, against the LSTM"
                yield Figure(called, taken[RECURRENT] / taken[name], "times as fast", CLAIMED)


def main() -> None:
    arguments = timing_parser(__doc__, rounds=5)
    arguments.add_argument("--width", type=int, default=128)
    given = arguments.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    report([*length_figures(given.width, given.rounds), *sentence_figures(given.width, given.rounds)], given.json)


if __name__ == "__main__":
    main()
