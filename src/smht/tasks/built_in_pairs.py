"""Pairs in real languages that need no file: numbers in words and dates, by the packages num2words and Babel."""

import importlib
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from difflib import get_close_matches
from importlib.metadata import version
from types import ModuleType
from typing import Any, BinaryIO

from smht.errors import UsageError, did_you_mean, first_line
from smht.tasks.pairs import Pair, PairCorpus, pairs_of
from smht.tasks.sources import read_again

DEFAULT_LIMIT = 10_000

_FIRST_DATE = date(2000, 1, 1)
_LAST_LIMIT = (date.max - _FIRST_DATE).days + 1
_NAME = re.compile(r"(?P<kind>[^:]+):(?P<source>[^-?]+)-(?P<target>[^-?]+)(?:\?limit=(?P<limit>[0-9]{1,9}))?")


def number_pairs(source_language: str = "id", target_language: str = "sv", limit: int = DEFAULT_LIMIT) -> PairCorpus:
    """The numbers from 0 to `limit - 1` in words, by num2words.

    Args:
        source_language: Of the sources, as num2words spells it: `id`, `en_IN`.
        target_language: Of the targets.
        limit: How many numbers.

    Raises:
        UsageError: num2words is missing, does not know a language or cannot say a number in it, both languages
            are the same, two numbers have the same words in the source language, or the limit is below 1.
    """
    library = _library("num2words")
    for language in (source_language, target_language):
        if language not in library.CONVERTER_CLASSES:
            near = did_you_mean(language, library.CONVERTER_CLASSES)
            raise UsageError(f"num2words knows no language {language!r}: {near}")
    _refuse_same(source_language, target_language)
    _check_limit(limit)
    sources = [_in_words(library, number, source_language) for number in range(limit)]
    targets = [_in_words(library, number, target_language) for number in range(limit)]
    _refuse_ambiguous(sources, source_language, range(limit))
    description = (
        f"the numbers from 0 to {limit - 1:,} in words, {source_language} to {target_language} "
        f"(num2words {version('num2words')})"
    )
    return _corpus("numbers", description, source_language, target_language, sources, targets)


def date_pairs(source_locale: str = "id", target_locale: str = "sv", limit: int = DEFAULT_LIMIT) -> PairCorpus:
    """Consecutive days from 2000-01-01, written out by Babel in the locales' `full` format: weekday, day, month, year.

    Args:
        source_locale: Of the sources, as Babel spells it: `id`, `pt_BR`.
        target_locale: Of the targets.
        limit: How many days.

    Raises:
        UsageError: Babel is missing or does not know a locale, both locales are the same, two days look the same
            in the source locale, or the limit is below 1 or passes the year 9999.
    """
    library, dates = _library("babel"), _library("babel.dates")
    source, target = _locale(library, source_locale), _locale(library, target_locale)
    _refuse_same(str(source), str(target))
    _check_limit(limit)
    if limit > _LAST_LIMIT:
        raise UsageError(f"{limit:,} days pass the year 9999: choose a limit of at most {_LAST_LIMIT:,}")
    days = [_FIRST_DATE + timedelta(number) for number in range(limit)]
    sources, targets = ([dates.format_date(day, "full", locale) for day in days] for locale in (source, target))
    _refuse_ambiguous(sources, str(source), days)
    description = f"the dates from {days[0]} to {days[-1]}, {source} to {target} (Babel {version('babel')})"
    return _corpus("dates", description, str(source), str(target), sources, targets)


_KINDS: dict[str, Callable[[str, str, int], PairCorpus]] = {"numbers": number_pairs, "dates": date_pairs}


def is_built_in(name: str) -> bool:
    """Whether `name` starts as built-in pairs do, `numbers:` or `dates:`; what follows may still be refused."""
    return name.partition(":")[0] in _KINDS and ":" in name


def built_in_pairs(name: str) -> PairCorpus:
    """The pairs that a name stands for.

    Args:
        name: `numbers:SOURCE-TARGET` or `dates:SOURCE-TARGET`, and `?limit=N` after it for another number of
            pairs than 10,000: `numbers:id-sv`, `dates:en-pt_BR?limit=500`.

    Raises:
        UsageError: The name is not of this form, or as `number_pairs` and `date_pairs`.
    """
    kind = name.partition(":")[0]
    if ":" in name and kind not in _KINDS:
        raise UsageError(f"there are no built-in pairs {kind!r}: {did_you_mean(kind, _KINDS)}")
    match = _NAME.fullmatch(name)
    if match is None:
        raise UsageError(
            f"{name!r} names no built-in pairs: write for instance numbers:id-sv, dates:id-pt_BR or "
            "numbers:id-sv?limit=500"
        )
    return _KINDS[kind](match["source"], match["target"], int(match["limit"] or DEFAULT_LIMIT))


def pairs_again(sources: Sequence[str], *, stdin: BinaryIO | None = None) -> PairCorpus:
    """Read again what `PairCorpus.sources` recorded; `sha256` then says whether the pairs are still the same.

    Args:
        sources: `PairCorpus.sources`, or `sources` of a manifest.
        stdin: The same pairs once more, where a source was standard input.

    Raises:
        UsageError: A source is gone, or was standard input and `stdin` is None.
    """
    if len(sources) == 1 and is_built_in(sources[0]):
        return built_in_pairs(sources[0])
    return pairs_of(read_again(sources, stdin=stdin))


def _corpus(
    kind: str, description: str, source: str, target: str, sources: Iterable[str], targets: Iterable[str]
) -> PairCorpus:
    pairs = tuple(Pair(*texts) for texts in zip(sources, targets, strict=True))
    limit = "" if len(pairs) == DEFAULT_LIMIT else f"?limit={len(pairs)}"
    return PairCorpus(description, (f"{kind}:{source}-{target}{limit}",), pairs)


def _library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"these pairs need {name.partition('.')[0]}: pip install 'smht[tasks]'") from error


def _in_words(library: ModuleType, number: int, language: str) -> str:
    try:
        return library.num2words(number, lang=language).strip()
    except Exception as error:
        # What num2words raises where a language ends is whatever went wrong inside: TypeError, IndexError, ...
        raise UsageError(
            f"num2words cannot say {number} in {language!r} ({type(error).__name__}): "
            f"choose another language, or a limit of at most {number}"
        ) from error


def _locale(library: ModuleType, name: str) -> Any:
    try:
        return library.Locale.parse(name)
    except (ValueError, library.UnknownLocaleError) as error:
        known = list(library.localedata.locale_identifiers())
        near = get_close_matches(name, known, cutoff=0.5)
        hint = did_you_mean(name, near) if near else f"locales are named like id, sv or pt_BR ({first_line(error)})"
        raise UsageError(f"there is no locale {name!r} in Babel: {hint}") from error


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")


def _refuse_same(source: str, target: str) -> None:
    if source == target:
        raise UsageError(f"{source!r} to {target!r} is no translation: choose two languages")


def _refuse_ambiguous(sources: Sequence[str], language: str, meanings: Sequence[object]) -> None:
    """What has one text must have one translation; num2words has slips among large numbers."""
    seen: dict[str, int] = {}
    for number, text in enumerate(sources):
        first = seen.setdefault(text, number)
        if first != number:
            raise UsageError(
                f"{meanings[first]} and {meanings[number]} are both {text!r} in {language!r}: "
                f"choose another language, or a limit of at most {number}"
            )
