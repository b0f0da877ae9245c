import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.errors import refused
from smht.tasks.corpus import Document
from smht.tasks.rows import decode, draw, hash_rows, holds_json, json_field, json_rows, numbered_lines

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def test_byte_order_mark_goes_and_all_else_stays() -> None:
    assert decode(Document("a", b"\xef\xbb\xbf\xef\xbb\xbfa\r\n")) == "\ufeffa\r\n"


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_place_of_a_byte_that_is_no_text(mark: bytes) -> None:
    with refused("a.tsv, line 3", "0xff", "UTF-8"):
        decode(Document("a.tsv", mark + b"a\r\n\n\xc3\xa9 \xff\n"))
    with refused("a.tsv, line 2", "NUL"):
        decode(Document("a.tsv", mark + b"a\nb\0\n\0"))
    with refused("a.tsv, line 1", "0xff"):
        decode(Document("a.tsv", "å\tö\n".encode("utf-16")))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.jsonl", "text,label", True),
        ("a.JSON", "", True),
        ("a.ndjson", "x", True),
        ("a.tsv", "{a\tb", False),
        ("a.csv", "{", False),
        ("a.txt", "\n \n{}", True),
        ("-", '{"a": 1}', True),
        ("-", "a {", False),
        ("a", "", False),
    ],
)
def test_format_of_a_file(name: str, text: str, expected: bool) -> None:
    assert holds_json(name, text) is expected


def test_lines_are_numbered_and_end_at_line_feeds_only() -> None:
    text = "a\r\n\r\n  \n\t\nb\x0b\x0c\x85\u2028c\rd\n\n"
    assert list(numbered_lines(text)) == [(1, "a"), (4, "\t"), (5, "b\x0b\x0c\x85\u2028c\rd")]


def test_json_lines() -> None:
    text = '{"a": "x\u2028y"}\r\n\n {"b": [1]} \n'
    assert list(json_rows("f", text)) == [(1, {"a": "x\u2028y"}), (3, {"b": [1]})]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not one JSON object on a line"),
        ('{"a": 1} {"a": 2}', "not one JSON object on a line"),
        ("[" * 100_000, "not one JSON object on a line"),
        ('["a"]', "not a JSON object but list"),
        ("null", "not a JSON object but NoneType"),
    ],
)
def test_line_that_is_no_json_object(line: str, says: str) -> None:
    with refused("f.jsonl, line 3", says):
        list(json_rows("f.jsonl", f'{{"a": "b"}}\n\n{line}\n'))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({}, "no field 'text', only nothing"),
        ({"a": 1, "b": 2}, "no field 'text', only 'a', 'b'"),
        ({"text": None}, "'text' holds NoneType"),
        ({"text": 1}, "'text' holds int"),
        ({"text": ""}, "empty text"),
        ({"text": " \n"}, "empty text"),
        ({"text": "a\ud800"}, "half a surrogate pair"),
    ],
)
def test_json_field_that_is_no_text(row: dict[str, object], says: str) -> None:
    with refused("f, line 2", says):
        json_field("f, line 2", row, "text")


def test_json_scalars_are_taken_where_allowed_and_spelled_as_in_json() -> None:
    row = {"a": True, "b": -3, "c": 1.5}
    assert json_field("f", row, "a", int, bool) == "true"
    assert json_field("f", row, "b", int, bool) == "-3"
    with refused("'a' holds bool"):
        json_field("f", row, "a", int)
    with refused("'c' holds float"):
        json_field("f", row, "c", int, bool)


rows = st.lists(st.tuples(texts, texts), max_size=3)


@given(rows, rows)
def test_hashes_of_rows_are_equal_only_for_equal_rows(
    first: list[tuple[str, str]], second: list[tuple[str, str]]
) -> None:
    assert (hash_rows(first) == hash_rows(second)) is (first == second)


def test_hash_sees_where_a_text_ends() -> None:
    alike = [[("a", "b")], [("ab", "")], [("", "ab")], [("a",), ("b",)], [("1 1\nab", "")], [("b", "a")], []]
    assert len({hash_rows(some) for some in alike}) == len(alike)


@given(st.lists(texts, max_size=30), st.floats(0.001, 0.999), st.integers(0, 5))
def test_draw_takes_the_fraction_of_distinct_texts_in_any_order(parts: list[str], fraction: float, seed: int) -> None:
    held = draw(parts, fraction, seed)
    shuffled = random.Random(seed).sample(parts, len(parts))
    distinct = set(parts)
    assert held == draw(shuffled + parts, fraction, seed)
    assert held <= distinct
    if len(distinct) < 2:
        assert not held
    else:
        assert 1 <= len(held) < len(distinct)
        assert abs(len(held) - fraction * len(distinct)) <= 1


def test_draw_depends_on_the_seed() -> None:
    parts = [str(number) for number in range(50)]
    draws = [draw(parts, 0.2, seed) for seed in range(4)]
    assert all(len(held) == 10 for held in draws)
    assert len(set(map(frozenset, draws))) == 4


def test_larger_fraction_holds_out_what_a_smaller_one_does_and_more() -> None:
    parts = [str(number) for number in range(50)]
    assert draw(parts, 0.1, 0) < draw(parts, 0.5, 0)
