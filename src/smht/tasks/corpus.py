"""The user's raw text as documents of bytes, and a part of it held out for validation.

Nothing here decodes: a document is bytes, and what its characters are is the tokenizer's matter. A corpus
remembers what it was asked for in `Corpus.sources`, so that a resumed run can read the same text again.
"""

import hashlib
import importlib
import itertools
import logging
import os
import platform
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from glob import has_magic
from pathlib import Path
from typing import Any, BinaryIO, NoReturn
from urllib.parse import parse_qsl, quote, unquote, urlencode

from smht.errors import UsageError, did_you_mean

STANDARD_INPUT = "-"
STANDARD_LIBRARY = "python-standard-library"
HUB_PREFIX = "hub:"
_HUB_OPTIONS = ("config", "split", "column", "limit_bytes")

_SNIFFED_BYTES = 8192
_TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})
_INSTALLED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__"})
_LARGEST_LIBRARY_FILE = 1 << 20
_FEWEST_WHOLE_DOCUMENTS = 20
_OVERSHOOT = 1.1


@dataclass(frozen=True)
class Document:
    """One text: its `name`, relative to what the user gave, and its bytes as they were stored."""

    name: str
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order, and what they were read from.

    Attributes:
        description: What the text is, for a person.
        sources: What `corpus_from_manifest_sources` reads the text again from: absolute paths and globs, `-`,
            `python-standard-library`, or `hub:NAME?split=...`. The parts that `hold_out` returns keep the
            sources of the whole.
        documents: The texts, none of them empty.
    """

    description: str
    sources: tuple[str, ...]
    documents: tuple[Document, ...] = field(repr=False)

    @property
    def num_bytes(self) -> int:
        """Bytes of all documents together."""
        return sum(len(document.data) for document in self.documents)

    @cached_property
    def sha256(self) -> str:
        """Hexadecimal hash of every document's name and bytes in order; the same wherever the files lie."""
        digest = hashlib.sha256()
        for document in self.documents:
            name = document.name.encode("utf-8", "surrogatepass")
            digest.update(f"{len(name)} {len(document.data)}\n".encode())
            digest.update(name)
            digest.update(document.data)
        return digest.hexdigest()

    def to_manifest(self) -> dict[str, Any]:
        """What a run records about its text, ready for JSON: everything but the text itself."""
        return {
            "description": self.description,
            "sources": list(self.sources),
            "documents": len(self.documents),
            "bytes": self.num_bytes,
            "sha256": self.sha256,
        }


def read_texts(patterns: Sequence[str], *, stdin: BinaryIO | None = None) -> Corpus:
    """Read files, folders, globs and standard input, in the order given.

    Args:
        patterns: Each is a file; a folder (its regular files, recursively, sorted, without hidden ones); a glob
            of files, where `**` is any number of folders and hidden names never match; or `-`. A file with a
            NUL byte in its first 8 KiB is binary: skipped where a folder or a glob found it, read where it was
            named. A file found twice is read once. A document's name is relative to the folder given, or to
            the fixed part of the glob; a file goes by its own name.
        stdin: What `-` reads; by default the process's standard input.

    Raises:
        UsageError: Nothing to read, or something that cannot be read, named.
    """
    if not patterns:
        raise UsageError("no text was given: name a file, a folder, a glob, or - for standard input")
    reader = _Reader(stdin)
    for pattern in patterns:
        reader.read(pattern)
    absolute = (p if p == STANDARD_INPUT else str(Path(p).absolute()) for p in patterns)
    return Corpus(reader.describe(patterns), tuple(dict.fromkeys(absolute)), tuple(reader.documents))


