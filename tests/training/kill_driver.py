"""Trains in forked children that are killed at random moments and resumed until they finish.

Prints `KILLS FINISHED`: how many children were killed while running, and how many runs were finished, each of
which ended with the weights of a run that nobody touched. Its own program, because forking a process that has
used PyTorch's threads can hang the child.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import load_file

from smht.training import train as training
from smht.training.budget import Budget
from smht.training.calibration import Calibration
from smht.training.checkpoint import checkpoint_path
from smht.training.request import TrainRequest
from smht.training.run_folder import RunFolder

STEPS = 24


def train(request: TrainRequest, run: Path) -> None:
    if (run / "run.json").exists():
        if RunFolder(run).read_record()["status"] == "finished":
            return  # killed after its last word
        training.resume(run, Budget(), {}, Console(quiet=True))
    else:
        training.start(request, run, Console(quiet=True))


def train_in_child(request: TrainRequest, run: Path, seconds: float) -> bool:
    """Whether the child was killed; False if it had finished before."""
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        train(request, run)
        os._exit(0)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        finished, status = os.waitpid(child, os.WNOHANG)
        if finished:
            assert status == 0, f"the child failed with status {status}"
            return False
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def assert_equal_runs(left: Path, right: Path) -> None:
    for folder in (lambda run: run, lambda run: checkpoint_path(run / "checkpoints", STEPS)):
        expected, found = (load_file(folder(run) / "model.safetensors") for run in (left, right))
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[name], found[name]) for name in expected)


def main(folder: Path, kills_wanted: int, seed: int) -> None:
    text = folder / "text.txt"
    text.write_text(" ".join(random.Random(0).choices(["a", "bc", "def", "\n"], k=4000)))
    training.calibrate = lambda *args: Calibration(0.01, 0.01, 1_000_000)
    request = TrainRequest(
        texts=(str(text),),
        tokenizer="byte",
        architecture={"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_dropout": 0.1},
        context=16,
        batch_size=2,
        device="cpu",
        evaluate_every=3,
        budget=Budget(steps=STEPS),
    )
    moments = random.Random(seed)
    kills = finished = 0
    started = time.monotonic()
    assert not train_in_child(request, folder / "reference", 600)
    whole_seconds = time.monotonic() - started
    while kills < kills_wanted:
        run = folder / f"run-{finished}"
        if train_in_child(request, run, moments.uniform(0, whole_seconds * 0.8)):
            kills += 1
        else:
            assert_equal_runs(folder / "reference", run)
            finished += 1
    run = folder / f"run-{finished}"
    assert not train_in_child(request, run, 600)
    assert_equal_runs(folder / "reference", run)
    print(kills, finished + 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
