import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from helpers import forks
from helpers.errors import refused
from helpers.runs import RECORD, edit_json, make_model, truncate
from smht.errors import SmhtError
from smht.training.run_folder import RunFolder, writing

# New folders


def test_a_folder_that_is_not_there_or_empty_is_free(tmp_path: Path) -> None:
    RunFolder(tmp_path).refuse_if_taken()
    RunFolder(tmp_path / "new").refuse_if_taken()
    assert not RunFolder(tmp_path / "new").holds_a_run


def test_a_run_is_not_overwritten(run: RunFolder) -> None:
    assert run.holds_a_run
    with refused("already holds a run", f"--resume {run.path}"):
        run.refuse_if_taken()


@pytest.mark.parametrize("left", ["run.json", "model.safetensors", "checkpoints"])
def test_nor_is_what_is_left_of_one(run: RunFolder, left: str) -> None:
    for path in run.path.iterdir():
        if path.name != left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with refused("already holds a run"):
        run.refuse_if_taken()


def test_nor_are_other_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("")
    with refused("not an empty folder", "--output"):
        RunFolder(tmp_path).refuse_if_taken()
    with refused("not an empty folder", "--output"):
        RunFolder(tmp_path / "thesis.txt").refuse_if_taken()


# run.json


def test_a_record_comes_back(tmp_path: Path) -> None:
    record = {**RECORD, "results": {"loss": 1.5}, "more": ["é"]}
    RunFolder(tmp_path).write_record(record)
    assert RunFolder(tmp_path).read_record() == record


def test_a_missing_folder_or_record_is_named(tmp_path: Path) -> None:
    with refused(f"no run folder {tmp_path / 'nope'}", "smht runs"):
        RunFolder(tmp_path / "nope").read_record()
    with refused(str(tmp_path), "no run.json"):
        RunFolder(tmp_path).read_record()


@pytest.mark.parametrize("part", [0, 0.1, 0.5, 0.98])
def test_a_record_cut_short_is_damaged(run: RunFolder, part: float) -> None:
    truncate(run.record_path, part)
    with refused("run.json is damaged"):
        run.read_record()


@pytest.mark.parametrize("data", [b"\xff\xfe\0", b"[]", b"null", b"3", b"{}", b'"status asked settings"', b"[" * 9])
def test_what_is_no_record_is_damaged(run: RunFolder, data: bytes) -> None:
    run.record_path.write_bytes(data)
    with refused("run.json is damaged"):
        run.read_record()


@pytest.mark.parametrize("name", ["status", "asked", "settings", "data", "model", "results"])
@pytest.mark.parametrize("value", [None, 5, []])
def test_a_record_with_a_part_missing_or_of_another_kind_is_damaged(run: RunFolder, name: str, value: Any) -> None:
    edit_json(run.record_path, **{name: value})
    with refused("run.json is damaged", "no record of a run"):
        run.read_record()
    with refused("run.json is damaged"):
        run.load_model()
    record = json.loads(run.record_path.read_text())
    del record[name]
    run.record_path.write_text(json.dumps(record))
    with refused("run.json is damaged"):
        run.read_record()


def test_a_folder_in_the_place_of_the_record_is_damage(tmp_path: Path) -> None:
    (tmp_path / "run.json").mkdir()
    with refused("run.json is damaged"):
        RunFolder(tmp_path).read_record()


# metrics.jsonl


def rows(*steps: int) -> list[dict[str, Any]]:
    rest = {"tokens": 8, "seconds": 0.5, "validation_loss": None, "bits_per_byte": None, "learning_rate": 0.1}
    return [{"step": step, "loss": 1 / step, **rest} for step in steps]


def with_rows(folder: Path, *steps: int) -> RunFolder:
    run = RunFolder(folder)
    for row in rows(*steps):
        run.append_metrics(row)
    return run