def standard_library() -> Corpus:
    """The source of the standard library of the Python that runs this, without its tests.

    Installed packages, files over 1 MiB and what building Python generated (paths and compiler flags, which
    differ between machines) are left out.

    Raises:
        UsageError: This Python came without its source.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    documents = []
    try:
        for path in _files_under(folder, _TEST_FOLDERS | _INSTALLED_FOLDERS) if folder.is_dir() else ():
            name = path.relative_to(folder).as_posix()
            generated = name.startswith(("_sysconfigdata", "config-"))
            if path.suffix == ".py" and not generated and 0 < path.stat().st_size <= _LARGEST_LIBRARY_FILE:
                documents.append(Document(name, path.read_bytes()))
    except OSError as error:
        _refuse(error, str(folder))
    if not documents:
        raise UsageError(f"this Python came without its standard library's source in {str(folder)!r}: pass text files")
    version = platform.python_version()
    description = f"the Python {version} standard library's source, without tests"
    return Corpus(description, (STANDARD_LIBRARY,), tuple(documents))


def hub_dataset(
    name: str,
    *,
    config: str | None = None,
    split: str = "train",
    column: str | None = None,
    limit_bytes: int | None = None,
) -> Corpus:
    """Read a text column of a dataset on the Hugging Face hub, one document a non-empty row.

    Args:
        name: The dataset's name on the hub, or a local folder that `datasets` understands.
        config: The dataset's configuration, where it has several.
        split: The split to read.
        column: The column that holds the text; by default `text`, else the only column of strings.
        limit_bytes: Stop there (at a character boundary), streaming instead of downloading everything first.

    Raises:
        UsageError: `datasets` is missing, the hub or the dataset is out of reach, or there is no such column.
    """
    if limit_bytes is not None and limit_bytes <= 0:
        raise UsageError(f"limit_bytes must be positive, not {limit_bytes}")
    location = str(Path(name).absolute()) if Path(name).is_dir() else name
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise UsageError("reading a dataset from the hub needs datasets: pip install 'smht[train]'") from error
    try:
        with _quiet_retries():
            rows = datasets.load_dataset(location, config, split=split, streaming=limit_bytes is not None)
            first = next(iter(rows), {})
            column = _text_column(name, first, column)
            texts = (row[column] for row in rows.select_columns([column]))
            documents = tuple(_row_documents(texts, split, limit_bytes))
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"dataset {name!r}: {_first_line(error)}") from error
    except Exception as error:
        raise UsageError(
            f"dataset {name!r}: the hub could not be reached, or the dataset is not there "
            f"({_first_line(error)}); pass text files instead"
        ) from error
    if not documents:
        raise UsageError(f"dataset {name!r}: column {column!r} of split {split!r} holds no text")
    asked = {"config": config, "split": split, "column": column, "limit_bytes": limit_bytes}
    query = urlencode({key: value for key, value in asked.items() if value is not None})
    description = f"dataset {name}, split {split}, column {column}"
    return Corpus(description, (f"{HUB_PREFIX}{quote(location)}?{query}",), documents)


def corpus_from_manifest_sources(sources: Sequence[str], *, stdin: BinaryIO | None = None) -> Corpus:
    """Read again what `Corpus.sources` recorded; `sha256` then says whether the text is still the same.

    Args:
        sources: `Corpus.sources`, or `sources` of a manifest.
        stdin: The same text once more, where a source was standard input.

    Raises:
        UsageError: A source is gone, or was standard input and `stdin` is None.
    """
    if list(sources) == [STANDARD_LIBRARY]:
        return standard_library()
    if len(sources) == 1 and sources[0].startswith(HUB_PREFIX):
        name, _, query = sources[0].removeprefix(HUB_PREFIX).partition("?")
        asked: dict[str, Any] = dict(parse_qsl(query))
        for key in asked:
            if key not in _HUB_OPTIONS:
                raise UsageError(f"a dataset has no option {key!r}: {did_you_mean(key, _HUB_OPTIONS)}")
        if "limit_bytes" in asked:
            asked["limit_bytes"] = int(asked["limit_bytes"])
        return hub_dataset(unquote(name), **asked)
    if STANDARD_INPUT in sources and stdin is None:
        raise UsageError("the text came from standard input, which cannot be read again: pipe the same text in")
    return read_texts(sources, stdin=stdin)


def hold_out(
    corpus: Corpus, *, fraction: float = 0.1, max_bytes: int | None = 131072, seed: int = 0
) -> tuple[Corpus, Corpus]:
    """Split a corpus into a training and a validation part.

    With fewer than 20 documents the end of each is held out: byte `int(n * (1 - fraction))` onward, as in
    nanoGPT, moved on to the next UTF-8 character. With 20 or more, whole documents are, in an order that
    depends on their names and `seed` only, until `min(fraction * bytes, max_bytes)` bytes are reached. A
    document that would pass this by more than a tenth is left for a smaller one; if all would, the smallest
    is held out. Copies of a held-out document leave the training part.

    Args:
        corpus: The whole.
        fraction: Part of the bytes to hold out, in (0, 1).
        max_bytes: The most that `fraction` may come to; None for no limit.
        seed: Chooses among whole documents.

    Returns:
        The training part and the validation part, documents in the order of `corpus`.

    Raises:
        UsageError: A number out of range, or a text that leaves one of the parts empty.
    """
    if not 0 < fraction < 1:
        raise UsageError(f"the fraction held out must lie between 0 and 1, not {fraction}")
    if max_bytes is not None and max_bytes <= 0:
        raise UsageError(f"max_bytes must be positive, not {max_bytes}")
    limit = corpus.num_bytes if max_bytes is None else max_bytes
    if len(corpus.documents) < _FEWEST_WHOLE_DOCUMENTS:
        training, validation = _hold_out_ends(corpus.documents, fraction, limit)
        kept, held = "", "the end of each document"
    else:
        target = min(fraction * corpus.num_bytes, limit)
        training, validation, copies = _hold_out_documents(corpus.documents, target, seed)
        kept = f" ({_count(copies, 'copy', 'copies')} of held-out documents left out)" if copies else ""
        held = _count(len(validation), "whole document")
    if not training or not validation:
        raise UsageError(
            f"the text is too short to hold out a part for validation: {corpus.num_bytes:,} bytes in "
            f"{_count(len(corpus.documents), 'document')}, copies not counted, at a fraction of {fraction:g}"
        )
    return (
        Corpus(f"training part of {corpus.description}{kept}", corpus.sources, tuple(training)),
        Corpus(f"validation part of {corpus.description} ({held})", corpus.sources, tuple(validation)),
    )


class _Reader:
    """Collects the documents of one `read_texts` call."""

    def __init__(self, stdin: BinaryIO | None) -> None:
        self.documents: list[Document] = []
        self._stdin = stdin
        self._seen: set[Path | str] = set()
        self._binary: set[Path] = set()

    def read(self, pattern: str) -> None:
        """Add what `pattern` stands for."""
        try:
            if pattern == STANDARD_INPUT:
                self._read_stdin()
            else:
                self._read_path(pattern, Path(pattern).absolute())
        except OSError as error:
            _refuse(error, pattern)

    def describe(self, patterns: Sequence[str]) -> str:
        """The patterns, shortened, and how many binary files were skipped."""
        names = ["standard input" if p == STANDARD_INPUT else p for p in patterns]
        listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        skipped = len(self._binary - self._seen)
        return listed + (f" ({_count(skipped, 'binary file')} skipped)" if skipped else "")

    def _read_stdin(self) -> None:
        if STANDARD_INPUT in self._seen:
            return
        data = (self._stdin or sys.stdin.buffer).read()
        if not data:
            raise UsageError("standard input is empty")
        self._add(STANDARD_INPUT, STANDARD_INPUT, data)

    def _read_path(self, pattern: str, path: Path) -> None:
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            if not has_magic(pattern):
                raise UsageError(f"no such file or folder: {pattern!r}{_neighbours(path)}") from None
            folder, paths = _expand(pattern, path)
            self._add_found(pattern, folder, paths)
            return
        if stat.S_ISDIR(mode):
            self._add_found(pattern, path, _files_under(path))
        elif stat.S_ISREG(mode):
            self._add_named(pattern, path)
        else:
            raise UsageError(f"{pattern!r} is neither a file nor a folder: to read a pipe, redirect it to - instead")

    def _add_named(self, pattern: str, path: Path) -> None:
        data = path.read_bytes()
        if not data:
            raise UsageError(f"{pattern!r} is empty")
        self._add(path.resolve(), path.name, data)

    def _add_found(self, pattern: str, folder: Path, paths: Iterable[Path]) -> None:
        has_text, binary = False, 0
        for path in paths:
            real = path.resolve()
            data = b"" if real in self._seen else _read_unless_binary(path)
            if data is None:
                self._binary.add(real)
                binary += 1
            elif data:
                self._add(real, path.relative_to(folder).as_posix(), data)
            has_text = has_text or real in self._seen
        if not has_text and binary:
            raise UsageError(f"{pattern!r} holds only binary files ({binary}): name a file itself to read it as bytes")
        if not has_text:
            raise UsageError(f"{pattern!r} holds no text: its files are missing, hidden or empty")

    def _add(self, identity: Path | str, name: str, data: bytes) -> None:
        if identity not in self._seen:
            self._seen.add(identity)
            self.documents.append(Document(name, data))


def _refuse(error: OSError, fallback: str) -> NoReturn:
    name = fallback if error.filename is None else os.fsdecode(error.filename)
    raise UsageError(f"cannot read {name!r}: {(error.strerror or _first_line(error)).lower()}") from error


def _read_unless_binary(path: Path) -> bytes | None:
    with path.open("rb") as file:
        head = file.read(_SNIFFED_BYTES)
        return None if b"\0" in head else head + file.read()


def _files_under(folder: Path, skipped: frozenset[str] = frozenset()) -> list[Path]:
    """The regular files under `folder`, sorted; no hidden ones, none below folders named in `skipped`."""

    def fail(error: OSError) -> NoReturn:
        raise error

    files: list[Path] = []
    visited: set[str] = set()
    for root, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        real = os.path.realpath(root)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in skipped)
        files += (Path(root, name) for name in names if not name.startswith("."))
    return sorted((path for path in files if path.is_file()), key=Path.as_posix)


def _expand(pattern: str, path: Path) -> tuple[Path, list[Path]]:
    """The folder in which the glob `path` begins, and the files that match it, sorted."""
    folder, parts = Path(path.anchor), list(path.parts[1:])
    while (folder / parts[0]).is_dir():
        folder /= parts.pop(0)
    if parts[-1] == "**":
        parts.append("*")
    try:
        matches = [match for match in folder.glob("/".join(parts)) if match.is_file()]
    except ValueError as error:
        raise UsageError(f"{pattern!r} is no glob: {_first_line(error).lower()}") from error
    visible = [m for m in matches if not any(part.startswith(".") for part in m.relative_to(folder).parts)]
    if not visible:
        raise UsageError(f"{pattern!r} matches no file")
    return folder, sorted(visible, key=Path.as_posix)


def _neighbours(path: Path) -> str:
    """The end of an error line about a missing `path`: names like it in its folder, or that there is none."""
    if not path.parent.is_dir():
        return f" (there is no folder {str(path.parent)!r})"
    near = get_close_matches(path.name, [entry.name for entry in path.parent.iterdir() if entry.exists()], cutoff=0.5)
    return f"; {did_you_mean(path.name, near)}" if near else ""


@contextmanager
def _quiet_retries() -> Iterator[None]:
    """Keep the hub client's line for each retry off the screen: the error at the end says it once."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _text_column(dataset: str, row: dict[str, Any], column: str | None) -> str:
    """The column of `dataset` to read, judged by its first row."""
    texts = [name for name, value in row.items() if isinstance(value, str)]
    if column is not None:
        if row and column not in row:
            raise UsageError(f"dataset {dataset!r} has no column {column!r}: {did_you_mean(column, row)}")
        return column
    if "text" in row or not row:
        return "text"
    if len(texts) != 1:
        raise UsageError(f"dataset {dataset!r}: which column holds the text? it has {', '.join(row)}")
    return texts[0]


