import errno
import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smht.training import files

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    return fail


def tree(folder: Path) -> dict[str, bytes]:
    """Every file under a folder, hidden ones included."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Single files


@given(JSON)
def test_json_is_read_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    path = tmp_path_factory.mktemp("json") / "value.json"
    files.write_json(path, value)
    assert json.loads(path.read_text(encoding="utf-8")) == value


def test_json_is_for_people_too(tmp_path: Path) -> None:
    files.write_json(tmp_path / "a.json", {"naïve": 1})
    assert (tmp_path / "a.json").read_bytes() == '{\n  "naïve": 1\n}\n'.encode()


def test_file_names_that_are_no_utf8_survive_json(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    files.write_json(tmp_path / "a.json", [name, "é"])
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == [name, "é"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()], ids=["full", "interrupted"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    path = tmp_path / "run.json"
    files.write_json(path, {"old": 1})
    before = tree(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(*((os, "fsync") if step == "fsync" else (Path, "replace")), raising(error))
        files.write_json(path, {"new": 2})
    assert tree(tmp_path) == before


def test_what_is_no_json_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    files.write_json(path, 1)
    before = tree(tmp_path)
    with pytest.raises(TypeError):
        files.write_json(path, {"a": object()})
    assert tree(tmp_path) == before


def test_a_file_in_the_way_of_a_half_written_one_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / ".run.json.partial").write_bytes(b"left by a crash, and longer than what follows")
    files.write_json(tmp_path / "run.json", 1)
    assert tree(tmp_path) == {"run.json": b"1\n"}


def test_contents_reach_the_disk_before_the_name_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = []
    fsync, replace = os.fsync, Path.replace

    def note_fsync(descriptor: int) -> None:
        events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def note_replace(self: Path, target: Path) -> Path:
        events.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "replace", note_replace)
    files.write_bytes(tmp_path / "a", b"1")
    assert events == ["file", "rename", "folder"]
    events.clear()
    files.replace_folder(tmp_path / "b", lambda folder: (folder / "c").write_bytes(b"1"))
    assert events == ["file", "folder", "rename", "folder"]


def test_so_do_the_names_of_files_in_folders_within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, fsync = [], os.fsync

    def note_fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def fill(folder: Path) -> None:
        (folder / "within").mkdir()
        (folder / "within/file").write_bytes(b"1")

    monkeypatch.setattr(os, "fsync", note_fsync)
    files.replace_folder(tmp_path / "a", fill)
    expected = [tmp_path / "a/within", tmp_path / "a/within/file", tmp_path / "a", tmp_path]
    assert sorted(synced) == sorted(path.stat().st_ino for path in expected)


# Folders


def fill_with(**contents: bytes) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        assert not list(folder.iterdir())
        for name, data in contents.items():
            (folder / name).write_bytes(data)

    return fill


def test_a_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    files.replace_folder(tmp_path / "a/b", fill_with(x=b"1"))
    assert tree(tmp_path) == {"a/b/x": b"1"}
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    files.replace_folder(tmp_path / "a", fill_with(x=b"1", y=b"2"))
    files.replace_folder(tmp_path / "a", fill_with(x=b"3"))
    assert tree(tmp_path) == {"a/x": b"3"}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("error", [FULL, RuntimeError("torch.save"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_folder_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    def fill(folder: Path) -> None:
        (folder / "x").write_bytes(b"half")
        raise error

    for expected in ({}, {"a/x": b"old"}):
        if expected:
            files.replace_folder(tmp_path / "a", fill_with(x=b"old"))
        with pytest.raises(type(error)):
            files.replace_folder(tmp_path / "a", fill)
        assert tree(tmp_path) == expected
        assert len(list(tmp_path.iterdir())) == len(expected)


def test_a_disk_that_is_full_when_contents_reach_it_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.replace_folder(tmp_path / "a", fill_with(x=b"old"))
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "fsync", raising(FULL))
        files.replace_folder(tmp_path / "a", fill_with(x=b"new"))
    assert tree(tmp_path) == {"a/x": b"old"}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("crash_at", [1, 2])
def test_a_crash_at_either_rename_loses_neither_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: int
) -> None:
    files.replace_folder(tmp_path / "a", fill_with(x=b"old"))
    replace, calls = Path.replace, []

    def crash(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == crash_at:
            raise SystemExit
        return replace(self, target)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Path, "replace", crash)
        files.replace_folder(tmp_path / "a", fill_with(x=b"new"))
    assert sorted(tree(tmp_path).values()) == [b"new", b"old"]
    files.replace_folder(tmp_path / "a", fill_with(x=b"newer"))
    assert tree(tmp_path) == {"a/x": b"newer"}


def test_what_a_crash_left_beside_is_not_mixed_in(tmp_path: Path) -> None:
    (tmp_path / ".a.partial/deep").mkdir(parents=True)
    (tmp_path / ".a.partial/deep/rest").write_bytes(b"left by a crash")
    files.replace_folder(tmp_path / "a", fill_with(x=b"1"))
    assert tree(tmp_path) == {"a/x": b"1"}


FULL_DISK = """
import errno, pathlib, resource, sys
from smht.training import files
folder = pathlib.Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

def fill(beside):
    (beside / "small").write_bytes(b"1" * 500)
    (beside / "large").write_bytes(b"1" * 5000)

for write in (
    lambda: files.write_json(folder / "run.json", "1" * 5000),
    lambda: files.replace_folder(folder / "step", fill),
):
    try:
        write()
    except OSError as error:
        assert error.errno == errno.EFBIG, error
    else:
        raise SystemExit("nothing was raised")
"""


def test_a_real_limit_leaves_old_files_and_nothing_else(tmp_path: Path) -> None:
    files.write_json(tmp_path / "run.json", "old")
    files.replace_folder(tmp_path / "step", fill_with(small=b"old"))
    before = tree(tmp_path)
    done = subprocess.run([sys.executable, "-c", FULL_DISK, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert tree(tmp_path) == before
    assert len(list(tmp_path.iterdir())) == 2


# The rest


def test_files_are_moved_over_those_of_their_names(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    files.replace_folder(source, fill_with(a=b"new", b=b"new"))
    files.replace_folder(target, fill_with(a=b"old", c=b"old"))
    files.move_files(source, target)
    assert tree(tmp_path) == {"target/a": b"new", "target/b": b"new", "target/c": b"old"}
    assert not source.exists()


def test_the_hash_is_that_of_the_contents(tmp_path: Path) -> None:
    data = os.urandom(1 << 18)
    (tmp_path / "a").write_bytes(data)
    assert files.sha256(tmp_path / "a") == hashlib.sha256(data).hexdigest()


def test_free_space_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    free = files.free_bytes(tmp_path / "not/yet")
    assert free > 0
    assert abs(free - files.free_bytes(tmp_path)) < 0.5 * free


@pytest.mark.parametrize("there", [False, True])
def test_fill_folder_uses_the_folder_that_is_there(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "folder"
    if there:
        folder.mkdir()
        before = folder.stat().st_ino

    def fill(beside: Path) -> None:
        (beside / "file").write_text("contents")
        (beside / "sub").mkdir()

    files.fill_folder(folder, fill)

    assert sorted(path.name for path in folder.iterdir()) == ["file", "sub"]
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    if there:
        assert folder.stat().st_ino == before


def test_fill_folder_leaves_an_existing_folder_empty_when_filling_fails(tmp_path: Path) -> None:
    def fill(beside: Path) -> None:
        (beside / "file").write_text("contents")
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        files.fill_folder(tmp_path, fill)
    assert list(tmp_path.iterdir()) == []
