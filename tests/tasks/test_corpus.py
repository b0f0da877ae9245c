import io
import itertools
import json
import os
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smht.errors import UsageError
from smht.tasks.corpus import (
    Corpus,
    Document,
    corpus_from_manifest_sources,
    hold_out,
    hub_dataset,
    read_texts,
    standard_library,
)


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def contents(corpus: Corpus) -> dict[str, bytes]:
    return {document.name: document.data for document in corpus.documents}


def corpus_of(*texts: bytes) -> Corpus:
    return Corpus("test", (), tuple(Document(f"{i:03d}.txt", text) for i, text in enumerate(texts)))


@contextmanager
def refused(*needles: str) -> Iterator[None]:
    """A one-line UsageError that starts in lower case (or with a quoted name) and has every needle."""
    with pytest.raises(UsageError) as caught:
        yield
    line = str(caught.value)
    assert "\n" not in line
    assert line[0].islower() or line[0] == "'"
    for needle in needles:
        assert needle in line


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


# Reading


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
    assert corpus_from_manifest_sources(corpus.sources).sha256 == corpus.sha256


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


# The hash, the manifest, and reading again


def test_hash_is_of_names_order_and_contents_not_of_the_place(tmp_path: Path) -> None:
    files = {"a.txt": b"one", "x/b.txt": b"two"}
    here, there = (read_texts([str(write(tmp_path / name, files))]) for name in ("here", "there"))
    assert here.sha256 == there.sha256
    documents = here.documents
    variants = [
        documents,
        documents[::-1],
        documents[:1],
        (Document("a.txt", b"onet"), Document("x/b.txt", b"wo")),
        (Document("c.txt", b"one"), documents[1]),
        (Document("a.txto", b"ne"), documents[1]),
    ]
    assert len({Corpus("", (), variant).sha256 for variant in variants}) == len(variants)


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
    again = corpus_from_manifest_sources(manifest["sources"])
    assert again.documents == corpus.documents
    assert (again.sha256, again.sources) == (corpus.sha256, corpus.sources)


def test_names_that_are_not_utf8_are_hashed(tmp_path: Path) -> None:
    try:
        (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_bytes(b"a")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    corpus = read_texts([str(tmp_path)])
    assert corpus_from_manifest_sources(json.loads(json.dumps(corpus.to_manifest()))["sources"]).sha256 == corpus.sha256


def test_a_file_named_like_a_marker_is_read_again_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["python-standard-library", "hub:x"]
    write(tmp_path, {name: name.encode() for name in names})
    monkeypatch.chdir(tmp_path)
    for name in names:
        assert contents(corpus_from_manifest_sources(read_texts([name]).sources)) == {name: name.encode()}


def test_standard_input_is_read_again_only_when_given_again() -> None:
    corpus = read_texts(["-"], stdin=io.BytesIO(b"piped"))
    assert corpus.sources == ("-",)
    with refused("standard input", "pipe the same text in"):
        corpus_from_manifest_sources(corpus.sources)
    assert corpus_from_manifest_sources(corpus.sources, stdin=io.BytesIO(b"piped")).sha256 == corpus.sha256


def test_text_that_is_gone_when_read_again(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": b"a"})
    sources = read_texts([str(tmp_path / "a.txt")]).sources
    (tmp_path / "a.txt").unlink()
    with refused("no such file or folder", "a.txt"):
        corpus_from_manifest_sources(sources)


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
    again = corpus_from_manifest_sources(corpus.sources)
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


# Datasets


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
    assert corpus_from_manifest_sources(corpus.sources) == corpus
    assert name in corpus.description


def test_dataset_column(datasets, tmp_path: Path) -> None:
    one = json_dataset(tmp_path / "one", [{"n": 1, "story": "once"}])
    assert contents(hub_dataset(one)) == {"train/0": b"once"}
    two = json_dataset(tmp_path / "two", [{"n": 1, "german": "ja", "english": "yes"}])
    with refused("which column holds the text", "german", "english"):
        hub_dataset(two)
    corpus = hub_dataset(two, column="german")
    assert contents(corpus) == {"train/0": b"ja"}
    assert corpus_from_manifest_sources(corpus.sources) == corpus
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


# Holding out


def test_one_file_is_cut_as_nanogpt_cuts_it() -> None:
    data = bytes(65 + i % 26 for i in range(1_115_394))
    training, validation = hold_out(corpus_of(data))
    assert training.documents[0].data == data[: int(len(data) * 0.9)]
    assert validation.documents[0].data == data[int(len(data) * 0.9) :]
    assert validation.num_bytes == 111_540


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40).map(str.encode)
fractions = st.floats(0.01, 0.99)


@settings(deadline=None, max_examples=100)
@given(st.lists(texts, min_size=1, max_size=19), fractions, st.none() | st.integers(1, 200))
def test_ends_partition_each_document_between_characters(
    parts: list[bytes], fraction: float, max_bytes: int | None
) -> None:
    corpus = corpus_of(*parts)
    try:
        training, validation = hold_out(corpus, fraction=fraction, max_bytes=max_bytes)
    except UsageError:
        assert min(corpus.num_bytes * fraction, corpus.num_bytes * (1 - fraction), max_bytes or 200) < 4 * len(parts)
        return
    kept, held = contents(training), contents(validation)
    assert {name: kept.get(name, b"") + held.get(name, b"") for name in contents(corpus)} == contents(corpus)
    for data in itertools.chain(kept.values(), held.values()):
        assert data
        data.decode()
    assert validation.num_bytes <= min(max_bytes or corpus.num_bytes, corpus.num_bytes * fraction + len(parts))
    if max_bytes is None:
        assert validation.num_bytes >= corpus.num_bytes * fraction - 3 * len(parts)


def test_ends_share_the_cap() -> None:
    _, validation = hold_out(corpus_of(b"a" * 30_000, b"b" * 10_000), max_bytes=1000)
    assert [len(document.data) for document in validation.documents] == [750, 250]
    _, validation = hold_out(corpus_of(b"a" * 30_000, b"b" * 10_000), max_bytes=None)
    assert validation.num_bytes == 4000


def test_bytes_that_are_not_utf8_are_cut_too() -> None:
    training, validation = hold_out(corpus_of(b"\x80" * 100))
    assert (training.num_bytes, validation.num_bytes) == (93, 7)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.binary(min_size=1, max_size=30), min_size=20, max_size=40), fractions, st.integers(0, 3))
