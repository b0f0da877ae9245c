"""A tiny finished run, made once through the command line, and a folder to work in."""

import gc
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from _pytest.monkeypatch import MonkeyPatch

from helpers.command_line import FOUR_STEPS, TINY, Result, succeed
from helpers.together import untimed
from smht.tasks import language_modelling
from smht.training import train as training

_WORDS = ["def", "return", "self", "for", "in", "range", "the", "split", "head", "of", "a", "block", "<eos>", "é"]


@pytest.fixture(scope="session", autouse=True)
def _quick_collections() -> Iterator[None]:
    """Every run ends with a garbage collection, which takes a second where it has to look at all of torch."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def text() -> bytes:
    """2 to 3 kB of text in lines."""
    choice = random.Random(0)
    lines = (" ".join(choice.choices(_WORDS, k=8)) for _ in range(60))
    return ("\n".join(lines) + "\n").encode()


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes) -> Iterator[Path]:
    """The working directory of every test: `text.txt` is in it.

    Nothing measures how fast the machine is, and runs end without pictures and with a short sample: `first_call` has
    them whole.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "draw_plots", lambda *arguments: [])
    monkeypatch.setattr(language_modelling, "_SAMPLE_TOKENS", 8)
    (tmp_path / "text.txt").write_bytes(text)
    with untimed():
        yield tmp_path


@pytest.fixture(scope="session")
def first_call(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> tuple[Path, Result]:
    """The folder of a finished run of four steps, and what its call printed; not to be changed."""
    folder = tmp_path_factory.mktemp("session")
    (folder / "text.txt").write_bytes(text)
    with MonkeyPatch.context() as patches:
        patches.chdir(folder)
        result = succeed("train", "text.txt", *TINY, *FOUR_STEPS, "--output", "run")
    return folder / "run", result


@pytest.fixture(scope="session")
def run(first_call: tuple[Path, Result]) -> Path:
    """A finished run of four steps; not to be changed."""
    return first_call[0]


@pytest.fixture
def copied_run(run: Path, workplace: Path) -> Path:
    """A copy of the run to change, called `copy`."""
    shutil.copytree(run, workplace / "copy")
    return Path("copy")


@pytest.fixture
def train() -> Callable[..., Result]:
    """Trains four steps on `text.txt`, or with other arguments in addition."""

    def call(*arguments: object, texts: tuple[str, ...] = ("text.txt",), stdin: bytes = b"") -> Result:
        return succeed("train", *texts, *TINY, *FOUR_STEPS, *arguments, stdin=stdin)

    return call
