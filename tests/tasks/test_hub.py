import json
import sys
from pathlib import Path

import pytest

from helpers.corpora import contents, write
from helpers.errors import refused
from smht.tasks.hub import hub_dataset
from smht.tasks.sources import read_again


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    module = pytest.importorskip("datasets")
    monkeypatch.setattr(module.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(module.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return module


def json_dataset(folder: Path, rows: list[dict[str, object]]) -> str:
    write(folder, {"train.jsonl": "\n".join(map(json.dumps, rows)).encode()})
    return str(folder)


@pytest.mark.parametrize("limit", [None, 1000])
def test_dataset(datasets, tmp_path: Path, limit: int | None) -> None:
    rows = [{"id": 1, "text": "één"}, {"id": 2, "text": ""}, {"id": 3, "text": None}, {"id": 4, "text": "four"}]
    name = json_dataset(tmp_path / "data", rows)
    corpus = hub_dataset(name, limit_bytes=limit)
    assert contents(corpus) == {"train/0": "één".encode(), "train/3": b"four"}
    assert read_again(corpus.sources) == corpus
    assert name in corpus.description


def test_dataset_column(datasets, tmp_path: Path) -> None:
    one = json_dataset(tmp_path / "one", [{"n": 1, "story": "once"}])
    assert contents(hub_dataset(one)) == {"train/0": b"once"}
    two = json_dataset(tmp_path / "two", [{"n": 1, "german": "ja", "english": "yes"}])
    with refused("which column holds the text", "german", "english"):
        hub_dataset(two)
    corpus = hub_dataset(two, column="german")
    assert contents(corpus) == {"train/0": b"ja"}
    assert read_again(corpus.sources) == corpus
    with refused("no column 'germen'", "did you mean german?"):
        hub_dataset(two, column="germen")
    with refused("int, not text"):
        hub_dataset(two, column="n")


@pytest.mark.parametrize(
    ("limit", "expected"), [(1, ["a"]), (4, ["aé", "b"]), (5, ["aé", "b"]), (6, ["aé", "bé"]), (9, ["aé", "bé", "c"])]
)
def test_dataset_limit_cuts_between_characters(datasets, tmp_path: Path, limit: int, expected: list[str]) -> None:
    name = json_dataset(tmp_path / "data", [{"text": text} for text in ("aé", "bé", "c")])
    assert [d.data.decode() for d in hub_dataset(name, limit_bytes=limit).documents] == expected


def test_dataset_without_text(datasets, tmp_path: Path) -> None:
    with refused("holds no text"):
        hub_dataset(json_dataset(tmp_path, [{"text": ""}]))


def test_dataset_without_the_split_or_configuration(datasets, tmp_path: Path) -> None:
    name = json_dataset(tmp_path, [{"text": "a"}])
    with refused("bogus", "train"):
        hub_dataset(name, split="bogus")
    with refused("bogus", "default"):
        hub_dataset(name, config="bogus")


def test_dataset_offline(datasets) -> None:
    for limit in (None, 10):
        with refused("someone/some-data", "could not be reached", "not there", "pass text files"):
            hub_dataset("someone/some-data", limit_bytes=limit)


def test_dataset_library_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with refused("pip install 'smht[train]'"):
        hub_dataset("someone/some-data")


def test_dataset_limit_out_of_range() -> None:
    with refused("limit_bytes", "0"):
        hub_dataset("someone/some-data", limit_bytes=0)
