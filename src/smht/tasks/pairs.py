"""Pairs of sentences for translation: read from files, and divided so that no source is on both sides."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, BinaryIO

from smht.errors import UsageError
from smht.tasks.corpus import Corpus, Document, counted
from smht.tasks.rows import (
    check_fraction,
    decode,
    draw,
    hash_rows,
    holds_json,
    json_field,
    json_rows,
    not_empty,
    numbered_lines,
    place,
)
from smht.tasks.text_files import read_texts


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation."""

    source: str
    target: str


@dataclass(frozen=True)
class PairCorpus:
    """Pairs in a fixed order, and what they were read from.

    Attributes:
        description: What the pairs are, for a person.
        sources: What `pairs_again` reads them again from: absolute paths and globs, `-`, or one built-in name
            such as `numbers:id-sv`. The parts that `hold_out_pairs` returns keep the sources of the whole.
        pairs: The pairs; neither side of any is empty.
    """

    description: str
    sources: tuple[str, ...]
    pairs: tuple[Pair, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def num_bytes(self) -> int:
        """Bytes of all sources and targets together, in UTF-8."""
        return sum(len(pair.source.encode()) + len(pair.target.encode()) for pair in self.pairs)

    @cached_property
    def sha256(self) -> str:
        """Hexadecimal hash of the pairs in order; the same whatever files and format they were read from."""
        return hash_rows((pair.source, pair.target) for pair in self.pairs)

    def to_manifest(self) -> dict[str, Any]:
        """What a run records about its pairs, ready for JSON: everything but the pairs themselves."""
        return {
            "description": self.description,
            "sources": list(self.sources),
            "pairs": len(self),
            "bytes": self.num_bytes,
            "sha256": self.sha256,
        }


def read_pairs(paths: Sequence[str], *, stdin: BinaryIO | None = None) -> PairCorpus:
    """Read pairs from files, in the order given.

    A file holds `source<TAB>target` lines, or JSON lines with `source` and `target` as strings, other fields
    ignored. A suffix of `.jsonl`, `.ndjson` or `.json` says the latter, `.tsv` and `.csv` the former; elsewhere a
    first character `{` does. A third column, in which the files of Tatoeba and Anki name the authors, is ignored;
    more columns are refused. Text is UTF-8, with or without a byte order mark, and kept as it is; blank lines
    are skipped.

    Args:
        paths: As `read_texts` takes them: files, folders, globs or `-`.
        stdin: What `-` reads; by default the process's standard input.

    Raises:
        UsageError: Nothing to read, or a row that is no pair, with its file and line.
    """
    return pairs_of(read_texts(paths, stdin=stdin))


def pairs_of(corpus: Corpus) -> PairCorpus:
    """The pairs in documents that were already read.

    Raises:
        UsageError: As `read_pairs`.
    """
    pairs: list[Pair] = []
    for document in corpus.documents:
        found = list(_pairs_in(document))
        if not found:
            raise UsageError(f"{document.name} holds no pairs, only blank lines")
        pairs += found
    return PairCorpus(corpus.description, corpus.sources, tuple(pairs))


def hold_out_pairs(corpus: PairCorpus, fraction: float = 0.1, seed: int = 0) -> tuple[PairCorpus, PairCorpus]:
    """Split pairs into a training and a validation part that have no source in common.

    Args:
        corpus: The whole.
        fraction: Part of the distinct sources to hold out, in (0, 1); at least one, and one stays.
        seed: Chooses among them, together with the sources and nothing else.

    Returns:
        The training part and the validation part, pairs in the order of `corpus`.

    Raises:
        UsageError: A fraction out of range, or fewer than two distinct sources.
    """
    check_fraction(fraction)
    held = draw((pair.source for pair in corpus.pairs), fraction, seed)
    if not held:
        raise UsageError(
            f"{corpus.description}: too few pairs to hold some out for validation: "
            f"{counted(len(corpus), 'pair')} but not two different sources"
        )
    training = tuple(pair for pair in corpus.pairs if pair.source not in held)
    validation = tuple(pair for pair in corpus.pairs if pair.source in held)
    return (
        PairCorpus(f"training part of {corpus.description}", corpus.sources, training),
        PairCorpus(
            f"validation part of {corpus.description} ({counted(len(held), 'source')})", corpus.sources, validation
        ),
    )


def _pairs_in(document: Document) -> Iterator[Pair]:
    name, text = document.name, decode(document)
    if holds_json(name, text):
        for number, row in json_rows(name, text):
            where = place(name, number)
            yield Pair(json_field(where, row, "source"), json_field(where, row, "target"))
    else:
        for number, line in numbered_lines(text):
            where = place(name, number)
            columns = line.split("\t")
            if len(columns) not in (2, 3):
                raise UsageError(
                    f"{where}: {counted(len(columns), 'column')}, not source<TAB>target, "
                    "after which only a third column may stand, to be ignored"
                )
            yield Pair(not_empty(where, columns[0], "source"), not_empty(where, columns[1], "target"))
