"""A rank that is killed, or hangs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from helpers.together import SECONDS, SIZES, TEXT, command, environment_of_processes
from smht.training.checkpoint import find_checkpoint, step_of

ENDLESS = "100000"
"""Steps that no test waits for."""


def children(process: int) -> list[int]:
    """The processes that a process has started, the oldest first."""
    started = sorted(psutil.Process(process).children(), key=lambda child: child.create_time())
    return [child.pid for child in started]


def wait_for_a_checkpoint(launcher: subprocess.Popen[str], run: Path, after: int = 0) -> None:
    deadline = time.monotonic() + SECONDS / 2
    while not any(step_of(found) > after for found in run.glob("checkpoints/step-*")):
        assert time.monotonic() < deadline and launcher.poll() is None
        time.sleep(0.1)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """`smht train` in two processes."""
    return subprocess.Popen(
        command("train", *arguments, "--processes", "2"),
        cwd=folder,
        env=environment_of_processes(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_with_a_line_and_it_goes_on_until_one_hangs(tmp_path: Path) -> None:
    # One run for both endings: three processes that import PyTorch are most of what either takes.
    run = tmp_path / "run"
    (tmp_path / "text.txt").write_text(TEXT)
    assert_a_killed_rank_ends_it(start(tmp_path, "text.txt", *SIZES, "--steps", ENDLESS, "--output", "run"), run)
    found = find_checkpoint(run / "checkpoints")
    assert found.newest_good is not None and not found.damaged
    resumed = start(tmp_path, "--resume", "run", "--rank-timeout", "4s")
    assert_a_hanging_rank_is_named(resumed, run, step_of(found.newest_good))
    assert not find_checkpoint(run / "checkpoints").damaged


def assert_a_killed_rank_ends_it(launcher: subprocess.Popen[str], run: Path) -> None:
    try:
        wait_for_a_checkpoint(launcher, run)
        workers = children(launcher.pid)
        os.kill(workers[1], signal.SIGKILL)
        _, told = launcher.communicate(timeout=SECONDS / 2)
    finally:
        launcher.kill()
    assert launcher.returncode == 1
    assert "rank 1 of 2 is gone; go on with --resume" in told
    assert "rank 1 was ended by SIGKILL" in told and "Traceback" not in told
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def assert_a_hanging_rank_is_named(launcher: subprocess.Popen[str], run: Path, step: int) -> None:
    hanging = 0  # which has the most to do for the others
    try:
        wait_for_a_checkpoint(launcher, run, after=step)
        os.kill(children(launcher.pid)[hanging], signal.SIGSTOP)
        stopped = time.monotonic()
        _, told = launcher.communicate(timeout=SECONDS / 2)
    finally:
        launcher.kill()
    assert time.monotonic() - stopped < 60
    assert launcher.returncode == 1 and "Traceback" not in told
    lines = [line for line in told.splitlines() if line.startswith("smht: ")]
    assert lines == [f"smht: rank {hanging} of 2 did not answer within 4 s; go on with --resume"]


@pytest.mark.slow
def test_torchrun_goes_on_after_killed_ranks(tmp_path: Path) -> None:
    driver = Path(__file__).with_name("kill_driver.py")
    called = [sys.executable, str(driver), str(tmp_path), "1", "0"]
    done = subprocess.run(called, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-2]) == 1
