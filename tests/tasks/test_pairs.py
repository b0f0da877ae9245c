import io
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.corpora import write
from helpers.errors import refused
from smht.tasks.corpus import Corpus, Document
from smht.tasks.pairs import Pair, PairCorpus, hold_out_pairs, pairs_of, read_pairs

sentences = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\t\n\r"), min_size=1).filter(
    str.strip
)
json_sentences = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


def read_bytes(data: bytes, name: str = "p.tsv") -> tuple[Pair, ...]:
    return pairs_of(Corpus("test", (), (Document(name, data),))).pairs


def pairs(*sides: tuple[str, str]) -> PairCorpus:
    return PairCorpus("some pairs", ("p",), tuple(Pair(*both) for both in sides))


def test_tab_separated_file(tmp_path: Path) -> None:
    text = "\ufeffGå!\tGo!\r\n\r\n  \r\n 你好。 \tHello.\tCC-BY 2.0 (France)\r\nlast\tline"
    write(tmp_path, {"p.txt": text.encode()})
    corpus = read_pairs([str(tmp_path / "p.txt")])
    assert corpus.pairs == (Pair("Gå!", "Go!"), Pair(" 你好。 ", "Hello."), Pair("last", "line"))
    assert corpus.sources == (str(tmp_path / "p.txt"),)


def test_third_column_may_be_empty() -> None:
    assert read_bytes(b"a\tb\t\n") == (Pair("a", "b"),)


def test_quotes_in_tab_separated_text_are_characters() -> None:
    assert read_bytes(b'"a" b\t"c\n"d\te"\n') == (Pair('"a" b', '"c'), Pair('"d', 'e"'))


def test_json_lines(tmp_path: Path) -> None:
    rows = [{"id": 1, "target": "b\tc\n", "source": "å"}, {"source": "x", "target": "y"}]
    write(tmp_path, {"p.jsonl": b"\xef\xbb\xbf" + "\r\n\r\n".join(map(json.dumps, rows)).encode()})
    assert read_pairs([str(tmp_path / "p.jsonl")]).pairs == (Pair("å", "b\tc\n"), Pair("x", "y"))


@given(st.lists(st.tuples(sentences, sentences), min_size=1, max_size=5), st.sampled_from(["\n", "\r\n"]))
def test_both_formats_give_what_was_written(sides: list[tuple[str, str]], end: str) -> None:
    expected = pairs(*sides)
    table = end.join(f"{source}\t{target}" for source, target in sides) + end
    lines = end.join(json.dumps({"source": source, "target": target}) for source, target in sides)
    # The mark at the start is the file's, so that a text's own stays.
    assert read_bytes(b"\xef\xbb\xbf" + table.encode()) == expected.pairs
    assert read_bytes(lines.encode(), "p.jsonl") == expected.pairs
    assert expected.num_bytes == sum(len((source + target).encode()) for source, target in sides)


@given(json_sentences, json_sentences)
def test_json_holds_every_sentence(source: str, target: str) -> None:
    line = json.dumps({"source": source, "target": target}, ensure_ascii=False)
    assert read_bytes(line.encode(), "p.jsonl") == (Pair(source, target),)


def test_several_files_and_standard_input(tmp_path: Path) -> None:
    write(tmp_path, {"a.tsv": b"a\tA\n", "b.jsonl": b'{"source": "b", "target": "B"}'})
    paths = [str(tmp_path / "b.jsonl"), str(tmp_path / "a.tsv")]
    corpus = read_pairs([*paths, "-"], stdin=io.BytesIO(b'{"source": "c", "target": "C"}\n'))
    assert corpus.pairs == (Pair("b", "B"), Pair("a", "A"), Pair("c", "C"))
    assert corpus.sources == (*paths, "-")
    assert "standard input" in corpus.description
    assert read_pairs(["-"], stdin=io.BytesIO(b"c\tC")).pairs == (Pair("c", "C"),)


def test_manifest(tmp_path: Path) -> None:
    write(tmp_path, {"a.tsv": "é\tE\nb\tB".encode()})
    corpus = read_pairs([str(tmp_path / "a.tsv")])
    manifest = json.loads(json.dumps(corpus.to_manifest()))
    assert len(corpus) == 2
    assert manifest == {
        "description": str(tmp_path / "a.tsv"),
        "sources": [str(tmp_path / "a.tsv")],
        "pairs": 2,
        "bytes": 5,
        "sha256": pairs(("é", "E"), ("b", "B")).sha256,
    }
    assert pairs(("b", "B"), ("é", "E")).sha256 != corpus.sha256


