"""What `run.json` says: what was asked, what it was made of, what came out."""

import platform
import time
from typing import Any

import torch
import transformers

from smht.distributed.processes import Processes
from smht.errors import SmhtError
from smht.tokenization import tokenizer_kind
from smht.training import files
from smht.training.announcement import describe_architecture
from smht.training.preparation import Prepared
from smht.training.run_folder import WEIGHTS, RunFolder, find_best
from smht.version import __version__


def new_record(asked: dict[str, Any], prepared: Prepared, processes: Processes) -> dict[str, Any]:
    """What `run.json` says of a run that begins; `asked` as in `begin`."""
    return {
        "smht": __version__,
        "task": prepared.task.name,
        "status": "running",
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "asked": asked,
        "settings": prepared.settings.to_dict(),
        "processes": processes.size,
        "data": _data_record(prepared),
        "model": {
            "parameters": prepared.model.num_parameters(),
            "preset": None if asked["from_run"] else asked["preset"] or prepared.task.preset,
            "tokenizer": tokenizer_kind(prepared.tokenizer),
            "architecture": describe_architecture(prepared.model.config),
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "results": {},
    }


def _data_record(prepared: Prepared) -> dict[str, Any]:
    data = prepared.data.manifest()
    for part, tokens in zip(("training", "validation"), prepared.examples.token_counts, strict=True):
        data[part]["tokens"] = tokens
    return data


def results_of(run: RunFolder, metrics: list[str]) -> dict[str, Any]:
    """What `run.json` says of how a run came out; `metrics` are the names of the task's.

    Raises:
        SmhtError: the metrics are lost.
    """
    rows = run.read_metrics()
    if not rows:
        raise SmhtError(f"{run.metrics_path} is lost, and with it the results; the model in {run.path} can be used")
    best, last = find_best(rows) or {}, rows[-1]
    weights = run.path / WEIGHTS
    return {
        "steps": last["step"],
        "tokens": last["tokens"],
        "seconds": last["seconds"],
        "best_step": best.get("step"),
        "validation_loss": best.get("validation_loss"),
        **{name: best.get(name) for name in metrics},
        "training_loss": last["loss"],
        "tokens_per_second": round(last["tokens"] / last["seconds"]) if last["seconds"] else None,
        "sha256": files.sha256(weights) if weights.exists() else None,
    }
