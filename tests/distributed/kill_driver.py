"""Trains on two ranks under torchrun, which are killed at random moments, one at a time, until all runs have finished.

    python tests/distributed/kill_driver.py FOLDER KILLS SEED [MESH]

Prints a line a kill, and `KILLS FINISHED` at the end: how many ranks were killed, and how many runs finished. Every
other kill is while they train, the others at any moment of their lives, starting included. Each run has to end with the
metrics and weights of one that nobody touched, and no checkpoint may be damaged at any time.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import load_file

from smht.training.checkpoint import find_checkpoint

RANKS, STEPS, SECONDS = 2, 120, 1200
SIZES = (
    *("--hidden-size", "16", "--num-hidden-layers", "1", "--num-attention-heads", "2", "--mixing", "shuffle"),
    *("--context", "16", "--batch-size", "4", "--tokenizer", "byte", "--device", "cpu"),
    *("--steps", str(STEPS), "--evaluate-every", "20", "--keep-checkpoints", "2"),
)


def start(folder: Path, output: str, mesh: str, restarts: int) -> subprocess.Popen[bytes]:
    """`smht train` under torchrun."""
    torchrun = ("--standalone", "--nproc-per-node", str(RANKS), "--max-restarts", str(restarts), "-m", "smht")
    arguments = ("train", "text.txt", *SIZES, "--mesh", mesh, "--output", output)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SMHT_BACKEND": "reference"}
    with (folder / f"{output}.log").open("wb") as log:
        command = [sys.executable, "-m", "torch.distributed.run", *torchrun, *arguments]
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)


def workers_of(launcher: int, killed: set[int]) -> list[psutil.Process]:
    """The two processes that train, if both are there and neither belongs to those that ended with a killed one."""
    try:
        children = psutil.Process(launcher).children()
        there = [child for child in children if "smht" in child.cmdline() and child.pid not in killed]
    except psutil.NoSuchProcess:
        return []
    return there if len(there) == RANKS else []


def rows(run: Path) -> list[dict[str, Any]]:
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def kill_until_it_ends(
    launcher: subprocess.Popen[bytes], run: Path, kills_wanted: int, span: float, moments: random.Random
) -> int:
    """Kill a rank at a random moment of its life, as often as wanted or possible; how often it was."""
    kills, gone = 0, set[int]()
    deadline = time.monotonic() + SECONDS
    while launcher.poll() is None:
        assert time.monotonic() < deadline, f"{run} hangs: see {run}.log"
        workers = workers_of(launcher.pid, gone)
        if kills == kills_wanted or not workers:
            time.sleep(0.02)
            continue
        before = len(rows(run))
        if kills % 2:  # while they train, the others whenever
            while len(rows(run)) <= before and all(worker.is_running() for worker in workers):
                time.sleep(0.005)
            seconds = moments.uniform(0, span / 5)
        else:
            seconds = moments.uniform(0, span)
        moment = time.time() + seconds
        while time.time() < moment and all(worker.is_running() for worker in workers):
            time.sleep(0.001)
        rank = moments.randrange(RANKS)
        try:
            workers[rank].send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue  # it had come to its end
        kills += 1
        gone |= {worker.pid for worker in workers}
        checkpoints = run / "checkpoints"
        found = find_checkpoint(checkpoints) if checkpoints.exists() else None
        assert found is None or not found.damaged, found
        logged = rows(run)
        print(f"rank {rank} killed after step {logged[-1]['step'] if logged else 0} of {run.name}", flush=True)
    return kills


def assert_equal_runs(expected: Path, found: Path) -> None:
    ours, theirs = ([_without_times(row) for row in rows(run)] for run in (expected, found))
    assert ours == theirs, (ours[-1], theirs[-1])
    weights = [load_file(run / "model.safetensors") for run in (expected, found)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert json.loads((found / "run.json").read_text())["status"] == "finished"


def _without_times(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("seconds", "tokens_per_second")}


def end(launcher: subprocess.Popen[bytes]) -> None:
    """Leave no process behind, whatever happened."""
    if launcher.poll() is None:
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()


def main(folder: Path, kills_wanted: int, seed: int, mesh: str = "data=2") -> None:
    text = random.Random(0).choices(["a", "bc", "def", "\n"], k=4000)
    (folder / "text.txt").write_text(" ".join(text))
    began = time.monotonic()
    reference = start(folder, "reference", mesh, restarts=0)
    try:
        assert reference.wait(SECONDS) == 0, (folder / "reference.log").read_text()
        span = time.monotonic() - began
        moments = random.Random(seed)
        kills = finished = 0
        while kills < kills_wanted:
            name = f"run-{finished}"
            launcher = start(folder, name, mesh, restarts=kills_wanted + 1)
            try:
                kills += kill_until_it_ends(launcher, folder / name, kills_wanted - kills, span, moments)
                assert launcher.returncode == 0, (folder / f"{name}.log").read_text()
            finally:
                end(launcher)
            assert_equal_runs(folder / "reference", folder / name)
            finished += 1
    finally:
        end(reference)
    print(kills, finished)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