def test_whole_documents_are_on_one_side_only(parts: list[bytes], fraction: float, seed: int) -> None:
    corpus = corpus_of(*parts)
    if len(set(parts)) == 1:
        with refused("too short"):
            hold_out(corpus, fraction=fraction, seed=seed)
        return
    training, validation = hold_out(corpus, fraction=fraction, seed=seed)
    kept, held = contents(training), contents(validation)
    assert kept and held
    assert kept.items() | held.items() <= contents(corpus).items()
    assert not set(kept.values()) & set(held.values())
    assert set(kept.values()) | set(held.values()) == set(parts)
    assert len(set(held.values())) == len(held)
    assert list(kept) == sorted(kept) and list(held) == sorted(held)
    copies = len(parts) - len(kept) - len(held)
    assert (f"({copies} cop" in training.description) == bool(copies)
    assert validation.num_bytes <= 1.1 * fraction * corpus.num_bytes or len(held) == 1


def test_whole_documents_reach_the_fraction_or_the_cap() -> None:
    corpus = corpus_of(*(bytes([i]) * 100 for i in range(100)))
    assert hold_out(corpus)[1].num_bytes == 1000
    assert hold_out(corpus, max_bytes=500)[1].num_bytes == 500
    assert hold_out(corpus, fraction=0.995, max_bytes=None)[1].num_bytes == 9900


def test_twenty_documents_are_the_fewest_held_out_whole() -> None:
    parts = [bytes([i]) * 100 for i in range(20)]
    assert [len(d.data) for d in hold_out(corpus_of(*parts[:19]))[1].documents] == [10] * 19
    assert [len(d.data) for d in hold_out(corpus_of(*parts))[1].documents] == [100] * 2


def test_a_document_far_over_the_limit_is_left_for_smaller_ones() -> None:
    small = [bytes([i]) * 10 for i in range(19)]
    for place, seed in itertools.product(range(20), range(5)):
        parts = [*small[:place], b"x" * 1000, *small[place:]]
        _, validation = hold_out(corpus_of(*parts), max_bytes=50, seed=seed)
        assert [len(document.data) for document in validation.documents] == [10] * 5


def test_the_smallest_document_is_held_out_when_all_pass_the_limit() -> None:
    corpus = corpus_of(*(bytes([i]) * (100 + i) for i in range(20)))
    _, validation = hold_out(corpus, max_bytes=7)
    assert [document.name for document in validation.documents] == ["000.txt"]


def test_choice_depends_on_names_and_seed_alone() -> None:
    corpus = corpus_of(*(bytes([i]) * 100 for i in range(40)))
    backwards = Corpus("other", ("x",), corpus.documents[::-1])
    chosen = {seed: frozenset(contents(hold_out(corpus, seed=seed)[1])) for seed in range(5)}
    assert len(set(chosen.values())) > 1
    for seed, names in chosen.items():
        assert frozenset(contents(hold_out(backwards, seed=seed)[1])) == names
    assert sorted(chosen[0]) == ["002.txt", "008.txt", "011.txt", "031.txt"]


def test_parts_keep_the_sources_of_the_whole(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": b"a" * 100})
    corpus = read_texts([str(tmp_path)])
    for part, kind in zip(hold_out(corpus), ("training", "validation"), strict=True):
        assert part.sources == corpus.sources
        assert kind in part.description and corpus.description in part.description


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_fraction_out_of_range(fraction: float) -> None:
    with refused("between 0 and 1", str(fraction)):
        hold_out(corpus_of(b"a" * 100), fraction=fraction)


@pytest.mark.parametrize("max_bytes", [0, -5])
def test_cap_out_of_range(max_bytes: int) -> None:
    with refused("max_bytes", str(max_bytes)):
        hold_out(corpus_of(b"a" * 100), max_bytes=max_bytes)


@pytest.mark.parametrize("parts", [[], [b"a"], ["😀".encode()], [b"same"] * 25])
def test_text_that_leaves_a_part_empty(parts: list[bytes]) -> None:
    with refused("too short", str(sum(map(len, parts))), str(len(parts))):
        hold_out(corpus_of(*parts))
