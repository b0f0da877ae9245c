"""Processes that `smht train` starts, or that a launcher has started: what it says where they cannot begin."""

import re
import socket
from pathlib import Path

import pytest

from helpers.command_line import refuse, smht
from smht.cli.train import go_on
from smht.distributed import launch as launching


def test_torchrun_cannot_tell_which_run_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    refuse("train", says="torchrun begins again after a loss, and cannot tell which run is meant: give --output")


def test_no_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refuse("train", "--processes", "0", says="processes = 0 must be at least 1")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--rank-timeout", "soon"), "'soon' is no duration"),
        (("--rank-timeout", "9000h"), "rank_timeout = '9000h' is longer than a year"),
        (("--mesh", "head=4"), "mesh = 'head=4' is for 4 processes, and there are 99999"),
    ],
)
def test_what_can_be_told_before_any_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launching, "launch", None)
    refuse("train", "--processes", "99999", *arguments, says=says)


def test_too_many_processes_are_warned_of_before_they_start(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def launch(processes: int, arguments: tuple[str, ...]) -> int:
        started.append(processes)
        return 3

    monkeypatch.setattr(launching, "launch", launch)
    result = smht("train", "--processes", "99999")
    assert (started, result.code) == ([99999], 3)
    assert re.fullmatch(r"warning: 99999 processes share \d+ cores?, so they wait for each other\n", result.err)


def test_a_run_goes_on_in_as_many_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert go_on(Path("my run"), 1, None) == "smht train --resume 'my run'"
    monkeypatch.setenv("SMHT_LAUNCHED", "1")
    assert go_on(Path("run"), 2, None) == "smht train --resume run --processes 2"
    assert go_on(Path("run"), 4, "data=2,head=2") == "smht train --resume run --processes 4 --mesh data=2,head=2"


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


@pytest.mark.parametrize(
    ("name", "value"), [("RANK", "first"), ("RANK", "2"), ("LOCAL_WORLD_SIZE", "two"), ("MASTER_PORT", "65536")]
)
def test_a_launcher_that_says_nonsense_of_a_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    sane = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for each, said in {**sane, name: value}.items():
        monkeypatch.setenv(each, said)
    refuse("train", says=f"the environment says {name} = {value!r}, which is no number up to")


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for each, said in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(each, said)
    says = "rank 1 cannot reach 127.0.0.1:1 in 0.1 s: Connection refused"
    refuse("train", "--rank-timeout", "0.1s", says=says, code=1)
    assert capfd.readouterr().err == ""  # nor does C++ say anything


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
