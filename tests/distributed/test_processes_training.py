"""`smht train` in two processes: the same run as in one, and one line where it cannot be."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from helpers.command_line import FOUR_STEPS, TINY, check_error_line, refuse
from smht.models import SmhtForCausalLM
from smht.training.checkpoint import find_checkpoint, step_of

SECONDS = 240
SIZES = [*TINY, *FOUR_STEPS, "--batch-size", "4", "--mixing", "shuffle"]
WAYS = {
    "one": [],
    "two": ["--processes", "2"],
    "heads": ["--processes", "2", "--mesh", "head=2"],
    "both": ["--processes", "4", "--mesh", "data=2,head=2"],
}
"""The same run by one process, by two with half a batch each, by two with half the heads each, and by four."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text in it."""
    made = tmp_path_factory.mktemp("together")
    (made / "text.txt").write_text("the split heads of a block return to the range\n" * 60)
    return made


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Path]:
    """The same run in each way."""
    for name, way in WAYS.items():
        told = call(folder, "train", "text.txt", *SIZES, "--output", name, *way, "--json")
        assert json.loads(told.stdout)["status"] == "finished"
        assert told.stderr.count("validation") == 2, told.stderr  # two evaluations, told by one process
        assert ("ranks " in told.stderr) == (name != "one")
    return {name: folder / name for name in WAYS}


def call(folder: Path, *arguments: object, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "smht", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "SMHT_BACKEND": "reference", **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


def children(process: int) -> list[int]:
    """The processes that a process has started, the oldest first."""
    started = sorted(psutil.Process(process).children(), key=lambda child: child.create_time())
    return [child.pid for child in started]


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def values(logged: list[dict[str, Any]], name: str) -> list[float]:
    return [row[name] for row in logged if row[name] is not None]


@pytest.mark.slow
@pytest.mark.parametrize("way", [name for name in WAYS if name != "one"])
def test_several_processes_train_the_run_of_one(runs: dict[str, Path], way: str) -> None:
    one, two = rows(runs["one"]), rows(runs[way])
    assert [row["step"] for row in one] == [row["step"] for row in two]
    for name in ("loss", "validation_loss", "learning_rate"):
        assert values(two, name) == pytest.approx(values(one, name), rel=1e-5)
    weights = [load_file(runs[name] / "model.safetensors") for name in ("one", way)]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("way", list(WAYS))
def test_every_run_loads_in_one_process(runs: dict[str, Path], way: str) -> None:
    model = SmhtForCausalLM.from_pretrained(runs[way])
    assert model(torch.zeros(1, 2, dtype=torch.long)).logits.shape == (1, 2, model.config.vocab_size)
    assert json.loads((runs[way] / "run.json").read_text())["processes"] == int((WAYS[way] or [0, "1"])[1])


@pytest.mark.slow
def test_another_number_of_processes_resumes(runs: dict[str, Path], folder: Path) -> None:
    extended = {}
    ways = {"one": "two", "two": "heads", "heads": "one"}
    for name, way in ways.items():
        told = call(folder, "train", "--resume", name, "--steps", 6, *WAYS[way], "--json")
        extended[name] = json.loads(told.stdout)["validation_loss"]
    for name in ways:
        assert extended[name] == pytest.approx(extended["one"], rel=1e-4)


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_with_a_line_and_a_whole_checkpoint(folder: Path) -> None:
    arguments = ["train", "text.txt", *SIZES, "--steps", "100000", "--output", "killed", "--processes", "2"]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "smht", *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "SMHT_BACKEND": "reference"},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        deadline = time.monotonic() + SECONDS / 2
        while not list(folder.glob("killed/checkpoints/step-*")):
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
    found = find_checkpoint(folder / "killed" / "checkpoints")
    assert found.newest_good is not None and not found.damaged
    steps = step_of(found.newest_good) + 2
    told = call(folder, "train", "--resume", "killed", "--steps", steps, "--processes", "2", "--json")
    assert json.loads(told.stdout)["steps"] == steps


@pytest.mark.slow
def test_torchrun_goes_on_after_a_lost_rank(folder: Path) -> None:
    """The run is as if nothing had happened."""
    sizes = [*SIZES, "--steps", "60", "--evaluate-every", "10"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SMHT_BACKEND": "reference"}
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "2", "-m", "smht"]
    command = [sys.executable, "-m", *torchrun, "train", "text.txt", *sizes, "--output", "restarted"]
    with (folder / "told").open("w") as told:
        launcher = subprocess.Popen(command, cwd=folder, env=environment, stdout=told, stderr=told)
        try:
            deadline = time.monotonic() + SECONDS / 2
            while not list(folder.glob("restarted/checkpoints/step-*")):
                assert time.monotonic() < deadline and launcher.poll() is None, (folder / "told").read_text()
                time.sleep(0.02)
            workers = children(launcher.pid)
            os.kill(workers[-1], signal.SIGKILL)
            assert launcher.wait(SECONDS) == 0, (folder / "told").read_text()
        finally:
            launcher.kill()
    call(folder, "train", "text.txt", *sizes, "--output", "uninterrupted")
    restarted, uninterrupted = rows(folder / "restarted"), rows(folder / "uninterrupted")
    assert [row["step"] for row in restarted] == [row["step"] for row in uninterrupted]
    for name in ("loss", "validation_loss"):
        assert values(restarted, name) == pytest.approx(values(uninterrupted, name), rel=1e-3)


def test_torchrun_cannot_tell_which_run_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    refuse("train", says="torchrun begins again after a loss, and cannot tell which run is meant: give --output")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["text.txt", "--batch-size", "3"], "batch_size = 3 cannot be dealt out evenly to 2 processes; the nearest"),
        (["-"], "2 processes cannot all read standard input"),
        (["nowhere.txt"], "nowhere.txt"),
        (["text.txt", "--mesh", "head=3"], "mesh = 'head=3' is for 3 processes, and there are 2: start 3"),
        (["text.txt", "--mesh", "head=2", "--num-attention-heads", "1"], "each of 2 ranks as many heads, and num_att"),
    ],
)
def test_bad_input_is_told_once(folder: Path, arguments: list[str], says: str) -> None:
    told = call(folder, "train", *TINY, *FOUR_STEPS, *arguments, "--processes", "2", "--output", "bad", code=2)
    lines = [line for line in told.stderr.splitlines(keepends=True) if not line.startswith("warning:")]
    check_error_line("".join(lines), says)
    assert not (folder / "bad").exists()


def test_no_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refuse("train", "--processes", "0", says="processes = 0 must be at least 1")


def test_as_many_processes_as_a_launcher_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "3")
    refuse("train", "--processes", "2", says="3 processes were started already: leave --processes 2 out")


@pytest.mark.parametrize("value", ["two", "0", "-1"])
def test_a_launcher_that_says_nonsense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", value)
    refuse("train", says=f"WORLD_SIZE = '{value}'")


def test_half_a_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    refuse("train", says="the environment sets WORLD_SIZE but not RANK")


def test_a_port_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
            monkeypatch.setenv(name, value)
        line = refuse("train", says=f"127.0.0.1:{port} is in use by another program")
    assert not re.search(r"errno|EADDRINUSE", line)
