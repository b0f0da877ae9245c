import io
import os
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.corpora import contents, write
from helpers.errors import refused
from smht.errors import UsageError
from smht.tasks.corpus import Document
from smht.tasks.sources import read_again
from smht.tasks.text_files import read_texts, standard_library


@pytest.fixture
def not_root() -> Iterator[Path]:
    """A folder of a user whom file permissions bind, also where the tests run as root."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    finally:
        os.seteuid(user)


def test_files_keep_the_order_given_and_their_bytes(tmp_path: Path) -> None:
    write(tmp_path, {"b.txt": b"\xff\r\nb", "a.txt": b"a"})
    corpus = read_texts([str(tmp_path / "b.txt"), str(tmp_path / "a.txt")])
    assert corpus.documents == (Document("b.txt", b"\xff\r\nb"), Document("a.txt", b"a"))
    assert corpus.num_bytes == 5
    assert str(tmp_path / "b.txt") in corpus.description


def test_folder_is_read_recursively_sorted_without_hidden_empty_and_binary_files(tmp_path: Path) -> None:
    files = {"b.txt": b"b", "a/z.py": b"z", "a/deep/c": b"c", "empty": b"", "late": b"x" * 8192 + b"\0"}
    binary = {"image": b"PNG\0", "edge": b"x" * 8191 + b"\0"}
    write(tmp_path, files | binary | {".hidden": b"h", ".git/config": b"g", "a/.x/y": b"y"})
    corpus = read_texts([str(tmp_path)])
    assert list(contents(corpus)) == ["a/deep/c", "a/z.py", "b.txt", "late"]
    assert contents(corpus)["late"] == files["late"]
    assert "2 binary files skipped" in corpus.description


def test_hidden_folder_is_read_when_named(tmp_path: Path) -> None:
    write(tmp_path, {".notes/a.txt": b"a"})
    assert contents(read_texts([str(tmp_path / ".notes")])) == {"a.txt": b"a"}


def test_binary_file_is_read_when_named(tmp_path: Path) -> None:
    write(tmp_path, {"image": b"PNG\0", "text": b"t"})
    corpus = read_texts([str(tmp_path), str(tmp_path / "image")])
    assert contents(corpus) == {"text": b"t", "image": b"PNG\0"}
    assert "skipped" not in corpus.description


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.txt", ["a.txt"]),
        ("x/*/*.txt", ["1/c.txt", "2/d.txt"]),
        ("**/*.txt", ["a.txt", "x/1/c.txt", "x/2/d.txt", "x/b.txt"]),
        ("x/**", ["1/c.txt", "2/d.py", "2/d.txt", "b.txt"]),
        ("?.[t]xt", ["a.txt"]),
        ("x/2/d.*", ["d.py", "d.txt"]),
    ],
)
def test_globs(tmp_path: Path, pattern: str, names: list[str]) -> None:
    files = ["a.txt", "x/b.txt", "x/1/c.txt", "x/2/d.txt", "x/2/d.py", ".h.txt", "x/.h/e.txt"]
    write(tmp_path, {name: name.encode() for name in files})
    corpus = read_texts([str(tmp_path / pattern)])
    assert list(contents(corpus)) == names
    assert all(data.decode().endswith(name) for name, data in contents(corpus).items())


def test_glob_characters_in_real_names_are_literal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"[a]/b[1].txt": b"b", "[a]/c.txt": b"c", "a/d.txt": b"d"})
    assert contents(read_texts([str(tmp_path / "[a]")])) == {"b[1].txt": b"b", "c.txt": b"c"}
    monkeypatch.chdir(tmp_path / "[a]")
    assert contents(read_texts(["b[1].txt"])) == {"b[1].txt": b"b"}
    corpus = read_texts(["*.txt"])
    assert contents(corpus) == {"b[1].txt": b"b", "c.txt": b"c"}
    assert read_again(corpus.sources).sha256 == corpus.sha256


def test_the_same_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"x/a.txt": b"a", "x/b.txt": b"b"})
    (tmp_path / "link").symlink_to(tmp_path / "x/a.txt")
    monkeypatch.chdir(tmp_path)
    corpus = read_texts(["x/b.txt", "link", "x", "./x/../x/a.txt", "x/*.txt", "x"])
    assert corpus.documents == (Document("b.txt", b"b"), Document("link", b"a"))


def test_files_with_equal_bytes_are_two_documents(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"same", "b": b"same"})
    assert contents(read_texts([str(tmp_path)])) == {"a": b"same", "b": b"same"}


def test_loops_and_broken_links_do_not_hang(tmp_path: Path) -> None:
    write(tmp_path, {"x/y/a.txt": b"a"})
    for name, target in {"up": "..", "self": ".", "gone": "nowhere", "loop": "loop", "y/up": "../.."}.items():
        (tmp_path / "x" / name).symlink_to(target)
    assert [d.data for d in read_texts([str(tmp_path)]).documents] == [b"a"]
    assert [d.data for d in read_texts([str(tmp_path / "**/*.txt")]).documents] == [b"a"]
    with refused("x/loop", "too many levels of symbolic links"):
        read_texts([str(tmp_path / "x/loop")])
    with pytest.raises(UsageError, match=r"no such file or folder: '.*/x/gone'$"):
        read_texts([str(tmp_path / "x/gone")])


def test_linked_folder_is_followed_once(tmp_path: Path) -> None:
    write(tmp_path, {"elsewhere/a.txt": b"a", "texts/b.txt": b"b"})
    for name in ("one", "two"):
        (tmp_path / "texts" / name).symlink_to(tmp_path / "elsewhere")
    assert contents(read_texts([str(tmp_path / "texts")])) == {"b.txt": b"b", "one/a.txt": b"a"}


def test_standard_input(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"a"})
    corpus = read_texts([str(tmp_path / "a"), "-", "-"], stdin=io.BytesIO(b"\xffpiped"))
    assert corpus.documents == (Document("a", b"a"), Document("-", b"\xffpiped"))
    assert "standard input" in corpus.description


def test_standard_input_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"piped")))
    assert contents(read_texts(["-"])) == {"-": b"piped"}


# What is refused


def test_missing_file_offers_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path, {"shakespeare.txt": b"a", "unrelated": b"b"})
    with refused("no such file or folder", "shakespear.txt", "did you mean shakespeare.txt?"):
        read_texts([str(tmp_path / "shakespear.txt")])
    with pytest.raises(UsageError) as caught:
        read_texts([str(tmp_path / "zzz")])
    assert "unrelated" not in str(caught.value)


def test_missing_folder(tmp_path: Path) -> None:
    with refused("no such file or folder", "there is no folder", str(tmp_path / "no")):
        read_texts([str(tmp_path / "no/a.txt")])


@pytest.mark.parametrize("pattern", ["*.md", "no/*.txt", "**/*.md", ".h*", "fold*"])
def test_glob_without_a_match(tmp_path: Path, pattern: str) -> None:
    write(tmp_path, {"a.txt": b"a", ".h.txt": b"h", "folder/b.txt": b"b"})
    with refused(pattern, "matches no file"):
        read_texts([str(tmp_path / pattern)])


def test_malformed_glob(tmp_path: Path) -> None:
    with refused("x**y"):
        read_texts([str(tmp_path / "x**y")])


def test_empty_file(tmp_path: Path) -> None:
    write(tmp_path, {"empty.txt": b""})
    with refused("empty.txt' is empty"):
        read_texts([str(tmp_path / "empty.txt")])


@pytest.mark.parametrize("files", [{}, {".hidden": b"h"}, {"empty": b""}])
@pytest.mark.parametrize("pattern", ["texts", "texts/**"])
def test_folder_without_text(tmp_path: Path, files: dict[str, bytes], pattern: str) -> None:
    (write(tmp_path, files) / "texts").mkdir(exist_ok=True)
    write(tmp_path / "texts", files)
    with refused("texts"):
        read_texts([str(tmp_path / pattern)])


@pytest.mark.parametrize("pattern", ["", "*"])
def test_only_binary_files(tmp_path: Path, pattern: str) -> None:
    write(tmp_path, {"a": b"\0", "b": b"b\0"})
    with refused("holds only binary files (2)"):
        read_texts([str(tmp_path / pattern)])


def test_permission_denied(not_root: Path) -> None:
    write(not_root, {"secret.txt": b"s", "open/b.txt": b"b", "closed/a.txt": b"a"})
    (not_root / "secret.txt").chmod(0)
    (not_root / "closed").chmod(0)
    try:
        with refused("cannot read", "secret.txt", "permission denied"):
            read_texts([str(not_root / "secret.txt")])
        with refused("cannot read", "closed", "permission denied"):
            read_texts([str(not_root)])
        with refused("cannot read", "closed/a.txt", "permission denied"):
            read_texts([str(not_root / "closed/a.txt")])
    finally:
        (not_root / "closed").chmod(stat.S_IRWXU)


def test_file_used_as_a_folder(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": b"a"})
    with refused("a.txt/b", "not a directory"):
        read_texts([str(tmp_path / "a.txt/b")])


def test_pipes_and_devices_are_refused_rather_than_waited_for(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": b"a"})
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), os.devnull):
        with refused(path, "neither a file nor a folder"):
            read_texts([path])
    assert contents(read_texts([str(tmp_path)])) == {"a.txt": b"a"}
    assert contents(read_texts([str(tmp_path / "*")])) == {"a.txt": b"a"}


def test_empty_standard_input() -> None:
    with refused("standard input is empty"):
        read_texts(["-"], stdin=io.BytesIO())


def test_nothing_asked_for() -> None:
    with refused("no text was given"):
        read_texts([])


# The standard library


def test_standard_library(capfd: pytest.CaptureFixture[str]) -> None:
    corpus = standard_library()
    names = [document.name for document in corpus.documents]
    assert names == sorted(names)
    assert {"random.py", "json/decoder.py"} <= set(names)
    assert all(name.endswith(".py") for name in names)
    left_out = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
    assert not left_out & {part for name in names for part in Path(name).parts}
    assert corpus.num_bytes > 5_000_000
    assert sys.version.split()[0] in corpus.description
    again = read_again(corpus.sources)
    assert (again.sha256, again.description) == (corpus.sha256, corpus.description)
    assert capfd.readouterr() == ("", "")


def test_standard_library_leaves_out_what_is_not_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"b.py": b"b", "a/c.py": b"c", "attest.py": b"t", "limit.py": b"x" * (1 << 20)}
    left_out = {"big.py": b"x" * ((1 << 20) + 1), "empty.py": b"", "a.txt": b"a", "_sysconfigdata__linux.py": b"s"}
    folders = ["test", "a/tests", "idlelib/idle_test", "lib2to3/tests", "site-packages/x", "config-3.11", "__pycache__"]
    write(tmp_path, kept | left_out | {f"{folder}/d.py": b"d" for folder in folders})
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert contents(standard_library()) == kept


@pytest.mark.parametrize("folder", ["", "missing"])
def test_python_without_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / folder))
    with refused("without its standard library's source", "pass text files"):
        standard_library()
