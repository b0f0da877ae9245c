"""What pairs and labelled texts share: rows with the lines they stand on, a hash of rows, and a draw of texts."""

import codecs
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any

from smht.errors import UsageError, first_line
from smht.tasks.corpus import Document

_JSON_SUFFIXES = frozenset({".json", ".jsonl", ".ndjson"})
_TABLE_SUFFIXES = frozenset({".csv", ".tsv"})


def place(name: str, line: int) -> str:
    """How error lines name a row: `pairs.tsv, line 3`."""
    return f"{name}, line {line}"


def decode(document: Document) -> str:
    """A document's text, without a byte order mark and with its line ends as they are.

    Raises:
        UsageError: A byte that is not UTF-8, or a NUL, with the line that it is on.
    """
    data = document.data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        where = place(document.name, 1 + data.count(b"\n", 0, error.start))
        raise UsageError(f"{where}: byte 0x{data[error.start]:02x} is not UTF-8: save the text as UTF-8") from error
    if "\0" in text:
        where = place(document.name, 1 + text.count("\n", 0, text.index("\0")))
        raise UsageError(f"{where}: a NUL byte, which no text has: save the text as UTF-8")
    return text


def holds_json(name: str, text: str) -> bool:
    """Whether a file is JSON lines: by the suffix of its `name`, else by the first character that is no space."""
    suffix = PurePath(name).suffix.lower()
    if suffix in _JSON_SUFFIXES | _TABLE_SUFFIXES:
        return suffix in _JSON_SUFFIXES
    return text.lstrip().startswith("{")


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines by their numbers from 1, without `\\n` or `\\r\\n` and without blank ones; a tab makes a line not blank."""
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if line.strip() or "\t" in line:
            yield number, line


def json_rows(name: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON lines by their line numbers.

    Raises:
        UsageError: A line that is not one JSON object.
    """
    for number, line in numbered_lines(text):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{place(name, number)}: not one JSON object on a line: {first_line(error)}") from error
        if not isinstance(row, dict):
            raise UsageError(f"{place(name, number)}: not a JSON object but {type(row).__name__}")
        yield number, row


def json_field(where: str, row: dict[str, Any], field: str, *scalars: type) -> str:
    """A field of a JSON object as text; where it is one of `scalars`, as JSON spells it.

    Raises:
        UsageError: The field is missing, neither a string nor one of `scalars`, empty, or half a surrogate pair.
    """
    if field not in row:
        listed = ", ".join(map(repr, row)) or "nothing"
        raise UsageError(f"{where}: no field {field!r}, only {listed}")
    value = row[field]
    if type(value) in scalars:
        return json.dumps(value)
    if not isinstance(value, str):
        raise UsageError(f"{where}: field {field!r} holds {type(value).__name__}, not text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{where}: field {field!r} holds half a surrogate pair, which is no character") from error
    return not_empty(where, value, field)


def not_empty(where: str, value: str, field: str) -> str:
    """The value.

    Raises:
        UsageError: It has no character but white space.
    """
    if not value.strip():
        raise UsageError(f"{where}: empty {field}")
    return value


def hash_rows(rows: Iterable[Sequence[str]]) -> str:
    """Hexadecimal SHA-256 of rows in order; each field's length goes before it, so that no two texts look alike."""
    digest = hashlib.sha256()
    for row in rows:
        fields = [field.encode() for field in row]
        digest.update((" ".join(str(len(field)) for field in fields) + "\n").encode())
        for field in fields:
            digest.update(field)
    return digest.hexdigest()


def check_fraction(fraction: float) -> None:
    """A part to hold out.

    Raises:
        UsageError: It does not lie between 0 and 1.
    """
    if not 0 < fraction < 1:
        raise UsageError(f"the fraction held out must lie between 0 and 1, not {fraction}")


def draw(texts: Iterable[str], fraction: float, seed: int) -> set[str]:
    """The `fraction` of the distinct texts whose hashes with `seed` come first, whatever their order.

    Of n texts, `round(fraction · n)` are drawn, but at least 1 and at most n − 1; none where n is 1.
    """
    order = sorted(set(texts), key=lambda text: hashlib.sha256(f"{seed}\0{text}".encode()).digest())
    return set(order[: min(max(1, round(fraction * len(order))), len(order) - 1)])
