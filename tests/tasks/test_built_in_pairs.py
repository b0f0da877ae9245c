import datetime
import io
import sys
from pathlib import Path
from types import ModuleType

import pytest

from helpers.corpora import write
from helpers.errors import refused
from smht.tasks.built_in_pairs import built_in_pairs, date_pairs, is_built_in, number_pairs, pairs_again
from smht.tasks.pairs import Pair, read_pairs


@pytest.fixture
def num2words() -> ModuleType:
    return pytest.importorskip("num2words")


@pytest.fixture
def babel() -> ModuleType:
    return pytest.importorskip("babel")


def test_numbers_in_words(num2words) -> None:
    corpus = number_pairs(limit=50)
    assert len(corpus) == 50
    assert corpus.pairs[0] == Pair("nol", "noll")
    assert corpus.pairs[21] == Pair("dua puluh satu", "tjugoett")
    assert corpus.pairs[39] == Pair("tiga puluh sembilan", "trettionio")
    assert corpus.sources == ("numbers:id-sv?limit=50",)
    assert "0 to 49" in corpus.description and "id to sv" in corpus.description
    assert number_pairs("sv", "id", 50).pairs[21] == Pair("tjugoett", "dua puluh satu")


def test_all_numbers_by_default(num2words) -> None:
    corpus = number_pairs("id", "pt_BR")
    assert len(corpus) == 10_000
    assert corpus.sources == ("numbers:id-pt_BR",)
    assert corpus.pairs[-1].target == "nove mil, novecentos e noventa e nove"


def test_words_have_no_white_space_around(num2words) -> None:
    assert num2words.num2words(50, lang="te").endswith(" ")
    corpus = number_pairs("te", "en", 60)
    assert all(pair.source == pair.source.strip() for pair in corpus.pairs)


def test_dates_written_out(babel) -> None:
    corpus = date_pairs("en", "sv", 400)
    days = [datetime.date(2000, 1, 1) + datetime.timedelta(number) for number in range(400)]
    assert [pair.source for pair in corpus.pairs] == [f"{day:%A, %B} {day.day}, {day.year}" for day in days]
    assert corpus.pairs[59].target == "tisdag 29 februari 2000"
    assert "2000-01-01 to 2001-02-03" in corpus.description
    assert date_pairs(limit=1).pairs == (Pair("Sabtu, 01 Januari 2000", "lördag 1 januari 2000"),)


@pytest.mark.parametrize(
    "name",
    [
        "numbers:en_IN-pt_BR?limit=30",
        "numbers:id-tet?limit=1",
        "dates:id-sv?limit=30",
        "dates:en-pt_BR?limit=3",
        "dates:id-sv",
    ],
)
def test_name_stands_for_pairs_that_can_be_read_again(num2words, babel, name: str) -> None:
    corpus = built_in_pairs(name)
    assert corpus.sources == (name,)
    assert len(corpus) == int(name.partition("=")[2] or 10_000)
    again = pairs_again(corpus.to_manifest()["sources"])
    assert again == corpus and again.sha256 == corpus.sha256


def test_locale_is_recorded_as_babel_spells_it(babel) -> None:
    assert date_pairs("PT_br", "zh_TW", 2).sources == ("dates:pt_BR-zh_Hant_TW?limit=2",)


def test_default_limit_need_not_be_named(babel) -> None:
    assert built_in_pairs("dates:id-sv?limit=10000").sources == ("dates:id-sv",)


def test_built_in_names_are_told_from_files() -> None:
    assert is_built_in("numbers:id-sv") and is_built_in("dates:")
    assert not any(map(is_built_in, ("numbers", "colours:id-sv", "./numbers:id-sv", "-", "")))


def test_files_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"numbers": b"a\tb\n"})
    monkeypatch.chdir(tmp_path)
    corpus = read_pairs(["numbers"])
    monkeypatch.chdir("/")
    assert pairs_again(corpus.sources).sha256 == corpus.sha256
    write(tmp_path, {"numbers": b"a\tc\n"})
    assert pairs_again(corpus.sources).sha256 != corpus.sha256


