"""`comparison.json`: what a comparison was asked to do, as its report reads it."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
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
        sizes: by variant, what the solver came to: `asked`, `reached` and the like.
        data: the manifest: `text`, `training` and `validation`, each with `description`, `sources`, `sha256`.
        tokenizer: its kind, or what describes it.
        versions: of the software, by name.
        command: that makes the comparison again.
    """

    size: Limit | None
    length: Limit | None
    variants: tuple[str, ...]
    seeds: tuple[int, ...]
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tokenizer: Any = None
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str | None = None


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
    budget = record.get("budget") or {}
    variants = {str(variant["name"]): variant for variant in record["variants"]}
    return Record(
        size=_limit(budget.get("size")),
        length=_limit(budget.get("length")),
        variants=tuple(variants),
        seeds=tuple(int(seed) for seed in record["seeds"]),
        sizes={name: dict(variant.get("size") or {}) for name, variant in variants.items()},
        data={name: dict(part) for name, part in (record.get("data") or {}).items()},
        tokenizer=record.get("tokenizer"),
        versions={name: str(version) for name, version in (record.get("versions") or {}).items()},
        command=shlex.join(command) if isinstance(command := record.get("command"), list) else command,
    )


def _limit(limit: dict[str, Any] | None) -> Limit | None:
    return None if limit is None else Limit(str(limit["kind"]), float(limit["amount"]))
