"""Tiny runs that train in a second or two, and finished ones to spoil."""

import random
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from helpers.runs import write_finished_run
from smht.training import train as training
from smht.training.budget import Budget
from smht.training.calibration import Calibration
from smht.training.request import TrainRequest
from smht.training.run_folder import RunFolder

ARCHITECTURE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
}


@pytest.fixture
def fixed_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares a run the second that measuring its costs takes."""
    monkeypatch.setattr(training, "calibrate", lambda *args: Calibration(0.01, 0.01, 1_000_000))


@pytest.fixture
def quiet() -> Console:
    return Console(quiet=True)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    words = random.Random(0).choices(["def", "return", "self", "for", "in", "range", "\n", "(", ")", "é"], k=3000)
    path.write_text(" ".join(words), encoding="utf-8")
    return path


@pytest.fixture
def request_for(text: Path):
    """Makes a request for a tiny run; keyword arguments replace its fields."""

    def make(steps: int | None = 12, **changes) -> TrainRequest:
        fields = {
            "texts": (str(text),),
            "tokenizer": "byte",
            "architecture": ARCHITECTURE,
            "context": 16,
            "batch_size": 2,
            "device": "cpu",
            "evaluate_every": 4,
            "budget": Budget(steps=steps),
        }
        return TrainRequest(**{**fields, **changes})

    return make


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, to look at only."""
    return write_finished_run(tmp_path_factory.mktemp("finished")).path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> RunFolder:
    """A run of one's own to spoil."""
    return RunFolder(shutil.copytree(finished, tmp_path / "run"))
