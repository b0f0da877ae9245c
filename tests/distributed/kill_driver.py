"""Trains on two ranks under torchrun, which are killed at random moments, one at a time, until all runs have finished.

    python tests/distributed/kill_driver.py FOLDER KILLS SEED [MESH]

Prints a line a kill, and `KILLS FINISHED` at the end: how many ranks were killed, and how many runs finished. Every
other kill is while they train, the others at any moment of their lives, starting included. Each run has to end with the
metrics and weights of one that nobody touched, and no checkpoint may be damaged at any time.

torchrun and the ranks are forked, torchrun from this process and they, at its own option, from it: so that what all of
them need is imported once.
"""

import gc
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed.run
from safetensors.torch import load_file
from torch.distributed.elastic.rendezvous import dynamic_rendezvous

import smht
from smht.training import train as training
from smht.training.calibration import Calibration
from smht.training.checkpoint import find_checkpoint

RANKS, STEPS, SECONDS = 2, 24, 1200
SIZES = (
    *("--hidden-size", "16", "--num-hidden-layers", "1", "--num-attention-heads", "2", "--mixing", "shuffle"),
    *("--context", "16", "--batch-size", "4", "--tokenizer", "byte", "--device", "cpu"),
    *("--steps", str(STEPS), "--evaluate-every", "4", "--keep-checkpoints", "2", "--json"),
)


def start(folder: Path, output: str, mesh: str, restarts: int) -> ForkProcess:
    """`smht train` under torchrun."""
    program = str(Path(smht.__file__).with_name("__main__.py"))
    torchrun = ("--standalone", "--nproc-per-node", str(RANKS), "--max-restarts", str(restarts))
    forking = ("--start-method", "fork", "--run-path", program)
    arguments = ("train", "text.txt", *SIZES, "--mesh", mesh, "--output", output)
    called = (folder, folder / f"{output}.log", [*torchrun, *forking, *arguments])
    launcher = multiprocessing.get_context("fork").Process(target=call_torchrun, args=called)
    launcher.start()
    return launcher


def call_torchrun(folder: Path, log: Path, arguments: list[str]) -> None:
    gc.freeze()  # else each collection in a rank goes through all that was imported
    os.setsid()
    os.chdir(folder)
    os.environ |= {"OMP_NUM_THREADS": "1", "SMHT_BACKEND": "reference"}
    for output in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), output)
    # It looks through all modules that there are to name who calls, for a log that is not written.
    dynamic_rendezvous.get_method_name = lambda: "not looked for"
    torch.distributed.run.main(arguments)


def workers_of(launcher: int, killed: set[int]) -> list[psutil.Process]:
    """The two processes that train, if both are there and neither belongs to those that ended with a killed one."""
    try:
        process = psutil.Process(launcher)
        # Not what multiprocessing may start for itself.
        forks = [child for child in process.children() if child.cmdline() == process.cmdline()]
    except psutil.NoSuchProcess:
        return []
    there = [fork for fork in forks if fork.pid not in killed]
    return there if len(there) == RANKS else []


def rows(run: Path) -> list[dict[str, Any]]:
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def kill_until_it_ends(
    launcher: ForkProcess, run: Path, kills_wanted: int, span: float, step_seconds: float, moments: random.Random
) -> int:
    """Kill a rank at a random moment of its life, as often as wanted or possible; how often it was.

    `span` is how long a run takes.
    """
    kills, gone = 0, set[int]()
    deadline = time.monotonic() + SECONDS
    while launcher.is_alive():
        assert time.monotonic() < deadline, f"{run} hangs: see {run}.log"
        workers = workers_of(pid_of(launcher), gone) if kills < kills_wanted else []
        if not workers:
            time.sleep(0.02)
            continue
        done = len(rows(run))
        if kills % 2 and done + 1 < STEPS:  # while they train, once there is a checkpoint; the others whenever
            last = moments.randrange(max(done + 1, STEPS // 4), STEPS)
            while len(rows(run)) < last and all(worker.is_running() for worker in workers):
                time.sleep(0.005)
            seconds = moments.uniform(0, 2 * step_seconds)
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


def end(launcher: ForkProcess) -> None:
    """Leave no process behind, whatever happened."""
    if launcher.is_alive():
        os.killpg(pid_of(launcher), signal.SIGKILL)
        launcher.join()


def pid_of(launcher: ForkProcess) -> int:
    assert launcher.pid is not None
    return launcher.pid


def main(folder: Path, kills_wanted: int, seed: int, mesh: str = "data=2") -> None:
    training.calibrate = lambda *arguments: Calibration(0.01, 0.01, 1_000_000)
    text = random.Random(0).choices(["a", "bc", "def", "\n"], k=4000)
    (folder / "text.txt").write_text(" ".join(text))
    began = time.monotonic()
    reference = start(folder, "reference", mesh, restarts=0)
    try:
        reference.join(SECONDS)
        assert reference.exitcode == 0, (folder / "reference.log").read_text()
        span = time.monotonic() - began
        step_seconds = rows(folder / "reference")[-1]["seconds"] / STEPS
        moments = random.Random(seed)
        kills = finished = 0
        while kills < kills_wanted:
            name = f"run-{finished}"
            launcher = start(folder, name, mesh, restarts=kills_wanted + 1)
            try:
                kills += kill_until_it_ends(launcher, folder / name, kills_wanted - kills, span, step_seconds, moments)
                assert launcher.exitcode == 0, (folder / f"{name}.log").read_text()
            finally:
                end(launcher)
            assert_equal_runs(folder / "reference", folder / name)
            finished += 1
    finally:
        end(reference)
    print(kills, finished)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