def _row_documents(texts: Iterable[Any], split: str, limit: int | None) -> Iterator[Document]:
    used = 0
    for number, text in enumerate(texts):
        if not text:
            continue
        if not isinstance(text, str):
            raise UsageError(f"row {number} of split {split!r} holds {type(text).__name__}, not text")
        data = text.encode()
        kept = data if limit is None else data[: limit - used].decode("utf-8", "ignore").encode()
        if kept:
            yield Document(f"{split}/{number}", kept)
        used += len(data)
        if limit is not None and used >= limit:
            return


def _hold_out_ends(documents: Sequence[Document], fraction: float, limit: int) -> tuple[list[Document], list[Document]]:
    sizes = [len(document.data) for document in documents]
    cuts = [int(size * (1 - fraction)) for size in sizes]
    if sum(sizes) - sum(cuts) > limit:
        cuts = [size - size * limit // sum(sizes) for size in sizes]
    cuts = [_next_character(document.data, cut) for document, cut in zip(documents, cuts, strict=True)]
    training = [Document(d.name, d.data[:cut]) for d, cut in zip(documents, cuts, strict=True) if cut]
    validation = [Document(d.name, d.data[cut:]) for d, cut in zip(documents, cuts, strict=True) if cut < len(d.data)]
    return training, validation


def _next_character(data: bytes, cut: int) -> int:
    """`cut`, or the end of the UTF-8 character (1 byte and up to 3 continuation bytes) that it falls into."""
    inside = itertools.takewhile(lambda byte: byte & 0xC0 == 0x80, data[cut : cut + 3])
    return cut + sum(1 for _ in inside)


def _hold_out_documents(
    documents: Sequence[Document], target: float, seed: int
) -> tuple[list[Document], list[Document], int]:
    """Training and validation documents, and how many copies of the latter were left out of the former."""
    unique = {document.data: document for document in reversed(documents)}
    order = sorted(unique.values(), key=lambda document: _draw(document.name, seed))
    held: set[bytes] = set()
    num_held = 0
    for document in order:
        if num_held >= target or len(held) == len(unique) - 1:
            break
        if num_held + len(document.data) <= _OVERSHOOT * target:
            held.add(document.data)
            num_held += len(document.data)
    if not held:
        held.add(min(unique, key=len))
    training = [document for document in documents if document.data not in held]
    validation = [document for document in documents if unique[document.data] is document and document.data in held]
    return training, validation, len(documents) - len(training) - len(validation)


def _draw(name: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}\0{name}".encode("utf-8", "surrogatepass")).digest()


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
