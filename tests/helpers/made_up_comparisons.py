"""Folders of comparisons that never ran: plausible results in the files that the report reads."""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

VARIANTS = ("dense", "split", "split+shuffle")
RATES = (1e-3, 1.7e-3, 3e-3, 5e-3, 8e-3)
_EVALUATIONS = 12
_STEPS = 1500
_SIZES = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "parameters": 800_800,
    "multiply_adds_per_token": 780_000,
}


@dataclass
class FakeComparison:
    """A folder to be.

    Attributes:
        variants: names.
        seeds: of the finals.
        losses: final loss by variant and seed; made up where there is none.
        changes: fields of `comparison.json` to replace.
    """

    variants: Sequence[str] = VARIANTS
    seeds: Sequence[int] = (0, 1, 2)
    losses: Mapping[str, Sequence[float]] | None = None
    changes: Mapping[str, Any] | None = None

    def loss(self, variant: str, seed: int) -> float:
        """The final loss: a level of the variant, an effect of the seed on all, noise."""
        if self.losses and variant in self.losses:
            return self.losses[variant][list(self.seeds).index(seed)]
        level = 1.70 + 0.06 * _chance(variant)
        return level + 0.015 * _chance(f"seed {seed}") + 0.004 * _chance(f"{variant} {seed}")

    def finals(self) -> list[dict[str, Any]]:
        """Rows of final trials, seed by seed."""
        return [trial_row(name, "final", seed, self.loss(name, seed)) for seed in self.seeds for name in self.variants]

    def searches(self) -> list[dict[str, Any]]:
        """Rows of the rate search: a parabola over log rate with its best at 3e-3."""
        return [
            trial_row(name, "search", 0, self.loss(name, self.seeds[0]) + 0.2 + 0.1 * np.log(rate / 3e-3) ** 2, rate)
            for name in self.variants
            for rate in RATES
        ]

    def write(self, folder: Path, rows: Iterable[Mapping[str, Any]] | None = None) -> Path:
        """Make the folder; searches and finals unless other rows are given."""
        folder.mkdir(parents=True, exist_ok=True)
        record = {**_record(self.variants, self.seeds), **(self.changes or {})}
        (folder / "comparison.json").write_text(json.dumps(record), encoding="utf-8")
        rows = [*self.searches(), *self.finals()] if rows is None else rows
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "results.jsonl").write_text(text, encoding="utf-8")
        return folder


def trial_row(
    variant: str, purpose: str, seed: int, loss: float | None, rate: float = 3e-3, /, **changes: Any
) -> dict[str, Any]:
    """A line of `results.jsonl`.

    Args:
        variant: its name.
        purpose: `search` or `final`.
        seed: of the trial.
        loss: at the end; None for a trial that diverged.
        rate: the learning rate.
        changes: fields to replace, or to add.
    """
    speed = 9000 * (1.4 if "split" in variant else 1.0) * (1 + 0.1 * _chance(variant))
    steps = _STEPS // 5 if purpose == "search" else _STEPS
    tokens, multiply_adds = steps * 1024, 780_000
    row = {
        "key": f"{zlib.crc32(f'{variant} {purpose} {seed} {rate}'.encode()):08x}",
        "variant": variant,
        "purpose": purpose,
        "seed": seed,
        "learning_rate": rate,
        "status": "done" if loss is not None else "diverged",
        "error": None if loss is not None else f"the loss became nan at step {steps}",
        "config": {"hidden_size": 256, "num_attention_heads": 4},
        "parameters": 800_000 + int(2000 * _chance(variant)),
        "parameters_without_embeddings": 780_000,
        "multiply_adds_per_token": multiply_adds,
        "cache_bytes_per_token": 8192,
        "tokens": tokens,
        "steps": steps,
        "seconds": tokens / speed,
        "tokens_per_second": speed,
        "peak_memory_bytes": 400_000_000,
        "training_multiply_adds": 3 * multiply_adds * tokens,
        "validation_loss": loss,
        "bits_per_byte": None if loss is None else loss / np.log(2),
        "repeats": tokens / 1_000_000,
        "curve": [] if loss is None else _curve(steps, tokens, tokens / speed, 3 * multiply_adds * tokens, loss),
        "backend": "cpu",
        "threads": 2,
        "lengths": [],
    }
    return {**row, **changes}


def _curve(steps: int, tokens: int, seconds: float, multiply_adds: int, loss: float) -> list[dict[str, Any]]:
    """A power law down to `loss`."""
    points = []
    for place in range(1, _EVALUATIONS + 1):
        done = place / _EVALUATIONS
        now = loss + 0.25 * (done**-0.7 - 1)
        points.append(
            {
                "step": round(steps * done),
                "tokens": round(tokens * done),
                "seconds": seconds * done,
                "training_multiply_adds": multiply_adds * done,
                "validation_loss": now,
                "bits_per_byte": now / np.log(2),
            }
        )
    return points


def _record(variants: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    part = {"description": "tinyshakespeare.txt", "sources": ["tinyshakespeare.txt"], "documents": 1}
    return {
        "smht": "0.1",
        "command": f"smht compare tinyshakespeare.txt --variants {','.join(variants)} --seeds {len(seeds)}",
        "asked": {
            "size": {"kind": "parameters", "amount": 800_000},
            "length": {"kind": "tokens", "amount": 1_536_000},
            "rates": len(RATES),
            "search_share": 0.2,
            "context": 64,
            "batch_size": 16,
            "data": {"training": "11" * 32, "validation": "22" * 32},
            "tokenizer": {"kind": "char", "vocab_size": 65, "sha256": "33" * 32},
            "architecture": {"num_hidden_layers": 4},
            "machine": {"device": "cpu", "backend": "cpu", "threads": 2},
        },
        "variants": [{"name": name, **_SIZES, "off": 0.001} for name in variants],
        "seeds": list(seeds),
        "data": {
            "text": {
                **part,
                "bytes": 1_115_394,
                "sha256": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            },
            "training": {**part, "bytes": 1_003_854, "tokens": 1_003_854, "sha256": "11" * 32},
            "validation": {**part, "bytes": 111_540, "tokens": 111_540, "sha256": "22" * 32},
        },
        "search": {"factors": [1.0], "chosen": {}, "notes": []},
        "versions": {"python": "3.11.2", "torch": "2.11.0"},
    }


def _chance(text: str) -> float:
    """A number from −1 to 1 that depends on the text alone."""
    return float(np.random.default_rng(zlib.crc32(text.encode())).uniform(-1, 1))
