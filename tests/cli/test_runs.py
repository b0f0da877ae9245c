import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from helpers.command_line import refuse, succeed

KEYS = ["run", "task", "status", "step", "metric", "score", "validation_loss", "parameters", "text"]


def change_record(run: str | Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = Path(run) / "run.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def scale_losses(run: str, factor: float) -> None:
    path = Path(run) / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if row["validation_loss"] is None:
            continue
        row["validation_loss"] *= factor
        row["bits_per_byte"] *= factor
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def runs(run: Path) -> None:
    """`runs/a`, `runs/deep/b`, twice as good, and `runs/fresh`, which has no results yet."""
    for name in ("a", "deep/b", "fresh"):
        shutil.copytree(run, Path("runs", name))
    scale_losses("runs/deep/b", 0.5)
    Path("runs/fresh/metrics.jsonl").unlink()
    change_record("runs/fresh", lambda record: record.update(status="running", results={}))


def test_the_best_run_comes_first(runs: None, run: Path) -> None:
    rows = succeed("runs", "--json").json
    assert [list(row) for row in rows] == [KEYS] * 3
    assert [row["run"] for row in rows] == ["runs/deep/b", "runs/a", "runs/fresh"]
    results = json.loads((run / "run.json").read_text())["results"]
    assert rows[1]["validation_loss"] == results["validation_loss"] == 2 * rows[0]["validation_loss"]
    assert rows[1]["score"] == results["bits_per_byte"]
    assert (rows[1]["task"], rows[1]["metric"]) == ("language-modelling", "bits_per_byte")
    assert (rows[1]["status"], rows[1]["step"], rows[1]["parameters"]) == ("finished", 4, 5776)
    assert rows[1]["text"] == "text.txt"
    assert (rows[2]["status"], rows[2]["step"], rows[2]["validation_loss"]) == ("running", 0, None)


def test_table(runs: None) -> None:
    lines = succeed("runs").out.splitlines()
    best = succeed("runs", "--json").json[0]
    row = next(line for line in lines if "runs/deep/b" in line)
    for value in ("finished", " 4 ", f"{best['score']:.4f} bits/byte", f"{best['validation_loss']:.4f}", "5,776"):
        assert value in row
    assert " - " in next(line for line in lines if "runs/fresh" in line)


def test_on_a_narrow_terminal_names_stay_whole(runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "runs/a-name-that-says-all-about-the-run"
    Path("runs/a").rename(name)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich take the output for a terminal
    lines = [Text.from_ansi(line) for line in succeed("runs").out.splitlines()]
    assert max(line.cell_len for line in lines) <= 80
    assert name in "".join(line.plain.split(" ")[0] for line in lines)


def test_brackets_in_names_are_no_markup(runs: None) -> None:
    Path("runs/a").rename("runs/a[bold]")
    assert "runs/a[bold] " in succeed("runs").out
    Path("[").mkdir()
    Path("[/red]").mkdir()
    assert succeed("runs", "[/red]").out == "no runs below [/red]\n"


COLUMNS = b'"tokens": 1, "seconds": 1, "loss": 1, "bits_per_byte": 1, "learning_rate": 1'
WRONG_ROWS = b'{"step": 4, "validation_loss": "low", %b}\n{"step": 5, "validation_loss": 1, %b}\n' % (COLUMNS, COLUMNS)


def damage_with(data: bytes, name: str = "run.json") -> Callable[[Path], object]:
    return lambda run: (run / name).write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        damage_with(b""),
        damage_with(b'{"status": "fin'),
        damage_with(b"\xff\xfe\x00"),
        damage_with(b"[]"),
        damage_with(b"{}"),
        damage_with(b'{"status": "finished", "asked": {}, "settings": {}, "data": {}, "model": {}, "results": {}}'),
        damage_with(b'{"status": "finished", "asked": {}, "settings": {}, "data": [], "model": 1, "results": {}}'),
        damage_with(WRONG_ROWS, "metrics.jsonl"),
        lambda run: (run / "run.json").unlink() or (run / "run.json").mkdir(),
    ],
)
def test_a_damaged_run_is_listed_as_such(runs: None, damage: Callable[[Path], object]) -> None:
    damage(Path("runs/a"))
    rows = succeed("runs", "--json").json
    assert [(row["run"], row["status"]) for row in rows] == [
        ("runs/deep/b", "finished"),
        ("runs/a", "damaged"),
        ("runs/fresh", "running"),
    ]
    assert "damaged" in succeed("runs").out


def test_a_last_row_that_was_cut_short_is_left_out(runs: None) -> None:
    with Path("runs/a/metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "valid')
    assert {row["run"]: row["step"] for row in succeed("runs", "--json").json}["runs/a"] == 4


def test_a_folder_without_runs() -> None:
    Path("runs").mkdir()
    assert succeed("runs").out == "no runs below runs\n"
    assert succeed("runs", "--json").json == []


@pytest.mark.parametrize("folder", [(), ("nowhere",), ("text.txt",)])
def test_no_folder(folder: tuple[str, ...]) -> None:
    refuse("runs", *folder, says=("there is no folder", *(folder or ("runs",))))
