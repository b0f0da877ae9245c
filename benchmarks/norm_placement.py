"""Where norms stand, how deep a model is, and whether it needs warmup (seed 001): which trainings stall or diverge.

Language models of width 64 on the bytes of the Python standard library's source, 200 steps of 16 windows of 64 bytes,
every run with the same data and peak learning rate. A run diverges if its loss becomes no number, and stalls if it
ends no better than always guessing by the frequency of each byte.

    python benchmarks/norm_placement.py [--figure norm-placement.svg] [--learning-rate 2e-2] [--steps 200] [--json]
"""

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from reporting import Figure, parser, report

from smht.comparison.loop import Recipe, train
from smht.errors import SmhtError
from smht.models import SmhtConfig, SmhtForCausalLM
from smht.tasks.language_modelling import LanguageModelling, TextData, WindowedText
from smht.tasks.task import DataRequest
from smht.tokenization import build_tokenizer

DEPTHS = (2, 4, 8, 16)
CONTEXT, BATCH_SIZE, WARMUP, CHECKED_WINDOWS = 64, 16, 0.2, 256
STALLED = "stalls"


@dataclass(frozen=True)
class Run:
    """One training."""

    placement: str
    depth: int
    has_warmup: bool
    losses: tuple[float, ...]
    validation_loss: float

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.placement}-norm, {self.depth:2} blocks, {'with' if self.has_warmup else 'no'} warmup"

    def verdict(self, guessing: float) -> str:
        """How it went."""
        if not math.isfinite(self.validation_loss):
            return "diverges"
        return STALLED if self.validation_loss > 0.97 * guessing else "learns"


def run(placement: str, depth: int, has_warmup: bool, examples: WindowedText, rate: float, steps: int) -> Run:
    """Train one model."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": CONTEXT}
    model = SmhtForCausalLM(SmhtConfig(num_hidden_layers=depth, norm_placement=placement, mixing="shuffle", **sizes))
    recipe = Recipe(rate, BATCH_SIZE, steps=steps, warmup=WARMUP if has_warmup else 0.0)
    try:
        losses = train(model, examples, recipe).losses
    except SmhtError:
        return Run(placement, depth, has_warmup, (), math.nan)
    return Run(placement, depth, has_warmup, losses, examples.score(model, CHECKED_WINDOWS).loss)


def guessing_loss(data: TextData) -> float:
    """The loss of guessing by the frequency of each byte, in nats."""
    counts = Counter(itertools.chain.from_iterable(document.data for document in data.validation.documents))
    total = counts.total()
    return -sum(count / total * math.log(count / total) for count in counts.values())


def draw(runs: list[Run], guessing: float, path: Path) -> None:
    """Loss by step, a panel a depth."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(DEPTHS), figsize=(13, 3.6), sharey=True, layout="constrained")
    for panel, depth in zip(panels, DEPTHS, strict=True):
        for one in (one for one in runs if one.depth == depth):
            smooth = [sum(one.losses[max(0, i - 9) : i + 1]) / min(i + 1, 10) for i in range(len(one.losses))]
            colour, style = ("C0" if one.placement == "pre" else "C3"), ("-" if one.has_warmup else "--")
            label = f"{one.placement}-norm, {'warmup' if one.has_warmup else 'no warmup'}"
            panel.plot(smooth, color=colour, linestyle=style, label=label)
        panel.axhline(guessing, color="grey", linewidth=0.8)
        panel.set_title(f"{depth} blocks")
        panel.set_xlabel("step")
    panels[0].set_ylabel("training loss, nats/byte")
    panels[0].set_ylim(1.5, 5.5)
    most = max(len(one.losses) for one in runs)
    panels[0].text(most, guessing + 0.05, "guessing by frequency", color="grey", fontsize=8, ha="right")
    panels[0].legend(fontsize=8)
    figure.savefig(path)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--figure", type=Path)
    arguments.add_argument("--learning-rate", type=float, default=2e-2)
    arguments.add_argument("--steps", type=int, default=200)
    chosen = arguments.parse_args()
    data = LanguageModelling().read(DataRequest())
    examples = data.encode(build_tokenizer("byte", None), CONTEXT, "strict")
    guessing = guessing_loss(data)
    runs = [
        run(placement, depth, has_warmup, examples, chosen.learning_rate, chosen.steps)
        for depth in DEPTHS
        for placement in ("pre", "post")
        for has_warmup in (True, False)
    ]
    if chosen.figure:
        draw(runs, guessing, chosen.figure)
    report(
        [Figure("guessing by frequency", guessing, "nats/byte")]
        + [Figure(f"{one.name}: {one.verdict(guessing)}", one.validation_loss, "nats/byte") for one in runs],
        chosen.json,
    )


if __name__ == "__main__":
    main()
