import io
import json
import os
from pathlib import Path

import pytest

from helpers.corpora import contents, write
from helpers.errors import refused
from smht.tasks.sources import read_again
from smht.tasks.text_files import read_texts


def test_manifest_is_json_and_leads_back_to_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"x/a.txt": b"a", "x/y/b.txt": b"b", "c.txt": b"c", "z/d.txt": b"d"})
    monkeypatch.chdir(tmp_path)
    corpus = read_texts(["c.txt", "x", "z/**/*.txt", "c.txt"])
    manifest = json.loads(json.dumps(corpus.to_manifest()))
    assert manifest == {
        "description": "c.txt, x, z/**/*.txt and 1 more",
        "sources": [str(tmp_path / name) for name in ("c.txt", "x", "z/**/*.txt")],
        "documents": 4,
        "bytes": 4,
        "sha256": corpus.sha256,
    }
    monkeypatch.chdir("/")
    again = read_again(manifest["sources"])
    assert again.documents == corpus.documents
    assert (again.sha256, again.sources) == (corpus.sha256, corpus.sources)


def test_names_that_are_not_utf8_are_hashed(tmp_path: Path) -> None:
    try:
        (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_bytes(b"a")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    corpus = read_texts([str(tmp_path)])
    assert read_again(json.loads(json.dumps(corpus.to_manifest()))["sources"]).sha256 == corpus.sha256


def test_a_file_named_like_a_marker_is_read_again_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["python-standard-library", "hub:x"]
    write(tmp_path, {name: name.encode() for name in names})
    monkeypatch.chdir(tmp_path)
    for name in names:
        assert contents(read_again(read_texts([name]).sources)) == {name: name.encode()}


def test_standard_input_is_read_again_only_when_given_again() -> None:
    corpus = read_texts(["-"], stdin=io.BytesIO(b"piped"))
    assert corpus.sources == ("-",)
    with refused("standard input", "pipe the same text in"):
        read_again(corpus.sources)
    assert read_again(corpus.sources, stdin=io.BytesIO(b"piped")).sha256 == corpus.sha256


def test_text_that_is_gone_when_read_again(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": b"a"})
    sources = read_texts([str(tmp_path / "a.txt")]).sources
    (tmp_path / "a.txt").unlink()
    with refused("no such file or folder", "a.txt"):
        read_again(sources)
