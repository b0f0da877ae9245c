"""A rank that is killed, or hangs."""

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from helpers import forks
from helpers.together import SECONDS, SIZES, TEXT, command, environment_of_processes, forked
from smht.training.checkpoint import find_checkpoint, step_of

ENDLESS = "100000"
"""Steps that no test waits for."""

KILLS = 2
"""One at any moment, one while they train. More of them: `python tests/distributed/kill_driver.py FOLDER 20 SEED`."""


def children(process: int) -> list[int]:
    """The processes that a process has started, the oldest first."""
    started = sorted(psutil.Process(process).children(), key=lambda child: child.create_time())
    return [child.pid for child in started]


def wait_for_a_checkpoint(launcher: subprocess.Popen[str] | forks.Program, run: Path, after: int = 0) -> None:
    deadline = time.monotonic() + SECONDS / 2
    while not any(step_of(found) > after for found in run.glob("checkpoints/step-*")):
        assert time.monotonic() < deadline and launcher.poll() is None
        time.sleep(0.1)


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_with_a_line_and_it_goes_on_until_one_hangs(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (tmp_path / "text.txt").write_text(TEXT)
    assert_a_killed_rank_ends_it(tmp_path, run)
    found = find_checkpoint(run / "checkpoints")
    assert found.newest_good is not None and not found.damaged
    assert_a_hanging_rank_is_named(tmp_path, run, step_of(found.newest_good))
    assert not find_checkpoint(run / "checkpoints").damaged


def assert_a_killed_rank_ends_it(folder: Path, run: Path) -> None:
    # As users start it, with interpreters of their own.
    arguments = ("text.txt", *SIZES, "--steps", ENDLESS, "--output", "run", "--processes", "2")
    launcher = subprocess.Popen(
        command("train", *arguments),
        cwd=folder,
        env=environment_of_processes(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
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


def assert_a_hanging_rank_is_named(folder: Path, run: Path, step: int) -> None:
    hanging = 0  # which has the most to do for the others
    errors = folder / "errors"
    launcher = forked(folder, errors, "train", "--resume", "run", "--rank-timeout", "4s", "--processes", "2")
    try:
        wait_for_a_checkpoint(launcher, run, after=step)
        os.kill(children(launcher.pid)[hanging], signal.SIGSTOP)
        stopped = time.monotonic()
        code = launcher.wait(timeout=SECONDS / 2)
    finally:
        launcher.kill()
    assert time.monotonic() - stopped < 60
    told = errors.read_text()
    assert code == 1 and "Traceback" not in told
    lines = [line for line in told.splitlines() if line.startswith("smht: ")]
    assert lines == [f"smht: rank {hanging} of 2 did not answer within 4 s; go on with --resume"]


@pytest.mark.slow
def test_torchrun_goes_on_after_killed_ranks(tmp_path: Path) -> None:
    driver = Path(__file__).with_name("kill_driver.py")
    code, told, errors = forks.run(driver, tmp_path, KILLS, 1, timeout=SECONDS)
    assert code == 0, errors
    assert int(told.split()[-2]) == KILLS
