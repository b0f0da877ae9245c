"""Do activations stay as large as they are when a model grows wider, or has more heads?

Models of 64 to 1,024 channels and 1, 2, 4 and 8 heads take a few steps of AdamW on one batch of random tokens, all at
the same learning rate. What counts is how far each layer's output has moved since before the first step, as the mean
of |change| over its channels, and how that grows with the width: the slope of a line through the logarithms. Under the
Maximal Update parametrisation (`smht.training.parametrisation`) it is flat, so that one rate serves all widths; under
the standard one it grows (Yang et al. 2022, arXiv:2203.03466, section 5). Nor must it depend on the number of heads at
one width (Qiu et al. 2024, arXiv:2406.06248, section 3). A few channels a head are no infinite width, so that slopes
are not zero.

    python benchmarks/coordinate_check.py [--figure coordinates.svg] [--dense] [--untied] [--every] [--json]
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from reporting import Figure, parser, report
from torch import Tensor

from smht.inspection.recording import recording
from smht.models import SmhtConfig, SmhtForCausalLM
from smht.training.parametrisation import MUP, PARAMETRISATIONS, initialise, parameter_groups

WIDTHS = (64, 128, 256, 512, 1024)
HEADS = (1, 2, 4, 8)
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "lm_head")
"""Ends of the names of the modules that are looked at."""
RISE, FALL, GROWING = 0.2, -0.3, 0.5
"""What counts as flat, and what as growing. Logits fall a little: what they begin with goes as 1/√D."""
_SHAPE, _VOCABULARY, _BLOCKS = (4, 32), 64, 2


@dataclass(frozen=True)
class Model:
    """What is trained."""

    parametrisation: str
    width: int
    heads: int
    is_split: bool = True
    is_tied: bool = True

    def make(self) -> SmhtForCausalLM:
        """A fresh one, from seed 0."""
        torch.manual_seed(0)
        sizes: dict[str, Any] = {
            "hidden_size": self.width,
            "num_attention_heads": self.heads,
            "num_hidden_layers": _BLOCKS,
            "vocab_size": _VOCABULARY,
            "max_position_embeddings": _SHAPE[1],
        }
        if not self.is_split:
            sizes["split"] = ()
        elif self.heads > 1:
            sizes["mixing"] = "shuffle"
        model = SmhtForCausalLM(SmhtConfig(tie_word_embeddings=self.is_tied, **sizes))
        initialise(model, self.parametrisation)
        return model


def changes(asked: Model, rate: float, steps: int) -> dict[str, float]:
    """How far each layer's output moves in so many steps: mean |change| over channels, tokens and blocks, by layer."""
    model = asked.make()
    ids = torch.randint(_VOCABULARY, _SHAPE, generator=torch.Generator().manual_seed(1))
    groups = parameter_groups(model, rate, weight_decay=0.0, parametrisation=asked.parametrisation)
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99))
    before = _outputs(model, ids)
    for _ in range(steps):
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    after = _outputs(model, ids)
    moved = {name: float((after[name] - before[name]).abs().mean()) for name in before}
    return {layer: fmean(size for name, size in moved.items() if name.endswith(f".{layer}")) for layer in LAYERS}


@torch.no_grad()
def _outputs(model: SmhtForCausalLM, ids: Tensor) -> dict[str, Tensor]:
    with recording(model) as record:
        model(ids)
    return {f".{name}": call.output for name, call in record.items()}


def slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Of log value against log size: 0 is flat, 1 proportional."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


Found = dict[Model, dict[str, float]]


def measure(given: argparse.Namespace) -> Found:
    """Every parametrisation, width and number of heads."""
    models = [
        Model(parametrisation, width, heads, not given.dense, not given.untied)
        for parametrisation in PARAMETRISATIONS
        for heads in given.heads
        for width in given.widths
    ]
    return {model: changes(model, given.learning_rate, given.steps) for model in models}


def width_slopes(found: Found, parametrisation: str) -> dict[tuple[int, str], float]:
    """Slopes against the width, by number of heads and layer."""
    chosen = [model for model in found if model.parametrisation == parametrisation]
    slopes = {}
    for heads in dict.fromkeys(model.heads for model in chosen):
        line = [model for model in chosen if model.heads == heads]
        for layer in LAYERS:
            slopes[heads, layer] = slope([m.width for m in line], [found[m][layer] for m in line])
    return slopes


def heads_slopes(found: Found, parametrisation: str) -> dict[tuple[int, str], float]:
    """Slopes against the number of heads, by width and layer; none where there is one number."""
    chosen = [model for model in found if model.parametrisation == parametrisation]
    slopes = {}
    for width in dict.fromkeys(model.width for model in chosen):
        line = [model for model in chosen if model.width == width]
        if len(line) > 1:
            for layer in LAYERS:
                slopes[width, layer] = slope([m.heads for m in line], [found[m][layer] for m in line])
    return slopes


def figures_of(found: Found, every: bool) -> list[Figure]:
    """The steepest slopes, with goals; every slope if asked for."""
    figures = []
    for name in PARAMETRISATIONS:
        is_mup = name == MUP
        for what, slopes in (("width", width_slopes(found, name)), ("heads", heads_slopes(found, name))):
            if not slopes:
                continue
            grows = f">= {GROWING}" if what == "width" else None
            figures += [
                Figure(
                    f"{name}: steepest rise with {what}", max(slopes.values()), "", f"<= {RISE}" if is_mup else grows
                ),
                Figure(
                    f"{name}: steepest fall with {what}", min(slopes.values()), "", f">= {FALL}" if is_mup else None
                ),
            ]
            letter = {"width": "H", "heads": "D"}[what]
            for (size, layer), value in slopes.items() if every else ():
                figures.append(Figure(f"{name}: {layer}, {letter}={size}, with {what}", value))
    return figures


def draw(found: Found, path: Path) -> None:
    """Change against width, a column for each number of heads, a row for each parametrisation."""
    import matplotlib.pyplot as plt

    heads = list(dict.fromkeys(model.heads for model in found))
    figure, panels = plt.subplots(
        len(PARAMETRISATIONS),
        len(heads),
        figsize=(3.2 * len(heads), 6),
        sharex=True,
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for row, name in zip(panels, PARAMETRISATIONS, strict=True):
        for panel, count in zip(row, heads, strict=True):
            line = [model for model in found if (model.parametrisation, model.heads) == (name, count)]
            for layer in LAYERS:
                panel.plot(
                    [m.width for m in line], [found[m][layer] for m in line], marker="o", markersize=3, label=layer
                )
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.set_title(f"{name}, {count} {'head' if count == 1 else 'heads'}", fontsize="medium")
            panel.grid(alpha=0.3)
        row[0].set_ylabel("mean |change|")
    for panel in panels[-1]:
        panel.set_xlabel("width")
    figure.legend(
        *panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(LAYERS), fontsize="small"
    )
    figure.savefig(path)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--figure", type=Path)
    arguments.add_argument("--dense", action="store_true", help="full matrices")
    arguments.add_argument("--untied", action="store_true", help="a head of its own")
    arguments.add_argument("--every", action="store_true", help="print the slope of each layer")
    arguments.add_argument("--learning-rate", type=float, default=1e-3)
    arguments.add_argument("--steps", type=int, default=4)
    arguments.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    arguments.add_argument("--heads", type=int, nargs="+", default=HEADS)
    given = arguments.parse_args()
    found = measure(given)
    if given.figure:
        draw(found, given.figure)
    report(figures_of(found, given.every), given.json)


if __name__ == "__main__":
    main()