def test_rows_come_back_in_order(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).read_metrics() == []
    assert with_rows(tmp_path, 1, 2, 3).read_metrics() == rows(1, 2, 3)


def test_a_last_row_cut_short_at_any_length_is_left_out(tmp_path: Path) -> None:
    run = with_rows(tmp_path, 1, 2, 3)
    whole = run.metrics_path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for length in range(last, len(whole) - 1):
        run.metrics_path.write_bytes(whole[:length])
        assert run.read_metrics() == rows(1, 2)
    run.metrics_path.write_bytes(whole[:-1])
    assert run.read_metrics() == rows(1, 2, 3)


def test_going_on_after_a_torn_row_loses_no_other(tmp_path: Path) -> None:
    run = with_rows(tmp_path, 1, 2, 3)
    truncate(run.metrics_path, 0.95)
    assert run.cut_metrics(10) == rows(1, 2)
    run.append_metrics(rows(3)[0])
    assert run.read_metrics() == rows(1, 2, 3)


@pytest.mark.parametrize("line", [b"\xff\xfe", b"[1]", b"7", b"{}", b'{"step": "3"}', b""])
def test_lines_that_are_no_rows_are_left_out(tmp_path: Path, line: bytes) -> None:
    run = with_rows(tmp_path, 1)
    with run.metrics_path.open("ab") as file:
        file.write(line + b"\n")
    run.append_metrics(rows(2)[0])
    assert run.read_metrics() == rows(1, 2)


def test_rows_after_the_step_to_go_back_to_are_cut(tmp_path: Path) -> None:
    run = with_rows(tmp_path, 1, 2, 3, 4)
    assert run.cut_metrics(2) == rows(1, 2)
    assert run.read_metrics() == rows(1, 2)
    assert run.cut_metrics(0) == []
    assert RunFolder(tmp_path).read_metrics() == []


# Saving the model


def test_saving_again_replaces_each_file_and_leaves_nothing_beside(run: RunFolder) -> None:
    before = {path.name for path in run.path.iterdir()}
    other = make_model(initializer_range=0.5)
    run.save_model(other)
    assert {path.name for path in run.path.iterdir()} == before
    weights = load_file(run.path / "model.safetensors")
    assert torch.equal(weights["lm_head.weight"], other.lm_head.weight)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), SafetensorError("full"), KeyboardInterrupt()])
def test_a_failure_while_saving_leaves_the_old_model_and_nothing_else(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}

    def fail(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise error

    model = make_model()
    monkeypatch.setattr(model, "save_pretrained", fail)
    with pytest.raises(type(error)):
        run.save_model(model)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
    assert not (run.path / ".model.partial").exists()


def test_what_a_crash_left_beside_is_not_mixed_in(run: RunFolder) -> None:
    (run.path / ".model.partial").mkdir()
    (run.path / ".model.partial/stale.bin").write_bytes(b"1")
    run.save_model(make_model())
    assert not (run.path / "stale.bin").exists()
    assert not (run.path / ".model.partial").exists()


# A disk that refuses


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/x/y"),
            "the model could not be written: No space left on device; free some space, then --resume the run",
        ),
        (
            SafetensorError("I/O error: No space left\nmore"),
            "the model could not be written: I/O error: No space left; free some space, then --resume the run",
        ),
        (
            RuntimeError("enforce fail at inline_container"),
            "the model could not be written: enforce fail at inline_container; free some space, then --resume the run",
        ),
        (OSError(errno.EROFS, "Read-only file system"), "the model could not be written: Read-only file system"),
        (OSError("odd"), "the model could not be written: odd"),
    ],
)
def test_a_refusal_becomes_one_line(error: Exception, line: str) -> None:
    with pytest.raises(SmhtError) as caught, writing("the model"):
        raise error
    assert str(caught.value) == line
    assert type(caught.value) is SmhtError
    assert caught.value.__cause__ is error


