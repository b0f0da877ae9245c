"""Does a learning rate found on a narrow model serve wide ones, and other numbers of heads?

Shuffled split models of 128, 256 and 512 channels with 2, 4 and 8 heads learn the characters of a text for a short
while, each at rates a factor of 2 apart, under the Maximal Update parametrisation (`smht.training.parametrisation`).
The best rate should be the same for all of them, within one step of the grid. Beside it the same widths under the
standard parametrisation, with 4 heads, whose best rate should fall as the width grows. What it costs to take over the
best rate of the narrowest models is given in nats, too.

    python benchmarks/rate_transfer.py TEXT [--figure rates.svg] [--widths 128 256 512] [--heads 2 4 8]
                                            [--steps 150] [--quick] [--json]

All of it takes about a quarter of an hour on 2 cores, `--quick` a minute.
"""

import argparse
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from reporting import Figure, parser, report

from smht.comparison.loop import Recipe, train
from smht.errors import SmhtError
from smht.models import SmhtConfig, SmhtForCausalLM
from smht.tasks.language_modelling import LanguageModelling, WindowedText
from smht.tasks.task import DataRequest
from smht.tokenization import build_tokenizer
from smht.training.parametrisation import MUP, STANDARD, initialise

WIDTHS, HEADS, SHOWN_HEADS = (128, 256, 512), (2, 4, 8), 4
RATES = tuple(2.0**power for power in range(-10, -4))
"""One thousandth to 3.1 hundredths, a factor of 2 apart."""
STEPS, CONTEXT, BATCH_SIZE, BLOCKS, CHECKED_WINDOWS = 150, 64, 16, 2, 256
QUICK = {"widths": (32, 64, 128), "heads": (2, 4), "steps": 60}
WITHIN, PRICE = 1, 0.03


@dataclass(frozen=True)
class Model:
    """What is trained."""

    parametrisation: str
    width: int
    heads: int

    def __str__(self) -> str:
        return f"{self.parametrisation}, width {self.width}, {self.heads} heads"


@dataclass(frozen=True)
class Sweep:
    """Validation losses by rate, infinite where the training diverged."""

    losses: dict[float, float]

    @property
    def best(self) -> float:
        """The best rate."""
        return min(self.losses, key=lambda rate: self.losses[rate])

    def price(self, rate: float) -> float:
        """How much is lost by another rate than the best, in nats."""
        return self.losses[rate] - self.losses[self.best]


Found = dict[Model, Sweep]


def sweep(asked: Model, examples: WindowedText, vocabulary: int, steps: int) -> Sweep:
    """Train at every rate."""
    losses = {}
    for rate in RATES:
        torch.manual_seed(0)
        sizes: dict[str, Any] = {
            "hidden_size": asked.width,
            "num_attention_heads": asked.heads,
            "vocab_size": vocabulary,
        }
        config = SmhtConfig(
            num_hidden_layers=BLOCKS,
            max_position_embeddings=CONTEXT,
            mixing="shuffle",
            tie_word_embeddings=True,
            **sizes,
        )
        model = SmhtForCausalLM(config)
        initialise(model, asked.parametrisation)
        try:
            train(model, examples, Recipe(rate, BATCH_SIZE, steps=steps, parametrisation=asked.parametrisation))
            losses[rate] = examples.score(model, CHECKED_WINDOWS).loss
        except SmhtError:
            losses[rate] = math.inf
    return Sweep(losses)


def measure(given: argparse.Namespace) -> Found:
    """All widths and numbers of heads under `mup`, and all widths with one number of heads under `standard`."""
    data = LanguageModelling().read(DataRequest(sources=(given.text,)))
    tokenizer = build_tokenizer("char", data.texts("strict"))
    examples = data.encode(tokenizer, CONTEXT, "strict")
    shown = SHOWN_HEADS if SHOWN_HEADS in given.heads else given.heads[0]
    models = [Model(MUP, width, heads) for heads in given.heads for width in given.widths]
    models += [Model(STANDARD, width, shown) for width in given.widths]
    return {model: sweep(model, examples, len(tokenizer), given.steps) for model in models}


def steps_apart(rates: Iterable[float], others: Iterable[float]) -> int:
    """The farthest that a rate and one of the others are apart, in steps of the grid."""
    places = [[round(math.log2(rate)) for rate in each] for each in (rates, others)]
    return max(abs(place - other) for place in places[0] for other in places[1])


def figures_of(found: Found) -> list[Figure]:
    """How far best rates are apart, what taking the narrowest models' over costs, and every best rate."""
    figures = []
    for name in (MUP, STANDARD):
        chosen = {model: each for model, each in found.items() if model.parametrisation == name}
        narrowest = min(model.width for model in chosen)
        base = [each.best for model, each in chosen.items() if model.width == narrowest]
        carried = sorted(base)[len(base) // 2]
        apart = steps_apart(base, (each.best for each in chosen.values()))
        price = max(each.price(carried) for each in chosen.values())
        is_mup = name == MUP
        figures += [
            Figure(
                f"{name}: best rates, farthest from one at width {narrowest}",
                apart,
                "grid steps",
                f"<= {WITHIN}" if is_mup else None,
            ),
            Figure(f"{name}: the most that {carried:.2g} costs", price, "nats", f"<= {PRICE}" if is_mup else None),
        ]
    for model, each in found.items():
        figures.append(Figure(f"{model}: best rate", each.best, "", None))
        figures.append(Figure(f"{model}: loss", each.losses[each.best], "nats/character", None))
    return figures


def draw(found: Found, path: Path) -> None:
    """Loss against rate, a line a width, a panel each number of heads, and one for `standard`."""
    import matplotlib.pyplot as plt

    kinds = list(dict.fromkeys((model.parametrisation, model.heads) for model in found))
    widths = list(dict.fromkeys(model.width for model in found))
    size = (3.2 * len(kinds), 3.4)
    figure, row = plt.subplots(1, len(kinds), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for panel, (name, heads) in zip(row[0], kinds, strict=True):
        for place, width in enumerate(widths):
            each = found[Model(name, width, heads)]
            finite = {rate: loss for rate, loss in each.losses.items() if math.isfinite(loss)}
            panel.plot(
                list(finite), list(finite.values()), marker="o", markersize=3, color=f"C{place}", label=f"width {width}"
            )
            panel.plot(each.best, each.losses[each.best], marker="*", markersize=12, color=f"C{place}")
        panel.set_xscale("log", base=2)
        panel.set_title(f"{name}, {heads} heads", fontsize="medium")
        panel.set_xlabel("learning rate")
        panel.grid(alpha=0.3)
    best = min(each.losses[each.best] for each in found.values())
    row[0][0].set_ylim(best - 0.03, best + 0.6)
    row[0][0].set_ylabel("validation loss, nats")
    row[0][0].legend(fontsize="small")
    figure.savefig(path)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("text", help="a text file")
    arguments.add_argument("--figure", type=Path)
    arguments.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    arguments.add_argument("--heads", type=int, nargs="+", default=HEADS)
    arguments.add_argument("--steps", type=int, default=STEPS)
    arguments.add_argument("--quick", action="store_true", help="narrower models, fewer steps")
    given = arguments.parse_args()
    if given.quick:
        vars(given).update(QUICK)
    found = measure(given)
    if given.figure:
        draw(found, given.figure)
    report(figures_of(found), given.json)


if __name__ == "__main__":
    main()
