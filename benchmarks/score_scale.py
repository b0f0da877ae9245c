"""What attention's division by √K is for (seed 004): scores that grow with a head's width stop softmax from learning.

Queries and keys are random, of variance 1, so that a score has variance K. Of softmax over 64 keys it is measured how
much of it answers to its scores: the trace of its Jacobian, Σ p·(1 − p), which is 0 where one key has all the weight.

    python benchmarks/score_scale.py [--queries 2000] [--json]
"""

import argparse
from collections.abc import Iterator

import torch
from reporting import Figure, parser, report

WIDTHS, KEYS = (8, 32, 64, 128, 256), 64


def responsiveness(width: int, queries: int, scale: float) -> float:
    """Mean of Σ p·(1 − p) over queries that each have keys of their own; from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(queries, 1, width, generator=generator)
    keys = torch.randn(queries, KEYS, width, generator=generator)
    weights = (scale * (query * keys).sum(-1)).softmax(-1)
    return float((weights * (1 - weights)).sum(-1).mean())


def figures_of(given: argparse.Namespace) -> Iterator[Figure]:
    """By width, without the division and with it."""
    for name, power in (("q·k", 0.0), ("q·k / √K", -0.5)):
        for width in WIDTHS:
            yield Figure(f"{name}, K = {width}", responsiveness(width, given.queries, width**power))


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--queries", type=int, default=2000)
    given = arguments.parse_args()
    report(list(figures_of(given)), given.json)


if __name__ == "__main__":
    main()
