"""A rank that is killed."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from helpers.together import SECONDS, SIZES, TEXT, call, command, environment_of_processes
from smht.training.checkpoint import find_checkpoint, step_of


def children(process: int) -> list[int]:
    """The processes that a process has started, the oldest first."""
    started = sorted(psutil.Process(process).children(), key=lambda child: child.create_time())
    return [child.pid for child in started]


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_with_a_line_and_a_whole_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    arguments = ["train", "text.txt", *SIZES, "--steps", "100000", "--output", "killed", "--processes", "2"]
    launcher = subprocess.Popen(
        command(*arguments),
        cwd=tmp_path,
        env=environment_of_processes(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        deadline = time.monotonic() + SECONDS / 2
        while not list(tmp_path.glob("killed/checkpoints/step-*")):
            assert time.monotonic() < deadline and launcher.poll() is None
            time.sleep(0.1)
        workers = children(launcher.pid)
        os.kill(workers[1], signal.SIGKILL)
        _, told = launcher.communicate(timeout=SECONDS / 2)
    finally:
        launcher.kill()
    assert launcher.returncode == 1
    assert "rank 1 was ended by SIGKILL" in told and "Traceback" not in told
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    found = find_checkpoint(tmp_path / "killed" / "checkpoints")
    assert found.newest_good is not None and not found.damaged
    steps = step_of(found.newest_good) + 2
    told = call(tmp_path, "train", "--resume", "killed", "--steps", steps, "--processes", "2", "--json")
    assert json.loads(told.stdout)["steps"] == steps