def test_other_errors_pass() -> None:
    for error in (KeyError("bug"), KeyboardInterrupt(), SmhtError("said already")):
        with pytest.raises(type(error)) as caught, writing("the model"):
            raise error
        assert caught.value is error


def test_records_and_metrics_say_so_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really_open = Path.open

    def full(self: Path, mode: str = "r", **kwargs: Any) -> Any:
        if "r" not in mode:
            raise OSError(errno.ENOSPC, "No space left on device")
        return really_open(self, mode, **kwargs)

    run = with_rows(tmp_path, 1)
    run.write_record(RECORD)
    before = run.record_path.read_bytes()
    monkeypatch.setattr(Path, "open", full)
    with refused("run.json could not be written", "No space", kind=SmhtError):
        run.write_record({**RECORD, "status": "failed"})
    for write in (lambda: run.append_metrics({"step": 2}), lambda: run.cut_metrics(1)):
        with refused("metrics.jsonl could not be written", "No space", kind=SmhtError):
            write()
    monkeypatch.undo()
    assert run.record_path.read_bytes() == before
    assert run.read_metrics() == rows(1)


FULL_DISK = """
import resource, sys
import torch
from smht.errors import SmhtError
from smht.models import SmhtConfig, SmhtForCausalLM
from smht.training.checkpoint import write_checkpoint
from smht.training.run_folder import RunFolder, writing

COLUMNS = ("tokens", "seconds", "loss", "validation_loss", "bits_per_byte", "learning_rate")
run = RunFolder(sys.argv[1])
model = SmhtForCausalLM(SmhtConfig(vocab_size=259, hidden_size=32, num_hidden_layers=1))
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

def save_model():
    with writing("the best model"):
        run.save_model(model)

def save_optimizer():
    with writing("the checkpoint"):
        write_checkpoint(run.checkpoints, 6, lambda folder: torch.save(model.state_dict(), folder / "a.pt"), keep=1)

def append():
    for step in range(100_000):
        run.append_metrics({"step": step, **dict.fromkeys(COLUMNS, 1.0)})

for write in (save_model, save_optimizer, append):
    try:
        write()
    except SmhtError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_real_limit_is_reported_and_spoils_nothing(run: RunFolder) -> None:
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    code, told, errors = forks.run("-c", FULL_DISK, run.path, timeout=120)
    assert code == 0, errors
    lines = told.splitlines()
    assert len(lines) == 3
    assert [line.split(" could not be written: ")[0] for line in lines] == [
        "the best model",
        "the checkpoint",
        str(run.metrics_path),
    ]
    assert run.read_metrics()[-1]["step"] == len(run.read_metrics()) - 1
    run.metrics_path.unlink()
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
    assert not list(run.path.rglob("*.partial"))


def test_of_two_that_make_the_same_run_one_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from smht.training.run_folder import RunFolder\n"
        "run, name, beside = RunFolder(sys.argv[1]), sys.argv[2], Path(sys.argv[3])\n"
        "run.refuse_if_taken(); (beside / f'{name} is ready').touch()\n"
        "while len(list(beside.glob('* is ready'))) < 2: time.sleep(0.001)\n"
        "with run.claimed(): time.sleep(0.3); run.path.mkdir(); (run.path / 'run.json').write_text(name)\n"
    )
    run = tmp_path / "runs" / "new"
    words = ("-c", script, str(run))
    racers = {
        name: forks.Program([*words, name, str(tmp_path)], os.environ, tmp_path, err=tmp_path / f"{name}.err")
        for name in "ab"
    }
    try:
        codes = {name: racer.wait(timeout=60) for name, racer in racers.items()}
    finally:
        for racer in racers.values():
            racer.kill()
    (winner,) = [name for name, code in codes.items() if code == 0]
    assert (run / "run.json").read_text() == winner
    (loser,) = {"a", "b"} - {winner}
    assert "already holds a run" in (tmp_path / f"{loser}.err").read_text()