def test_standard_input_is_read_again_when_piped_again() -> None:
    corpus = read_pairs(["-"], stdin=io.BytesIO(b"a\tb\n"))
    assert pairs_again(corpus.sources, stdin=io.BytesIO(b"a\tb\n")) == corpus
    with refused("standard input", "cannot be read again"):
        pairs_again(corpus.sources)


# What is refused


def test_unknown_language(num2words) -> None:
    with refused("no language 'en_in'", "did you mean", "en_IN"):
        number_pairs("en_in", "sv")
    with refused("no language 'swedish'", "choose from am, ar,"):
        number_pairs("id", "swedish")
    # num2words itself would take the first two letters.
    with refused("no language 'svx'", "did you mean sv"):
        number_pairs("id", "svx")


def test_unknown_locale(babel) -> None:
    with refused("no locale 'sv_XX'", "did you mean sv"):
        date_pairs("id", "sv_XX")
    for name in ("123", "?", ""):
        with refused(f"no locale {name!r}", "like id, sv or pt_BR"):
            date_pairs(name, "sv")


@pytest.mark.parametrize("name", ["numbers:sv-sv", "dates:pt_BR-pt_BR", "dates:pt_br-pt_BR"])
def test_one_language_twice(num2words, babel, name: str) -> None:
    with refused("is no translation", "two languages"):
        built_in_pairs(name)


@pytest.mark.parametrize("limit", [0, -3])
def test_limit_below_one(num2words, babel, limit: int) -> None:
    for pairs in (number_pairs, date_pairs):
        with refused("limit must be at least 1", str(limit)):
            pairs(limit=limit)


def test_dates_end_with_the_year_9999(babel) -> None:
    with refused("2,921,941 days pass the year 9999", "at most 2,921,940"):
        date_pairs(limit=2_921_941)


def test_number_that_a_language_cannot_say(num2words, monkeypatch: pytest.MonkeyPatch) -> None:
    english = num2words.num2words

    def until_seven(number: int, lang: str) -> str:
        if lang == "sv" and number > 7:
            raise OverflowError("too large")
        return english(number, lang=lang)

    monkeypatch.setattr(num2words, "num2words", until_seven)
    assert len(number_pairs("id", "sv", 8)) == 8
    with refused("cannot say 8 in 'sv'", "OverflowError", "at most 8"):
        number_pairs("id", "sv", 20)


def test_two_numbers_with_the_same_words(num2words, monkeypatch: pytest.MonkeyPatch) -> None:
    english = num2words.num2words
    monkeypatch.setattr(num2words, "num2words", lambda number, lang: english(number % 5, lang=lang))
    assert len(number_pairs("en", "sv", 5)) == 5
    with refused("0 and 5 are both 'zero' in 'en'", "at most 5"):
        number_pairs("en", "sv", 7)


def test_unknown_kind() -> None:
    with refused("no built-in pairs 'colours'", "dates, numbers"):
        built_in_pairs("colours:id-sv")
    with refused("no built-in pairs 'number'", "did you mean numbers?"):
        built_in_pairs("number:id-sv")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "numbers",
        "numbers:",
        "numbers:id",
        "numbers:id-",
        "dates:id-pt-BR",
        "dates:id-sv?limit=",
        "dates:id-sv?limit=-1",
        "dates:id-sv?limit=²",
        "numbers:id-sv?count=3",
        "numbers:id-sv?limit=5 ",
    ],
)
def test_name_of_no_built_in_pairs(name: str) -> None:
    with refused(repr(name), "write for instance numbers:id-sv"):
        built_in_pairs(name)


@pytest.mark.parametrize(("library", "name"), [("num2words", "numbers:id-sv"), ("babel", "dates:id-sv")])
def test_missing_package(monkeypatch: pytest.MonkeyPatch, library: str, name: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with refused(library, "pip install 'smht[tasks]'"):
        built_in_pairs(name)
