"""Validation loss on tinyshakespeare with nanoGPT's CPU budget: characters, context 64, 2,000 steps of 12 windows.

nanoGPT publishes 1.88 nats for its dense model of that budget (4 layers, 4 heads, width 128). Here the last tenth
of the text is held out, and the loss is over all of it, in disjoint windows of 64 characters.

    python benchmarks/tinyshakespeare.py tinyshakespeare.txt [--json] [--mixing shuffle --mixing none] [--seed 0]
"""

import tempfile
from pathlib import Path
from typing import Any

from reporting import Figure, parser, report
from rich.console import Console
from transformers.utils import logging

from smht.training import train as training
from smht.training.budget import Budget
from smht.training.request import TrainRequest

MOST_PARAMETERS = 900_000
MOST_TOKENS = 1_536_000
GOAL = 1.73
STEPS = 2_000
BATCH_SIZE = 12
CONTEXT = 64
LEARNING_RATE = 5e-3
ARCHITECTURE = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "position_embedding": "learned",
    "tie_word_embeddings": True,
}


def train(text: Path, mixing: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train one model; its loss, size, tokens and seconds."""
    request = TrainRequest(
        texts=(str(text),),
        tokenizer="char",
        architecture={**ARCHITECTURE, "mixing": mixing},
        context=CONTEXT,
        batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        warmup=100,
        seed=seed,
        budget=Budget(steps=STEPS),
    )
    outcome = training.start(request, folder / f"{mixing}-{seed}", Console(stderr=True))
    results = outcome.record["results"]
    return {"mixing": mixing, "seed": seed, "parameters": outcome.record["model"]["parameters"], **results}


def to_figures(run: dict[str, Any]) -> list[Figure]:
    """Figures with their goals; only shuffle mixing has one for the loss."""
    name = f"mixing={run['mixing']}, seed {run['seed']}"
    goal = f"<= {GOAL}" if run["mixing"] == "shuffle" else None
    return [
        Figure(f"{name}: validation loss", run["validation_loss"], "nats per character", goal),
        Figure(f"{name}: parameters", run["parameters"], "", f"<= {MOST_PARAMETERS}"),
        Figure(f"{name}: training tokens", run["tokens"], "", f"<= {MOST_TOKENS}"),
        Figure(f"{name}: training time", run["seconds"], "s"),
    ]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("text", type=Path)
    arguments.add_argument("--mixing", action="append", choices=["shuffle", "none"])
    arguments.add_argument("--seed", action="append", type=int)
    chosen = arguments.parse_args()
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        figures = [
            figure
            for seed in chosen.seed or [0]
            for mixing in chosen.mixing or ["shuffle", "none"]
            for figure in to_figures(train(chosen.text, mixing, seed, Path(folder)))
        ]
    report(figures, chosen.json)


if __name__ == "__main__":
    main()
