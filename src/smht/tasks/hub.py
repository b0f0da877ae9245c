"""Corpora of datasets on the Hugging Face hub."""

import importlib
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from smht.errors import UsageError, did_you_mean, first_line
from smht.tasks.corpus import Corpus, Document

HUB_PREFIX = "hub:"
_OPTIONS = ("config", "split", "column", "limit_bytes")


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
        raise UsageError(f"dataset {name!r}: {first_line(error)}") from error
    except Exception as error:
        raise UsageError(
            f"dataset {name!r}: the hub could not be reached, or the dataset is not there "
            f"({first_line(error)}); pass text files instead"
        ) from error
    if not documents:
        raise UsageError(f"dataset {name!r}: column {column!r} of split {split!r} holds no text")
    asked = {"config": config, "split": split, "column": column, "limit_bytes": limit_bytes}
    query = urlencode({key: value for key, value in asked.items() if value is not None})
    description = f"dataset {name}, split {split}, column {column}"
    return Corpus(description, (f"{HUB_PREFIX}{quote(location)}?{query}",), documents)


def hub_dataset_again(source: str) -> Corpus:
    """Read again what `Corpus.sources` of a `hub_dataset` recorded: `hub:NAME?split=...`.

    Raises:
        UsageError: as `hub_dataset`, or an option that it does not have.
    """
    name, _, query = source.removeprefix(HUB_PREFIX).partition("?")
    asked: dict[str, Any] = dict(parse_qsl(query))
    for key in asked:
        if key not in _OPTIONS:
            raise UsageError(f"a dataset has no option {key!r}: {did_you_mean(key, _OPTIONS)}")
    if "limit_bytes" in asked:
        asked["limit_bytes"] = int(asked["limit_bytes"])
    return hub_dataset(unquote(name), **asked)


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
