"""Validation loss on tinyshakespeare with nanoGPT's CPU budget: characters, context 64, 2,000 steps of 12 windows.

nanoGPT publishes 1.88 nats for its dense model of that budget (4 layers, 4 heads, width 128). Here the last tenth
of the text is held out, and the loss is over all of it, in disjoint windows of 64 characters.

    python benchmarks/tinyshakespeare.py tinyshakespeare.txt [--json] [--mixing shuffle --mixing none] [--seed 0]
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
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


def train(text: Path, mixing: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train one model; its loss, size, tokens and seconds."""
    request = TrainRequest(
        texts=(str(text),),
        tokenizer="char",
        preset="smht-small",
        architecture={"mixing": mixing},
        context=CONTEXT,
        batch_size=BATCH_SIZE,
        learning_rate=8e-3,
        warmup=100,
        seed=seed,
        budget=Budget(steps=STEPS),
    )
    outcome = training.start(request, folder / f"{mixing}-{seed}", Console(stderr=True))
    results = outcome.record["results"]
    return {"mixing": mixing, "seed": seed, "parameters": outcome.record["model"]["parameters"], **results}


def to_rows(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Figures with their goals; only shuffle mixing has one for the loss."""
    name = f"mixing={run['mixing']}, seed {run['seed']}"
    loss_goal = GOAL if run["mixing"] == "shuffle" else None
    figures = [
        ("validation loss", run["validation_loss"], "nats per character", loss_goal),
        ("parameters", run["parameters"], "", MOST_PARAMETERS),
        ("training tokens", run["tokens"], "", MOST_TOKENS),
        ("training time", run["seconds"], "s", None),
    ]
    return [
        {
            "name": f"{name}: {what}",
            "value": value,
            "unit": unit,
            "goal": None if goal is None else f"<= {goal}",
            "holds": None if goal is None else value <= goal,
        }
        for what, value, unit, goal in figures
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--mixing", action="append", choices=["shuffle", "none"])
    parser.add_argument("--seed", action="append", type=int)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            row
            for seed in arguments.seed or [0]
            for mixing in arguments.mixing or ["shuffle", "none"]
            for row in to_rows(train(arguments.text, mixing, seed, Path(folder)))
        ]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    table = Table("figure", "value", "unit", "goal", "holds")
    for row in rows:
        value = f"{row['value']:,.4f}" if isinstance(row["value"], float) else f"{row['value']:,}"
        holds = {True: "yes", False: "NO", None: "-"}[row["holds"]]
        table.add_row(row["name"], value, row["unit"], row["goal"] or "-", holds)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
