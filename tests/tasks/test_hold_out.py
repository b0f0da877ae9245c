import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.corpora import contents, corpus_of, write
from helpers.errors import refused
from smht.errors import UsageError
from smht.tasks.corpus import Corpus
from smht.tasks.hold_out import hold_out
from smht.tasks.text_files import read_texts


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
