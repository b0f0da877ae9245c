"""`comparison.json`: what was asked, what sizes were found, and whether a later request asks for the same."""

import hashlib
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers

from smht.comparison.budget import Limit
from smht.comparison.setting import Setting, to_plain
from smht.comparison.sizes import Solved
from smht.comparison.trial import Conditions
from smht.errors import UsageError
from smht.inspection.accounting import account
from smht.ops import explain
from smht.tokenization import tokenizer_kind
from smht.version import __version__

_ADVICE = "repeat its flags, or name another --output"


def new_record(setting: Setting, command: Sequence[str] = ()) -> dict[str, Any]:
    """The record of a comparison that begins; plain data, as it is read back.

    `asked` holds what makes two requests the same comparison; more variants and more seeds only make it longer.

    Args:
        setting: what is compared.
        command: what was typed, word by word, if anything was.
    """
    manifest = setting.data.manifest()
    for part, tokens in zip(("training", "validation"), setting.examples.token_counts, strict=True):
        manifest[part]["tokens"] = tokens
    tokenizer = setting.tokenizer.backend_tokenizer.to_str()
    asked = {
        "context": setting.context,
        "batch_size": setting.batch_size,
        "data": {part: manifest[part]["sha256"] for part in ("training", "validation")},
        "tokenizer": {
            "kind": tokenizer_kind(setting.tokenizer),
            "vocab_size": len(setting.tokenizer),
            "sha256": hashlib.sha256(tokenizer.encode()).hexdigest(),
        },
        "size": asdict(setting.size),
        "length": asdict(setting.length),
        "solve_depth": setting.request.solve_depth,
        "rates": setting.request.rates,
        "search_share": setting.request.search_share,
        "lengths": list(setting.lengths),
        "architecture": to_plain(setting.base),
        "machine": {
            "device": setting.device,
            "backend": _backend(setting.device),
            "threads": torch.get_num_threads(),
        },
        "parametrisation": setting.request.training.parametrisation,
    }
    record = {
        "smht": __version__,
        "command": list(command) or None,
        "status": "running",
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "asked": asked,
        "variants": [_describe(setting, solved) for solved in setting.solved],
        "seeds": list(setting.request.all_seeds),
        "data": manifest,
        "evaluation_windows": None,
        "search": {"factors": [], "chosen": {}, "notes": []},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
    return json.loads(json.dumps(record))


def _backend(device: str) -> str:
    """What computes split projections; kernels are for the processor, so far."""
    if device != "cpu":
        return "reference"
    return "+".join(dict.fromkeys(next(iter(choice.backends)) for choice in explain()))


def _describe(setting: Setting, solved: Solved) -> dict[str, Any]:
    config, total = solved.config, account(solved.config, setting.context).total
    return {
        "name": solved.variant.name,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "parameters": total.parameters,
        "multiply_adds_per_token": total.multiply_adds,
        "off": solved.off,
        "base_learning_rate": setting.base_learning_rate(solved),
        "learning_rate": None,
    }


def conditions_of(record: dict[str, Any]) -> Conditions:
    """What all trials of the comparison have in common."""
    asked = record["asked"]
    return Conditions(
        context=asked["context"],
        batch_size=asked["batch_size"],
        data=(asked["data"]["training"], asked["data"]["validation"], asked["tokenizer"]["sha256"]),
        evaluation_windows=record["evaluation_windows"],
        lengths=tuple(asked["lengths"]),
        **asked["machine"],
    )


def go_on(known: dict[str, Any], new: dict[str, Any], path: Path) -> dict[str, Any]:
    """The record of a comparison that goes on or grows.

    Args:
        known: what `comparison.json` says.
        new: what was asked now.
        path: the folder.

    Raises:
        UsageError: what was asked now is another comparison, or less than the folder holds.
    """
    before, now = _flat(known["asked"]), _flat(new["asked"])
    for name in [*before, *(set(now) - set(before))]:
        if before.get(name) != now.get(name):
            raise UsageError(f"{path} was begun with {_difference(name, before, now)}; {_ADVICE}")
    names = [variant["name"] for variant in new["variants"]]
    for variant in known["variants"]:
        if variant["name"] not in names:
            raise UsageError(f"{path} compares {variant['name']} too: name all of its variants, or another --output")
    missing = sorted(set(known["seeds"]) - set(new["seeds"]))
    if missing:
        raise UsageError(f"{path} has seed {missing[0]} too: ask for all of its seeds, or name another --output")
    kept = {name: known.get(name) for name in ("started", "evaluation_windows")}
    return {**new, **kept}


def _difference(name: str, before: dict[str, Any], now: dict[str, Any]) -> str:
    if name.startswith("data."):
        return f"another {name.removeprefix('data.')} text"
    if name == "tokenizer.sha256":
        return "another tokenizer"
    advice = f" (OMP_NUM_THREADS={before[name]} sets them)" if name == "machine.threads" else ""
    return (
        f"{name.rpartition('.')[2] if name.startswith(('architecture', 'machine')) else name} = "
        f"{before.get(name)}, not {now.get(name)}{advice}"
    )


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= {f"{name}.{key}": inner for key, inner in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def default_folder(record: dict[str, Any]) -> Path:
    """Where a comparison goes if nobody says: the same place for the same request, so that it goes on there."""
    asked = record["asked"]
    names = [f"{limit['kind']}-{_short(Limit(**limit))}" for limit in (asked["size"], asked["length"])]
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:6]
    return Path("comparisons") / "-".join([*names, digest])


def _short(limit: Limit) -> str:
    if limit.kind == "time":
        return f"{limit.amount:g}s"
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if limit.amount >= size:
            return f"{limit.amount / size:.3g}{unit}"
    return f"{limit.amount:g}"
