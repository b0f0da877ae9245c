"""`comparison.json`: what a comparison was asked to do, as its report reads it."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smht.errors import UsageError, first_line

RECORD = "comparison.json"


@dataclass(frozen=True)
class Limit:
    """What is the same for all variants.

    Attributes:
        kind: `parameters`, `multiplications` or `width` for a size; `tokens`, `time` or `training-multiplications`
            for a length.
        amount: how much of it; seconds for `time`.
    """

    kind: str
    amount: float


@dataclass(frozen=True)
class Record:
    """What was asked.

    Attributes:
        size: the budget for size, if one was recorded.
        length: the budget for length, if one was recorded.
        variants: names in the order asked for.
        seeds: of the final trials.
        solved: by variant, the sizes that were found: fields of `SmhtConfig`, costs, and `off`, by which part the
            budget is missed.
        settings: all else that makes two comparisons the same, by name, parts of parts with dots between; without
            what is None.
        data: the manifest: `text`, `training` and `validation`, each with `description`, `sources`, `sha256`.
        search_notes: what the rate search had to say.
        versions: of the software, by name.
        command: that makes the comparison again.
    """

    size: Limit | None
    length: Limit | None
    variants: tuple[str, ...]
    seeds: tuple[int, ...]
    solved: Mapping[str, Mapping[str, Any]]
    settings: Mapping[str, Any]
    data: Mapping[str, Mapping[str, Any]]
    search_notes: tuple[str, ...]
    versions: Mapping[str, str]
    command: str | None


def read_record(folder: Path) -> Record:
    """What `comparison.json` says.

    Raises:
        UsageError: the folder holds no comparison, or the file is damaged.
    """
    path = folder / RECORD
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}")
    try:
        return _parse(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UsageError(f"{folder} holds no comparison: it has no {RECORD}") from None
    except (ValueError, OSError) as error:
        raise UsageError(f"{path} is damaged: {first_line(error)}") from None
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path} is damaged: it is no record of a comparison ({first_line(error)})") from None


def _parse(record: dict[str, Any]) -> Record:
    asked, command, search = record["asked"], record.get("command"), record.get("search") or {}
    solved = {str(variant["name"]): dict(variant) for variant in record["variants"]}
    return Record(
        size=_limit(asked.get("size")),
        length=_limit(asked.get("length")),
        variants=tuple(solved),
        seeds=tuple(int(seed) for seed in record["seeds"]),
        solved=solved,
        settings=_flat({name: value for name, value in asked.items() if name not in ("size", "length", "data")}),
        data={name: dict(part) for name, part in (record.get("data") or {}).items()},
        search_notes=tuple(map(str, search.get("notes", ()))),
        versions={name: str(record[name]) for name in ("smht",) if name in record}
        | {name: str(version) for name, version in (record.get("versions") or {}).items()},
        command=shlex.join(command) if isinstance(command, list) else command,
    )


def _limit(limit: dict[str, Any] | None) -> Limit | None:
    return None if limit is None else Limit(str(limit["kind"]), float(limit["amount"]))


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        elif value is not None:
            flat[f"{prefix}{name}"] = value
    return flat