# What is refused


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"only one", "1 column, not source<TAB>target"),
        (b"a\tb\tc\td", "4 columns"),
        (b"\tb", "empty source"),
        (b"a\t \tauthors", "empty target"),
        (b"\t", "empty source"),
        (b"a\t\xe9", "byte 0xe9 is not UTF-8"),
        (b"a\tb\0", "NUL"),
    ],
)
def test_line_that_is_no_pair(tmp_path: Path, line: bytes, says: str) -> None:
    write(tmp_path, {"good.tsv": b"a\tb\n", "bad.tsv": b"a\tb\r\n\r\n" + line + b"\r\n"})
    with refused("bad.tsv, line 3", says):
        read_pairs([str(tmp_path / "good.tsv"), str(tmp_path / "bad.tsv")])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"source": "a"', "not one JSON object on a line"),
        (b'"source"', "not a JSON object but str"),
        (b'{"source": "a", "tgt": "b"}', "no field 'target', only 'source', 'tgt'"),
        (b'{"source": ["a"], "target": "b"}', "field 'source' holds list, not text"),
        (b'{"source": "a", "target": 1}', "field 'target' holds int, not text"),
        (b'{"source": "", "target": "b"}', "empty source"),
        (b'{"source": "a", "target": " "}', "empty target"),
        (b'{"source": "\\udc00", "target": "b"}', "'source' holds half a surrogate pair"),
        (b'{"source": "\xff", "target": "b"}', "byte 0xff is not UTF-8"),
    ],
)
def test_json_line_that_is_no_pair(line: bytes, says: str) -> None:
    with refused("p.jsonl, line 4", says):
        read_bytes(b'{"source": "a", "target": "b"}\n\n\n' + line + b"\n", "p.jsonl")


@pytest.mark.parametrize(
    ("data", "says"), [(b"", "is empty"), (b"\n \r\n", "holds no pairs"), (b"\xef\xbb\xbf", "no pairs")]
)
@pytest.mark.parametrize("name", ["p.tsv", "p.jsonl"])
def test_file_without_pairs(tmp_path: Path, name: str, data: bytes, says: str) -> None:
    write(tmp_path, {name: data, "good.tsv": b"a\tb\n"})
    with refused(name, says):
        read_pairs([str(tmp_path / "good.tsv"), str(tmp_path / name)])


def test_missing_file(tmp_path: Path) -> None:
    with refused("no such file", "gone.tsv"):
        read_pairs([str(tmp_path / "gone.tsv")])


# Holding out

few_sentences = st.sampled_from("abcdefghij")


@given(st.lists(st.tuples(few_sentences, few_sentences), max_size=30), st.floats(0.01, 0.99), st.integers(0, 3))
def test_no_source_is_on_both_sides(sides: list[tuple[str, str]], fraction: float, seed: int) -> None:
    corpus = pairs(*sides)
    sources = {source for source, _ in sides}
    if len(sources) < 2:
        with refused("some pairs", "too few pairs", str(len(sides))):
            hold_out_pairs(corpus, fraction, seed)
        return
    training, validation = hold_out_pairs(corpus, fraction, seed)
    kept, held = ({pair.source for pair in part.pairs} for part in (training, validation))
    assert kept and held and not kept & held
    assert abs(len(held) - fraction * len(sources)) <= 1
    for part, side in ((training, kept), (validation, held)):
        assert part.pairs == tuple(pair for pair in corpus.pairs if pair.source in side)
    assert Counter(training.pairs) + Counter(validation.pairs) == Counter(corpus.pairs)
    shuffled = pairs(*random.Random(seed).sample(sides, len(sides)))
    assert Counter(hold_out_pairs(shuffled, fraction, seed)[1].pairs) == Counter(validation.pairs)


def test_parts_keep_the_sources_and_say_what_they_are() -> None:
    corpus = pairs(*((f"s{number}", "t") for number in range(40)), ("s0", "u"))
    training, validation = hold_out_pairs(corpus)
    assert training.sources == validation.sources == corpus.sources
    assert training.description == "training part of some pairs"
    assert validation.description == "validation part of some pairs (4 sources)"


def test_seed_chooses() -> None:
    corpus = pairs(*((f"s{number}", "t") for number in range(40)))
    assert len({hold_out_pairs(corpus, seed=seed)[1].sha256 for seed in range(4)}) == 4
    assert hold_out_pairs(corpus) == hold_out_pairs(corpus)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_fraction_out_of_range(fraction: float) -> None:
    with refused("between 0 and 1", str(fraction)):
        hold_out_pairs(pairs(("a", "b"), ("c", "d")), fraction)
