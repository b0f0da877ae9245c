import json
from pathlib import Path
from typing import Any

import pytest

from helpers.errors import refused
from helpers.made_up_comparisons import trial_row
from smht.comparison.report.trials import how_it_ended, is_done, read_trials
from smht.comparison.results import read_results


def write(folder: Path, *lines: str) -> Path:
    (folder / "results.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def line(seed: int = 0, /, **changes: Any) -> str:
    return json.dumps(trial_row("split", "final", seed, 1.5, **changes)) + "\n"


def test_trials_are_read_in_their_order(tmp_path: Path) -> None:
    read = read_trials(write(tmp_path, line(2), line(0), line(1)))
    assert [trial.seed for trial in read.results] == [2, 0, 1]
    assert read.torn_line is None


def test_without_a_file_there_are_no_trials(tmp_path: Path) -> None:
    assert read_trials(tmp_path).results == ()


def test_a_line_cut_by_a_kill_is_dropped_and_named(tmp_path: Path) -> None:
    read = read_trials(write(tmp_path, line(0), line(1)[:200]))
    assert [trial.seed for trial in read.results] == [0]
    assert read.torn_line == 2


DAMAGES = {
    "empty object": "{}\n",
    "no object": "[1]\n",
    "null": "null\n",
    "binary": "\x00\ufffd\x1b\n",
    "a field less": json.dumps({k: v for k, v in trial_row("a", "final", 0, 1.0).items() if k != "seconds"}) + "\n",
    "a field more": line(surprise=1),
    "text for a number": line(seconds="long"),
    "yes for a number": line(steps=True),
    "unknown purpose": line(purpose="fun"),
    "unknown status": line(status="ok"),
    "seed of text": line().replace('"seed": 0', '"seed": "0"'),
    "curve of numbers": line(curve=[1, 2]),
    "curve without loss": line(curve=[{"tokens": 1, "seconds": 1.0, "training_multiply_adds": 1}]),
    "length without loss": line(lengths=[{"length": 8, "why_not": None}]),
    "number beyond reckoning": line(tokens=10**400),
    "nested too deeply": "[" * 100_000 + "\n",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_line_is_refused_as_the_runner_does(tmp_path: Path, damage: str) -> None:
    write(tmp_path, line(0), damage, "\n", line(1))
    for read in (read_trials, lambda folder: read_results(folder / "results.jsonl")):
        with refused("results.jsonl, line 2, is damaged", "delete the line"):
            read(tmp_path)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_what_a_kill_tore_is_left_out(tmp_path: Path, damage: str) -> None:
    write(tmp_path, line(0), "\n", damage.rstrip("\n"))
    read = read_trials(tmp_path)
    assert [trial.seed for trial in read.results] == [0]
    assert read.torn_line == 3
    assert read_results(tmp_path / "results.jsonl") == list(read.results)


def test_the_newest_line_of_a_key_counts(tmp_path: Path) -> None:
    failed = line(0, status="failed", validation_loss=None, error="out of memory")
    read = read_trials(write(tmp_path, failed, line(1), line(0)))
    assert [(trial.seed, trial.status) for trial in read.results] == [(1, "done"), (0, "done")]


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf")])
def test_done_without_a_number_has_diverged(tmp_path: Path, loss: float | None) -> None:
    [trial] = read_trials(write(tmp_path, line(0, validation_loss=loss))).results
    assert not is_done(trial)
    assert how_it_ended(trial) == "diverged"


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").mkdir()
    with refused(str(tmp_path / "results.jsonl"), "cannot be read"):
        read_trials(tmp_path)
