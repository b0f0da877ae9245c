"""Makes a comparison in forked children that are killed at random moments, until it is finished.

Prints `KILLS FINISHED`: how many children were killed while at work, and how many comparisons were finished, each of
which ended with the results of one that nobody touched. Its own program, because forking a process that has used
PyTorch's threads can hang the child.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from helpers.comparisons import MEASURED, make_request, run, without_time, write_text
from smht.comparison import rounds, setting
from smht.comparison.results import read_results


def run_in_child(text: Path, folder: Path, seconds: float) -> bool:
    """Whether the child was killed; False if it had finished before."""
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        run(make_request(text), folder)
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


def results_of(folder: Path) -> dict[str, Any]:
    assert json.loads((folder / "comparison.json").read_text())["status"] == "finished"
    return {result.key: without_time(result) for result in read_results(folder / "results.jsonl")}


def main(folder: Path, kills_wanted: int, seed: int) -> None:
    text = write_text(folder)
    setting.measure = lambda *arguments: MEASURED
    rounds.SLICE_SECONDS, rounds.SAVE_SECONDS, rounds._MOST_SAVING = 1e-9, 0.0, 1e9
    moments = random.Random(seed)
    kills = finished = 0
    started = time.monotonic()
    assert not run_in_child(text, folder / "reference", 600)
    whole_seconds = time.monotonic() - started
    while kills < kills_wanted or finished == 0:
        if run_in_child(text, folder / f"run-{finished}", moments.uniform(0, whole_seconds * 0.8)):
            kills += 1
        else:
            assert results_of(folder / f"run-{finished}") == results_of(folder / "reference")
            finished += 1
    print(kills, finished)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
